"""Gloo's rings on many clusters at once, where all ranks enter together.

Clusters that differ only in prices (links, host, sums) run one program: messages are priced for all
together, and one compiled loop goes from cluster to cluster (`rings/announced_loop.py`); copies and
the host are added as in `dispatch.py`.

Left out: short last segments of an all-reduce, where that is a few bytes, so that one rank stands
for all on equal links; random delays and links that change over time; picoseconds by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import PS_PER_SECOND, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of, call_of, sizes_received
from gcsim.simulator.collectives.rings.announced import rules_of
from gcsim.simulator.collectives.rings.announced_loop import Prices, last_exits
from gcsim.simulator.collectives.rings.messages import classes, common_period
from gcsim.simulator.collectives.rings.program import Program
from gcsim.simulator.collectives.staging import copy_link
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import PRICES, Host
from gcsim.simulator.network.links import Link

Column = NDArray[np.float64]  # `[clusters]`, picoseconds
_ABOUT_ALL = 1.05  # most by which segments as long as the first may exceed the vector


class RingWorlds:
    """Gloo's rings on clusters of one shape."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self._cluster, self._clusters = clusters[0], clusters
        self._fabric = Fabric.of(clusters[0])
        self._is_priced = False

    def _price(self) -> None:
        """Price the hops of all clusters, at the first such ring: most transports have none."""
        self._is_priced, clusters = True, self._clusters
        links: list[Link] = []
        self._hops: dict[bool, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        """Each rank's link class and the classes' numbers on each cluster, by direction."""
        fabrics = [self._fabric, *(Fabric.of(cluster) for cluster in clusters[1:])]
        for backwards in (False, True):
            rings = [fabric.ring_links(backwards=backwards) for fabric in fabrics]
            _, kinds = classes([id(link) for link in rings[0]])
            one_each = np.unique(kinds, return_index=True)[1].tolist()
            numbers = np.arange(len(rings) * len(one_each)).reshape(len(rings), -1) + len(links)
            links += [ring[rank] for ring in rings for rank in one_each]
            self._hops[backwards] = kinds, numbers
        self._copies = np.arange(len(clusters)) + len(links)
        self._links = links = [*links, *map(copy_link, clusters)]
        self._factors = any(link.factors for link in links)
        self._each = np.array([float(PS_PER_SECOND / link.rate) for link in links])
        self._once = np.array([float(link.overhead * PS_PER_SECOND) for link in links])
        self._latency = np.array([link.latency_for(0) for link in links], dtype=np.int64)
        hosts = [cluster.host or Host() for cluster in clusters]
        self._host = hosts[0]
        self._prices = {
            price: np.array([float(getattr(host, price)) for host in hosts]) * PS_PER_SECOND
            for price in PRICES
        }

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
        if not self._is_priced:
            self._price()
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
            return np.zeros((len(self._copies), len(sizes)), dtype=np.int64)
        places, ranks = classes(sizes)
        times = [
            self._serialization(self._copies, n) + self._later(self._copies, n) for n in places
        ]
        copies: Times = np.stack(times, axis=1)[:, ranks]
        return copies

    def _serialization(self, numbers: NDArray[np.int64], nbytes: int) -> Times:
        if self._factors:
            return self._asked(Link.serialization, numbers, nbytes)
        times = self._once[numbers] + nbytes * self._each[numbers]
        rounded: Times = np.rint(times).astype(np.int64)
        return rounded

    def _later(self, numbers: NDArray[np.int64], nbytes: int) -> Times:
        if self._factors:
            return self._asked(Link.latency_for, numbers, nbytes)
        return self._latency[numbers]

    def _asked(
        self, question: Callable[[Link, int], int], numbers: NDArray[np.int64], nbytes: int
    ) -> Times:
        found = [question(self._links[number], nbytes) for number in numbers.reshape(-1).tolist()]
        return np.array(found, dtype=np.int64).reshape(numbers.shape)

    def _finishes(self, program: Program, starts: Times, dtype: str) -> Times:
        """Last rank's finish `[clusters]` without the host's work."""
        kinds, numbers = self._hops[program.backwards]
        if program.backwards:
            kinds = kinds[::-1]
        elif starts.shape[1] == 2:
            starts = self._apart(starts, self._later(numbers, 0)[:, kinds])
        ranks, period = len(kinds), common_period(program.alike, kinds, starts[0])
        each = np.array(program.sizes, dtype=np.int64)
        reception, gamma = np.zeros(len(starts)), np.zeros(len(starts))
        if program.backwards:  # an all-reduce
            reception = self._prices["per_received_byte"]
            sums = [cluster.sums.gamma(dtype) for cluster in self._clusters]
            gamma = np.array([float(one) for one in sums]) * PS_PER_SECOND
        taken = np.rint(reception[:, None] * each).astype(np.int64)
        sizes = program.sizes
        serialization = np.stack([self._serialization(numbers, n) for n in sizes], axis=1)
        latency = np.stack([self._later(numbers, n) for n in sizes], axis=1) + taken[:, :, None]
        once = program.pieces[:period]
        found = np.empty(len(starts), dtype=np.int64)
        prices = Prices(
            kinds=np.ascontiguousarray(kinds[:period]),
            nbytes=each,
            serialization=serialization.reshape(len(starts), -1),
            latency=latency.reshape(len(starts), -1),
            back=np.ascontiguousarray(self._later(numbers, 0)[:, kinds[:period]]),
            reductions=np.rint(gamma[:, None] * each).astype(np.int64),
        )
        last_exits(
            np.ascontiguousarray(starts[:, :period]),
            np.concatenate((once, once)).T.copy(),
            prices,
            *rules_of(program, ranks, once, constant=True, even=not kinds.any()),
            np.array([phase.reduces for phase in program.phases]),
            np.array([phase.first % period for phase in program.phases], dtype=np.int64),
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
        host, prices, devices = self._host, self._prices, self._cluster.devices_per_node
        processes = self._cluster.workers if host.ranks == "all" else devices
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
