"""From what does the width of an interval come? The inputs that go with the result over the draws.

Each input was drawn by itself (`Result.inputs`), so that the share of the result's variance that
goes with it can be read off one by one: the squared correlation of the ranks of its draws with the
ranks of the result's (Spearman), for which the two must rise or fall together, but not in a line.
Shares add up to about 1 where inputs do not act jointly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.analysis.report.comparison import worlds
from gcsim.scenarios.result import Result, Row, UncertainInput

MOST = 0.5
"""Share from which on most of a width comes from what is named."""
CHANCE = 6.6
"""A squared correlation below this over the number of draws is chance, once in a hundred inputs
(the square of the normal distribution's 99.5th percentile)."""
NAMED = 3
"""Inputs that are named at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What goes with an input."""

    input: UncertainInput
    share: float


def shares(result: Result, row: Row, dense: Row | None) -> tuple[Share, ...]:
    """Of the variance of a row's speedup, or of its iteration without a dense row: the inputs that
    it comes from beyond chance, largest first; empty without draws."""
    if len(row.iteration_draws_s) < 3:
        return ()
    iterations = worlds(row) if dense is None else worlds(row) / worlds(dense)
    if np.ptp(iterations) == 0:
        return ()
    of_row = _ranks(iterations)
    found = [
        Share(input=one, share=_correlation(_ranks(np.array(one.draws)), of_row) ** 2)
        for one in result.inputs
        if len(one.draws) == len(iterations) and len(set(one.draws)) > 1
    ]
    beyond = [one for one in found if one.share > CHANCE / len(iterations)]
    return tuple(sorted(beyond, key=lambda one: -one.share))


def main_sources(result: Result, row: Row, dense: Row | None) -> tuple[Share, ...]:
    """The fewest of these that most of the width comes from, or the first few."""
    found: list[Share] = []
    for one in shares(result, row, dense)[:NAMED]:
        found.append(one)
        if sum(other.share for other in found) >= MOST:
            break
    return tuple(found)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From 0, equal values their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means = ends - (counts + 1) / 2
    return np.asarray(means[inverse], dtype=np.float64)


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.corrcoef(one, other)[0, 1])
