"""What may a coefficient be, and which end of that is the fastest?"""

from __future__ import annotations

from typing import Literal

Range = tuple[float, float]
"""The smallest and the largest value that a coefficient may have, in its own unit."""
End = Literal["fastest", "slowest"]
"""Of what a device may be, given the ranges of its coefficients."""


def time_at(range_: Range | None, end: End) -> float:
    """The factor of a time at one end of its range; 1 without one."""
    if range_ is None:
        return 1.0
    return range_[1] if end == "slowest" else range_[0]
