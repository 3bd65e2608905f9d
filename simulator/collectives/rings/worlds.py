"""Gloo's rings on many clusters at once, where all ranks enter together.

Clusters that differ only in prices (links, host, sums) run one program: messages are priced for all
together, and one compiled loop goes from cluster to cluster (`rings/announced_loop.py`); copies and
the host are added as in `dispatch.py`.

Left out: short last segments of an all-reduce, where that is a few bytes, so that one rank stands
for all on equal links; random delays and links that change over time; picoseconds by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import PS_PER_SECOND, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of, call_of, sizes_received
from gcsim.simulator.collectives.rings.announced import rules_of
from gcsim.simulator.collectives.rings.announced_loop import Prices as Paths
from gcsim.simulator.collectives.rings.announced_loop import last_exits
from gcsim.simulator.collectives.rings.messages import classes, common_period
from gcsim.simulator.collectives.rings.program import Program
from gcsim.simulator.collectives.staging import copy_link
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import DTYPES, PRICES, Host
from gcsim.simulator.network.links import Link

Column = NDArray[np.float64]  # `[clusters]`, picoseconds
_COPIES = slice(-1, None)
_ABOUT_ALL = 1.05  # most by which segments as long as the first may exceed the vector


Figures = Callable[[Any, Sequence[str], str], Column]
"""A figure by cluster, from its owner as stated, the owner's path from the cluster, and its name.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """Picoseconds on many clusters, a row each."""

    hops: Mapping[bool, tuple[NDArray[np.int64], slice]]
    """Each rank's class of links and the classes' place among the links, by direction."""
    each: NDArray[np.float64]  # `[clusters, links]`: per byte; the last link is that of copies
    once: NDArray[np.float64]  # per message
    latency: Times
    host: Mapping[str, Column]  # by `PRICES`
    gamma: Callable[[str], Column]  # per byte added, by type
    links: Sequence[Sequence[Link]] = ()  # `[clusters, links]`, where some have size factors

    def some(self, rows: Sequence[int]) -> Prices:
        """Prices of some of the clusters."""
        return replace(
            self,
            each=self.each[rows],
            once=self.once[rows],
            latency=self.latency[rows],
            host={price: values[rows] for price, values in self.host.items()},
            gamma=lambda dtype: self.gamma(dtype)[rows],
        )


def one_by_one(clusters: Sequence[Cluster]) -> Prices:
    """Prices of clusters of one shape."""
    fabrics = [Fabric.of(cluster) for cluster in clusters]
    hops, links = {}, [list[Link]() for _ in clusters]
    for backwards in (False, True):
        rings = [fabric.ring_links(backwards=backwards) for fabric in fabrics]
        _, kinds = classes([id(link) for link in rings[0]])
        one_each = np.unique(kinds, return_index=True)[1].tolist()
        hops[backwards] = kinds, slice(len(links[0]), len(links[0]) + len(one_each))
        for own, ring in zip(links, rings, strict=True):
            own += [ring[rank] for rank in one_each]
    for own, cluster in zip(links, clusters, strict=True):
        own.append(copy_link(cluster))
    hosts = [cluster.host or Host() for cluster in clusters]

    def table(figure: Callable[[Link], Any]) -> NDArray[np.float64]:
        return np.array([[float(figure(link)) for link in own] for own in links])

    def gamma(dtype: str) -> Column:
        each = np.array([float(cluster.sums.gamma(dtype)) for cluster in clusters])
        return each * PS_PER_SECOND

    return Prices(
        hops=hops,
        each=table(lambda link: PS_PER_SECOND / link.rate),
        once=table(lambda link: link.overhead * PS_PER_SECOND),
        latency=table(lambda link: link.latency_for(0)).astype(np.int64),
        host={
            price: np.array([float(getattr(host, price)) for host in hosts]) * PS_PER_SECOND
            for price in PRICES
        },
        gamma=gamma,
        links=links if any(link.factors for own in links for link in own) else (),
    )


def at_once(cluster: Cluster, figures: Figures) -> Prices:
    """Prices of a `plain` cluster with other figures: a hop is one of its links, shared by some."""
    fabric = Fabric.of(cluster)
    apart = cluster.between_ranks is not cluster.intra_node
    names = ("shared_memory" if apart else "intra_node", "network")
    asked: list[tuple[str, int]] = []  # links and their sharers
    hops = {}
    for backwards in (False, True):
        successors = np.roll(fabric.everyone, 2 * backwards - 1)
        paths, kinds = fabric.alike_messages(fabric.everyone, successors)
        hops[backwards] = kinds, slice(len(asked), len(asked) + len(paths))
        asked += [(names[out], max(leaving, entering)) for out, leaving, _, entering, *_ in paths]
    asked.append(("intra_node", cluster.devices_per_node if cluster.shared_bus else 1))

    def table(field: str) -> NDArray[np.float64]:
        of = {n: figures(getattr(cluster, n), ("cluster", n), field) for n in {n for n, _ in asked}}
        return np.stack([of[name] for name, _ in asked], axis=1)

    def gamma(dtype: str) -> Column:
        named = dtype if dtype in DTYPES else "float32"
        if getattr(cluster.sums, named) is None:
            return np.zeros(len(each))
        return PS_PER_SECOND * (1 / figures(cluster.sums, ("cluster", "sums"), named))

    links = [getattr(cluster, name) for name, _ in asked]
    sharers = np.array([shared for _, shared in asked])
    free = np.array([float(1 - link.background) for link in links])
    each = sharers * PS_PER_SECOND / (table("bandwidth") * table("efficiency") * free)
    least = [0.0 if link.flow is None else float(PS_PER_SECOND / link.flow) for link in links]
    host = cluster.host or Host()
    return Prices(
        hops=hops,
        each=np.maximum(each, least),
        once=table("overhead") * PS_PER_SECOND,
        latency=np.rint(table("latency") * PS_PER_SECOND).astype(np.int64),
        host={price: figures(host, ("cluster", "host"), price) * PS_PER_SECOND for price in PRICES},
        gamma=gamma,
    )


def plain(cluster: Cluster) -> bool:
    """Whether all nodes have the same links, each only a rate, an overhead and a latency."""
    links = (cluster.network, cluster.intra_node, cluster.between_ranks)
    alike = not (cluster.nics or cluster.buses or cluster.racks)
    return alike and not any(
        link.up or link.factors or link.loss or link.alone or link.timed for link in links
    )


class RingWorlds:
    """Gloo's rings on clusters of one shape."""

    def __init__(self, cluster: Cluster, price: Callable[[], Prices]) -> None:
        """`cluster`: the first; `price` is asked at the first ring: most transports have none."""
        self._cluster, self._fabric, self._price = cluster, Fabric.of(cluster), price

    def some(self, rows: Sequence[int]) -> RingWorlds:
        """Rings on some of the clusters."""
        return RingWorlds(self._cluster, lambda: self._prices.some(rows))

    @cached_property
    def _prices(self) -> Prices:
        return self._price()

    def __call__(self, record: CollectiveRecord) -> Column | None:
        """Last exit on each cluster; None if no ring of Gloo's of all ranks, empty, or delayed at
        random."""
        cluster = self._cluster
        if record.scope != "all" or cluster.workers == 1:
            return None
        if any(link.random or link.timed for link in cluster.links()):
            return None
        call, reduces = call_of(record, cluster, self._fabric), record.kind == "all_reduce"
        ring, sent = algorithm_of(record, cluster).ring, call.sent
        program = None if ring is None else ring(call)
        if program is None or not program.announced:
            return None
        if reduces and program.sizes[0] * program.pieces.size <= _ABOUT_ALL * sent[0]:
            program = replace(program, pieces=np.zeros_like(program.pieces))
        received = sizes_received(record, sent)[0]
        starts, back = self._copied(sent), self._copied([received])[:, 0]
        finishes = self._finishes(program, starts, record.dtype)
        return (
            self._hosted(program, starts.max(axis=1), finishes, 0 if reduces else received) + back
        )

    def _copied(self, sizes: Sequence[int]) -> Times:
        """Copies between device and host, `[clusters, sizes]`."""
        if not self._cluster.collectives.stages:
            return np.zeros((len(self._prices.each), len(sizes)), dtype=np.int64)
        places, ranks = classes(sizes)
        times = [self._serialization(_COPIES, n) + self._later(_COPIES, n) for n in places]
        copies: Times = np.concatenate(times, axis=1)[:, ranks]
        return copies

    def _serialization(self, which: slice, nbytes: int) -> Times:
        """Serialisation on these links, `[clusters, links]`."""
        prices = self._prices
        if prices.links:
            return self._asked(Link.serialization, which, nbytes)
        times = prices.once[:, which] + nbytes * prices.each[:, which]
        rounded: Times = np.rint(times).astype(np.int64)
        return rounded

    def _later(self, which: slice, nbytes: int) -> Times:
        prices = self._prices
        if prices.links:
            return self._asked(Link.latency_for, which, nbytes)
        return prices.latency[:, which]

    def _asked(self, question: Callable[[Link, int], int], which: slice, nbytes: int) -> Times:
        found = [[question(link, nbytes) for link in own[which]] for own in self._prices.links]
        return np.array(found, dtype=np.int64)

    def _finishes(self, program: Program, starts: Times, dtype: str) -> Times:
        """Last rank's finish `[clusters]` without the host's work."""
        prices = self._prices
        kinds, hops = prices.hops[program.backwards]
        if program.backwards:
            kinds = kinds[::-1]
        elif starts.shape[1] == 2:
            starts = self._apart(starts, self._later(hops, 0)[:, kinds])
        ranks, period = len(kinds), common_period(program.alike, kinds, starts[0])
        each = np.array(program.sizes, dtype=np.int64)
        reception, gamma = np.zeros(len(starts)), np.zeros(len(starts))
        if program.backwards:  # an all-reduce
            reception, gamma = prices.host["per_received_byte"], prices.gamma(dtype)
        taken = np.rint(reception[:, None] * each).astype(np.int64)
        sizes = program.sizes
        serialization = np.stack([self._serialization(hops, n) for n in sizes], axis=1)
        latency = np.stack([self._later(hops, n) for n in sizes], axis=1) + taken[:, :, None]
        once = program.pieces[:period]
        found = np.empty(len(starts), dtype=np.int64)
        paths = Paths(
            kinds=np.ascontiguousarray(kinds[:period]),
            nbytes=each,
            serialization=serialization.reshape(len(starts), -1),
            latency=latency.reshape(len(starts), -1),
            back=np.ascontiguousarray(self._later(hops, 0)[:, kinds[:period]]),
            reductions=np.rint(gamma[:, None] * each).astype(np.int64),
        )
        last_exits(
            np.ascontiguousarray(starts[:, :period]),
            np.concatenate((once, once)).T.copy(),
            paths,
            *rules_of(program, ranks, once, constant=True, even=not kinds.any()),
            *program.by_phase(period),
            (ranks - 1) * program.pieces.shape[1],
            program.in_flight,
            found,
        )
        return found

    @staticmethod
    def _apart(starts: Times, latency: Times) -> Times:
        """Make two ranks gather at least a latency apart (`gloo_allgather._Apart`)."""
        rows, first = np.arange(len(starts)), (starts[:, 0] > starts[:, 1]).astype(np.int64)
        apart = starts.copy()
        soonest = starts[rows, first] + np.maximum(1, latency[rows, first])
        apart[rows, 1 - first] = np.maximum(starts[rows, 1 - first], soonest)
        return apart

    def _hosted(self, program: Program, last: Times, finishes: Times, copied: int) -> Column:
        """Finishes with the processors' work (`host.py`)."""
        cluster, prices = self._cluster, self._prices.host
        host, devices = cluster.host or Host(), cluster.devices_per_node
        processes = cluster.workers if host.ranks == "all" else devices
        network = (finishes - last).astype(np.float64)
        if any(prices[price].any() for price in ("per_message", "per_byte", "per_call")):
            traffic = program.traffic(devices)
            handled = np.outer(prices["per_message"], traffic.ends)
            handled += np.outer(prices["per_byte"], traffic.nbytes)
            work = prices["per_call"][:, None] + handled / 2
            machines = work.reshape(len(work), -1, processes).sum(axis=2) / host.cores
            beside = np.maximum(work.max(axis=1), machines.max(axis=1))
            under, over, power = np.zeros_like(beside), np.ones_like(beside), np.ones_like(beside)
            for _ in range(host.in_flight):
                power = power * beside
                under, over = over, network * over + power
            network = over / under
        turns = max(1.0, processes / host.cores)
        after = prices["dispatch"] + copied * turns * prices["per_copied_byte"]
        hosted: Column = last + network + after
        return hosted
