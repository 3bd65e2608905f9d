"""All-gather by recursive doubling, blocks equal or not.

In round j, ranks of the core (`Fold`) whose numbers differ in bit j send each other all that they
have. If p is no power of two, a giver's block travels with its taker's, which sends it all others
at the end: n bytes more than the necessary (p - 1) n/p, so Bruck's algorithm is better then.

With p = 2^k, equal links, blocks and entries: k alpha + (p - 1)/p n beta for n bytes in all.

    ready[j+1] = max(ready[j] + serialisation, arrival of the partner's blocks)

Assumptions: those of `fabric/rounds.py`; sizes are known; empty blocks cost a message's latency.

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.1. The
folding is MPICH's for reductions; its all-gather keeps all ranks and repairs incomplete subtrees.
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.rounds import Fold, Rounds


def prepare(call: Call) -> Rounds:
    """Gather over all devices, node by node."""
    fold, blocks = Fold.of(len(call.sent)), np.array(call.sent, dtype=np.int64)
    core, size = fold.core, len(fold.core)
    held = blocks[core]
    held[: len(fold.givers)] += blocks[fold.givers]
    number = np.arange(size, dtype=np.int64)

    rounds = Rounds(call.fabric)
    rounds.exchange(fold.givers, fold.takers, blocks[fold.givers])
    for bit in range(size.bit_length() - 1):
        partner = number ^ (1 << bit)
        rounds.exchange(core, core[partner], held)
        held = held + held[partner]
    rounds.exchange(fold.takers, fold.givers, sum(call.sent) - blocks[fold.givers])
    return rounds
