"""Exit times of a ring's ranks: the max-plus recurrence of every ring collective.

In step s, rank r sends block (r - s) mod p to rank r + 1 (mod p), once it has received (and
reduced) the block of step s - 1 and its own previous send has left. With F the end of a rank's send
and R that of its receive, both equal to the entry before the first step:

    S = max(R[s-1], F[s-1])    F[s] = S + serialisation    R[s] = max(F[s] of r - 1 + latency
                                                               + delay, R[s-1]) + reduction

The maximum with R[s-1] keeps a link's messages in order. Random delays are drawn by step and
sender. If a rate changes over time, F[s] is `Link.departure` at S.

Assumptions: messages are buffered (a sender does not wait for its receiver; a receiver takes what
arrived before it entered), and an empty block still costs a message's latency.

Source: the ring of Patarasuk and Yuan 2009 (J. Parallel Distrib. Comput. 69), sec. 3, with
alpha-beta links (Hockney 1994); max-plus paths as in Baccelli, Cohen, Olsder and Quadrat 1992,
ch. 2.

Rings of equal, constant links have a closed form. A rank's exit is the longest chain of n sends. In
each step a chain either stays at its rank, which then sends the next lower block, at the cost of
that block's serialisation B, or moves on with its block, at the cost of B plus the latency L. A
chain that begins with block q, at the rank that enters at `starts[q]`, and ends before block e has
stayed k times, k congruent to q - e (mod p), with blocks q, q - 1, ..., e + 1, and has moved n - k
times, best with the most expensive of its blocks, H = B + L:

    exit[e + n] = max over q of (entry[q] + B[q] + B[q-1] + ... + B[e+1] + (n - k) H)

Staying never costs more than moving, so only the smallest k matters, unless all blocks from q to e
are small: another round, k + p, may then include the large ones. With two block sizes, each in one
run (an all-reduce's chunks differ by at most one element), these are running maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop
from gcsim.simulator.clock import NO_COST, Picoseconds, Times, check_range
from gcsim.simulator.collectives.rings.messages import (
    DRAWN_AT_A_TIME,
    Blocks,
    Classes,
    Messages,
    common_period,
)
from gcsim.simulator.fabric.in_worlds import PathPrices
from gcsim.simulator.network.departures import departure, run_of
from gcsim.simulator.network.links import Link

_LARGEST_TABLE = 1 << 17  # numbers in a table of times by size class and rank
_NO_ROW = np.zeros(0, dtype=np.int64)


class PreparedRing:
    """A ring of fixed blocks and links, for any number of calls.

    A call is O(p) if links are equal and constant, blocks have at most two sizes in two runs and no
    block is reduced; from the second call on also if links are constant and all ranks enter at
    once. Otherwise it takes O(p) memory, and O(p) time per step until the steps repeat.
    """

    def __init__(
        self,
        blocks: Blocks,
        links: Sequence[Link],
        *,
        steps: int,
        gamma: Fraction = NO_COST,
        reducing_steps: int = 0,
    ) -> None:
        """Prepare `steps` >= p - 1 steps over `links[r]` from rank r to rank r + 1; rank b sends
        block b first. Reducing costs `gamma` seconds per byte in the first `reducing_steps`."""
        self.ranks, self.steps, self._reducing = len(links), steps, reducing_steps
        self._sizes = blocks.classes
        self._messages = messages = Messages.of(blocks.sizes, links, gamma=gamma)
        self._period = common_period(self._sizes, messages.kinds) if messages.constant else 0
        self._layouts: dict[int, _Layout] = {}
        self._together: Times | None = None
        self._closed: _ClosedForm | None = None
        if messages.constant and len(messages.links) == 1 and not messages.reductions.any():
            serialization, latency = (
                messages.serialisation[:, 0].tolist(),
                messages.latency[:, 0].tolist(),
            )
            self._closed = _ClosedForm.of(self._sizes, serialization, latency, steps)

    @property
    def nbytes(self) -> int:
        """Approximate memory, bytes."""
        return 4096 + 112 * self.ranks + 16 * self._messages.latency.size

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        messages = self._messages
        check_range(starts, self.steps * messages.slowest)
        if not messages.constant:
            return self._step_by_step(starts, key)
        first = int(starts[0])
        if int(starts.min()) == first == int(starts.max()):
            if self._together is None:
                self._together = self._constant(np.zeros(self.ranks, dtype=np.int64))
            return self._together + first
        return self._constant(starts)

    def last_in_worlds(self, prices: PathPrices) -> Times:
        """Return the last exit `[clusters]` of ranks that all enter at 0, with these prices of the
        link classes; no block is reduced."""
        sizes = self._messages.nbytes.tolist()
        serialization = np.stack([prices.serialization(size) for size in sizes], axis=1)
        latency = np.stack([prices.latencies(size) for size in sizes], axis=1)
        if self._closed is not None:
            starts = np.zeros(self.ranks, dtype=np.int64)
            rows = zip(serialization[..., 0].tolist(), latency[..., 0].tolist(), strict=True)
            forms = (_ClosedForm.of(self._sizes, *row, self.steps) for row in rows)
            return np.array([form(starts).max() for form in forms if form], dtype=np.int64)
        layout, found = self._layout(self._period), []
        for times in zip(layout.flat(serialization), layout.flat(latency), strict=True):
            both: Times = np.zeros((2, len(layout.kinds)), dtype=np.int64)
            layout.advance(both, range(self.steps), self._reducing, times=times)
            found.append(int(both.max()))
        return np.array(found, dtype=np.int64)

    def _constant(self, starts: Times) -> Times:
        if self._closed is not None:
            return self._closed(starts)
        period = self._period
        if period < self.ranks:
            period = common_period(starts, multiple_of=period)
        sent = np.array(starts[:period], dtype=np.int64)
        received = sent.copy()
        self._layout(period).advance((sent, received), range(self.steps), self._reducing)
        finishes = np.maximum(sent, received)
        return finishes if period == self.ranks else np.tile(finishes, self.ranks // period)

    def _step_by_step(self, starts: Times, key: int) -> Times:
        messages, layout = self._messages, self._layout(self.ranks)
        sent = np.array(starts, dtype=np.int64)
        received = sent.copy()
        rows = max(1, DRAWN_AT_A_TIME // self.ranks)
        for first in range(0, self.steps, rows):
            last = min(self.steps, first + rows)
            jitter = self._late(first, last, key) if messages.jitter.any else None
            if jitter is not None:
                messages.check_jitter(int(max(sent.max(), received.max())), last - first, jitter)
            layout.advance((sent, received), range(first, last), self._reducing, jitter)
            messages.check_departures(sent, received)
        return np.maximum(sent, received)

    def _late(self, first: int, last: int, key: int) -> Times:
        """Return random delays by step and sender."""
        step = np.arange(first, last, dtype=np.int64)[:, None]
        rank = np.arange(self.ranks, dtype=np.int64)
        twice = np.concatenate((self._sizes, self._sizes))
        sizes = twice[(self.ranks - step % self.ranks) + rank]  # size of block (r - step) mod p
        return self._messages.draw_jitter(sizes, key=key, message=step, rank=rank)

    def _layout(self, period: int) -> _Layout:
        """Return the arrays of the first `period` ranks, which the others repeat."""
        layout = self._layouts.get(period)
        if layout is None:
            layout = _Layout(self._messages, self._sizes[:period])
            self._layouts[period] = layout
        return layout


class _Layout:
    """Arrays of message times in the form that the compiled steps read, for q ranks."""

    def __init__(self, messages: Messages, sizes: Classes) -> None:
        q, kinds = len(sizes), messages.kinds[: len(sizes)]
        begins = np.flatnonzero(np.concatenate(([True], sizes[1:] != sizes[:-1])))
        self.reductions = messages.reductions
        self.sizes = np.concatenate((sizes, sizes))
        self.kinds: _Row = np.ascontiguousarray(kinds)
        self.none = np.zeros((0, q), dtype=np.int64)
        self.begins = self.runs = _NO_ROW
        self.width, self.loop = len(messages.links), messages.run(_steps_of_ring)
        self.serialization, self.latency = messages.serialization(), messages.latency.reshape(-1)
        few = len(begins) * 8 <= q + 8 and len(messages.nbytes) * q <= _LARGEST_TABLE
        if few and not messages.timed:
            self.width, self.begins, self.runs = q, np.append(begins, q), sizes[begins]
            self.serialization = self.flat(messages.serialisation)
            self.latency = self.flat(messages.latency)
        self.steady = _NEVER_STEADY
        if messages.constant:
            if len(begins) == 1:
                self.steady = _STILL
            elif not kinds.any():
                self.steady = _MOVING

    def flat(self, times: Times) -> Times:
        """Convert times `[..., sizes, links]` to the form that the steps read."""
        if len(self.begins):
            times = times[..., self.kinds]
        # one layout in memory: each makes numba compile the steps again, for 1.3 s
        return np.ascontiguousarray(times.reshape(*times.shape[:-2], -1))

    def advance(
        self,
        state: tuple[Times, Times] | Times,
        steps: range,
        reducing: int,
        jitter: Times | None = None,
        times: tuple[Times, Times] | None = None,
    ) -> None:
        """Advance `state`, when q ranks have sent and received, through `steps`. `times`: flat
        serialisation and latency, in place of the links'."""
        serialization, latency = times or (self.serialization, self.latency)
        self.loop(
            state[0],
            state[1],
            self.width,
            serialization,
            latency,
            self.reductions,
            self.begins,
            self.runs,
            self.sizes,
            self.kinds,
            self.none if jitter is None else jitter,
            self.steady,
            steps.start,
            steps.stop,
            reducing,
        )


_NEVER = -(2**62)  # earlier than any time, with room to add to it


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClosedForm:
    """Closed form of a ring of `steps` >= p - 1 steps with at most two block sizes."""

    steps: int
    first: int  # the first large block
    large: int  # number of large blocks, at most p; they follow each other (mod p)
    serialization: tuple[Picoseconds, Picoseconds]
    """Serialisation of a large block and of a small one."""
    hop: tuple[Picoseconds, Picoseconds]
    """Serialisation plus latency; the large block's is not smaller."""

    @staticmethod
    def of(
        sizes: NDArray[np.int64],
        serialization: Sequence[Picoseconds],
        latency: Sequence[Picoseconds],
        steps: int,
    ) -> _ClosedForm | None:
        """Closed form for size classes `[p]` of blocks; None with more than two sizes or runs."""
        ends = np.flatnonzero(sizes != np.concatenate((sizes[1:], sizes[:1])))
        if len(ends) > 2 or steps < len(sizes) - 1:
            return None
        if len(ends) == 0:
            one, ranks = int(sizes[0]), len(sizes)
            both, hop = (serialization[one],) * 2, (serialization[one] + latency[one],) * 2
            return _ClosedForm(steps=steps, first=0, large=ranks, serialization=both, hop=hop)
        begins = [(int(end) + 1) % len(sizes) for end in ends]
        kinds = [int(sizes[start]) for start in begins]
        hops = [serialization[kind] + latency[kind] for kind in kinds]
        place = 0 if hops[0] >= hops[1] else 1
        return _ClosedForm(
            steps=steps,
            first=begins[place],
            large=(begins[1 - place] - begins[place]) % len(sizes),
            serialization=(serialization[kinds[place]], serialization[kinds[1 - place]]),
            hop=(hops[place], hops[1 - place]),
        )

    def __call__(self, starts: Times) -> Times:
        """Exit times `[p]` for entry times `[p]`, int64, picoseconds."""
        finishes = np.empty(len(starts), dtype=np.int64)
        starts = np.ascontiguousarray(starts, dtype=np.int64)
        _finishes(
            starts, finishes, self.steps, self.first, self.large, *self.serialization, *self.hop
        )
        return finishes


@loop
def _finishes(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    starts: Times,
    finishes: Times,
    steps: int,
    first: int,
    large: int,
    serialization: int,
    small_serialization: int,
    hop: int,
    cheap_hop: int,
) -> None:
    """Write the closed form's exits. Blocks and ranks are numbered from the first large block, so
    that the large ones are 0 ... `large` - 1.

    With P the running sum of the serialisation, a chain with a large block takes
    (entry[q] + P[q] - q hop) + (e hop - P[e] + steps hop), with q + p and its P for a chain from
    block 0 to block p - 1. Linear terms are added in separate loops, which vectorise.
    """
    ranks = starts.size
    # P - p hop over all blocks: the difference between q + p and q
    around = large * serialization + (ranks - large) * small_serialization - ranks * hop
    to_cheap = large * (serialization - hop) + small_serialization  # P[q] - q hop, first small q
    worth = np.empty(ranks, dtype=np.int64)
    _copy(starts[first:], worth[: ranks - first])
    _copy(starts[:first], worth[ranks - first :])
    of_dear, of_small = worth[:large], worth[large:]
    # chains without a large block, whose hops are cheap
    small_alone = np.empty(ranks - large, dtype=np.int64)
    _copy(of_small, small_alone)
    _add_line(of_dear, serialization, serialization - hop)
    _add_line(of_small, to_cheap, small_serialization - hop)
    up_to = np.empty(ranks, dtype=np.int64)  # the best of blocks 0 ... q
    _running_maximum(worth, up_to)
    # the best of q = e and above, in place
    _running_maximum(worth[::-1], worth[::-1])
    # large e: also q below e, from the previous round
    over_the_end = of_dear[1:]
    for q in range(over_the_end.size):
        over_the_end[q] = max(over_the_end[q], up_to[q] + around)
    _add_line(of_dear, steps * hop - serialization, hop - serialization)
    if large < ranks:
        _add_line(small_alone, 0, small_serialization - cheap_hop)
        _running_maximum(small_alone[::-1], small_alone[::-1])
        _add_line(small_alone, steps * cheap_hop, cheap_hop - small_serialization)
        # blocks that a chain of `steps` sends can reach: all from some small one on
        reached = up_to[large + steps - ranks : ranks]
        near = min(reached.size, of_small.size)
        _copy(reached[:near], of_small[:near])
        for q in range(near, of_small.size):
            of_small[q] = up_to[ranks - 1]
        _add_line(of_small, around + steps * hop - to_cheap, hop - small_serialization)
        for q in range(of_small.size):
            of_small[q] = max(of_small[q], small_alone[q])
    # from blocks back to ranks: rank e + n would send block e next
    at = (first + steps) % ranks
    _copy(worth[: ranks - at], finishes[at:])
    _copy(worth[ranks - at :], finishes[:at])


@loop
def _copy(values: Times, into: Times) -> None:
    """Copy an array of equal size; a slice assignment takes 2 s to compile."""
    for q in range(values.size):
        into[q] = values[q]


@loop
def _add_line(values: Times, start: int, slope: int) -> None:
    for q in range(values.size):
        values[q] += start + q * slope


@loop
def _running_maximum(values: Times, best: Times) -> None:
    """Maximum of `values[: q + 1]` into `best[q]`, in place if both are one array."""
    highest = _NEVER
    for q in range(values.size):
        highest = max(highest, values[q])
        best[q] = highest


_Row = NDArray[np.int64]
_STILL, _MOVING, _NEVER_STEADY = 0, 1, -1
"""Rank whose previous state a state is compared with: the same, the predecessor, none."""


@loop
def _steps_of_ring(  # noqa: PLR0912, PLR0917 - compiled: arrays by position, all in one
    sent: _Row,
    received: _Row,
    width: int,
    serialization: _Row,
    latency: _Row,
    reductions: _Row,
    starts: _Row,
    runs: _Row,
    sizes: _Row,
    kinds: _Row,
    jitter: NDArray[np.int64],
    steady: int,
    first: int,
    last: int,
    reducing: int,
) -> None:
    """Advance `sent` and `received` `[q]` through steps `first` to `last` - 1.

    | array                    | shape            | content                                        |
    |--------------------------|------------------|------------------------------------------------|
    | starts, runs             | [n + 1], [n]     | begin and size class of each run of equal      |
    |                          |                  | blocks, which adds one row without look-ups    |
    | serialization, latency   | [sizes, width]   | flat; by size class and rank with runs, by     |
    |                          |                  | size class and link class without (n = 0)      |
    | sizes, kinds             | [2 q], [q]       | blocks' size classes, twice over; link classes |
    | jitter                   | [last - first, q]| random delays by step and sender, or [0, q]    |

    Steps before step `reducing` reduce.

    A step f satisfies f(state + c) = f(state) + c. Once a step has shifted the whole state by a
    constant, all further steps with the same f do so too and are computed at once. With equal
    blocks (STILL) the states are compared by rank; with equal links (MOVING) by the block that is
    sent, which moves on by one rank per step.
    """
    q = sent.size
    arrived = np.empty(q, dtype=np.int64)
    sent_before, received_before = np.empty(q, dtype=np.int64), np.empty(q, dtype=np.int64)
    step, looks_at, begun = first, first, first
    while step < last:
        looks = steady >= 0 and step == looks_at
        if looks:
            for r in range(q):
                sent_before[r], received_before[r] = sent[r], received[r]
        turned = step % q  # rank r sends block r - turned: the runs have moved by `turned`
        for run in range(starts.size - 1):
            row = runs[run] * width
            low, high = starts[run] + turned, starts[run + 1] + turned
            for _ in range(2):  # the part of the run before the ring closes, and from rank 0 on
                if high > 0 and low < q:
                    begin, end = max(low, 0), min(high, q)
                    _leave(sent, received, arrived, serialization, latency, row, begin, end)
                low, high = low - q, high - q
        block = sizes[q - turned : 2 * q - turned]  # of block (r - step) mod q
        if starts.size == 0:
            for r in range(q):
                at = block[r] * width + kinds[r]
                left = departure(serialization, at, max(sent[r], received[r]))
                sent[r] = left
                arrived[r] = left + latency[at]
        if jitter.shape[0] > 0:
            late = jitter[step - first]
            for r in range(q):
                arrived[r] += late[r]
        _arrive(received, arrived, reductions, starts, runs, block, turned, step < reducing)
        step += 1
        if looks:
            end = reducing if step <= reducing else last
            # the whole state has shifted by a constant: the remaining steps of this kind do so too
            if _shifted(sent, received, sent_before, received_before, steady):
                # the previous states are those before this step: one more shift
                by = (sent[0] - sent_before[-steady]) * (end - step + 1)
                for r in range(q):
                    before = (r - steady * (end - step + 1)) % q
                    sent[r] = sent_before[before] + by
                    received[r] = received_before[before] + by
                step = end
            # rare enough to be cheap, but at most an eighth of the steps is computed in vain
            looks_at = step + (step - begun) // 8
        if step == reducing:
            looks_at, begun = step, step


@inlined
def _leave(  # noqa: PLR0917
    sent: _Row,
    received: _Row,
    arrived: _Row,
    serialization: _Row,
    latency: _Row,
    row: int,
    low: int,
    high: int,
) -> None:
    """Send one run's messages, from ranks `low` to `high` - 1."""
    # [high - low]: views, so that the loop below has one index and becomes vector instructions
    part, heard, reach = sent[low:high], received[low:high], arrived[low:high]
    takes = run_of(serialization, row + low, row + high)
    travels = latency[row + low : row + high]
    for r in range(part.size):
        left = max(part[r], heard[r]) + takes[r]  # the NIC is free and the block has arrived
        part[r] = left
        reach[r] = left + travels[r]


@inlined
def _arrive(  # noqa: PLR0917
    received: _Row,
    arrived: _Row,
    reductions: _Row,
    starts: _Row,
    runs: _Row,
    block: _Row,
    turned: int,
    reduces: bool,
) -> None:
    """Receive one step's messages, `arrived` by sender."""
    q = received.size
    received[0] = max(arrived[q - 1], received[0])
    for r in range(1, q):
        received[r] = max(arrived[r - 1], received[r])
    if not reduces:
        return
    for run in range(starts.size - 1):
        cost = reductions[runs[run]]
        # a receiver is one rank after its sender
        low, high = starts[run] + turned + 1, starts[run + 1] + turned + 1
        for _ in range(2):
            for r in range(max(low, 0), min(high, q)):
                received[r] += cost
            low, high = low - q, high - q
    if starts.size == 0:
        for r in range(q):
            received[r] += reductions[block[r - 1]]


@inlined
def _shifted(
    sent: _Row, received: _Row, sent_before: _Row, received_before: _Row, steady: int
) -> bool:
    """Whether a step has shifted all times by the same constant."""
    by = sent[0] - sent_before[-steady]
    for r in range(sent.size):
        # r - steady = -1 is the last rank: the ring closes
        if sent[r] - sent_before[r - steady] != by:
            return False
        if received[r] - received_before[r - steady] != by:
            return False
    return True
