"""Pairwise merge of all payloads, and a broadcast of the result.

Round j: rank r with r mod 2^(j+1) = 2^j sends its payload to rank r - 2^j, which merges it in
`Call.server_time`; after ceil(log2 p) rounds rank 0 has the result. The broadcast uses the same
tree in the other direction, one child after the other, the largest subtree first. Any number of
ranks. A merged payload has the size of the result, as in gTop-k.

Assumptions: those of `fabric/rounds.py`; a rank sends one message at a time.

Source: the tree of S. Shi et al. 2019 (ICDCS, gTop-k, Alg. 3); binomial trees as in Thakur,
Rabenseifner and Gropp 2005, sec. 4.2.
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds import binomial_tree_allreduce
from gcsim.simulator.collectives.rounds.rounds import Rounds


def prepare(call: Call) -> Rounds:
    """Merge over all devices, node by node."""
    ranks, size = len(call.sent), np.array(call.sent, dtype=np.int64)
    rounds = Rounds(call.fabric)
    for distance in binomial_tree_allreduce.tree_distances(ranks):
        senders = binomial_tree_allreduce.children(ranks, distance)
        rounds.exchange(senders, senders - distance, size[senders], adding=call.server_time)
        size[senders - distance] = call.pulled
    binomial_tree_allreduce.broadcast_rounds(rounds, ranks, call.pulled)
    return rounds
