"""Textbook ring all-reduce: exact times of every rank.

p - 1 steps of reduce-scatter, in which each arriving chunk of n / p is added to the rank's own,
then p - 1 of all-gather. Chunk sizes differ by at most one element, the larger ones first.

With equal links, chunks and entries: 2(p - 1)(alpha + n beta / p) + (p - 1) n gamma / p.

Assumptions: those of `rings/recurrence.py`; links may differ, and ranks may enter at any time.

Source: Patarasuk and Yuan 2009 (J. Parallel Distrib. Comput. 69, 117-124), sec. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gcsim.simulator.clock import NO_COST
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.messages import Blocks
from gcsim.simulator.collectives.rings.program import REDUCE_THEN_GATHER, Program
from gcsim.simulator.collectives.rings.recurrence import PreparedRing
from gcsim.simulator.network.links import Link


def ring_allreduce(
    nbytes: int, links: Sequence[Link], *, element: int = 1, gamma: Fraction = NO_COST
) -> PreparedRing:
    """Prepare an all-reduce of `nbytes` bytes, `element` bytes per element, over p > 1 links.
    `links[r]` leads from rank r to rank r + 1 (mod p); reducing costs `gamma` seconds per byte."""
    ranks = len(links)
    return PreparedRing(
        Blocks.chunks(nbytes, ranks, element),
        links,
        steps=2 * (ranks - 1),
        gamma=gamma,
        reducing_steps=ranks - 1,
    )


def chunks(nbytes: int, parts: int, element: int = 1) -> list[int]:
    """Bytes of each part of a vector split evenly between elements, a partial one last."""
    return Blocks.chunks(nbytes, parts, element).tolist()


def prepare(call: Call) -> PreparedRing:
    """All-reduce over all devices, node by node."""
    return ring_allreduce(call.nbytes, call.ring_links(), element=call.element, gamma=call.gamma)


def ring(call: Call) -> Program:
    """Program of every rank."""
    blocks = Blocks.chunks(call.nbytes, len(call.sent), call.element)
    return Program.textbook(blocks, *REDUCE_THEN_GATHER)
