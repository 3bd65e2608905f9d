"""How wide is the range of a number?

Uncertain inputs were drawn: a row's interval holds the middle 80 % of the draws. An interval that
is too narrow for the digits shown is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from gcsim.analysis.report.numbers import elapsed, significant
from gcsim.scenarios.result import Row


def uncertain(rows: Iterable[Row]) -> bool:
    """Whether anything that these rows need was drawn."""
    return any(row.iteration_low_s is not None for row in rows)


def iteration_known(row: Row) -> str:
    """From the low end to the high one: "98.0 to 110 ms"; else empty."""
    if row.iteration_low_s is None or row.iteration_high_s is None:
        return ""
    low, high = elapsed(row.iteration_low_s), elapsed(row.iteration_high_s)
    return "" if low == high else f"{low.removesuffix(high[high.index(' ') :])} to {high}"


def speedup_known(row: Row) -> str:
    """From the low end to the high one: "6.10 to 9.02"; else empty."""
    if row.speedup_low is None or row.speedup_high is None:
        return ""
    low, high = significant(row.speedup_low), significant(row.speedup_high)
    return "" if low == high else f"{low} to {high}"


def within(interval: str) -> str:
    """An interval behind the value that it belongs to."""
    return f" ({interval})" if interval else ""
