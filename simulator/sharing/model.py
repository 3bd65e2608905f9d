"""Data of the fluid model: classes of flows, and capacities.

A capacity is a constant rate or a `RateTrace` with changes at the nearest whole picosecond.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, picoseconds
from gcsim.simulator.network.rate_trace import RateTrace

Capacity = Fraction | RateTrace  # bytes per second
Ended = Callable[[int, Picoseconds], Mapping[int, Picoseconds]]
"""Called with (place, time) at each end; returns start times of further flows, none before."""


@dataclass(frozen=True, slots=True)
class FlowClass:
    """Flows of equal size, start and kinds of links."""

    nbytes: int | Fraction  # bytes of one flow; a fraction for equal stripes
    loads: Mapping[Any, int]
    """Number of flows on one link, by class of links; a flow that crosses it twice counts twice."""


def never_less(capacity: Capacity, other: Capacity) -> bool:
    """Whether one capacity is known to be at least the other at all times."""
    if isinstance(capacity, RateTrace) or isinstance(other, RateTrace):
        return capacity == other
    return capacity >= other


@lru_cache(maxsize=1 << 12)
def supply(capacity: Capacity) -> Supply:
    """Return the supply of a capacity, the same object for equal capacities."""
    return Supply(capacity)


class Supply:
    """Rates of a capacity in units of 1 / `scale` bytes per picosecond."""

    def __init__(self, capacity: Capacity) -> None:
        self._times, self._end, self._period = [0], 0, 0
        rates = [capacity] if isinstance(capacity, Fraction) else [*capacity.rates]
        if isinstance(capacity, RateTrace):
            self._times = [picoseconds(time) for time in capacity.times]
            self._end = picoseconds(capacity.duration)
            if capacity.after == "repeat":
                self._period = self._end - picoseconds(capacity.back_to)
        rates = [rate / PS_PER_SECOND for rate in rates]
        self.scale = lcm(*(rate.denominator for rate in rates))
        self._rates = [int(rate * self.scale) for rate in rates]
        if min(self._rates) < 0 or not any(self._rates):
            raise InternalError(f"a capacity of nothing, for ever: {capacity}")

    def rate(self, time: Picoseconds) -> tuple[int, Picoseconds | None]:
        """Return the rate from `time` on, and until when it holds; None: for ever."""
        gone = self._laps(time) * self._period
        piece = bisect_right(self._times, time - gone) - 1
        if piece + 1 < len(self._times):
            return self._rates[piece], gone + self._times[piece + 1]
        return self._rates[piece], gone + self._end if self._period else None

    def _laps(self, time: Picoseconds) -> int:
        """Return the number of periods to subtract from `time` to be inside the trace."""
        return (time - self._end) // self._period + 1 if self._period and time >= self._end else 0
