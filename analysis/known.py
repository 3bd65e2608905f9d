"""How sharp is a number, for all that is known of the device?

Figures of a device that were not measured have ranges (`gcsim.scenarios.corners`); a row's interval
is what they leave. An interval that is too narrow for the digits shown is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from gcsim.analysis.numbers import milliseconds, times
from gcsim.scenarios.result import Row

BY = "by what is known of the device"
GIVEN = "given what is known of the device"


def uncertain(rows: Iterable[Row]) -> bool:
    """Whether anything that these rows need of the device has a range."""
    return any(row.iteration_fastest_s is not None for row in rows)


def iteration_known(row: Row) -> str:
    """From the shortest to the longest iteration: "98.0 ms to 110 ms"; else empty."""
    if row.iteration_fastest_s is None or row.iteration_slowest_s is None:
        return ""
    return _joined(milliseconds(row.iteration_fastest_s), milliseconds(row.iteration_slowest_s))


def speedup_known(row: Row) -> str:
    """From the smallest to the largest speedup: "6.1x to 9.02x"; else empty."""
    if row.speedup_lowest is None or row.speedup_highest is None:
        return ""
    return _joined(times(row.speedup_lowest), times(row.speedup_highest))


def _joined(low: str, high: str) -> str:
    return "" if low == high else f"{low} to {high}"
