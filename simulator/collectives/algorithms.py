"""Which algorithms carry out collectives? The table: adding one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives import hierarchical
from gcsim.simulator.collectives import nccl as nccl_allreduce
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings import allgather as ring_allgather
from gcsim.simulator.collectives.rings import allreduce as ring_allreduce
from gcsim.simulator.collectives.rings import gloo_allgather as gloo_ring_allgather
from gcsim.simulator.collectives.rings import gloo_allreduce as gloo_ring_allreduce
from gcsim.simulator.collectives.rings import pipelined_allgatherv, synchronous_allgatherv
from gcsim.simulator.collectives.rings.program import Program
from gcsim.simulator.collectives.rings.recurrence import PreparedRing
from gcsim.simulator.collectives.rounds import (
    alltoall_allgather_allreduce,
    binomial_tree_allreduce,
    bruck_allgather,
    gather_broadcast_allgather,
    halving_doubling_allreduce,
    pairwise_alltoall,
    recursive_doubling_allgather,
    recursive_doubling_allreduce,
    tree_merge,
)
from gcsim.simulator.collectives.servers import parameter_server
from gcsim.simulator.collectives.trees import double_tree_allreduce
from gcsim.simulator.host import Traffic


class _Collective(Protocol):
    """A module; it may have `prepared_for` and `ring` as well."""

    def carry_out(self, call: Call) -> Times: ...
    def traffic(self, call: Call) -> Traffic: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One line of the table."""

    title: str
    carry_out: Callable[[Call], Times]
    traffic: Callable[[Call], Traffic]
    """What the ranks handle in it, of more than one rank: their hosts' work."""
    prepared: Callable[[Call], PreparedRing] | None = None
    """Of one textbook ring: `carry_out` for any entry times."""
    ring: Callable[[Call], Program | None] | None = None
    """Of one ring, what every rank sends when: such collectives may be under way two at a time.
    (None of a call: nothing is sent.)"""
    stages_itself: bool = False
    """True when the algorithm accounts for copies between device and host."""

    @staticmethod
    def of(title: str, module: _Collective, *, stages_itself: bool = False) -> Algorithm:
        """What a file with one collective has in it."""
        return Algorithm(
            title=title,
            carry_out=module.carry_out,
            traffic=module.traffic,
            prepared=getattr(module, "prepared_for", None),
            ring=getattr(module, "ring", None),
            stages_itself=stages_itself,
        )


ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    ("all_reduce", "ring"): Algorithm.of("ring all-reduce", ring_allreduce),
    ("all_reduce", "hierarchical"): Algorithm.of(
        "hierarchical all-reduce", hierarchical, stages_itself=True
    ),
    ("all_reduce", "halving_doubling"): Algorithm.of(
        "recursive halving-doubling all-reduce", halving_doubling_allreduce
    ),
    ("all_reduce", "recursive_doubling"): Algorithm.of(
        "recursive doubling all-reduce", recursive_doubling_allreduce
    ),
    ("all_reduce", "binomial_tree"): Algorithm.of(
        "binomial tree all-reduce", binomial_tree_allreduce
    ),
    ("all_reduce", "double_tree"): Algorithm.of(
        "double binary tree all-reduce", double_tree_allreduce
    ),
    ("all_reduce", "alltoall_allgather"): Algorithm.of(
        "all-to-all and all-gather all-reduce", alltoall_allgather_allreduce
    ),
    ("all_reduce", "parameter_server"): Algorithm(
        title="parameter server all-reduce",
        carry_out=parameter_server.carry_out_allreduce,
        traffic=parameter_server.allreduce_traffic,
    ),
    ("all_reduce", "gloo_ring"): Algorithm.of("Gloo ring all-reduce", gloo_ring_allreduce),
    **{
        ("all_reduce", mode.name): Algorithm(
            title=mode.title("all_reduce"),
            carry_out=partial(nccl_allreduce.nccl_allreduce, mode=mode),
            traffic=partial(nccl_allreduce.allreduce_traffic, mode=mode),
        )
        for mode in nccl_allreduce.MODES
    },
    ("all_gather", "ring"): Algorithm.of("ring all-gather", ring_allgather),
    ("all_gather", "pipelined_ring"): Algorithm.of(
        "pipelined ring all-gatherv", pipelined_allgatherv
    ),
    ("all_gather", "pipelined_ring_sync"): Algorithm.of(
        "pipelined ring all-gatherv in synchronous rounds", synchronous_allgatherv
    ),
    ("all_gather", "recursive_doubling"): Algorithm.of(
        "recursive doubling all-gather", recursive_doubling_allgather
    ),
    ("all_gather", "bruck"): Algorithm.of("Bruck's all-gather", bruck_allgather),
    ("all_gather", "gather_broadcast"): Algorithm.of(
        "binomial gather and broadcast", gather_broadcast_allgather
    ),
    ("all_gather", "gloo_ring"): Algorithm.of("Gloo ring all-gather", gloo_ring_allgather),
    **{
        ("all_gather", mode.name): Algorithm(
            title=mode.title("all_gather"),
            carry_out=partial(nccl_allreduce.nccl_allgather, mode=mode),
            traffic=nccl_allreduce.allgather_traffic,
        )
        for mode in nccl_allreduce.MODES
        if mode.shape == "ring"
    },
    ("all_gather", "parameter_server"): Algorithm(
        title="parameter server all-gather",
        carry_out=parameter_server.carry_out_allgather,
        traffic=parameter_server.allgather_traffic,
    ),
    ("push_pull", "parameter_server"): Algorithm.of("parameter server", parameter_server),
    ("all_to_all", "pairwise"): Algorithm.of("pairwise all-to-all", pairwise_alltoall),
    ("tree_merge", "binomial"): Algorithm.of("binomial tree merge", tree_merge),
}
"""By kind of request and name of the algorithm."""
