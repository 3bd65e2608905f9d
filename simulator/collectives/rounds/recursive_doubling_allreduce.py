"""All-reduce by recursive doubling: few rounds and many bytes, the choice for short vectors.

In round j, ranks of the core (`Fold`) whose numbers differ in bit j exchange and reduce whole
vectors. With p = 2^k, equal links and entries: k (alpha + n beta + n gamma); otherwise at most one
more message before, with its reduction, and one after.

    ready[j+1] = max(ready[j] + serialisation, arrival of the partner's vector) + reduction

Assumptions: those of `fabric/rounds.py`.

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.5;
MPICH, allreduce_intra_recursive_doubling.c.
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.rounds import Fold, Rounds


def prepare(call: Call) -> Rounds:
    """All-reduce over all devices, node by node."""
    fold, nbytes, gamma = Fold.of(len(call.sent)), call.nbytes, call.gamma
    core, size = fold.core, len(fold.core)
    number = np.arange(size, dtype=np.int64)
    rounds = Rounds(call.fabric)
    rounds.exchange(fold.givers, fold.takers, nbytes, gamma)
    for bit in range(size.bit_length() - 1):
        rounds.exchange(core, core[number ^ (1 << bit)], nbytes, gamma)
    rounds.exchange(fold.takers, fold.givers, nbytes)
    return rounds
