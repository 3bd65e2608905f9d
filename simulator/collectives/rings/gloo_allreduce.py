"""Gloo's ring all-reduce: exact times of every rank.

The vector is cut into p chunks of s segments, s >= 2 the smallest number for which a segment has at
most 1 MiB; the last segments may be short or empty, and empty ones are not sent. Chunks are reduced
around the ring, then gathered: 2 (p - 1) s messages per rank, each to the rank before it, two in
flight, with announcements (`rings/announced.py`). Before it gathers, a rank waits for everything.

With equal links and entries and segments of m bytes, m beta >= 2 alpha + m gamma, the time is

    2 (p - 1) s m beta + 4 alpha + m gamma

For shorter segments a chunk costs m beta + 2 alpha + m gamma: two segments travel in the time of
one, an announcement, and the receiver's work before it announces the next. The host's time to take
a segment in (`Host.per_received_byte`, kappa) counts in both halves: 2 alpha becomes
2 alpha + m kappa.

Assumptions: those of `rings/announced.py`; an empty vector costs nothing after the last entry.

Source: pytorch/gloo, gloo/allreduce.cc (`ring`) and gloo/allreduce.h (`kMaxSegmentSize`). Before
July 2019 (pull request 192) the last s - 2 iterations of both loops sent needless segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from gcsim.simulator.clock import NO_COST
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.announced import AnnouncedRing, EmptyCollective
from gcsim.simulator.collectives.rings.program import REDUCE_THEN_GATHER, Program
from gcsim.simulator.network.links import Link

LARGEST_SEGMENT = 1 << 20  # bytes


def gloo_ring_allreduce(
    nbytes: int,
    links: Sequence[Link],
    *,
    element: int = 1,
    gamma: Fraction = NO_COST,
    reception: Fraction = NO_COST,
    largest: int = LARGEST_SEGMENT,
) -> AnnouncedRing | EmptyCollective:
    """Prepare an all-reduce of `nbytes` bytes, `element` bytes per element, over p > 1 links.
    `links[r]` leads from rank r to rank r - 1 (mod p); segments have at most `largest` bytes;
    reducing costs `gamma` seconds per byte, receiving `reception` seconds per byte."""
    if nbytes == 0:
        return EmptyCollective()
    steps = program(nbytes, len(links), element, largest)
    return AnnouncedRing(steps, links, gamma=gamma, reception=reception)


@lru_cache(maxsize=64)
def program(nbytes: int, ranks: int, element: int = 1, largest: int = LARGEST_SEGMENT) -> Program:
    """Program of backward-counted ranks: the ring goes to rank + 1, from chunk p - r on."""
    count, segment = segments(nbytes, ranks, element, largest)
    full, rest = divmod(nbytes, segment)
    number = np.arange(count, dtype=np.int64)
    chunks = np.where(number < full, 0, np.where(number == full, 1, 2)).reshape(ranks, -1)
    return Program(
        sizes=(segment, rest, 0),
        pieces=np.roll(chunks[::-1], 1, axis=0),
        phases=REDUCE_THEN_GATHER,
        in_flight=2,
        skips_empty=True,
        backwards=True,
    )


def segments(
    nbytes: int, ranks: int, element: int = 1, largest: int = LARGEST_SEGMENT
) -> tuple[int, int]:
    """Number of segments that Gloo cuts a vector into, and bytes of each but the last."""
    most = element * max(1, largest // element)
    count = ranks * _ratio(max(_ratio(nbytes, most), 2 * ranks), ranks)
    return count, element * _ratio(_ratio(nbytes, count), element)


def _ratio(over: int, under: int) -> int:
    return -(-over // under)


def prepare(call: Call) -> AnnouncedRing | EmptyCollective:
    """All-reduce over all devices, node by node."""
    return gloo_ring_allreduce(
        call.nbytes,
        call.ring_links(backwards=True),
        element=call.element,
        gamma=call.gamma,
        reception=call.reception,
    )


def ring(call: Call) -> Program | None:
    """Program of every rank; None where nothing is sent."""
    return program(call.nbytes, len(call.sent), call.element) if call.nbytes else None
