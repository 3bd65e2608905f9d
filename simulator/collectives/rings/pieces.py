"""Into which pieces is what goes around a ring cut, and in which order does a rank send them?

Every contribution is cut into pieces of `piece` bytes (the last may be shorter); an empty one is
an empty piece. Rank r sends its own pieces first, then those of rank r - 1, r - 2, ... (mod p), as
they reach it, but not those of rank r + 1. So all ranks go through one circular row of pieces,
block after block in descending order, and differ in where they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.rings.messages import Messages, classes, common_period
from gcsim.simulator.network.links import Link


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """The pieces of q blocks, the highest block's first."""

    sizes: tuple[int, ...]
    """Distinct, bytes."""
    row: NDArray[np.int64]
    """`[n]`: size class of each piece."""
    first: NDArray[np.int64]
    """`[q]`: where in the row a block begins."""
    count: NDArray[np.int64]
    """`[q]`: pieces of a block, at least one."""

    @staticmethod
    def of(contributions: Sequence[int], piece: int) -> Pieces:
        """Of the bytes that each rank contributes."""
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
        return Pieces(sizes=sizes, row=row, first=ends - count, count=count)


class PreparedPieces:
    """Known contributions to a gather, cut into pieces, over known links of p > 1 ranks."""

    def __init__(self, sizes: Sequence[int], links: Sequence[Link], piece: int) -> None:
        self.ranks = len(links)
        self._sizes, self._piece = sizes, piece
        self._pieces = {self.ranks: Pieces.of(sizes, piece)}
        self._messages = messages = Messages.of(self._pieces[self.ranks].sizes, links)
        self._serialization, self._latency = messages.serialization(), messages.latency.reshape(-1)
        self._period = 0
        if messages.constant:
            self._period = common_period(classes(sizes)[1], messages.kinds)

    @property
    def nbytes(self) -> int:
        """Memory, about."""
        return 4096 + 64 * self.ranks + self._pieces[self.ranks].row.nbytes

    def _repeating(self, starts: Times) -> tuple[int, Pieces]:
        """How many ranks stand for all of them, with these entry times, and their pieces."""
        period = self.ranks
        if self._period:
            period = common_period(starts, multiple_of=self._period)
        if period not in self._pieces:
            self._pieces[period] = Pieces.of(self._sizes[:period], self._piece)
        return period, self._pieces[period]
