"""The engine's time: integer picoseconds.

With integers, `max` and `+` are associative and ties are real ties, so that a closed form, a
recurrence and an event-by-event simulation agree with `==` on every platform. int64 holds 106
days. Durations are rounded to the nearest picosecond once, where they are made.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InputError, InternalError, Problem

Picoseconds = int
Times = NDArray[np.int64]
"""Picoseconds, one entry a rank."""

PS_PER_SECOND = 10**12
LIMIT = 2**62
"""Picoseconds, 53 days: later times are refused, so that sums of two still fit 64 bits."""


def picoseconds(seconds: float | Decimal | Fraction) -> Picoseconds:
    """The nearest picosecond; halves go to the even one."""
    return round(Fraction(seconds) * PS_PER_SECOND)


def reading(time: float) -> Picoseconds:
    """A SimPy environment's `now`; `InternalError` when some arithmetic made it a float."""
    if not isinstance(time, int):
        raise InternalError(f"the clock shows {time!r}, which is no whole number of picoseconds")
    return time


def check_room(iteration: int, end: Picoseconds) -> None:
    """Raise `InputError` when an iteration would end later than the clock can tell."""
    if end >= LIMIT:
        raise InputError(
            Problem(
                message=f"iteration {iteration} would end after {end / PS_PER_SECOND:.3g} s, more "
                f"than the {LIMIT / PS_PER_SECOND / 86400:.0f} days that the clock has room for",
                hint="let training.iterations be fewer, or check the times of the step",
            )
        )


def seconds(time: Picoseconds) -> float:
    """For the border: results, plots, JSON."""
    return int(time) / PS_PER_SECOND
