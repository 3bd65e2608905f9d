"""All-reduce by recursive halving and doubling.

The vector is split into 2^k chunks for the 2^k ranks of the core (`Fold`). Round j of the
reduce-scatter: partners whose numbers differ in bit j exchange halves of the chunks that they still
reduce; the rank whose bit is 0 keeps the lower half. The all-gather runs the rounds backwards, each
rank sending all it has. With 2^i devices per node the largest messages stay inside the nodes.

With p = 2^k, equal links, chunks and entries: 2 k alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma;
otherwise at most two more messages of the whole vector, one with its reduction.

    ready[j+1] = max(ready[j] + serialisation, arrival of the partner's half) + reduction

Assumptions: those of `fabric/rounds.py`; an empty chunk still costs a message's latency (MPICH
takes recursive doubling for vectors of fewer elements than ranks).

Source: Rabenseifner 2004 (ICCS, LNCS 3036, "Optimization of collective reduction operations"); the
order of rounds and the folding as in MPICH, allreduce_intra_reduce_scatter_allgather.c.
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.collectives.rounds.rounds import Fold, Rounds


def prepare(call: Call) -> Rounds:
    """All-reduce over all devices, node by node."""
    fold, nbytes, gamma = Fold.of(len(call.sent)), call.nbytes, call.gamma
    core, size = fold.core, len(fold.core)
    halves = [size >> (bit + 1) for bit in range(size.bit_length() - 1)]
    ends = np.cumsum([0, *chunks(nbytes, size, call.element)], dtype=np.int64)
    number = np.arange(size, dtype=np.int64)
    lowest = np.zeros(size, dtype=np.int64)  # of the chunks that a rank still reduces

    rounds = Rounds(call.fabric)
    rounds.exchange(fold.givers, fold.takers, nbytes, gamma)
    kept = []
    for bit, half in enumerate(halves):
        upper = half * ((number >> bit) & 1)
        given = lowest + half - upper
        lowest = lowest + upper
        partner = core[number ^ (1 << bit)]
        rounds.exchange(core, partner, ends[given + half] - ends[given], gamma)
        kept.append((partner, ends[lowest + half] - ends[lowest]))
    for partner, held in reversed(kept):
        rounds.exchange(core, partner, held)
    rounds.exchange(fold.takers, fold.givers, nbytes)
    return rounds
