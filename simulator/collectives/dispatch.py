"""Exit times of collectives, each by the algorithm that the cluster or its transport chooses.

If the cluster names no algorithm, the transport chooses (`algorithm_name`):

- textbook: rings; gloo: its own rings; custom: an algorithm must be named
- nccl: the tuner's fastest (`collectives/nccl.py`)
- mpich, all-reduce: recursive doubling up to 2 KiB, and for fewer elements than 2^floor(log2 p);
  else recursive halving and doubling
- mpich, all-gather: recursive doubling for p = 2^k and less than 512 KiB in all; Bruck's for other
  p and less than 80 KiB; else a ring, pipelined where blocks are unequal

Assumptions: MPICH's reductions inside a node before the all-reduce (`allreduce_intra_smp.c`) are
not simulated; its pipelined ring runs in synchronous rounds (`synchronous_allgatherv.py`).

Source: pytorch/gloo, gloo/allreduce.cc and gloo/allgather.cc; Thakur, Rabenseifner and Gropp 2005
(Int. J. High Perform. Comput. Appl. 19), sec. 4.1 and 4.5, and MPICH,
MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE, MPIR_CVAR_ALLGATHER_SHORT_MSG_SIZE and _LONG_MSG_SIZE (its
coll_selection.json has 8 bytes for the first).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives import nccl as nccl_allreduce
from gcsim.simulator.collectives.algorithms import ALGORITHMS, Algorithm
from gcsim.simulator.collectives.call import Call, Prepared
from gcsim.simulator.collectives.nccl import Kind
from gcsim.simulator.collectives.rings.recurrence import PreparedRing
from gcsim.simulator.collectives.rounds.rounds import phase_key
from gcsim.simulator.collectives.staging import copy_link, copy_times, handing_out_times
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Host, Traffic, Work
from gcsim.simulator.network.links import Link

_ONLY = {"push_pull": "parameter_server", "all_to_all": "pairwise", "tree_merge": "binomial"}
"""Kinds with a single algorithm; push-pulls without servers are replaced in `push_pull.py`."""
_KEPT_BYTES = 2**26  # bytes of kept exit times
_KEPT_REQUESTS = 2**28  # bytes of kept requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardExchange(CollectiveRecord):
    """Exchange between nodes in which each rank of a node handles its part of the bytes and keeps
    its part of the result."""


def algorithm_of(record: CollectiveRecord, cluster: Cluster) -> Algorithm:
    """Return the algorithm of a request, by its kind, size and ranks."""
    part = participants(record, cluster)
    return _algorithm(record, sizes_sent(record, part.workers), part)


def participants(record: CollectiveRecord, cluster: Cluster) -> Cluster:
    """Return the cluster of the ranks in a request's scope: all ranks, those of one node or rack,
    or the first one of each."""
    if cluster.sizes and record.scope != "all":
        raise InternalError(f"scope {record.scope!r} with different numbers of devices per node")
    parts = _parts(record, cluster)
    match record.scope:
        case "node" | "rack":
            return replace(cluster, nodes=cluster.nodes // parts or 1, nics={}, racks=None)
        case "nodes":
            return replace(cluster, devices_per_node=1, sizes=())
        case "racks":
            racks = cluster.racks and replace(cluster.racks, nodes=1)
            return replace(cluster, nodes=parts, devices_per_node=1, sizes=(), racks=racks)
    return cluster


def _parts(record: CollectiveRecord, cluster: Cluster) -> int:
    """Return the number of nodes or racks that a request's scope refers to."""
    return cluster.ranks_in("racks" if record.scope in {"rack", "racks"} else "nodes")


def of_all_ranks(
    values: Sequence[int] | NDArray[np.int64], record: CollectiveRecord, cluster: Cluster
) -> NDArray[np.int64]:
    """Expand the participants' values to all ranks `[p]`; ranks that do not take part get 0."""
    found, parts = np.asarray(values, dtype=np.int64), _parts(record, cluster)
    if record.scope in {"node", "rack"}:
        return np.tile(found, parts)
    if record.scope in {"nodes", "racks"}:
        spread = np.zeros((parts, cluster.workers // parts), dtype=np.int64)
        spread[:, 0] = found
        return spread.reshape(-1)
    return found


def traffic_of(record: CollectiveRecord, cluster: Cluster) -> Traffic:
    """Return the traffic of the processes in a collective of more than one worker."""
    part = participants(record, cluster)
    call = call_of(record, part, Fabric.of(part))
    if part.workers == 1:
        return Traffic.none(cluster.workers, cluster.devices_by_node)
    traffic = _algorithm(record, call.sent, part).traffic(call)
    if record.scope == "all":
        return traffic
    ends, nbytes = (of_all_ranks(each, record, cluster) for each in (traffic.ends, traffic.nbytes))
    return Traffic.of_ranks(ends, nbytes, cluster.devices_by_node)


def execute(
    record: CollectiveRecord,
    starts: Times,
    cluster: Cluster,
    server_time: Picoseconds = 0,
    key: int = 0,
) -> Times:
    """Return the exit times `[p]` of one collective, as `CollectiveMemo`."""
    return CollectiveMemo(cluster)(record, starts, server_time, key)


class CollectiveMemo:
    """Collectives on one cluster, prepared once per request. Without random delays and links that
    change over time, exit times depend only on request, server time and entry times relative to the
    first rank's, and are cached; except for rings, which are as fast to compute again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._repeats = not any(link.random or link.timed for link in cluster.links())
        self.forget()

    def forget(self) -> None:
        """Free prepared requests and cached exit times."""
        self._requests: OrderedDict[tuple[CollectiveRecord, Picoseconds], _Request] = OrderedDict()
        self._parts: dict[str, CollectiveMemo] = {}  # by scope
        self._held = 0  # approximate bytes of the requests
        self._fabrics: dict[Link, Fabric] = {}  # by network link, which depends on the kind
        self._seen: dict[str, tuple[Cluster, Fabric]] = {}  # by kind of request
        self._known: OrderedDict[tuple[CollectiveRecord, bytes, Picoseconds], Times] = OrderedDict()

    def __call__(
        self, record: CollectiveRecord, starts: Times, server_time: Picoseconds = 0, key: int = 0
    ) -> Times:
        """Return exit times `[p]` for entry times `[p]` (int64, picoseconds) on p workers.

        The N recorded payload sizes are used cyclically: worker i sends the bytes of recorded
        worker i mod N; parts of a whole are scaled by N / p, rounded up. `server_time`: computation
        of parameter servers or of a merge; `key` seeds the random delays
        (`jitter.collective_key`). Entry times are absolute if links change over time. A single
        worker leaves at once. Raises `InternalError` for an exit before the last entry.
        """
        workers = self.cluster.workers
        if starts.shape != (workers,):
            raise InternalError(f"{starts.shape} entry times for a collective of {workers} workers")
        if workers == 1:
            return starts.copy()
        if record.scope != "all":
            return self._in_scope(record, starts, server_time, key)
        request = self._requests.get((record, server_time))
        if request is None:
            request = self._requests[record, server_time] = self.prepare(record, server_time)
            self._held += request.collective.nbytes
            while self._held > _KEPT_REQUESTS and len(self._requests) > 1:
                self._held -= self._requests.popitem(last=False)[1].collective.nbytes
        if isinstance(request.collective, PreparedRing) or not self._repeats:
            return request.execute(starts, key)
        first = starts[0]
        name = (record, (starts - first).tobytes(), server_time)
        finishes = self._known.get(name)
        if finishes is None:
            earliest = starts.min()
            relative = request.execute(starts - earliest, key)
            finishes = relative + (earliest - first)
            self._known[name] = finishes
            while len(self._known) * 2 * finishes.nbytes > _KEPT_BYTES:
                self._known.popitem(last=False)
        shifted: Times = finishes + first
        return shifted

    def _in_scope(
        self, record: CollectiveRecord, starts: Times, server_time: Picoseconds, key: int
    ) -> Times:
        """Return exit times of a collective inside each node or rack, or among their first ranks,
        which then pass on the result. As the engine requires, no rank leaves before the last entry
        of all: an early node or rack waits for the others before it encodes."""
        if record.scope not in self._parts:
            self._parts[record.scope] = CollectiveMemo.of(participants(record, self.cluster))
        carry_out, whole = self._parts[record.scope], replace(record, scope="all")
        by_part = starts.reshape(_parts(record, self.cluster), -1)  # [parts, ranks]
        if record.scope in {"node", "rack"}:
            rows, first, which = by_part, np.zeros((1, 1), np.int64), np.arange(len(by_part))
            if self._repeats:  # most parts enter alike up to a shift
                first = by_part[:, :1]
                rows, which = np.unique(by_part - first, axis=0, return_inverse=True)
            exits = [
                carry_out(whole, entries, server_time, phase_key(key, part))
                for part, entries in enumerate(rows)
            ]
            of_parts = np.array(exits)[which.reshape(-1)] + first
            found: Times = np.maximum(of_parts.reshape(-1), starts.max())
            return found
        first = carry_out(whole, by_part[:, 0], server_time, key)
        if 1 not in by_part.shape and not isinstance(record, ShardExchange):
            received = sizes_received(whole, sizes_sent(whole, len(by_part)))
            first = first + handing_out_times(received, self.cluster, by_part.shape[1])
        found = np.maximum(np.repeat(first, by_part.shape[1]), starts.max())
        return found

    @classmethod
    def of(cls, cluster: Cluster) -> CollectiveMemo:
        """Return the memo shared by clusters that are equal except for devices, while in use."""
        key = cluster.wiring
        found = _SHARED.get(key)
        if found is None:
            found = _SHARED[key] = cls(cluster)
        return found

    def prepare(self, record: CollectiveRecord, server_time: Picoseconds = 0) -> _Request:
        """Prepare the parts of a collective that do not depend on entry times."""
        cluster, fabric = self._as_seen("push_pull" if record.by_servers else record.kind)
        call = call_of(record, cluster, fabric, server_time)
        sent = call.sent
        algorithm = _algorithm(record, sent, cluster)
        copies: tuple[Times, Times] | None = None
        if cluster.collectives.stages and not algorithm.stages_itself:
            link = copy_link(cluster)
            copies = copy_times(sent, link), copy_times(sizes_received(record, sent), link)
        host = cluster.host
        return _Request(
            title=algorithm.title,
            collective=algorithm.prepare(call),
            copies=copies,
            host=host,
            host_work=Work() if host is None else host.work(_traffic(record, algorithm, call)),
        )

    def _as_seen(self, kind: str) -> tuple[Cluster, Fabric]:
        """Return the cluster with the NICs and rates of a kind of request, and its fabric."""
        if kind not in self._seen:
            cluster = self.cluster
            if kind == "all_to_all":
                cluster = cluster.at_grouped_rates
            elif kind in {"push_pull", "tree_merge"}:
                cluster = cluster.at_one_nic
            fabric = self._fabrics.setdefault(cluster.network, Fabric.of(cluster))
            self._seen[kind] = cluster, fabric
        return self._seen[kind]


_SHARED: WeakValueDictionary[object, CollectiveMemo] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    title: str
    collective: Prepared
    copies: tuple[Times, Times] | None  # to the host and back, [p] each
    host: Host | None
    host_work: Work

    def execute(self, starts: Times, key: int) -> Times:
        to_host, back = self.copies or (0, 0)
        begin = starts + to_host
        finishes = self.collective(begin, key)
        if self.host is not None:
            finishes = self.host.exit_times(begin, finishes, self.host_work)
        finishes = finishes + back
        if np.minimum.reduce(finishes) < np.maximum.reduce(starts):
            raise InternalError(
                f"{self.title}: a rank leaves at {finishes.min()} ps, before the last one "
                f"enters at {starts.max()} ps"
            )
        return finishes


def call_of(
    record: CollectiveRecord, cluster: Cluster, fabric: Fabric, server_time: Picoseconds = 0
) -> Call:
    """Return the call of a request on a cluster with this fabric."""
    return Call(
        sent=sizes_sent(record, cluster.workers),
        element=record.element,
        dtype=record.dtype,
        pulled=record.pulled,
        variable=record.variable,
        cluster=cluster,
        server_time=server_time,
        known_fabric=fabric,
    )


_TRAFFIC: OrderedDict[object, Traffic] = OrderedDict()
_KEPT_TRAFFIC = 2**20  # ranks


def _traffic(record: CollectiveRecord, algorithm: Algorithm, call: Call) -> Traffic:
    """Return the traffic of a request, cached for clusters that differ only in their links."""
    cluster = call.cluster
    name = record, algorithm, cluster.nodes, cluster.devices_by_node, cluster.collectives
    if name not in _TRAFFIC:
        _TRAFFIC[name] = algorithm.traffic(call)
        while len(_TRAFFIC) > max(1, _KEPT_TRAFFIC // cluster.workers):
            _TRAFFIC.popitem(last=False)
    return _TRAFFIC[name]


def _algorithm(record: CollectiveRecord, sent: tuple[int, ...], cluster: Cluster) -> Algorithm:
    if record.by_servers:
        return ALGORITHMS[record.kind, "parameter_server"]
    if record.kind in {"all_reduce", "all_gather"}:
        return ALGORITHMS[record.kind, algorithm_name(record.kind, sent, record.element, cluster)]
    return ALGORITHMS[record.kind, _ONLY[record.kind]]


def sizes_sent(record: CollectiveRecord, workers: int) -> tuple[int, ...]:
    """Return the bytes that each of `workers` workers sends: the record's, cycled."""
    recorded = len(record.sent)
    sizes = record.sent
    if record.part:
        sizes = tuple(-(-size * recorded // workers) for size in sizes)
    return (sizes * -(-workers // recorded))[:workers]


def sizes_received(record: CollectiveRecord, sent: Sequence[int]) -> Sequence[int]:
    """Return the bytes of the result on each rank."""
    if record.kind in {"all_reduce", "all_to_all"}:
        return sent
    if record.kind == "all_gather":
        return [sum(sent)] * len(sent)
    return [record.pulled] * len(sent)


_ALLREDUCE_SHORT = 2048  # most bytes of a short vector
_ALLGATHER_SHORT = 80 * 1024  # all blocks together are short below this many bytes
_ALLGATHER_LONG = 512 * 1024  # all blocks together are long from this many bytes on


def algorithm_name(kind: Kind, sent: Sequence[int], element: int, cluster: Cluster) -> str:
    """Return the algorithm that the cluster names or its transport chooses. `sent[r]`: bytes of
    rank r; `element`: bytes per element of a vector to reduce."""
    asked = _asked(kind, sent, element, cluster)
    if asked == "nccl":
        nbytes, equal = _tuned(kind, sent)
        return nccl_allreduce.choose(kind, nbytes, cluster, equal=equal).name
    return asked


def ring_or_tree(record: CollectiveRecord, cluster: Cluster) -> tuple[str, str, Fraction] | None:
    """Return `nccl.ring_and_tree` by name; None if NCCL's tuner has no such choice."""
    cluster = participants(record, cluster)
    sent, kind = sizes_sent(record, cluster.workers), record.kind
    if kind not in {"all_reduce", "all_gather"} or record.by_servers:
        return None
    if _asked(kind, sent, record.element, cluster) != "nccl":
        return None
    nbytes, equal = _tuned(kind, sent)
    ring, tree, border = nccl_allreduce.ring_and_tree(kind, nbytes, cluster, equal=equal)
    return None if tree is None else (ring.name, tree.name, border)


def _tuned(kind: Kind, sent: Sequence[int]) -> tuple[int, bool]:
    """Return the bytes that NCCL's tuner sees, and whether all ranks send equally many."""
    return (sent[0], True) if kind == "all_reduce" else (sum(sent), len(set(sent)) == 1)


def _asked(kind: Kind, sent: Sequence[int], element: int, cluster: Cluster) -> str:
    asked: str = getattr(cluster.collectives, kind)
    return _auto(kind, sent, element, cluster) if asked == "auto" else asked


def _auto(kind: Kind, sent: Sequence[int], element: int, cluster: Cluster) -> str:
    match cluster.collectives.transport:
        case "custom":
            raise InternalError(f"the transport of a user's own has no {kind} that it would choose")
        case "textbook":
            return "ring"
        case "gloo":
            return "gloo_ring"
        case "nccl":
            return "nccl"
        case "mpich" if kind == "all_reduce":
            return _mpich_allreduce(sent[0], element, len(sent))
        case "mpich":
            return _mpich_allgather(sent)


def _mpich_allreduce(nbytes: int, element: int, ranks: int) -> str:
    core = 1 << (ranks.bit_length() - 1)
    short = nbytes <= _ALLREDUCE_SHORT or nbytes // element < core
    return "recursive_doubling" if short else "halving_doubling"


def _mpich_allgather(sent: Sequence[int]) -> str:
    total, ranks = sum(sent), len(sent)
    if ranks & (ranks - 1) == 0 and total < _ALLGATHER_LONG:
        return "recursive_doubling"
    if total < _ALLGATHER_SHORT:
        return "bruck"
    return "ring" if len(set(sent)) == 1 else "pipelined_ring_sync"
