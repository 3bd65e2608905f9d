"""Which algorithm carries out a collective, and when is every rank done?

Adding a collective is one file and one line in `ALGORITHMS`. Where no algorithm is named, the
transport chooses (see `choice.py`). With the transport "gloo", device tensors are copied to host
memory before and back after (see `staging.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives import (
    binomial_tree_allreduce,
    bruck_allgather,
    double_tree_allreduce,
    gather_broadcast_allgather,
    gloo_ring_allgather,
    gloo_ring_allreduce,
    halving_doubling_allreduce,
    hierarchical,
    nccl_allreduce,
    pairwise_alltoall,
    parameter_server,
    pipelined_allgatherv,
    recursive_doubling_allgather,
    recursive_doubling_allreduce,
    ring_allgather,
    ring_allreduce,
    tree_merge,
)
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.choice import algorithm_name
from gcsim.simulator.collectives.staging import after_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One line of the table."""

    title: str
    carry_out: Callable[[Call], Times]
    stages_itself: bool = False
    """True when the algorithm accounts for copies between device and host."""


ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    ("all_reduce", "ring"): Algorithm(title="ring all-reduce", carry_out=ring_allreduce.carry_out),
    ("all_reduce", "hierarchical"): Algorithm(
        title="hierarchical all-reduce", carry_out=hierarchical.carry_out, stages_itself=True
    ),
    ("all_reduce", "halving_doubling"): Algorithm(
        title="recursive halving-doubling all-reduce",
        carry_out=halving_doubling_allreduce.carry_out,
    ),
    ("all_reduce", "recursive_doubling"): Algorithm(
        title="recursive doubling all-reduce", carry_out=recursive_doubling_allreduce.carry_out
    ),
    ("all_reduce", "binomial_tree"): Algorithm(
        title="binomial tree all-reduce", carry_out=binomial_tree_allreduce.carry_out
    ),
    ("all_reduce", "double_tree"): Algorithm(
        title="double binary tree all-reduce", carry_out=double_tree_allreduce.carry_out
    ),
    ("all_reduce", "gloo_ring"): Algorithm(
        title="Gloo ring all-reduce", carry_out=gloo_ring_allreduce.carry_out
    ),
    **{
        ("all_reduce", mode.name): Algorithm(
            title=mode.title("all_reduce"),
            carry_out=partial(nccl_allreduce.nccl_allreduce, mode=mode),
        )
        for mode in nccl_allreduce.MODES
    },
    ("all_gather", "ring"): Algorithm(title="ring all-gather", carry_out=ring_allgather.carry_out),
    ("all_gather", "pipelined_ring"): Algorithm(
        title="pipelined ring all-gatherv", carry_out=pipelined_allgatherv.carry_out
    ),
    ("all_gather", "recursive_doubling"): Algorithm(
        title="recursive doubling all-gather", carry_out=recursive_doubling_allgather.carry_out
    ),
    ("all_gather", "bruck"): Algorithm(
        title="Bruck's all-gather", carry_out=bruck_allgather.carry_out
    ),
    ("all_gather", "gather_broadcast"): Algorithm(
        title="binomial gather and broadcast", carry_out=gather_broadcast_allgather.carry_out
    ),
    ("all_gather", "gloo_ring"): Algorithm(
        title="Gloo ring all-gather", carry_out=gloo_ring_allgather.carry_out
    ),
    **{
        ("all_gather", mode.name): Algorithm(
            title=mode.title("all_gather"),
            carry_out=partial(nccl_allreduce.nccl_allgather, mode=mode),
        )
        for mode in nccl_allreduce.MODES
        if mode.shape == "ring"
    },
    ("push_pull", "parameter_server"): Algorithm(
        title="parameter server", carry_out=parameter_server.carry_out
    ),
    ("all_to_all", "pairwise"): Algorithm(
        title="pairwise all-to-all", carry_out=pairwise_alltoall.carry_out
    ),
    ("tree_merge", "binomial"): Algorithm(
        title="binomial tree merge", carry_out=tree_merge.carry_out
    ),
}
"""By kind of request and name of the algorithm."""


_ONLY = {"push_pull": "parameter_server", "all_to_all": "pairwise", "tree_merge": "binomial"}
"""The algorithm of the kinds that have one."""


def algorithm_of(record: CollectiveRecord, cluster: Cluster) -> Algorithm:
    """What `Cluster.collectives` says of a request's kind, size and number of ranks."""
    if record.kind in {"all_reduce", "all_gather"}:
        sent = _sent(record, cluster.workers)
        return ALGORITHMS[record.kind, algorithm_name(record.kind, sent, record.element, cluster)]
    return ALGORITHMS[record.kind, _ONLY[record.kind]]


def carry_out(
    record: CollectiveRecord, entry: Times, cluster: Cluster, server_time: Picoseconds = 0
) -> Times:
    """Exit times `[p]` for entry times `[p]` (int64, picoseconds) on the cluster's p workers.

    The workers' payload sizes are those of the record, cycled: worker i sends what the
    recorded worker i mod N sent; parts of one whole are N / p as large, rounded up, for p workers.
    One worker alone leaves at once. Raises `InternalError` when
    a rank would leave before the last one has entered, which no collective here can do.
    """
    workers = cluster.workers
    if entry.shape != (workers,):
        raise InternalError(f"{entry.shape} entry times for a collective of {workers} workers")
    if workers == 1:
        return entry.copy()
    algorithm = algorithm_of(record, cluster)
    call = Call(
        entry=entry,
        sent=_sent(record, workers),
        element=record.element,
        pulled=record.pulled,
        variable=record.variable,
        cluster=cluster,
        server_time=server_time,
    )
    if cluster.collectives.transport == "gloo" and not algorithm.stages_itself:
        on_host = after_copies(entry, call.sent, cluster.intra_node)
        off_host = algorithm.carry_out(replace(call, entry=on_host))
        exits = after_copies(off_host, _received(record.kind, call), cluster.intra_node)
    else:
        exits = algorithm.carry_out(call)
    if exits.min() < entry.max():
        raise InternalError(
            f"{algorithm.title}: a rank leaves at {exits.min()} ps, before the last one enters "
            f"at {entry.max()} ps"
        )
    return exits


def _sent(record: CollectiveRecord, workers: int) -> tuple[int, ...]:
    recorded = len(record.sent)
    sizes = [record.sent[rank % recorded] for rank in range(workers)]
    if record.part:
        sizes = [-(-size * recorded // workers) for size in sizes]
    return tuple(sizes)


def _received(kind: str, call: Call) -> Sequence[int]:
    """Bytes that each rank copies back to its device."""
    if kind in {"all_reduce", "all_to_all"}:
        return call.sent
    if kind == "all_gather":
        return [sum(call.sent)] * len(call.sent)
    return [call.pulled] * len(call.sent)


class CollectiveMemo:
    """Carries out collectives on one cluster and remembers them.

    Times only shift with the entry times, so a collective is known by its record, by the server's
    computation and by the entry times relative to the earliest.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[tuple[CollectiveRecord, bytes, Picoseconds], Times] = {}

    def __call__(
        self, record: CollectiveRecord, entry: Times, server_time: Picoseconds = 0
    ) -> Times:
        """Exit times `[p]`, as `carry_out` gives them."""
        first = int(entry.min())
        relative = np.asarray(entry - first, dtype=np.int64)
        key = (record, relative.tobytes(), server_time)
        exits = self._known.get(key)
        if exits is None:
            exits = carry_out(record, relative, self.cluster, server_time)
            self._known[key] = exits
        return exits + first
