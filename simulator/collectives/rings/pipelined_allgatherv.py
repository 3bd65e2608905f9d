"""Pipelined ring all-gatherv: blocks are forwarded piece by piece as they arrive.

Each contribution is cut into pieces of `piece` bytes (the last may be shorter), the fixed m of
Tsuzuku et al.; Traeff's and MPICH's pieces are at least as large as the smallest contribution
(`synchronous_allgatherv.py`). A rank sends its own pieces (or an empty one), then forwards arriving
ones in order, but not to their origin. So a large contribution does not delay a whole step:

    T <= (sum n_i + (p - 1) piece) beta, when latency is zero

With F the end of a rank's send, and A the arrival of a piece at it (its entry for its own pieces):

    F = max(F of the piece before, A) + serialisation    A of r + 1 = max(F + latency + delay,
                                                                    A of the piece before)

Assumptions: those of `rings/recurrence.py`, per piece. MPICH's rounds, in which a rank waits for a
piece's arrival before it sends the next, take up to 9 times as long if latency dominates.

Source: Traeff, Ripke, Siebert, Balaji, Thakur and Gropp 2008 (EuroPVM/MPI, LNCS 5205), "A simple,
pipelined algorithm for large, irregular all-gather problems"; the bound as in Tsuzuku, Imachi and
Akiba 2018 (arXiv:1802.06058), sec. 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.messages import (
    DRAWN_AT_A_TIME,
    Messages,
    classes,
    common_period,
)
from gcsim.simulator.collectives.rings.program import ring_traffic
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.departures import departure
from gcsim.simulator.network.links import Link

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pieces:
    sizes: tuple[int, ...]  # distinct, bytes
    row: NDArray[np.int64]  # [n]: size class by piece
    first: NDArray[np.int64]  # [q]: index in `row` of each block's first piece
    count: NDArray[np.int64]  # [q]: pieces per block, at least one

    @staticmethod
    def of(contributions: Sequence[int], piece: int) -> _Pieces:
        """Cut the ranks' contributions into pieces."""
        counts = [max(1, -(-size // piece)) for size in contributions]
        last = [
            size - (count - 1) * piece for size, count in zip(contributions, counts, strict=True)
        ]
        sizes = tuple(dict.fromkeys([piece, *last]))
        place = {size: number for number, size in enumerate(sizes)}
        count = np.array(counts, dtype=np.int64)
        ends = np.cumsum(count[::-1])[::-1]
        row = np.zeros(int(ends[0]), dtype=np.int64)
        row[ends - 1] = [place[size] for size in last]
        return _Pieces(sizes=sizes, row=row, first=ends - count, count=count)


class PreparedPieces:
    """Fixed contributions to a gather, in pieces, over the links of p > 1 ranks."""

    def __init__(self, sizes: Sequence[int], links: Sequence[Link], piece: int) -> None:
        self.ranks = len(links)
        self._sizes, self._piece = sizes, piece
        self._pieces = {self.ranks: _Pieces.of(sizes, piece)}
        self._messages = messages = Messages.of(self._pieces[self.ranks].sizes, links)
        self._serialization, self._latency = messages.serialization(), messages.latency.reshape(-1)
        self._period = 0
        if messages.constant:
            self._period = common_period(classes(sizes)[1], messages.kinds)

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        return 4096 + 64 * self.ranks + self._pieces[self.ranks].row.nbytes

    def _repeating(self, starts: Times) -> tuple[int, _Pieces]:
        """Return the number of ranks that represent all with these entries, and their pieces."""
        period = self.ranks
        if self._period:
            period = common_period(starts, multiple_of=self._period)
        if period not in self._pieces:
            self._pieces[period] = _Pieces.of(self._sizes[:period], self._piece)
        return period, self._pieces[period]


class PreparedPipeline(PreparedPieces):
    """Gather of fixed contributions over the links of p > 1 ranks. A call takes O(p) operations and
    one number per piece. Messages are numbered per sender."""

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        messages, ranks = self._messages, self.ranks
        period, pieces = self._repeating(starts)
        free = np.array(starts[:period], dtype=np.int64)
        heard = free.copy()
        there = np.repeat(free[::-1], pieces.count[::-1])  # the highest block's pieces come first
        forward = messages.run(_forward)
        check_range(starts, (ranks - 1) * int(pieces.count.max()) * messages.slowest)
        for first, last, jitter in self._turns(period, key):
            rounds = last // period - first // period + 1
            per_round = int(pieces.count.max())
            messages.check_jitter(
                int(max(free.max(), heard.max())) + (per_round - 1) * rounds * messages.slowest,
                rounds,
                jitter,
            )
            forward(
                free,
                heard,
                there,
                pieces.row,
                pieces.first,
                pieces.count,
                messages.kinds,
                self._serialization,
                self._latency,
                len(messages.links),
                jitter,
                first,
                last,
            )
            messages.check_departures(free, heard)
        return np.tile(np.maximum(free, heard), ranks // period)

    def _turns(self, period: int, key: int) -> Iterator[tuple[int, int, Times]]:
        """Yield portions of the turns, with their messages' random delays. In a turn one rank sends
        all pieces of one block; a step has a turn for each rank, in order."""
        turns = (self.ranks - 1) * period
        if not self._messages.jitter.any:
            yield 0, turns, _NONE
            return
        pieces = self._pieces[self.ranks]
        together = DRAWN_AT_A_TIME // len(pieces.row) * self.ranks
        together = together or max(1, DRAWN_AT_A_TIME // int(pieces.count.max()))
        for first in range(0, turns, together):
            last = min(turns, first + together)
            yield first, last, self._late(pieces, first, last, key)

    def _late(self, pieces: _Pieces, first: int, last: int, key: int) -> Times:
        step, rank = np.divmod(np.arange(first, last, dtype=np.int64), self.ranks)
        block = (rank - step) % self.ranks
        count = pieces.count[block]
        number = np.arange(int(count.sum()), dtype=np.int64)
        begins = np.cumsum(count) - count
        sent_before = (pieces.first[block] - pieces.first[rank]) % len(pieces.row)
        return self._messages.draw_jitter(
            pieces.row[number + np.repeat(pieces.first[block] - begins, count)],
            key=key,
            message=number + np.repeat(sent_before - begins, count),
            rank=np.repeat(rank, count),
        )


@loop
def _forward(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    free: Times,
    heard: Times,
    there: Times,
    row: NDArray[np.int64],
    first: NDArray[np.int64],
    count: NDArray[np.int64],
    kinds: NDArray[np.int64],
    serialization: Times,
    latency: Times,
    width: int,
    jitter: Times,
    begin: int,
    end: int,
) -> None:
    """Run turns `begin` to `end` - 1 of the q ranks that represent all. `free` `[q]`: when a rank's
    sends have left; `heard` `[q]`: last arrival at it; `there`, by piece: arrival at its next
    sender. `serialization` and `latency` are flat, by size class and link class (`width`)."""
    q, drawn = free.size, 0
    for turn in range(begin, end):
        r = turn % q
        to, block, kind = (r + 1) % q, (r - turn // q) % q, kinds[r]
        left, last = free[r], heard[to]
        for x in range(first[block], first[block] + count[block]):
            at = row[x] * width + kind
            left = departure(serialization, at, max(left, there[x]))
            arrives = left + latency[at]
            if jitter.size > 0:
                arrives += jitter[drawn]
                drawn += 1
            last = max(last, arrives)
            there[x] = last
        free[r], heard[to] = left, last


def prepare(call: Call) -> PreparedPipeline:
    """Gather over all devices, node by node."""
    piece = call.cluster.collectives.pipeline_block
    return PreparedPipeline(call.sent, call.ring_links(), piece)


def traffic(call: Call) -> Traffic:
    """Traffic of the ranks."""
    pieces = _Pieces.of(call.sent, call.cluster.collectives.pipeline_block).count
    return ring_traffic(pieces, call.sent, devices=call.fabric.devices)
