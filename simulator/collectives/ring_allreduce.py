"""How long does the textbook ring all-reduce take?

2(p - 1) steps of chunks of n / p: p - 1 steps of reduce-scatter, in which each arriving chunk is
added to the rank's own, then p - 1 steps of all-gather. Chunks split the vector between
elements; their sizes differ by at most one element, the larger ones first.

With equal links, chunks and entries: 2(p - 1)(alpha + n beta / p) + (p - 1) n gamma / p.

Assumptions: those of `ring.py`; links may differ from hop to hop and ranks may enter at any time.

Source: Patarasuk and Yuan 2009 (J. Parallel Distrib. Comput. 69, 117-124), sec. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.ring import NO_COST, ring
from gcsim.simulator.links import Link


def ring_allreduce(
    entry: Times,
    nbytes: int,
    links: Sequence[Link],
    *,
    element: int = 1,
    gamma: Fraction = NO_COST,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `nbytes` is the vector's size, `element` bytes an element, `links[r]` leads from rank r to
    rank r + 1 (mod p), and a reduction costs `gamma` seconds a byte. p = 1 costs nothing.
    """
    ranks = len(entry)
    if ranks == 1:
        return entry.copy()
    return ring(
        entry,
        chunks(nbytes, ranks, element),
        links,
        steps=2 * (ranks - 1),
        gamma=gamma,
        reducing_steps=ranks - 1,
    )


def chunks(nbytes: int, parts: int, element: int = 1) -> list[int]:
    """Bytes of each part of a vector that is split evenly between its elements.

    A last element that is not whole counts as one of its own, and is last.
    """
    elements, rest = divmod(nbytes, element)
    share, longer = divmod(elements, parts)
    sizes = [(share + (part < longer)) * element for part in range(parts)]
    sizes[-1] += rest
    return sizes


def carry_out(call: Call) -> Times:
    """The ring over all devices, node by node."""
    return ring_allreduce(call.entry, call.nbytes, call.ring_links(), element=call.element)
