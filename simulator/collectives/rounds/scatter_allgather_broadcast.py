"""How long does a broadcast take that scatters the vector and gathers it everywhere?

The vector is split into p chunks (`ring_allreduce.chunks`). Scatter, from rank 0 along the binomial
tree: a rank sends each child, the farthest first, the chunks of the child's subtree. All-gather:
the ring of `rings/allgather.py`. Every rank sends about twice the vector at most, however many
ranks there are: the choice for long vectors.

With p = 2^k, equal links, chunks and entries the last rank leaves after at most
(k + p - 1) alpha + 2 (p - 1)/p n beta.

Assumptions: those of `fabric/rounds.py` and of `rings/recurrence.py`; a rank enters the ring when
its last chunks have left it; an empty chunk still costs a message's latency.

Source: van de Geijn's broadcast, as in Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform.
Comput. Appl. 19), sec. 4.2; MPICH, bcast_intra_scatter_ring_allgather.c.
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.rings.allgather import ring_allgather
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.collectives.rounds.binomial_tree_allreduce import children, tree_distances
from gcsim.simulator.collectives.rounds.rounds import Rounds, phase_key
from gcsim.simulator.fabric.rounds import Fabric


def scatter_allgather_broadcast(
    entry: Times, nbytes: int, fabric: Fabric, *, element: int = 1, key: int = 0
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds, of a broadcast from rank 0.

    `nbytes` is the vector's size, `element` bytes an element, `key` that of the random delays;
    those of the ring have one of their own (`phase_key`). p = 1 costs nothing.
    """
    split = chunks(nbytes, fabric.ranks, element)
    ready = binomial_scatter(entry, nbytes, fabric, element=element, key=key)
    return ring_allgather(ready, split, fabric.ring_links(), key=phase_key(key, 1))


def binomial_scatter(
    entry: Times, nbytes: int, fabric: Fabric, *, element: int = 1, key: int = 0
) -> Times:
    """Exit times `[p]` of a scatter from rank 0; chunk r goes to rank r."""
    return fabric.prepared(_rounds, nbytes, element).carry_out(entry, key)


def _rounds(fabric: Fabric, nbytes: int, element: int) -> Rounds:
    ranks = fabric.ranks
    ends = np.cumsum([0, *chunks(nbytes, ranks, element)], dtype=np.int64)
    rounds = Rounds(fabric)
    for distance in reversed(tree_distances(ranks)):
        receivers = children(ranks, distance)
        subtree = ends[np.minimum(receivers + distance, ranks)] - ends[receivers]
        rounds.exchange(receivers - distance, receivers, subtree)
    return rounds
