"""How long does the all-reduce by recursive doubling take?

In round j, ranks of the core (`folding.py`) whose numbers differ in bit j exchange their whole
vectors and reduce. Few rounds and many bytes: the choice for short vectors.

With p = 2^k, equal links and entries: k (alpha + n beta + n gamma). Otherwise at most one message
before, with its reduction, and one after.

    ready[j+1] = max(ready[j] + serialisation, arrival of the partner's vector) + reduction

Assumptions: those of `fabric/rounds.py`; a rank sends and receives at the same time, reduces when
both are done, and starts the next round then.

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.5;
MPICH, allreduce_intra_recursive_doubling.c.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import NO_COST, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.folding import Fold
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic


def recursive_doubling_allreduce(
    starts: Times, nbytes: int, fabric: Fabric, *, gamma: Fraction = NO_COST, key: int = 0
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `nbytes` is the vector's size; a reduction costs `gamma` seconds a byte; `key` is that of the
    random delays. p = 1 costs nothing.
    """
    return fabric.prepared(_rounds, nbytes, gamma).execute(starts, key)


def _rounds(fabric: Fabric, nbytes: int, gamma: Fraction) -> Rounds:
    fold = Fold.of(fabric.ranks)
    core, size = fold.core, len(fold.core)
    number = np.arange(size, dtype=np.int64)
    rounds = Rounds(fabric)
    rounds.exchange(fold.givers, fold.takers, nbytes, gamma)
    for bit in range(size.bit_length() - 1):
        rounds.exchange(core, core[number ^ (1 << bit)], nbytes, gamma)
    rounds.exchange(fold.takers, fold.givers, nbytes)
    return rounds


def execute(call: Call) -> Times:
    """Over all devices, ranks counted node by node."""
    return recursive_doubling_allreduce(
        call.starts, call.nbytes, call.fabric, gamma=call.gamma, key=call.key
    )


def traffic(call: Call) -> Traffic:
    """What the ranks handle in it."""
    return call.fabric.prepared(_rounds, call.nbytes, NO_COST).traffic(call.fabric.devices)
