"""Ranges of coefficients, and their fastest ends."""

from __future__ import annotations

from typing import Annotated, Literal

from gcsim.errors import InputError
from gcsim.fields import POSITIVE, Limits, Rule, Unit

Time = Annotated[float, Unit("time")]
PositiveTime = Annotated[float, Unit("time"), POSITIVE]
Bandwidth = Annotated[float, Unit("bandwidth"), POSITIVE]
FlopRate = Annotated[float, Unit("compute rate"), POSITIVE]
Times = Annotated[float, Limits(above=0, most=1_000_000)]

Range = tuple[float, float]  # smallest and largest value of a coefficient, in its own unit
End = Literal["fastest", "slowest"]


def _around_one(factors: Range) -> None:
    if not factors[0] <= 1 <= factors[1]:
        message = "time lies outside of time_range"
        raise InputError(message, hint="write [smallest, largest]")


TimeRange = Annotated[tuple[Times, Times], Rule(_around_one)]
"""Lowest and highest factor on a stated time."""


def time_at(range_: Range | None, end: End) -> float:
    """Factor on a time at one end of its range; 1 without one."""
    if range_ is None:
        return 1.0
    return range_[1] if end == "slowest" else range_[0]
