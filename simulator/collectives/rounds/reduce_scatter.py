"""How long does it take to reduce a vector and to leave one chunk of the sum with each rank?

The vector is split between elements into p chunks (`ring_allreduce.chunks`); chunk r ends on
rank r. Two algorithms:

- Ring: p - 1 steps; rank r begins with chunk r - 1 (mod p) and adds its own part to each chunk that
  arrives before it passes it on. (p - 1)(alpha + n beta / p) + (p - 1) n gamma / p.
- Recursive halving: in each round, partners at half the distance of the round before exchange the
  halves that the other keeps. With p = 2^k: k alpha + (p - 1)/p n beta + (p - 1)/p n gamma.
  Otherwise ranks fold as in `folding.py`: a taker reduces its giver's chunk too, and sends it last.

    ready[j+1] = max(ready[j] + serialisation, arrival of the partner's half) + reduction

Assumptions: those of `rings/recurrence.py` and of `fabric/rounds.py`; a rank sends and receives at
the same time,
reduces when both are done, and starts the next round then; an empty chunk still costs a message's
latency (MPICH leaves such messages out).

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.3;
MPICH, reduce_scatter_intra_recursive_halving.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import NO_COST, Times
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.collectives.rings.recurrence import ring
from gcsim.simulator.collectives.rounds.folding import Fold
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Link


def ring_reduce_scatter(
    entry: Times,
    nbytes: int,
    links: Sequence[Link],
    *,
    element: int = 1,
    gamma: Fraction = NO_COST,
    key: int = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `links[r]` leads from rank r to rank r + 1 (mod p), `element` bytes an element; a reduction
    costs `gamma` seconds a byte; `key` is that of the random delays. p = 1 costs nothing.
    """
    ranks = len(entry)
    if ranks == 1:
        return entry.copy()
    split = chunks(nbytes, ranks, element)
    first = split[-1:] + split[:-1]
    return ring(
        entry,
        first,
        links,
        steps=ranks - 1,
        gamma=gamma,
        reducing_steps=ranks - 1,
        key=key,
    )


def halving_reduce_scatter(
    entry: Times,
    nbytes: int,
    fabric: Fabric,
    *,
    element: int = 1,
    gamma: Fraction = NO_COST,
    key: int = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds; parameters as for the ring."""
    return fabric.prepared(_rounds, nbytes, element, gamma).carry_out(entry, key)


def _rounds(fabric: Fabric, nbytes: int, element: int, gamma: Fraction) -> Rounds:
    fold = Fold.of(fabric.ranks)
    core, size = fold.core, len(fold.core)
    split = np.array(chunks(nbytes, fabric.ranks, element), dtype=np.int64)
    reduced = split[core]
    reduced[: len(fold.givers)] += split[fold.givers]
    ends = np.cumsum(np.concatenate(([0], reduced)))
    number = np.arange(size, dtype=np.int64)

    rounds = Rounds(fabric)
    rounds.exchange(fold.givers, fold.takers, nbytes, gamma)
    for bit in reversed(range(size.bit_length() - 1)):
        partner = number ^ (1 << bit)
        theirs = partner >> bit << bit
        given = ends[theirs + (1 << bit)] - ends[theirs]
        rounds.exchange(core, core[partner], given, gamma)
    rounds.exchange(fold.takers, fold.givers, split[fold.givers])
    return rounds
