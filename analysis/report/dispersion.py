"""How far do iterations differ, where something is random or changes with time?"""

from __future__ import annotations

from collections.abc import Iterable

from gcsim.analysis.report.numbers import elapsed, plural
from gcsim.scenarios.result import Result, Row


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
