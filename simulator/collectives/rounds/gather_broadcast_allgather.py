"""All-gather as a gather at rank 0 and a broadcast from it, for libraries without an all-gather.

Gather, round j: rank r with r mod 2^(j+1) = 2^j sends its subtree's blocks, of ranks r to
r + 2^j - 1, to rank r - 2^j. All blocks are then broadcast along the same tree
(`binomial_tree_allreduce.py`); the root's NIC carries all n bytes log2 p times.

With p = 2^k, equal links, blocks and entries the last rank leaves after
2 k alpha + (p - 1)/p n beta + k n beta for n bytes in all.

Assumptions: those of `fabric/rounds.py`; sizes are known; blocks are not cut; empty blocks cost a
message's latency.

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.2; Open
MPI's coll_basic_allgather.c has the two parts, the gather there linear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds import binomial_tree_allreduce
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.rounds import Fabric


def gather_broadcast_allgather(sizes: Sequence[int], fabric: Fabric) -> Rounds:
    """Prepare an all-gather of `sizes[r]` bytes from each rank r."""
    ranks = fabric.ranks
    ends = np.cumsum([0, *sizes], dtype=np.int64)
    rounds = Rounds(fabric)
    for distance in binomial_tree_allreduce.tree_distances(ranks):
        senders = binomial_tree_allreduce.children(ranks, distance)
        subtree = ends[np.minimum(senders + distance, ranks)] - ends[senders]
        rounds.exchange(senders, senders - distance, subtree)
    binomial_tree_allreduce.broadcast_rounds(rounds, ranks, sum(sizes))
    return rounds


def prepare(call: Call) -> Rounds:
    """Gather over all devices, node by node."""
    return gather_broadcast_allgather(call.sent, call.fabric)
