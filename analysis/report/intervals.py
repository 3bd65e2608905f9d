"""Intervals of numbers, and how far iterations differ.

Uncertain inputs were drawn: a row's interval holds the middle 80 % of the draws. An interval that
is too narrow for the digits shown is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from gcsim.analysis.report.numbers import elapsed, plural, significant
from gcsim.scenarios.result import Result, Row


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
    """From the low end to the high one of an iteration's speedup: "6.10 to 9.02"; else empty."""
    return _ends(row.speedup_low, row.speedup_high)


def to_target_known(row: Row) -> str:
    """The same of the speedup until the target."""
    return _ends(row.speedup_to_target_low, row.speedup_to_target_high)


def _ends(low: float | None, high: float | None) -> str:
    if low is None or high is None or significant(low) == significant(high):
        return ""
    return f"{significant(low)} to {significant(high)}"


def within(interval: str) -> str:
    """An interval behind the value that it belongs to."""
    return f" ({interval})" if interval else ""


def spreads(rows: Iterable[Row]) -> bool:
    """Whether the rows' iterations differ."""
    return any(row.iteration_p5_s is not None for row in rows)


def averaged(result: Result) -> str:
    """What the times are: "means of 100 iterations"; empty where all iterations are alike."""
    return f"means of {number(result)}" if spreads(result.rows) else ""


def number(result: Result) -> str:
    """Over how many iterations the means are: "100 iterations", "100 to 800 iterations" where some
    methods needed more."""
    counts = {row.iterations for row in result.rows if row.iterations is not None}
    if not counts:
        return "many iterations"
    fewest = f"{min(counts)} to " if len(counts) > 1 else ""
    return fewest + plural(max(counts), "iteration")


def range_of(row: Row) -> str:
    """From the 5th to the 95th percentile: "95 ms to 110 ms"; empty where all are alike."""
    if row.iteration_p5_s is None or row.iteration_p95_s is None:
        return ""
    return f"{elapsed(row.iteration_p5_s)} to {elapsed(row.iteration_p95_s)}"
