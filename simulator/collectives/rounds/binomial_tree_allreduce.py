"""How long do a reduction to rank 0 and a broadcast from it take, along binomial trees?

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

from gcsim.simulator.clock import NO_COST, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.link_table import Ranks
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic


def binomial_tree_allreduce(
    starts: Times, nbytes: int, fabric: Fabric, *, gamma: Fraction = NO_COST, key: int = 0
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `nbytes` is the vector's size; a reduction costs `gamma` seconds a byte; `key` is that of the
    random delays. p = 1 costs nothing.
    """
    return fabric.prepared(_rounds, nbytes, gamma).execute(starts, key)


def _rounds(fabric: Fabric, nbytes: int, gamma: Fraction) -> Rounds:
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


def execute(call: Call) -> Times:
    """Over all devices, ranks counted node by node."""
    return binomial_tree_allreduce(
        call.starts, call.nbytes, call.fabric, gamma=call.gamma, key=call.key
    )


def traffic(call: Call) -> Traffic:
    """What the ranks handle in it."""
    return call.fabric.prepared(_rounds, call.nbytes, NO_COST).traffic(call.fabric.devices)
