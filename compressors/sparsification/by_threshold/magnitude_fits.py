"""Which distribution do magnitudes follow, and what does a given share of them exceed?

Distributions are fitted by moments of |a|, or of what exceeds a threshold, which are sums over all
elements; nothing is sorted. See `sidco.py` for the formulas and their source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    SUM_BLOCK,
    array,
    in_parallel,
    loop,
    partial_sums,
    summing_loop,
    total_of,
    written_back,
)
from gcsim.compressors.meter import kernel, unpriced
from gcsim.compressors.on_device import on_device

Distribution = Literal["exponential", "generalised_pareto", "gamma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of non-negative numbers."""

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


def moments_of(memory: Tensor, added: Tensor | None, *, logarithms: bool) -> Moments:
    """Of |memory| after memory += added, in place; float32 `[n]`."""
    n = memory.numel()
    sums = _sums(memory, 0.0) if added is None else _add_and_sum(memory, added)
    mean_log = 0.0
    if logarithms and sums[2]:
        zeros, total = _sum_of_logarithms(memory)
        floor = math.sqrt(sums[2]) * 2.0**-52
        mean_log = (total + zeros * math.log(floor)) / n
    return of_sums(n, *sums[1:], mean_log=mean_log)


def excess_of(values: Tensor, threshold: float) -> Moments:
    """Of |values| - threshold where that is positive."""
    return of_sums(*_sums(values, threshold))


def of_sums(count: float, total: float, squares: float, mean_log: float = 0.0) -> Moments:
    """Of so many numbers with this sum and sum of squares."""
    n = int(count)
    mean = total / n if n else 0.0
    variance = max(0.0, (squares - total * mean) / (n - 1)) if n > 1 else 0.0
    return Moments(count=n, mean=mean, variance=variance, mean_log=mean_log)


# --- passes -----------------------------------------------------------------------------------


@kernel("streaming", updates=("memory",))
@on_device("reductions")
def _add_and_sum(memory: Tensor, added: Tensor) -> tuple[float, float, float]:
    """memory += added, in place; (n, sum of |memory|, sum of squares)."""
    totals, squares = partial_sums(memory.numel()), partial_sums(memory.numel())
    with written_back(memory) as sums:
        in_parallel(_add, sums.size, sums, array(added), totals, squares)
    return float(memory.numel()), float(total_of(totals)), float(total_of(squares))


@kernel("reduction")
@on_device("reductions")
def _sums(values: Tensor, threshold: float) -> tuple[float, float, float]:
    """Of the excess of |values| over the threshold, where positive: (count, sum, squares)."""
    counts, totals, squares = (partial_sums(values.numel()) for _ in range(3))
    in_parallel(
        _sum_excess, values.numel(), array(values), np.float32(threshold), counts, totals, squares
    )
    return float(total_of(counts)), float(total_of(totals)), float(total_of(squares))


@kernel("reduction")
@on_device("reductions")
def _sum_of_logarithms(values: Tensor) -> tuple[float, float]:
    """(number of zeros, sum of ln |value| over the others)."""
    zeros, totals = partial_sums(values.numel()), partial_sums(values.numel())
    in_parallel(_sum_logarithms, values.numel(), array(values), zeros, totals)
    return float(total_of(zeros)), float(total_of(totals))


@summing_loop
def _add(start: int, stop: int, memory: Any, added: Any, totals: Any, squares: Any) -> None:
    for first in range(start, stop, SUM_BLOCK):
        part = memory[first : min(first + SUM_BLOCK, stop)]
        more = added[first : min(first + SUM_BLOCK, stop)]
        for i in range(part.size):
            part[i] += more[i]
        total, square = 0.0, 0.0
        for i in range(part.size):
            x = np.float64(part[i])
            total += abs(x)
            square += x * x
        totals[first // SUM_BLOCK] = total
        squares[first // SUM_BLOCK] = square


@summing_loop
def _sum_excess(
    start: int, stop: int, values: Any, threshold: Any, counts: Any, totals: Any, squares: Any
) -> None:
    for first in range(start, stop, SUM_BLOCK):
        part = values[first : min(first + SUM_BLOCK, stop)]
        count, total, square = np.int32(0), 0.0, 0.0
        for i in range(part.size):
            above = abs(part[i]) > threshold
            x = np.float64(abs(part[i]) - threshold if above else np.float32(0))
            count += np.int32(above)
            total += x
            square += x * x
        counts[first // SUM_BLOCK] = count
        totals[first // SUM_BLOCK] = total
        squares[first // SUM_BLOCK] = square


@loop
def _sum_logarithms(start: int, stop: int, values: Any, zeros: Any, totals: Any) -> None:
    for first in range(start, stop, SUM_BLOCK):
        part = values[first : min(first + SUM_BLOCK, stop)]
        none, total, product, factors = 0, 0.0, 1.0, 0
        for i in range(part.size):
            x = np.float64(abs(part[i]))
            if x == 0.0:
                none += 1
                continue
            product *= x
            factors += 1
            if factors == 6:  # six float32 leave float64 neither above nor below
                total += np.log(product)
                product, factors = 1.0, 0
        zeros[first // SUM_BLOCK] = none
        totals[first // SUM_BLOCK] = total + np.log(product)
