"""Intervals of numbers, the inputs that widen them, and the variation of iterations.

A row's interval holds the middle 80 % of the draws. It is left out if its ends look
the same.

An input's share of the result's variance is the squared Spearman rank correlation of its draws
(`Result.inputs`) with the result. It assumes a monotonic relation, not a linear one. Shares add up
to about 1 unless inputs interact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.analysis.report.comparison import worlds
from gcsim.analysis.report.numbers import elapsed, ends, plural, significant
from gcsim.scenarios.result import Result, Row, UncertainInput, highest_to_target


def has_ranges(rows: Iterable[Row]) -> bool:
    """Whether any input of these rows was drawn from a range."""
    return any(row.iteration_low_s is not None for row in rows)


def iteration_known(row: Row) -> str:
    """Return the interval of an iteration, "98.0-110 ms", or an empty text."""
    if row.iteration_low_s is None or row.iteration_high_s is None:
        return ""
    low, high = elapsed(row.iteration_low_s), elapsed(row.iteration_high_s)
    return "" if low == high else ends(low, high)


def speedup_known(row: Row) -> str:
    """Return the interval of a speedup per iteration, "6.10-9.02", or an empty text."""
    return _ends(row.speedup_low, row.speedup_high)


def to_target_known(row: Row) -> str:
    """Return the interval of the speedup to the target, or an empty text."""
    return _ends(row.speedup_to_target_low, highest_to_target(row))


def _ends(low: float | None, high: float | None) -> str:
    if low is None or high is None or significant(low) == significant(high):
        return ""
    return f"{significant(low)}-{significant(high)}"


def in_brackets(interval: str) -> str:
    """Return an interval in brackets, to follow its value; empty if there is none."""
    return f" ({interval})" if interval else ""


def iterations_vary(rows: Iterable[Row]) -> bool:
    """Whether iterations of any row vary."""
    return any(row.iteration_p5_s is not None for row in rows)


def means_text(result: Result) -> str:
    """Return the kind of the times, "means of 100 iterations"; empty if iterations do not vary."""
    return f"means of {number(result)}" if iterations_vary(result.rows) else ""


def number(result: Result) -> str:
    """Return the number of iterations per mean: "100 iterations", "100 to 800 iterations"."""
    counts = {row.iterations for row in result.rows if row.iterations is not None}
    if not counts:
        return "many iterations"
    fewest = f"{min(counts)} to " if len(counts) > 1 else ""
    return fewest + plural(max(counts), "iteration")


def range_of(row: Row) -> str:
    """Return the 5th to 95th percentile, "95 ms to 110 ms"; empty if iterations do not vary."""
    if row.iteration_p5_s is None or row.iteration_p95_s is None:
        return ""
    return f"{elapsed(row.iteration_p5_s)} to {elapsed(row.iteration_p95_s)}"


MOST = 0.5  # share of the variance that the named inputs must explain
_CHANCE = 6.6
"""Squared correlation times draws up to which it counts as chance: one input in a hundred exceeds
it by chance (the square of the normal distribution's 99.5th percentile)."""
_NAMED = 3  # most inputs named


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    input: UncertainInput
    share: float


def shares(result: Result, row: Row, dense: Row | None) -> tuple[_Share, ...]:
    """Return each input's share of the variance of the row's speedup (of its iteration without a
    dense row), without those due to chance, largest first; empty without draws."""
    if len(row.iteration_draws_s) < 3:
        return ()
    iterations = worlds(row) if dense is None else worlds(row) / worlds(dense)
    if np.ptp(iterations) == 0:
        return ()
    of_row = ranks(iterations)
    found = [
        _Share(input=one, share=float(np.corrcoef(ranks(np.array(one.draws)), of_row)[0, 1]) ** 2)
        for one in result.inputs
        if len(one.draws) == len(iterations) and len(set(one.draws)) > 1
    ]
    beyond = [one for one in found if one.share > _CHANCE / len(iterations)]
    return tuple(sorted(beyond, key=lambda one: -one.share))


def main_sources(result: Result, row: Row, dense: Row | None) -> tuple[_Share, ...]:
    """Return the fewest inputs that explain `MOST` of the variance, or the first few."""
    found: list[_Share] = []
    for one in shares(result, row, dense)[:_NAMED]:
        found.append(one)
        if sum(other.share for other in found) >= MOST:
            break
    return tuple(found)


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means = ends - (counts + 1) / 2
    return np.asarray(means[inverse], dtype=np.float64)
