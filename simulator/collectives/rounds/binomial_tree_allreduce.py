"""All-reduce as a reduction to rank 0 and a broadcast from it, along binomial trees.

Reduction, round j: rank r with r mod 2^(j+1) = 2^j sends its vector to rank r - 2^j, which adds it.
Broadcast: the same tree the other way, the largest subtree first, one child after the other.

With p = 2^k, equal links and entries the last rank leaves after 2 k (alpha + n beta) + k n gamma.

    ready[r] = max(ready[r], ready[child] + serialisation + latency) + reduction

Assumptions: those of `fabric/rounds.py`; the vector is not cut; nearer children always go first.

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.2 and
4.5; MPICH, reduce_intra_binomial.c and bcast_intra_binomial.c.
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.link_table import Ranks


def prepare(call: Call) -> Rounds:
    """All-reduce over all devices, node by node."""
    rounds, ranks = Rounds(call.fabric), len(call.sent)
    for distance in tree_distances(ranks):
        senders = children(ranks, distance)
        rounds.exchange(senders, senders - distance, call.nbytes, call.gamma)
    broadcast_rounds(rounds, ranks, call.nbytes)
    return rounds


def broadcast_rounds(rounds: Rounds, ranks: int, nbytes: int) -> None:
    """Append a broadcast from rank 0."""
    for distance in reversed(tree_distances(ranks)):
        receivers = children(ranks, distance)
        rounds.exchange(receivers - distance, receivers, nbytes)


def tree_distances(ranks: int) -> list[int]:
    """Distances between child and parent, in the order of the reduction."""
    return [1 << round_ for round_ in range((ranks - 1).bit_length())]


def children(ranks: int, distance: int) -> Ranks:
    """Ranks at this distance from their parent."""
    return np.arange(distance, ranks, 2 * distance, dtype=np.int64)
