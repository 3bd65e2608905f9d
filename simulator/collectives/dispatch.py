"""When is every rank done with a collective? Requests go to their algorithms from here.

Where no algorithm is named, the transport chooses (see `choice.py`). Where device tensors are
staged (`Collectives.stages`), they are copied to host memory before and back after (`staging.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.algorithms import ALGORITHMS, Algorithm
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.choice import algorithm_name
from gcsim.simulator.collectives.rings.recurrence import PreparedRing
from gcsim.simulator.collectives.staging import copy_link, copy_times
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic, Work

_ONLY = {"push_pull": "parameter_server", "all_to_all": "pairwise", "tree_merge": "binomial"}
"""The algorithm of the kinds that have one. (A push-pull without servers never comes here:
`push_pull.py` has made other collectives of it.)"""
_KEPT_BYTES = 2**26


def algorithm_of(record: CollectiveRecord, cluster: Cluster) -> Algorithm:
    """What `Cluster.collectives` says of a request's kind, size and number of ranks."""
    return _algorithm(record, sizes_sent(record, cluster.workers), cluster)


def traffic_of(record: CollectiveRecord, cluster: Cluster) -> Traffic:
    """What the processes handle in a collective on a cluster of more than one worker."""
    call = call_of(record, cluster, Fabric.of(cluster))
    return _algorithm(record, call.sent, cluster).traffic(call)


def execute(
    record: CollectiveRecord,
    starts: Times,
    cluster: Cluster,
    server_time: Picoseconds = 0,
    key: int = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, as `CollectiveMemo`, of one collective."""
    return CollectiveMemo(cluster)(record, starts, server_time, key)


class CollectiveMemo:
    """Carries out collectives on one cluster, of which it remembers what can come again.

    What does not depend on entry times is prepared once for each request. Without random delays and
    links that change over time, times only shift with the entry times, and a collective is known by
    its request, by the servers' computation and by the entry times relative to the first rank's.
    Rings are not remembered: to compute one again takes as long as to look it up.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._requests: OrderedDict[CollectiveRecord, _Request] = OrderedDict()
        self._held = 0
        """About the bytes that the requests take."""
        self._fabric: Fabric | None = None
        self._grouped: Fabric | None = None
        """As all-to-alls find it, where that is another."""
        self._repeats = not any(link.random or link.timed for link in cluster.links())
        self._known: OrderedDict[tuple[CollectiveRecord, bytes, Picoseconds], Times] = OrderedDict()

    def __call__(
        self, record: CollectiveRecord, starts: Times, server_time: Picoseconds = 0, key: int = 0
    ) -> Times:
        """Exit times `[p]` for entry times `[p]` (int64, picoseconds) on the cluster's p workers.

        The workers' payload sizes are those of the record, cycled: worker i sends what the
        recorded worker i mod N sent; parts of one whole are N / p as large, rounded up, for p
        workers. `server_time` is the computation of parameter servers or of a merge, `key` that of
        the random delays (`jitter.collective_key`). Entry times are absolute where links change
        over time. One worker alone leaves at once. Raises `InternalError` when a rank would leave
        before the last one has entered, which no collective here can do.
        """
        workers = self.cluster.workers
        if starts.shape != (workers,):
            raise InternalError(f"{starts.shape} entry times for a collective of {workers} workers")
        if workers == 1:
            return starts.copy()
        request = self._requests.get(record)
        if request is None:
            request = self._requests[record] = self._prepare(record)
            self._held += request.nbytes
            while self._held > _KEPT_BYTES and len(self._requests) > 1:
                self._held -= self._requests.popitem(last=False)[1].nbytes
        if request.ring is not None or not self._repeats:
            return request.execute(starts, server_time, key)
        first = starts[0]
        name = (record, (starts - first).tobytes(), server_time)
        finishes = self._known.get(name)
        if finishes is None:
            earliest = starts.min()
            relative = request.execute(starts - earliest, server_time, key)
            finishes = relative + (earliest - first)
            self._known[name] = finishes
            while len(self._known) * 2 * finishes.nbytes > _KEPT_BYTES:
                self._known.popitem(last=False)
        shifted: Times = finishes + first
        return shifted

    def _prepare(self, record: CollectiveRecord) -> _Request:
        cluster = self.cluster
        grouped = record.kind == "all_to_all" and cluster.collectives.grouped != 1
        if grouped:
            cluster = cluster.at_grouped_rates
        fabric = self._grouped if grouped else self._fabric
        if fabric is None:
            fabric = Fabric.of(cluster)
            if grouped:
                self._grouped = fabric
            else:
                self._fabric = fabric
        call = call_of(record, cluster, fabric)
        sent = call.sent
        algorithm = _algorithm(record, sent, cluster)
        copies: tuple[Times, Times] | None = None
        if cluster.collectives.stages and not algorithm.stages_itself:
            link = copy_link(cluster)
            copies = copy_times(sent, link), copy_times(sizes_received(record, sent), link)
        host = cluster.host
        work = Work() if host is None else host.work(algorithm.traffic(call))
        return _Request(
            algorithm=algorithm,
            call=call,
            ring=None if algorithm.prepared is None else algorithm.prepared(call),
            copies=copies,
            host_work=work,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    """A collective, but for its entry times."""

    algorithm: Algorithm
    call: Call
    ring: PreparedRing | None
    """All of it, where it is one textbook ring."""
    copies: tuple[Times, Times] | None
    """Before and after, `[p]` each."""
    host_work: Work = Work()  # noqa: RUF009 (frozen)
    """What the cluster's host has to do."""

    @property
    def nbytes(self) -> int:
        """About the memory that it takes: numbers of each rank, of each size on each link."""
        ranks = len(self.call.sent)
        if self.ring is None:
            return 32 * ranks
        links = min(ranks, len(self.call.cluster.links()))
        return 4096 + 112 * ranks + 16 * len(set(self.call.sent)) * links

    def execute(self, starts: Times, server_time: Picoseconds, key: int) -> Times:
        """Exit times, as of `CollectiveMemo`."""
        if self.copies is None:
            finishes = self._on_host(starts, server_time, key)
        else:
            to_host, back = self.copies
            finishes = self._on_host(starts + to_host, server_time, key) + back
        if np.minimum.reduce(finishes) < np.maximum.reduce(starts):
            raise InternalError(
                f"{self.algorithm.title}: a rank leaves at {finishes.min()} ps, before the last "
                f"one enters at {starts.max()} ps"
            )
        return finishes

    def _on_host(self, starts: Times, server_time: Picoseconds, key: int) -> Times:
        if self.ring is not None:
            finishes = self.ring(starts, key)
        else:
            call = replace(self.call, starts=starts, server_time=server_time, key=key)
            finishes = self.algorithm.execute(call)
        host = self.call.cluster.host
        return finishes if host is None else host.finishes(starts, finishes, self.host_work)


def call_of(record: CollectiveRecord, cluster: Cluster, fabric: Fabric) -> Call:
    """A request on a cluster and its fabric, which all ranks enter at once."""
    return Call(
        starts=fabric.everyone,
        sent=sizes_sent(record, cluster.workers),
        element=record.element,
        dtype=record.dtype,
        pulled=record.pulled,
        variable=record.variable,
        cluster=cluster,
        at_hand=fabric,
    )


def _algorithm(record: CollectiveRecord, sent: tuple[int, ...], cluster: Cluster) -> Algorithm:
    if record.by_servers:
        return ALGORITHMS[record.kind, "parameter_server"]
    if record.kind in {"all_reduce", "all_gather"}:
        return ALGORITHMS[record.kind, algorithm_name(record.kind, sent, record.element, cluster)]
    return ALGORITHMS[record.kind, _ONLY[record.kind]]


def sizes_sent(record: CollectiveRecord, workers: int) -> tuple[int, ...]:
    """Bytes that each of so many workers hands over; those of the record, cycled (`execute`)."""
    recorded = len(record.sent)
    sizes = record.sent
    if record.part:
        sizes = tuple(-(-size * recorded // workers) for size in sizes)
    return (sizes * -(-workers // recorded))[:workers]


def sizes_received(record: CollectiveRecord, sent: Sequence[int]) -> Sequence[int]:
    """Bytes of the result on each rank, which hands over `sent[r]`."""
    if record.kind in {"all_reduce", "all_to_all"}:
        return sent
    if record.kind == "all_gather":
        return [sum(sent)] * len(sent)
    return [record.pulled] * len(sent)
