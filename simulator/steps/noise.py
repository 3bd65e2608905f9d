"""Random compute times of workers: factors with mean 1.

    factor = Q(u) * (slow_factor if v < slow_probability else 1)        u, v uniform on (0, 1)

with Q the quantile function, for the coefficient of variation c, of

- lognormal: ln Q(u) = sigma z(u) - sigma^2 / 2, sigma^2 = ln(1 + c^2), z the standard normal's;
- gamma: shape 1 / c^2, scale c^2.

`slow_factor` raises the mean above 1. u and v of rank r are entry r of a counter-based generator
with key (seed, iteration, purpose): a factor depends neither on the number of ranks nor on the
order of draws. Factors are rounded to multiples of 2^-32, so that platforms agree in all bits.

Source: inversion as in Devroye 1986, "Non-uniform random variate generation", sec. II.2.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.compressors.random import bits64, random_key
from gcsim.simulator.training import Noise

_GRID = 2.0**32
_FEWEST = 2
_TAIL, _POINTS = 12.0, 24_001  # integration limit and points


def slowdowns(noise: Noise, seed: int, iteration: int, ranks: int) -> NDArray[np.float64]:
    """Return the factors on the ranks' computation in an iteration, float64 `[ranks]`, >= 0."""
    factors = np.ones(ranks, dtype=np.float64)
    if noise.variation:
        factors = _quantile(noise, _uniform(seed, iteration, "compute noise", ranks))
    if noise.slow_probability:
        slow = _uniform(seed, iteration, "slow worker", ranks) < float(noise.slow_probability)
        factors[slow] *= float(noise.slow_factor)
    rounded: NDArray[np.float64] = np.rint(factors * _GRID) / _GRID
    return rounded


def longest(noise: Noise | None, workers: int) -> Fraction:
    """Return the expected longest pass of the workers over the mean pass, since a collective waits
    for the slowest: 1 + skew m(p), where m(p) is the mean of the largest of p standard normal
    draws: 0.564, 1.029, 1.424 and 1.766 for 2, 4, 8 and 16 (Tippett 1925, Biometrika 17)."""
    if noise is None or not noise.skew or workers < _FEWEST:
        return Fraction(1)
    return 1 + noise.skew * _largest(workers)


@functools.cache
def _largest(draws: int) -> Fraction:
    """Return the mean of the largest of some normal draws: the integral of 1 - F^p over x > 0 less
    that of F^p over x < 0, rounded to a multiple of 2^-32, so that platforms agree."""
    z = np.linspace(0, _TAIL, _POINTS)
    tail = np.array([math.erfc(place / math.sqrt(2)) / 2 for place in z.tolist()])  # 1 - F
    above = -np.expm1(draws * np.log1p(-tail))
    below = tail**draws
    heights = above - below
    mean = float((heights[1:] + heights[:-1]).sum()) * _TAIL / (_POINTS - 1) / 2
    return Fraction(round(mean * _GRID), int(_GRID))


def _quantile(noise: Noise, u: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy import special

    square = float(noise.variation) ** 2
    if noise.distribution == "gamma":
        gamma: NDArray[np.float64] = special.gammaincinv(1 / square, u) * square
        return gamma
    variance = math.log1p(square)
    lognormal: NDArray[np.float64] = np.exp(math.sqrt(variance) * special.ndtri(u) - variance / 2)
    return lognormal


def _uniform(seed: int, iteration: int, purpose: str, ranks: int) -> NDArray[np.float64]:
    values = np.empty(ranks, dtype=np.float64)
    _fill(random_key(seed, iteration, 0, purpose), values)
    return values


@loop
def _fill(key: np.uint64, values: NDArray[np.float64]) -> None:
    """Fill in entries 0, 1, 2, ... of the key's sequence: odd multiples of 2^-53, never 0 or 1."""
    for rank in range(values.size):
        values[rank] = (float(bits64(key, rank) >> np.uint64(12)) + 0.5) * 2.0**-52
