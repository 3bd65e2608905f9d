"""Which algorithms carry out collectives? The table: adding one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
from gcsim.simulator.collectives.trees.double import allreduce as double_tree_allreduce
from gcsim.simulator.host import Traffic


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


ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    ("all_reduce", "ring"): Algorithm(
        title="ring all-reduce",
        carry_out=ring_allreduce.carry_out,
        traffic=ring_allreduce.traffic,
        prepared=ring_allreduce.prepared_for,
        ring=ring_allreduce.ring,
    ),
    ("all_reduce", "hierarchical"): Algorithm(
        title="hierarchical all-reduce",
        carry_out=hierarchical.carry_out,
        traffic=hierarchical.traffic,
        stages_itself=True,
    ),
    ("all_reduce", "halving_doubling"): Algorithm(
        title="recursive halving-doubling all-reduce",
        carry_out=halving_doubling_allreduce.carry_out,
        traffic=halving_doubling_allreduce.traffic,
    ),
    ("all_reduce", "recursive_doubling"): Algorithm(
        title="recursive doubling all-reduce",
        carry_out=recursive_doubling_allreduce.carry_out,
        traffic=recursive_doubling_allreduce.traffic,
    ),
    ("all_reduce", "binomial_tree"): Algorithm(
        title="binomial tree all-reduce",
        carry_out=binomial_tree_allreduce.carry_out,
        traffic=binomial_tree_allreduce.traffic,
    ),
    ("all_reduce", "double_tree"): Algorithm(
        title="double binary tree all-reduce",
        carry_out=double_tree_allreduce.carry_out,
        traffic=double_tree_allreduce.traffic,
    ),
    ("all_reduce", "alltoall_allgather"): Algorithm(
        title="all-to-all and all-gather all-reduce",
        carry_out=alltoall_allgather_allreduce.carry_out,
        traffic=alltoall_allgather_allreduce.traffic,
    ),
    ("all_reduce", "parameter_server"): Algorithm(
        title="parameter server all-reduce",
        carry_out=parameter_server.carry_out_allreduce,
        traffic=parameter_server.allreduce_traffic,
    ),
    ("all_reduce", "gloo_ring"): Algorithm(
        title="Gloo ring all-reduce",
        carry_out=gloo_ring_allreduce.carry_out,
        traffic=gloo_ring_allreduce.traffic,
        ring=gloo_ring_allreduce.ring,
    ),
    **{
        ("all_reduce", mode.name): Algorithm(
            title=mode.title("all_reduce"),
            carry_out=partial(nccl_allreduce.nccl_allreduce, mode=mode),
            traffic=partial(nccl_allreduce.allreduce_traffic, mode=mode),
        )
        for mode in nccl_allreduce.MODES
    },
    ("all_gather", "ring"): Algorithm(
        title="ring all-gather",
        carry_out=ring_allgather.carry_out,
        traffic=ring_allgather.traffic,
        prepared=ring_allgather.prepared_for,
        ring=ring_allgather.ring,
    ),
    ("all_gather", "pipelined_ring"): Algorithm(
        title="pipelined ring all-gatherv",
        carry_out=pipelined_allgatherv.carry_out,
        traffic=pipelined_allgatherv.traffic,
    ),
    ("all_gather", "pipelined_ring_sync"): Algorithm(
        title="pipelined ring all-gatherv in synchronous rounds",
        carry_out=synchronous_allgatherv.carry_out,
        traffic=synchronous_allgatherv.traffic,
    ),
    ("all_gather", "recursive_doubling"): Algorithm(
        title="recursive doubling all-gather",
        carry_out=recursive_doubling_allgather.carry_out,
        traffic=recursive_doubling_allgather.traffic,
    ),
    ("all_gather", "bruck"): Algorithm(
        title="Bruck's all-gather",
        carry_out=bruck_allgather.carry_out,
        traffic=bruck_allgather.traffic,
    ),
    ("all_gather", "gather_broadcast"): Algorithm(
        title="binomial gather and broadcast",
        carry_out=gather_broadcast_allgather.carry_out,
        traffic=gather_broadcast_allgather.traffic,
    ),
    ("all_gather", "gloo_ring"): Algorithm(
        title="Gloo ring all-gather",
        carry_out=gloo_ring_allgather.carry_out,
        traffic=gloo_ring_allgather.traffic,
        ring=gloo_ring_allgather.ring,
    ),
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
    ("push_pull", "parameter_server"): Algorithm(
        title="parameter server",
        carry_out=parameter_server.carry_out,
        traffic=parameter_server.traffic,
    ),
    ("all_to_all", "pairwise"): Algorithm(
        title="pairwise all-to-all",
        carry_out=pairwise_alltoall.carry_out,
        traffic=pairwise_alltoall.traffic,
    ),
    ("tree_merge", "binomial"): Algorithm(
        title="binomial tree merge", carry_out=tree_merge.carry_out, traffic=tree_merge.traffic
    ),
}
"""By kind of request and name of the algorithm."""
