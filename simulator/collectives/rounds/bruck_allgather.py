"""Bruck's all-gather of equal or unequal blocks, for any number of ranks.

In round j, with d = 2^j < p, rank r sends the first min(d, p - d) of its blocks r, r + 1, ... to
rank r - d (mod p) and receives as many from rank r + d: ceil(log2 p) rounds.

With equal links, blocks and entries: ceil(log2 p) alpha + (p - 1)/p n beta for n bytes in all.

    ready[j+1] = max(ready[j] + serialisation, arrival from rank r + d)

Assumptions: those of `fabric/rounds.py`; sizes are known; an empty block still costs a message's
latency; sorting the blocks, a copy inside each rank, is free.

Source: Bruck, Ho, Kipnis, Upfal and Weathersby 1997 (IEEE Trans. Parallel Distrib. Syst. 8),
sec. 3; with unequal blocks as in MPICH, allgatherv_intra_brucks.c.
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.rounds import Rounds


def prepare(call: Call) -> Rounds:
    """Gather over all devices, node by node."""
    ranks, rank = len(call.sent), call.fabric.everyone
    ends = np.cumsum((0, *call.sent, *call.sent), dtype=np.int64)
    rounds, distance = Rounds(call.fabric), 1
    while distance < ranks:
        count = min(distance, ranks - distance)
        nbytes = ends[count : count + ranks] - ends[:ranks]
        rounds.exchange(rank, (rank - distance) % ranks, nbytes)
        distance *= 2
    return rounds
