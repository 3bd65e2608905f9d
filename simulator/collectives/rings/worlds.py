"""Gloo's rings on many clusters at once, where all ranks enter together.

Clusters that differ only in figures of links, host and sums run the same program. So messages are
priced for all clusters at once, and a compiled loop runs each cluster (`rings/announced_loop.py`);
copies and host work are added as in `dispatch.py`.

Unlike in the exact simulation, the last segments of an all-reduce count as full if that adds few
bytes, so that one rank represents all on equal links, and times are rounded differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import PS_PER_SECOND, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of, call_of, sizes_received
from gcsim.simulator.collectives.rings.announced import phases_of
from gcsim.simulator.collectives.rings.announced_loop import Prices as Paths
from gcsim.simulator.collectives.rings.announced_loop import last_exits
from gcsim.simulator.collectives.rings.messages import classes, common_period
from gcsim.simulator.collectives.rings.program import Program
from gcsim.simulator.collectives.staging import copy_link
from gcsim.simulator.fabric.in_worlds import Column, PathPrices, PathsInWorlds
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import DTYPES, PRICES, Host

_ABOUT_ALL = 1.05  # most total size of full segments over the vector's, to count all as full


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """Prices on many clusters, one row per cluster."""

    kinds: Mapping[bool, NDArray[np.int64]]  # each rank's class of hops, by direction
    hops: Mapping[bool, PathPrices]  # of the classes
    copies: PathPrices
    host: Mapping[str, Column]  # picoseconds, by `PRICES`
    gamma: Callable[[str], Column]  # picoseconds per byte added, by type

    def select(self, rows: Sequence[int]) -> Prices:
        """Prices on some of the clusters."""
        return replace(
            self,
            hops={backwards: prices.select(rows) for backwards, prices in self.hops.items()},
            copies=self.copies.select(rows),
            host={price: values[rows] for price, values in self.host.items()},
            gamma=lambda dtype: self.gamma(dtype)[rows],
        )


def prices_of_clusters(clusters: Sequence[Cluster]) -> Prices:
    """Prices of clusters of one shape."""
    fabrics = [Fabric.of(cluster) for cluster in clusters]
    kinds, hops = {}, {}
    for backwards in (False, True):
        rings = [fabric.ring_links(backwards=backwards) for fabric in fabrics]
        _, kinds[backwards] = classes([id(link) for link in rings[0]])
        one_each = np.unique(kinds[backwards], return_index=True)[1].tolist()
        hops[backwards] = PathPrices.of([[ring[rank] for rank in one_each] for ring in rings])
    hosts = [cluster.host or Host() for cluster in clusters]

    def gamma(dtype: str) -> Column:
        each = np.array([float(cluster.sums.gamma(dtype)) for cluster in clusters])
        return each * PS_PER_SECOND

    return Prices(
        kinds=kinds,
        hops=hops,
        copies=PathPrices.of([[copy_link(cluster)] for cluster in clusters]),
        host={
            price: np.array([float(getattr(host, price)) for host in hosts]) * PS_PER_SECOND
            for price in PRICES
        },
        gamma=gamma,
    )


def prices_in_worlds(worlds: PathsInWorlds) -> Prices:
    """Prices of a cluster with other figures."""
    cluster = worlds.cluster
    fabric = Fabric.of(cluster)
    kinds, hops = {}, {}
    for backwards in (False, True):
        paths, kinds[backwards] = fabric.ring_paths(backwards=backwards)
        hops[backwards] = worlds.paths(paths)

    def gamma(dtype: str) -> Column:
        named = dtype if dtype in DTYPES else "float32"
        if getattr(cluster.sums, named) is None:
            return np.zeros(len(worlds.copies.per_byte))
        return PS_PER_SECOND * (1 / worlds.figure("sums", named))

    return Prices(
        kinds=kinds,
        hops=hops,
        copies=worlds.copies,
        host={price: worlds.figure("host", price) * PS_PER_SECOND for price in PRICES},
        gamma=gamma,
    )


class RingWorlds:
    """Gloo's rings on clusters of one shape."""

    def __init__(self, cluster: Cluster, price: Callable[[], Prices]) -> None:
        """`cluster`: the first one; `price` is called for the first ring, if there is one."""
        self._cluster, self._fabric, self._price = cluster, Fabric.of(cluster), price

    def select(self, rows: Sequence[int]) -> RingWorlds:
        """Rings on some of the clusters."""
        return RingWorlds(self._cluster, lambda: self._prices.select(rows))

    @cached_property
    def _prices(self) -> Prices:
        return self._price()

    def __call__(self, record: CollectiveRecord) -> Column | None:
        """Return the last exit on each cluster; None if it is not one of Gloo's rings over all
        ranks, is empty, or has random delays."""
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
        """Return the times of copies between device and host, `[clusters, sizes]`."""
        if not self._cluster.collectives.stages:
            return np.zeros((len(self._prices.copies.per_byte), len(sizes)), dtype=np.int64)
        copy, (places, ranks) = self._prices.copies, classes(sizes)
        times = [copy.serialization(n) + copy.latencies(n) for n in places]
        copies: Times = np.concatenate(times, axis=1)[:, ranks]
        return copies

    def _finishes(self, program: Program, starts: Times, dtype: str) -> Times:
        """Return the last rank's exit `[clusters]` without the host's work."""
        prices = self._prices
        kinds, hops = prices.kinds[program.backwards], prices.hops[program.backwards]
        if program.backwards:
            kinds = kinds[::-1]
        elif starts.shape[1] == 2:
            starts = self._apart(starts, hops.latencies(0)[:, kinds])
        ranks, period = len(kinds), common_period(program.alike, kinds, starts[0])
        each = np.array(program.sizes, dtype=np.int64)
        reception, gamma = np.zeros(len(starts)), np.zeros(len(starts))
        if program.backwards:  # an all-reduce
            reception, gamma = prices.host["per_received_byte"], prices.gamma(dtype)
        taken = np.rint(reception[:, None] * each).astype(np.int64)
        sizes = program.sizes
        serialization = np.stack([hops.serialization(n) for n in sizes], axis=1)
        latency = np.stack([hops.latencies(n) for n in sizes], axis=1) + taken[:, :, None]
        found = np.empty(len(starts), dtype=np.int64)
        paths = Paths(
            kinds=np.ascontiguousarray(kinds[:period]),
            nbytes=each,
            serialization=serialization.reshape(len(starts), -1),
            latency=latency.reshape(len(starts), -1),
            back=np.ascontiguousarray(hops.latencies(0)[:, kinds[:period]]),
            reductions=np.rint(gamma[:, None] * each).astype(np.int64),
        )
        last_exits(
            np.ascontiguousarray(starts[:, :period]),
            phases_of(program, ranks, period, constant=True, even=not kinds.any()),
            paths,
            found,
        )
        return found

    @staticmethod
    def _apart(starts: Times, latency: Times) -> Times:
        """Move two ranks' entries at least a latency apart (`gloo_allgather._LatencyApart`)."""
        rows, first = np.arange(len(starts)), (starts[:, 0] > starts[:, 1]).astype(np.int64)
        apart = starts.copy()
        soonest = starts[rows, first] + np.maximum(1, latency[rows, first])
        apart[rows, 1 - first] = np.maximum(starts[rows, 1 - first], soonest)
        return apart

    def _hosted(self, program: Program, last: Times, finishes: Times, copied: int) -> Column:
        """Add the host's work to exits (`host.py`)."""
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
