"""When does each rank leave a ring? The max-plus recurrence under every ring collective.

Rank r sends to rank r + 1 (mod p), and at step s it sends block (r - s) mod p. It starts the
send of step s when it has received (and reduced) what step s - 1 brought, and when the send of
step s - 1 has left. With F the end of a rank's send and R of its receive, both `starts` before
the first step:

    S = max(R[s-1], F[s-1])    F[s] = S + serialisation    R[s] = max(F[s] of r - 1 + latency
                                                               + delay, R[s-1]) + reduction

The message that a rank sends at step s is its number s when random delays are drawn. Messages from
a rank to the next arrive in order: one that would overtake those before it arrives with the last of
them, and since R[s-1] is not before that, the maximum with R[s-1] says it. Where the rate of a link
changes over time, F[s] is what the link says of a message that starts at S (`Link.departure`).

Assumptions: messages are buffered (a sender does not wait for its receiver, a receiver takes up
what arrived before it entered), and an empty block still costs a message's latency.

Source: the ring of Patarasuk and Yuan 2009 (J. Parallel Distrib. Comput. 69), sec. 3, with
alpha-beta links (Hockney 1994); max-plus form as in Baccelli et al. 1992, ch. 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import NO_COST, Times, check_range
from gcsim.simulator.collectives.rings.closed_form import ClosedForm
from gcsim.simulator.collectives.rings.loops import (
    MOVING,
    NEVER_STEADY,
    STILL,
    Row,
    steps_of_ring,
)
from gcsim.simulator.collectives.rings.messages import (
    DRAWN_AT_A_TIME,
    Blocks,
    Classes,
    Messages,
    common_period,
)
from gcsim.simulator.network.links import Link

_LARGEST_TABLE = 1 << 17
"""Numbers in a table of times by size class and rank."""
_NO_ROW = np.zeros(0, dtype=np.int64)


class PreparedRing:
    """A ring of known blocks and links, for any number of calls with other entry times.

    A call is O(p) where links are equal, constant and blocks have one size or two, the first of
    which comes first, and nothing is reduced; where links are constant and all enter at once, from
    the second call on; else O(p) memory and O(p) a step, until the steps repeat themselves.
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
        """A ring of `steps` steps, at least p - 1, over `links[r]` from rank r to rank r + 1.

        `gamma` seconds a byte are spent on each block that arrives in the first `reducing_steps`
        steps; rank b sends block b first.
        """
        self.ranks, self.steps, self._reducing = len(links), steps, reducing_steps
        self._sizes = blocks.classes
        self._messages = messages = Messages.of(blocks.sizes, links, gamma=gamma)
        self._period = common_period(self._sizes, messages.kinds) if messages.constant else 0
        self._layouts: dict[int, _Layout] = {}
        self._together: Times | None = None
        self._closed: ClosedForm | None = None
        if messages.constant and len(messages.links) == 1 and not messages.reductions.any():
            serialization, latency = (
                messages.serialisation[:, 0].tolist(),
                messages.latency[:, 0].tolist(),
            )
            self._closed = ClosedForm.of(self._sizes, serialization, latency, steps)

    @property
    def nbytes(self) -> int:
        """Memory, about: numbers of each rank, of each size on each link."""
        return 4096 + 112 * self.ranks + 16 * self._messages.latency.size

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """As `Prepared`."""
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
        """Random delays of the messages of some steps, by step and sender."""
        step = np.arange(first, last, dtype=np.int64)[:, None]
        rank = np.arange(self.ranks, dtype=np.int64)
        twice = np.concatenate((self._sizes, self._sizes))
        sizes = twice[(self.ranks - step % self.ranks) + rank]  # of block (r - step) mod p
        return self._messages.draw_jitter(sizes, key=key, message=step, rank=rank)

    def _layout(self, period: int) -> _Layout:
        """For the first `period` ranks, which the others repeat."""
        layout = self._layouts.get(period)
        if layout is None:
            layout = _Layout(self._messages, self._sizes[:period])
            self._layouts[period] = layout
        return layout


class _Layout:
    """Where the compiled steps find the times of q ranks' messages."""

    def __init__(self, messages: Messages, sizes: Classes) -> None:
        q, kinds = len(sizes), messages.kinds[: len(sizes)]
        begins = np.flatnonzero(np.concatenate(([True], sizes[1:] != sizes[:-1])))
        self.reductions = messages.reductions
        self.sizes = np.concatenate((sizes, sizes))
        self.kinds: Row = np.ascontiguousarray(kinds)
        self.none = np.zeros((0, q), dtype=np.int64)
        self.begins = self.runs = _NO_ROW
        self.width, self.loop = len(messages.links), messages.run(steps_of_ring)
        self.serialization, self.latency = messages.serialization(), messages.latency.reshape(-1)
        few = len(begins) * 8 <= q + 8 and len(messages.nbytes) * q <= _LARGEST_TABLE
        if few and not messages.timed:
            self.width = q
            self.serialization = messages.serialisation[:, kinds].reshape(-1)
            self.latency = messages.latency[:, kinds].reshape(-1)
            self.begins, self.runs = np.append(begins, q), sizes[begins]
        self.steady = NEVER_STEADY
        if messages.constant:
            if len(begins) == 1:
                self.steady = STILL
            elif not kinds.any():
                self.steady = MOVING

    def advance(
        self, state: tuple[Times, Times], steps: range, reducing: int, jitter: Times | None = None
    ) -> None:
        """Take what q ranks have sent and received from before to behind some steps."""
        self.loop(
            *state,
            self.width,
            self.serialization,
            self.latency,
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
