"""Comparison of two methods: in each drawn world, and beyond luck.

Draw k of `Row.iteration_draws_s` is the same world for all methods, so the ratio of two iterations
is taken world by world and much uncertainty cancels. Its interval holds the middle 80 % of the
draws. Where times are random, it is wider at both ends by two standard errors of the difference of
the means, taken batch by batch, as methods meet the same luck.

If training with both is known, they are compared by their time to the target, with a further seed
in each world (`scenarios/trained/bands.py`).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.result import Row
from gcsim.scenarios.trained.bands import target_speed_ratio
from gcsim.scenarios.uncertainty.close_pairs import ERRORS
from gcsim.scenarios.uncertainty.ranges import interval
from gcsim.simulator.luck import Luck, as_probability, error_of_difference, probability_shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Speed of one method relative to another."""

    low: float
    median: float
    high: float

    def surely_above(self, factor: float) -> bool:
        """Whether its whole interval is."""
        return self.low > factor


def worlds(row: Row) -> NDArray[np.float64]:
    """Seconds per iteration by draw `[k]`; one as stated if nothing was drawn."""
    return np.array(row.iteration_draws_s or (row.iteration_s,), dtype=np.float64)


def ratio(one: Row, other: Row, *, luck: bool = True) -> Ratio:
    """Speed of `one` relative to `other`; without `luck` as if the means had no errors."""
    faster = target_speed_ratio(one, other) if _trained(one, other) else worlds(other) / worlds(one)
    low, high = interval(faster)
    error = ERRORS * _error(one, other) / one.iteration_s if luck else 0.0
    ends = _ring_or_tree(one, other)
    return Ratio(
        low=min([float(low) - error, *ends]),
        median=statistics.median(faster.tolist()),
        high=max([float(high) + error, *ends]),
    )


def _ring_or_tree(one: Row, other: Row) -> list[float]:
    """Ratios with rings and with trees, where NCCL may take either."""
    ends = [(row.iteration_ring_s, row.iteration_tree_s) for row in (one, other)]
    if ends == [(None, None)] * 2 or _trained(one, other):
        return []
    pairs = zip(*ends, strict=True)
    return [(b or other.iteration_s) / (a or one.iteration_s) for a, b in pairs]


def probability_faster(one: Row, other: Row) -> float:
    """Probability that `one` is faster: its share of the draws, where luck may turn each."""
    if _trained(one, other):
        return as_probability(np.mean(target_speed_ratio(one, other) > 1))
    return probability_shorter(worlds(one), worlds(other), _error(one, other))


def _trained(one: Row, other: Row) -> bool:
    return bool(one.speedups_to_target and other.speedups_to_target)


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
