"""Distributions fitted to magnitudes, and the quantile that a given share of them exceeds.

Distributions are fitted by moments of |a|, or of what exceeds a threshold, which are sums over all
elements; nothing is sorted. See `sidco.py` for the formulas and their source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import unpriced

Distribution = Literal["exponential", "generalised_pareto", "gamma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Moments of non-negative numbers."""

    count: int
    mean: float
    variance: float
    """Unbiased; 0 of one number."""
    mean_log: float = 0.0


def quantile(moments: Moments, ratio: float, distribution: Distribution) -> float:
    """What the fraction `ratio`, in (0, 1], of the fitted distribution exceeds."""
    mean, variance = moments.mean, moments.variance
    if not mean > 0 or ratio >= 1:
        return 0.0
    if distribution == "exponential":
        return mean * math.log(1 / ratio)
    if distribution == "gamma":
        return _gamma_quantile(mean, math.log(mean) - moments.mean_log, ratio)
    if variance <= 1e-12 * mean**2:  # all are equal, up to rounding
        return mean
    squared = mean**2 / variance
    shape, scale = (squared - 1) / 2, mean * (squared + 1) / 2
    if abs(shape) < 1e-9:  # the exponential distribution
        return scale * math.log(1 / ratio)
    return scale * -math.expm1(shape * math.log(ratio)) / shape


@unpriced  # a few numbers on the host
def _gamma_quantile(mean: float, spread: float, ratio: float) -> float:
    """By bisection of the distribution function; `spread` is ln(mean) - mean of logarithms."""
    if spread <= 1e-9:  # all are equal, up to rounding
        return mean
    shape = (3 - spread + math.sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)
    at = torch.tensor(shape, dtype=torch.float64)

    def above(x: float) -> float:
        return float(torch.special.gammaincc(at, torch.tensor(x, dtype=torch.float64)))

    low, high = 0.0, max(shape, 1.0)
    while above(high) > ratio:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) > ratio else (low, middle)
    return mean / shape * high


def moments_of(values: Tensor, *, logarithms: bool) -> Moments:
    """Moments of |values|, float32 `[n]`."""
    n, (total, squares) = values.numel(), _sums(values.abs())
    mean_log = 0.0
    if logarithms and squares:
        sizes = values.double().abs()
        zeros = sizes == 0
        floor = math.sqrt(squares) * 2.0**-52
        mean_log = float(torch.where(zeros, floor, sizes).log().sum()) / n
    return of_sums(n, total, squares, mean_log=mean_log)


def excess_of(values: Tensor, threshold: float) -> Moments:
    """Moments of |values| - threshold where that is positive."""
    excess = values.abs() - float(np.float32(threshold))
    excess = excess[excess > 0]
    return of_sums(excess.numel(), *_sums(excess))


def _sums(values: Tensor) -> tuple[float, float]:
    """(sum, sum of squares), added up in float64."""
    wide = values.double()
    return float(wide.sum()), float(wide.square().sum())


def of_sums(count: float, total: float, squares: float, mean_log: float = 0.0) -> Moments:
    """Of so many numbers with this sum and sum of squares."""
    n = int(count)
    mean = total / n if n else 0.0
    variance = max(0.0, (squares - total * mean) / (n - 1)) if n > 1 else 0.0
    return Moments(count=n, mean=mean, variance=variance, mean_log=mean_log)
