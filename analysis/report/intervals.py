"""Intervals of numbers, the inputs that widen them, and how far iterations differ.

A row's interval holds the middle 80 % of the draws; one narrower than the digits shown is left out.

An input's share of the result's variance is the squared correlation of the ranks of its draws
(`Result.inputs`) with the result's (Spearman). This assumes that both rise or fall together, not in
a line. Shares add up to about 1 where inputs do not act jointly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.analysis.report.comparison import worlds
from gcsim.analysis.report.numbers import elapsed, ends, plural, significant
from gcsim.scenarios.result import Result, Row, UncertainInput


def uncertain(rows: Iterable[Row]) -> bool:
    """Whether any input of these rows was drawn."""
    return any(row.iteration_low_s is not None for row in rows)


def iteration_known(row: Row) -> str:
    """Interval of an iteration: "98.0-110 ms", or empty."""
    if row.iteration_low_s is None or row.iteration_high_s is None:
        return ""
    low, high = elapsed(row.iteration_low_s), elapsed(row.iteration_high_s)
    return "" if low == high else ends(low, high)


def speedup_known(row: Row) -> str:
    """Interval of an iteration's speedup: "6.10-9.02", or empty."""
    return _ends(row.speedup_low, row.speedup_high)


def to_target_known(row: Row) -> str:
    """Interval of the speedup until the target."""
    return _ends(row.speedup_to_target_low, row.speedup_to_target_high)


def _ends(low: float | None, high: float | None) -> str:
    if low is None or high is None or significant(low) == significant(high):
        return ""
    return f"{significant(low)}-{significant(high)}"


def within(interval: str) -> str:
    """An interval behind the value that it belongs to."""
    return f" ({interval})" if interval else ""


def spreads(rows: Iterable[Row]) -> bool:
    """Whether the rows' iterations differ."""
    return any(row.iteration_p5_s is not None for row in rows)


def averaged(result: Result) -> str:
    """Kind of the times: "means of 100 iterations"; empty if all iterations are alike."""
    return f"means of {number(result)}" if spreads(result.rows) else ""


def number(result: Result) -> str:
    """Number of iterations behind the means: "100 iterations", "100 to 800 iterations"."""
    counts = {row.iterations for row in result.rows if row.iterations is not None}
    if not counts:
        return "many iterations"
    fewest = f"{min(counts)} to " if len(counts) > 1 else ""
    return fewest + plural(max(counts), "iteration")


def range_of(row: Row) -> str:
    """From the 5th to the 95th percentile: "95 ms to 110 ms"; empty if all are alike."""
    if row.iteration_p5_s is None or row.iteration_p95_s is None:
        return ""
    return f"{elapsed(row.iteration_p5_s)} to {elapsed(row.iteration_p95_s)}"


MOST = 0.5  # share of a width that the named inputs explain
_CHANCE = 6.6
"""Squared correlation times draws that counts as chance, once in a hundred inputs (the square of
the normal distribution's 99.5th percentile)."""
_NAMED = 3  # inputs named at most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    input: UncertainInput
    share: float


def shares(result: Result, row: Row, dense: Row | None) -> tuple[_Share, ...]:
    """Shares of the variance of a row's speedup, or of its iteration without a dense row, by input
    beyond chance, largest first; empty without draws."""
    if len(row.iteration_draws_s) < 3:
        return ()
    iterations = worlds(row) if dense is None else worlds(row) / worlds(dense)
    if np.ptp(iterations) == 0:
        return ()
    of_row = ranked(iterations)
    found = [
        _Share(input=one, share=float(np.corrcoef(ranked(np.array(one.draws)), of_row)[0, 1]) ** 2)
        for one in result.inputs
        if len(one.draws) == len(iterations) and len(set(one.draws)) > 1
    ]
    beyond = [one for one in found if one.share > _CHANCE / len(iterations)]
    return tuple(sorted(beyond, key=lambda one: -one.share))


def main_sources(result: Result, row: Row, dense: Row | None) -> tuple[_Share, ...]:
    """The fewest that explain `MOST` of the width, or the first few."""
    found: list[_Share] = []
    for one in shares(result, row, dense)[:_NAMED]:
        found.append(one)
        if sum(other.share for other in found) >= MOST:
            break
    return tuple(found)


def ranked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0, equal values with their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means = ends - (counts + 1) / 2
    return np.asarray(means[inverse], dtype=np.float64)
