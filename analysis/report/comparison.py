"""How do two methods compare? In each drawn world, and beyond luck.

What is not known of a cluster is drawn (`Row.iteration_draws_s`): draw k is the same world for all
methods, so that the ratio of two iterations is taken world by world, and much that is not known
cancels. Its interval holds the middle 80 % of the draws. Where times are random, the interval is
wider at both ends by two standard errors of the difference of the two means. Methods meet the same
luck: the error of the difference is taken from their differences batch by batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.result import Row
from gcsim.scenarios.uncertainty.close_pairs import ERRORS
from gcsim.simulator.luck import Luck, error_of_difference

TAILS = (0.1, 0.5, 0.9)
"""Quantiles of the draws: the ends of an interval, and its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as fast one method is as another."""

    low: float
    median: float
    high: float

    def surely_above(self, factor: float) -> bool:
        """Whether its whole interval is."""
        return self.low > factor


def worlds(row: Row) -> NDArray[np.float64]:
    """Seconds an iteration by draw, `[k]`; one that is as stated where nothing was drawn."""
    return np.array(row.iteration_draws_s or (row.iteration_s,), dtype=np.float64)


def ratio(one: Row, other: Row, *, luck: bool = True) -> Ratio:
    """How many times as fast `one` is as `other`; `luck=False`: as if the means had no errors."""
    low, median, high = np.quantile(worlds(other) / worlds(one), TAILS)
    error = ERRORS * _error(one, other) / one.iteration_s if luck else 0.0
    return Ratio(low=float(low) - error, median=float(median), high=float(high) + error)


def probability_faster(one: Row, other: Row) -> float:
    """That `one` is faster: the share of the draws in which it is, where luck may turn each."""
    gains = worlds(other) - worlds(one)
    error = _error(one, other)
    if not error:
        return float(np.mean(gains > 0))
    return float(np.mean([math.erfc(-gain / error / math.sqrt(2)) / 2 for gain in gains]))


def median_of(row: Row) -> float:
    """Seconds an iteration in the middle of the draws."""
    return float(np.median(worlds(row)))


def _error(one: Row, other: Row) -> float:
    """Standard error of the difference of two mean iterations, in seconds; 0 without luck."""
    return error_of_difference(
        *(
            Luck(
                iterations=row.iterations,
                batches=row.iteration_batches_s,
                error=row.iteration_error_s,
            )
            for row in (one, other)
        )
    )
