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

from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import NO_COST
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.rounds import Fold, Rounds
from gcsim.simulator.fabric.rounds import Fabric


def recursive_doubling_allreduce(
    nbytes: int, fabric: Fabric, *, gamma: Fraction = NO_COST
) -> Rounds:
    """Prepare an all-reduce of `nbytes` bytes; reducing costs `gamma` seconds per byte."""
    fold = Fold.of(fabric.ranks)
    core, size = fold.core, len(fold.core)
    number = np.arange(size, dtype=np.int64)
    rounds = Rounds(fabric)
    rounds.exchange(fold.givers, fold.takers, nbytes, gamma)
    for bit in range(size.bit_length() - 1):
        rounds.exchange(core, core[number ^ (1 << bit)], nbytes, gamma)
    rounds.exchange(fold.takers, fold.givers, nbytes)
    return rounds


def prepare(call: Call) -> Rounds:
    """All-reduce over all devices, node by node."""
    return recursive_doubling_allreduce(call.nbytes, call.fabric, gamma=call.gamma)
