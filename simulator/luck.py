"""Standard errors of the mean of random iterations, and of the difference of two means.

Batch means (A. Law and W. Kelton, "Simulation modeling and analysis", sec. 9.5.3): consecutive
iterations, which are correlated by skew, are grouped to b (about 10) equal batches, whose means are
treated as independent draws of standard deviation s:

    standard error = s / sqrt(b)

A batch is a number of whole rounds, so batches differ only randomly. With ten batches the relative
error of s is a quarter (one standard deviation); with five, for long rounds, a third.

With equal seeds all methods have the same random factors in the same iteration, so a difference of
two means is estimated from the differences of their batches (common random numbers, sec. 11.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import PS_PER_SECOND, Times

BATCHES = 10
"""Batches for the standard error: few long ones, since short ones are correlated (B. Schmeiser,
"Batch size effects in the analysis of simulation output", 1982: 10 to 30)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Luck:
    """Statistics of a mean over random iterations; empty without randomness."""

    iterations: int | None
    batches: Sequence[float]
    """Means in seconds, in order; two methods' batches are paired if of equal number and length."""
    error: float | None  # standard error, in seconds


def batch_means(times: Times, round_length: int) -> tuple[float, ...]:
    """Return batch means in seconds of iterations `[n]` in picoseconds; none for a single round."""
    count = len(times) // round_length * round_length
    if count < 2 * round_length:
        return ()
    length = max(1, round(count / BATCHES / round_length)) * round_length
    batches = count // length
    means = times[-batches * length :].reshape(batches, length).mean(1) / PS_PER_SECOND
    return tuple(float(mean) for mean in means)


def standard_error(batches: Sequence[float]) -> float | None:
    """Return the standard error of the mean of independent batches; None without batches."""
    return float(np.std(batches, ddof=1)) / math.sqrt(len(batches)) if len(batches) else None


def probability_shorter(
    times: NDArray[np.float64], others: NDArray[np.float64], error: float
) -> float:
    """Return the probability that a time is shorter than its counterpart, over all pairs; `error`:
    standard error of a difference, in seconds. Never 0 or 1 for several pairs."""
    gains = others - times
    if error:
        share = np.mean([math.erfc(-gain / error / math.sqrt(2)) / 2 for gain in gains])
    else:
        share = np.mean(gains > 0)
    return as_probability(share) if len(gains) > 1 else float(share)


def as_probability(share: float | np.floating[Any]) -> float:
    """Return a share of drawn worlds, limited to 1 to 99 %, which is all that the draws support."""
    return min(max(float(share), 0.01), 0.99)


def error_of_difference(one: Luck, other: Luck) -> float:
    """Return the standard error of the difference of two means, in seconds; 0 without randomness.
    Unpaired batches count as independent, which overestimates the error."""
    if one.iterations == other.iterations and len(one.batches) == len(other.batches) > 1:
        return standard_error(np.subtract(one.batches, other.batches).tolist()) or 0.0
    return math.hypot(one.error or 0.0, other.error or 0.0)
