"""Algorithms of collectives: adding one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, get_args

from gcsim.simulator.collectives import double_tree_allreduce, hierarchical, nccl
from gcsim.simulator.collectives.call import Call, Prepared
from gcsim.simulator.collectives.rings import allgather as ring_allgather
from gcsim.simulator.collectives.rings import allreduce as ring_allreduce
from gcsim.simulator.collectives.rings import gloo_allgather as gloo_ring_allgather
from gcsim.simulator.collectives.rings import gloo_allreduce as gloo_ring_allreduce
from gcsim.simulator.collectives.rings import pipelined_allgatherv, synchronous_allgatherv
from gcsim.simulator.collectives.rings.program import Program
from gcsim.simulator.collectives.rounds import (
    alltoall_allgather_allreduce,
    binomial_tree_allreduce,
    bruck_allgather,
    halving_doubling_allreduce,
    pairwise_alltoall,
    recursive_doubling_allgather,
    recursive_doubling_allreduce,
    tree_merge,
)
from gcsim.simulator.collectives.servers import parameter_server
from gcsim.simulator.host import Traffic


class _Collective(Protocol):
    """Module of an algorithm, which may also have `ring`, `traffic` and `STAGES_ITSELF`."""

    def prepare(self, call: Call) -> Prepared: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm of a collective."""

    title: str
    prepare: Callable[[Call], Prepared]
    traffic: Callable[[Call], Traffic]  # traffic of a call of several ranks, for the hosts' work
    ring: Callable[[Call], Program | None] | None = None
    """Program of a ring, of which two may run at a time; returns None for an empty call."""
    stages_itself: bool = False  # the algorithm includes the copies between device and host

    @staticmethod
    def of(title: str, module: _Collective) -> Algorithm:
        """Build from a module; traffic defaults to that of its ring or its prepared form."""
        ring = getattr(module, "ring", None)

        def traffic(call: Call) -> Traffic:
            of: Any = module.prepare(call) if ring is None else ring(call)
            devices = call.fabric.devices
            found: Traffic = of.traffic(devices) if of else Traffic.none(len(call.sent), devices)
            return found

        return Algorithm(
            title=title,
            prepare=module.prepare,
            traffic=getattr(module, "traffic", traffic),
            ring=ring,
            stages_itself=getattr(module, "STAGES_ITSELF", False),
        )


_MODULES: tuple[tuple[str, str, str, _Collective], ...] = (
    ("all_reduce", "ring", "ring all-reduce", ring_allreduce),
    ("all_reduce", "hierarchical", "hierarchical all-reduce", hierarchical),
    ("all_reduce", "halving_doubling", "recursive halving-doubling all-reduce",
     halving_doubling_allreduce),
    ("all_reduce", "recursive_doubling", "recursive doubling all-reduce",
     recursive_doubling_allreduce),
    ("all_reduce", "binomial_tree", "binomial tree all-reduce", binomial_tree_allreduce),
    ("all_reduce", "double_tree", "double binary tree all-reduce", double_tree_allreduce),
    ("all_reduce", "alltoall_allgather", "all-to-all and all-gather all-reduce",
     alltoall_allgather_allreduce),
    ("all_reduce", "gloo_ring", "Gloo ring all-reduce", gloo_ring_allreduce),
    ("all_gather", "ring", "ring all-gather", ring_allgather),
    ("all_gather", "pipelined_ring", "pipelined ring all-gatherv", pipelined_allgatherv),
    ("all_gather", "pipelined_ring_sync", "pipelined ring all-gatherv in synchronous rounds",
     synchronous_allgatherv),
    ("all_gather", "recursive_doubling", "recursive doubling all-gather",
     recursive_doubling_allgather),
    ("all_gather", "bruck", "Bruck's all-gather", bruck_allgather),
    ("all_gather", "gloo_ring", "Gloo ring all-gather", gloo_ring_allgather),
    ("push_pull", "parameter_server", "parameter server", parameter_server),
    ("all_to_all", "pairwise", "pairwise all-to-all", pairwise_alltoall),
    ("tree_merge", "binomial", "binomial tree merge", tree_merge),
)  # fmt: skip
ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    (kind, name): Algorithm.of(title, module) for kind, name, title, module in _MODULES
}
"""Algorithms by kind of request and name."""
ALGORITHMS |= {
    ("all_reduce", "parameter_server"): Algorithm(
        title="parameter server all-reduce",
        prepare=parameter_server.prepare_allreduce,
        traffic=lambda call: parameter_server.traffic(call, call.nbytes),
    ),
    ("all_gather", "parameter_server"): Algorithm(
        title="parameter server all-gather",
        prepare=parameter_server.prepare_allgather,
        traffic=lambda call: parameter_server.traffic(call, sum(call.sent)),
    ),
    **{
        (kind, mode.name): Algorithm(
            title=mode.title(kind),
            prepare=partial(nccl.prepare, kind=kind, mode=mode),
            traffic=partial(nccl.traffic, kind=kind, mode=mode),
        )
        for kind in get_args(nccl.Kind)
        for mode in nccl.MODES
        if kind == "all_reduce" or mode.shape in {"ring", "nvls"}
    },
}
