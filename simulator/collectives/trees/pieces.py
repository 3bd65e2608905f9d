"""When do equal pieces leave a queue, one behind the other, however many there are?

The times of pieces 0, 1, 2, ... are the maximum of straight lines, t(c) = max_j (start_j + c
slope_j). A server that takes pieces in order, each for `busy`, turns such times into such times:

    F(c) = max over i <= c of (t(i) + (c - i + 1) busy)
         = max_j (start_j + busy + c max(slope_j, busy))

because the maximum over i is at i = c where slope_j > busy, else at i = 0. So a queue costs as many
operations as there are distinct service times, not as many as there are pieces. The last piece may
be shorter and is followed by itself.

Source: max-plus algebra, Baccelli, Cohen, Olsder and Quadrat 1992, ch. 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Times

NEVER = -(2**62)
"""Earlier than any time, with room to add to it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """When each piece is there, at n places."""

    lines: NDArray[np.int64]
    """`[slopes, n]`: start of the line of each slope, for all pieces but the last."""
    last: Times
    """`[n]`: the last piece."""

    def at(self, places: NDArray[np.int64]) -> Stream:
        """At some of the places."""
        return Stream(lines=self.lines[:, places], last=self.last[places])

    def delayed(self, by: Times) -> Stream:
        """Every piece later by `by` `[n]`."""
        return Stream(lines=self.lines + by, last=self.last + by)

    def merge(self, places: NDArray[np.int64], other: Stream) -> None:
        """Have some places, no one twice, wait for the pieces of another stream too."""
        self.lines[:, places] = np.maximum(self.lines[:, places], other.lines)
        self.last[places] = np.maximum(self.last[places], other.last)


class Queues:
    """Servers of few distinct service times for `full` equal pieces and a last one."""

    def __init__(self, full: int, *busy: Times) -> None:
        """`busy` holds every service time of a full piece that will occur."""
        self.full = full
        occurring = np.sort(np.concatenate(([0], *busy)))
        self.slopes = occurring[np.diff(occurring, prepend=-1) > 0]

    def at_once(self, times: Times) -> Stream:
        """All pieces are there at `times` `[n]`."""
        lines = np.full((len(self.slopes), len(times)), NEVER, dtype=np.int64)
        lines[0] = times
        return Stream(lines=lines, last=times.copy())

    def serve(self, stream: Stream, busy: Times, last: Times) -> Stream:
        """When each piece has been served, for `busy` `[n]` each and `last` `[n]` the last one."""
        slopes = self.slopes[:, None]
        steeper = slopes > busy
        slowed = np.where(steeper, NEVER, stream.lines).max(axis=0)
        lines = np.where(slopes == busy, slowed, np.where(steeper, stream.lines, NEVER)) + busy
        before = stream.last
        if self.full:
            before = np.maximum(before, (lines + slopes * (self.full - 1)).max(axis=0))
        return Stream(lines=lines, last=before + last)
