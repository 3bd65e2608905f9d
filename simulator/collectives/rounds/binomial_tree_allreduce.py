"""All-reduce as a reduction to rank 0 and a broadcast from it, along binomial trees.

Reduction, round j: each rank r with r mod 2^(j+1) = 2^j sends its vector to rank r - 2^j, which
adds it. Broadcast: the same tree the other way, the largest subtree first; a rank sends to its
children one after the other. Any number of ranks.

With p = 2^k, equal links and entries the last rank leaves after 2 k (alpha + n beta) + k n gamma.

    ready[r] = max(ready[r], ready[child] + serialisation + latency) + reduction

Assumptions: those of `fabric/rounds.py`; the vector is not cut into pieces; children are taken in a
fixed order, nearest first, also when one farther away is early.

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.2 and
4.5; MPICH, reduce_intra_binomial.c and bcast_intra_binomial.c.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import NO_COST
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.link_table import Ranks
from gcsim.simulator.fabric.rounds import Fabric


def binomial_tree_allreduce(nbytes: int, fabric: Fabric, *, gamma: Fraction = NO_COST) -> Rounds:
    """Prepare an all-reduce of `nbytes` bytes; a reduction costs `gamma` seconds a byte."""
    rounds = Rounds(fabric)
    for distance in tree_distances(fabric.ranks):
        senders = children(fabric.ranks, distance)
        rounds.exchange(senders, senders - distance, nbytes, gamma)
    broadcast_rounds(rounds, fabric.ranks, nbytes)
    return rounds


def broadcast_rounds(rounds: Rounds, ranks: int, nbytes: int) -> None:
    """Append those of a broadcast from rank 0."""
    for distance in reversed(tree_distances(ranks)):
        receivers = children(ranks, distance)
        rounds.exchange(receivers - distance, receivers, nbytes)


def tree_distances(ranks: int) -> list[int]:
    """Between a child and its parent, in the order of the reduction."""
    return [1 << round_ for round_ in range((ranks - 1).bit_length())]


def children(ranks: int, distance: int) -> Ranks:
    """The ranks whose parent is so far away."""
    return np.arange(distance, ranks, 2 * distance, dtype=np.int64)


def prepare(call: Call) -> Rounds:
    """Over all devices, ranks counted node by node."""
    return binomial_tree_allreduce(call.nbytes, call.fabric, gamma=call.gamma)
