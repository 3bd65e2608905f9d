"""How far do iterations differ, where something is random or changes with time?"""

from __future__ import annotations

from collections.abc import Iterable

from gcsim.analysis.numbers import milliseconds, plural
from gcsim.scenarios.result import Result, Row


def spreads(rows: Iterable[Row]) -> bool:
    """Whether the rows' iterations differ."""
    return any(row.iteration_p5_s is not None for row in rows)


def averaged(result: Result) -> str:
    """What the times are: "means of 100 iterations"; empty where all iterations are alike."""
    return f"means of {number(result)}" if spreads(result.rows) else ""


def number(result: Result) -> str:
    """Over how many iterations the means are: "100 iterations"; "or more", where a method has
    several kinds of step, of which whole rounds are taken."""
    facts = result.provenance.get("averages")
    count = facts.get("iterations") if isinstance(facts, dict) else None
    if count is None:
        return "many iterations"
    rounds = any(row.period > 1 for row in result.rows)
    return plural(count, "iteration") + (" or more" if rounds else "")


def mean_of(row: Row) -> str:
    """The mean iteration, with its standard error where there is one: "98.0 ms (+- 1.2 ms)"."""
    error = row.iteration_error_s
    mean = milliseconds(row.iteration_s)
    return mean if error is None else f"{mean} (+- {milliseconds(error)})"


def range_of(row: Row) -> str:
    """From the 5th to the 95th percentile: "95 ms to 110 ms"; empty where all are alike."""
    if row.iteration_p5_s is None or row.iteration_p95_s is None:
        return ""
    return f"{milliseconds(row.iteration_p5_s)} to {milliseconds(row.iteration_p95_s)}"
