"""Which ranks take part in an algorithm that needs a power of two?

With 2^k the largest power of two up to p and s = p - 2^k ranks too many, the even ranks below 2s
(givers) send what they hold to the odd rank above them (takers) before the algorithm, and get the
result from it after. The takers, then the ranks from 2s on, are the core: its i-th rank is 2i + 1
for i < s, else i + s.

Neighbours fold, so that with two or more devices a node most folding stays inside the nodes.

Source: MPICH, src/mpi/coll/allreduce/allreduce_intra_reduce_scatter_allgather.c; Thakur,
Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcsim.simulator.fabric.link_table import Ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fold:
    """Ranks by what they do."""

    givers: Ranks
    """Give before and get after, `[s]`."""
    takers: Ranks
    """`takers[i]` takes from `givers[i]`."""
    core: Ranks
    """In the order of their numbers in the algorithm, `[2^k]`."""

    @staticmethod
    def of(ranks: int) -> Fold:
        """Of p ranks."""
        excess = ranks - (1 << (ranks.bit_length() - 1))
        givers = np.arange(0, 2 * excess, 2, dtype=np.int64)
        rest = np.arange(2 * excess, ranks, dtype=np.int64)
        return Fold(givers=givers, takers=givers + 1, core=np.concatenate((givers + 1, rest)))
