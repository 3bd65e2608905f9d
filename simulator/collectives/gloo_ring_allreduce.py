"""How long does Gloo's ring all-reduce take, and any ring whose receivers announce themselves?

The vector is cut into p chunks of s segments each, s the smallest number of at least two for which
a segment has at most 1 MiB. The last segments may be short or empty; empty ones are not sent.
Chunks are reduced around the ring, then the sums are gathered: 2 (p - 1) s messages a rank, each to
the rank before it. A rank works through them in order with two in flight: it posts the receive and
the send of message i when message i - 2 has arrived and been reduced and its own message i - 2 has
left. Before it gathers, it waits for everything. Data leave when the sender has posted them and has
heard that the receiver has posted them too. With U the time of posting and F the end of a send:

    U[i] = max(max(U[i-1], arrival of i - 2) + reduction, F[i-2])
    F[i] = max(U[i], U[i] of the receiver + latency, F[i-1]) + serialisation

With equal links and entries and segments of m bytes that take long, m beta >= 2 alpha + m gamma,
latency is all but hidden, and the time is

    2 (p - 1) s m beta + 4 alpha + m gamma

where they take less, a chunk costs m beta + 2 alpha + m gamma. Between two ranks both ways share
one connection: an announcement waits behind the data that its rank has put on it before.

Assumptions: a message has left when its last byte is on the link (Gloo: in the socket's buffer);
headers and announcements (48 bytes each) occupy no link, and for p > 2 wait for nothing; an empty
vector costs nothing once all have entered (Gloo: at once).

Source: pytorch/gloo, gloo/allreduce.cc (`ring`), gloo/allreduce.h (`kMaxSegmentSize`) and
gloo/transport/tcp/pair.cc (`send`, `recv`, `handleRemotePendingRecv`). Before July 2019 (pull
request 192) the last s - 2 iterations of both loops sent segments that nobody needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.pieces import NEVER
from gcsim.simulator.collectives.ring import (
    NO_COST,
    Messages,
    check_range,
    common_period,
    from_predecessor,
)
from gcsim.simulator.links import Link

LARGEST_SEGMENT = 1 << 20
"""Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """p - 1 blocks a rank: r + `first`, r + `first` - 1, ... (mod p)."""

    first: int = 0
    reduces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """What every rank of a ring does; pieces of blocks travel from rank r to rank r + 1."""

    sizes: tuple[int, ...]
    """Bytes of a piece, by class."""
    pieces: NDArray[np.int64]
    """`[p, s]`: class of each piece of each block."""
    phases: tuple[Phase, ...] = (Phase(),)
    """Between two of them a rank waits for all that it has posted."""
    in_flight: int
    """Messages that a rank has posted and not yet waited for."""
    sends_first: bool
    """A rank posts a message's send before its receive."""
    skips_empty: bool = False
    """Empty pieces are no messages."""


def announced_ring(
    entry: Times, program: Program, links: Sequence[Link], *, gamma: Fraction = NO_COST
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds, p > 1.

    `links[r]` leads from rank r to rank r + 1 (mod p), and announcements back over it; a reduction
    costs `gamma` seconds a byte. One row of p numbers a message; one rank stands for all that do
    the same, and where blocks are equal the rest of a phase is known once all ranks keep one pace.
    """
    ranks, per_block = program.pieces.shape
    messages = Messages.of(program.sizes, links, gamma=gamma)
    posts = len(program.phases) * (ranks - 1) * per_block
    check_range(entry, (2 * posts + 4) * messages.slowest)
    alike = np.unique(program.pieces, axis=0, return_inverse=True)[1].reshape(-1)
    period = common_period(entry, alike, messages.kinds)
    ring = _Ring(entry[:period], program, messages, period)
    for phase in program.phases:
        ring.run(phase)
    return np.tile(ring.posted, ranks // period)


class _Ring:
    """The state of the first `period` ranks; the others do the same."""

    def __init__(self, entry: Times, program: Program, messages: Messages, period: int) -> None:
        self.posted = self.left = self.started = entry
        self.program, self.period, self.ranks = program, period, len(program.pieces)
        self.kinds, self.latency = messages.kinds[:period], messages.latency[:period]
        # classes of equal size are one class of `messages`
        self.serialisation = messages.serialisation[messages.sizes]
        self.reductions = messages.reductions[messages.sizes]
        self.empty = np.array([size == 0 for size in program.sizes])
        once = program.pieces[:period]
        self.steady = bool((once == once[0]).all())
        self.skips = program.skips_empty and bool(self.empty[once].any())
        self.pieces = np.concatenate((once, once)).T.copy()
        self.busy = None if self.kinds.any() else self.serialisation[self.pieces, 0]
        """On links of one kind."""
        self.flying: deque[tuple[Times, Times, Times | None]] = deque()
        """Arrival, departure and reduction of what has been posted and not been waited for."""

    def run(self, phase: Phase) -> None:
        """One phase, after which nothing is in flight."""
        before: Times | None = None
        full = self.program.in_flight
        for blocks in range(self.ranks - 1):
            shift = (phase.first - blocks) % self.period
            for piece in range(len(self.pieces)):
                if len(self.flying) == full:
                    self._wait()
                self._post(piece, slice(shift, shift + self.period), reduces=phase.reduces)
            if self.steady and len(self.flying) == full:
                now = self._state()
                pace = None if before is None else now - before
                if pace is not None and (pace == pace[0]).all():
                    self._advance((self.ranks - 2 - blocks) * int(pace[0]))
                    break
                before = now
        while self.flying:
            self._wait()

    def _post(self, piece: int, rows: slice, *, reduces: bool) -> None:
        size, latency = self.pieces[piece, rows], self.latency
        busy = self.serialisation[size, self.kinds] if self.busy is None else self.busy[piece, rows]
        announced = self.posted if self.ranks > 2 else self._behind_data(busy)
        started = np.maximum(self.posted, _from_successor(announced) + latency)
        left = np.maximum(self.left, started) + busy
        arrived = left + latency
        if self.skips:
            nothing = self.empty[size]
            started = np.where(nothing, self.started, started)
            left = np.where(nothing, self.left, left)
            arrived = np.where(nothing, NEVER, arrived)
        self.started, self.left = started, left
        reduction = from_predecessor(self.reductions[size]) if reduces else None
        self.flying.append((from_predecessor(arrived), left, reduction))

    def _behind_data(self, busy: Times) -> Times:
        """When each of two ranks' announcements goes on the connection that its data use too.

        What arrives at an instant is dealt with before what is posted then, and nothing arrives at
        the instant at which it is sent.
        """
        free = np.maximum(self.posted, np.where(self.started <= self.posted, self.left, 0))
        if not self.program.sends_first:
            return free
        known = _from_successor(free) + np.maximum(self.latency, 1) <= self.posted
        return np.where(known, np.maximum(self.left, self.posted) + busy, free)

    def _wait(self) -> None:
        """For the message posted first of those in flight."""
        arrived, left, reduction = self.flying.popleft()
        posted = np.maximum(self.posted, arrived)
        if reduction is not None:
            posted += reduction
        self.posted = np.maximum(posted, left)

    def _state(self) -> Times:
        flying = [times for arrived, left, _ in self.flying for times in (arrived, left)]
        return np.concatenate((self.posted, self.left, self.started, *flying))

    def _advance(self, by: Picoseconds) -> None:
        self.posted, self.left, self.started = self.posted + by, self.left + by, self.started + by
        for _ in range(len(self.flying)):
            arrived, left, reduction = self.flying.popleft()
            self.flying.append((arrived + by, left + by, reduction))


def _from_successor(values: Times) -> Times:
    return np.concatenate((values[1:], values[:1]))


def gloo_ring_allreduce(
    entry: Times,
    nbytes: int,
    links: Sequence[Link],
    *,
    element: int = 1,
    gamma: Fraction = NO_COST,
    largest: int = LARGEST_SEGMENT,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `nbytes` is the vector's size, `element` bytes an element, `links[r]` leads from rank r to rank
    r - 1 (mod p), `largest` bytes is the limit of a segment; a reduction costs `gamma` seconds a
    byte. p = 1 costs nothing.
    """
    ranks = len(entry)
    if ranks == 1:
        return entry.copy()
    if nbytes == 0:
        return np.full_like(entry, entry.max())
    count, segment = segments(nbytes, ranks, element, largest)
    full, rest = divmod(nbytes, segment)
    number = np.arange(count, dtype=np.int64)
    chunks = np.where(number < full, 0, np.where(number == full, 1, 2)).reshape(ranks, -1)
    # Backwards, the ring goes from rank to rank + 1, and begins with chunk p - r.
    program = Program(
        sizes=(segment, rest, 0),
        pieces=np.roll(chunks[::-1], 1, axis=0),
        phases=(Phase(first=0, reduces=True), Phase(first=1)),
        in_flight=2,
        sends_first=False,
        skips_empty=True,
    )
    return announced_ring(entry[::-1], program, list(links)[::-1], gamma=gamma)[::-1]


def segments(
    nbytes: int, ranks: int, element: int = 1, largest: int = LARGEST_SEGMENT
) -> tuple[int, int]:
    """How many segments Gloo cuts a vector into, and the bytes of each but the last."""
    most = element * max(1, largest // element)
    count = ranks * _ratio(max(_ratio(nbytes, most), 2 * ranks), ranks)
    return count, element * _ratio(_ratio(nbytes, count), element)


def _ratio(over: int, under: int) -> int:
    """Rounded up."""
    return -(-over // under)


def carry_out(call: Call) -> Times:
    """The ring over all devices, node by node."""
    links = call.ring_links()
    before = links[-1:] + links[:-1]
    return gloo_ring_allreduce(call.entry, call.nbytes, before, element=call.element)
