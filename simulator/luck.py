"""Uncertainty of a mean over random iterations, and of a difference of two.

Batch means (A. Law and W. Kelton, "Simulation modeling and analysis", sec. 9.5.3): consecutive
iterations, which depend on each other by skew, are cut into about 10 equal batches, whose means are
treated as b independent draws of standard deviation s:

    standard error = s / sqrt(b)

A batch is whole rounds, so batches differ by luck alone. With ten, s is known to a quarter (one
standard deviation); with five, of long rounds, to a third.

Equal seeds give methods the same luck in the same iteration, so a difference of two means is
estimated from the differences of their batches (common random numbers, sec. 11.2).
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
"""Batches for the standard error: few and long rather than many that depend on each other (B.
Schmeiser, "Batch size effects in the analysis of simulation output", 1982: 10 to 30)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Luck:
    """Statistics of a mean over random iterations; empty without randomness."""

    iterations: int | None
    batches: Sequence[float]
    """Means in seconds, in order; equally many of equal length met the same luck in two methods."""
    error: float | None  # standard error, in seconds


def batch_means(times: Times, round_length: int) -> tuple[float, ...]:
    """Batch means, in seconds, of iterations `[n]` in picoseconds; none of a single round."""
    count = len(times) // round_length * round_length
    if count < 2 * round_length:
        return ()
    length = max(1, round(count / BATCHES / round_length)) * round_length
    batches = count // length
    means = times[-batches * length :].reshape(batches, length).mean(1) / PS_PER_SECOND
    return tuple(float(mean) for mean in means)


def standard_error(batches: Sequence[float]) -> float | None:
    """Standard error of the mean of independent batches; None without any."""
    return float(np.std(batches, ddof=1)) / math.sqrt(len(batches)) if len(batches) else None


def probability_shorter(
    times: NDArray[np.float64], others: NDArray[np.float64], error: float
) -> float:
    """Share of pairs in which the time is shorter than the other, each uncertain by this standard
    error in seconds; never certain for several pairs."""
    gains = others - times
    if error:
        share = np.mean([math.erfc(-gain / error / math.sqrt(2)) / 2 for gain in gains])
    else:
        share = np.mean(gains > 0)
    return as_probability(share) if len(gains) > 1 else float(share)


def as_probability(share: float | np.floating[Any]) -> float:
    """A share of drawn worlds as a probability, within 1 and 99 %: a few worlds tell no more."""
    return min(max(float(share), 0.01), 0.99)


def error_of_difference(one: Luck, other: Luck) -> float:
    """Standard error of the difference of two means, in seconds; 0 without luck. From common
    batches; otherwise as if independent, which is on the safe side."""
    if one.iterations == other.iterations and len(one.batches) == len(other.batches) > 1:
        return standard_error(np.subtract(one.batches, other.batches).tolist()) or 0.0
    return math.hypot(one.error or 0.0, other.error or 0.0)
