"""The engine's time: integer picoseconds.

With integers `max` and `+` are associative and ties are real, so a closed form, a recurrence and an
event-by-event simulation agree with `==` on every platform. int64 holds 106 days. Durations are
rounded to the nearest picosecond once, where they are made.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InputError, InternalError

Picoseconds = int
Times = NDArray[np.int64]  # picoseconds by rank

PS_PER_SECOND = 10**12
LIMIT = 2**62  # picoseconds, 53 days: later times are refused, so that a sum of two fits 64 bits
COLLECTIVE_LIMIT = LIMIT // 4  # picoseconds, 13 days: a sum of a few such times fits 64 bits
NO_COST = Fraction(0)  # seconds per byte of a free operation
_ROOM = f"more than the {COLLECTIVE_LIMIT / PS_PER_SECOND / 86400:.0f} days that the clock can hold"


class TooLongError(InputError):
    """A time that exceeds the clock."""


def picoseconds(seconds: float | Decimal | Fraction) -> Picoseconds:
    """Nearest picosecond, half to even."""
    return round(Fraction(seconds) * PS_PER_SECOND)


def reading(time: float) -> Picoseconds:
    """Return a SimPy environment's `now` as an integer; `InternalError` if it is a float."""
    if not isinstance(time, int):
        raise InternalError(f"the clock shows {time!r}, which is no whole number of picoseconds")
    return time


def check_room(iteration: int, end: Picoseconds) -> None:
    """Raise `TooLongError` when an iteration would end beyond the clock."""
    if end >= LIMIT:
        day = PS_PER_SECOND * 86400
        raise TooLongError(
            f"iteration {iteration} would end after {end / PS_PER_SECOND:.3g} s, more "
            f"than the {LIMIT / day:.0f} days that the clock can hold",
            hint=f"a step takes {end / (iteration + 1) / day:.2g} days: use a faster device or "
            "link, or a smaller batch; if steps differ, fewer training.iterations",
        )


def check_range(starts: Times, duration: Picoseconds) -> None:
    """Raise `TooLongError` when `duration` after the last entry is too long for a collective."""
    end = int(starts.max()) + duration
    if end >= COLLECTIVE_LIMIT:
        raise too_long(duration) if duration >= COLLECTIVE_LIMIT // 2 else _too_late(end)


def check_time(time: Picoseconds) -> None:
    """Raise `TooLongError` when a time is too long for a collective."""
    if time >= COLLECTIVE_LIMIT:
        raise too_long(time)


def too_long(duration: Picoseconds) -> TooLongError:
    """Error for a collective that takes too long."""
    return TooLongError(
        f"a collective would take some {duration / PS_PER_SECOND:.2g} s, {_ROOM}",
        hint="check the link's bandwidth and latency, and cluster.sums",
    )


def _too_late(end: Picoseconds) -> TooLongError:
    return TooLongError(
        f"a collective would end {end / PS_PER_SECOND:.3g} s after the start, {_ROOM}",
        hint="check the times of the step and of links; if steps differ, use fewer "
        "training.iterations",
    )


def seconds(time: Picoseconds) -> float:
    """Seconds for results, plots and JSON."""
    return int(time) / PS_PER_SECOND
