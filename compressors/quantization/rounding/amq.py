"""AMQ: exponentially spaced levels whose ratio follows the distribution of the gradient.

The table of `adaptive_levels.py` is ±1, ±p, …, ±p^m (and 0 with `zero`); its multiplier p is
fitted by gradient descent on the expected variance of rounding at random. With A the distribution
of |r|, and the levels ±p^m next to each other,

    Psi(p)  = sum_{j<m} integral_{p^{j+1}}^{p^j} (p^j - r) (r - p^{j+1}) dA
              + integral_0^{p^m} (p^{2m} - r^2) dA,
    Psi'(p) = sum_{j<m} integral (j p^{j-1} + (j+1) p^j) r - (2j+1) p^{2j} dA
              + 2 m p^{2m-1} A(p^m).

With zero the last terms are integral_0^{p^m} (p^m - r) r dA and m p^{m-1} integral_0^{p^m} r dA.
`epochs` steps of length `learning_rate` are made from .1, .2, …, .9 and from the present p; the
best end is kept. m = 2^(bits-1) - 1, with zero 2^(bits-1) - 2.

p = 1/2 before the first fit at step 0.

Assumes that a multiplier is kept within .01 … .99.

Source: F. Faghri et al., "Adaptive Gradient Quantization for Data-Parallel SGD", NeurIPS 2020,
arXiv:2010.12460; code: Tabrizian/learning-to-quantize (nuq/quantize.py).
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About
from gcsim.compressors.coding.rounding.levels import Table
from gcsim.compressors.coding.rounding.tables import exponential_levels
from gcsim.compressors.coding.rounding.truncated_normals import Histogram, Numbers
from gcsim.compressors.quantization.rounding.adaptive_levels import (
    AdaptiveLevels,
    AdaptiveParameters,
)

_STARTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_LEAST, _MOST = 0.01, 0.99


class AmqParameters(AdaptiveParameters):
    zero: bool = Field(False, description="zero is a level, in the place of the smallest power")
    epochs: int = Field(
        50, ge=1, le=10_000, description="steps of gradient descent from each start"
    )
    learning_rate: float = Field(0.1, gt=0, description="length of such a step, times Psi'")


class Amq(AdaptiveLevels[AmqParameters]):
    """Exponential levels whose ratio minimises the expected variance."""

    about = About(
        title="AMQ",
        family="quantization",
        collective="all-gather (and an all-reduce of statistics every update_every steps)",
        bits="bits + 32 / bucket",
        unbiased=True,
        state="levels (2^bits a DDP bucket), which table (1 bit a tensor)",
        paper="Faghri et al., NeurIPS 2020, arXiv:2010.12460",
    )

    @classmethod
    def initial(cls, parameters: AmqParameters) -> Table:
        return exponential_levels(parameters.bits, 0.5, zero=parameters.zero)

    @classmethod
    def fitted(cls, parameters: AmqParameters, components: Numbers, before: Table) -> Table:
        chosen = parameters
        powers = powers_of(chosen)
        if powers == 0:  # 2 bits with zero: -1, 0, 1, whatever p is
            return before
        model = Histogram(components, folded=True)
        present = min(max(float(before[-2]), _LEAST), _MOST)  # of … p, 1
        multipliers = np.array((*_STARTS, present))
        for _ in range(chosen.epochs):
            slopes = slope(model, multipliers, powers, zero=chosen.zero)
            multipliers = np.clip(multipliers - chosen.learning_rate * slopes, _LEAST, _MOST)
        ends = expected_variance(model, multipliers, powers, zero=chosen.zero)
        best = float(np.float32(multipliers[int(ends.argmin())]))  # as the next update reads it
        return exponential_levels(chosen.bits, best, zero=chosen.zero)


def powers_of(parameters: AmqParameters) -> int:
    """m, the largest power of the multiplier in the table."""
    return int(2 ** (parameters.bits - 1)) - 1 - int(parameters.zero)


def expected_variance(model: Histogram, p: Numbers, powers: int, *, zero: bool) -> Numbers:
    """Psi of each multiplier of `p`; `model` is the distribution of |r|."""
    levels = p[:, None] ** np.arange(powers + 1)  # descending
    high, low = levels[:, :-1], levels[:, 1:]
    zeroth, first, second = (np.diff(tail, axis=1) for tail in model.tails(levels))
    between: Numbers = ((high + low) * first - high * low * zeroth - second).sum(axis=1)
    mass, mean, square = _below(model, levels[:, -1])
    least = levels[:, -1]
    bottom: Numbers = least * mean - square if zero else least**2 * mass - square
    return between + bottom


def slope(model: Histogram, p: Numbers, powers: int, *, zero: bool) -> Numbers:
    """Psi' of each multiplier of `p`."""
    levels = p[:, None] ** np.arange(powers + 1)
    zeroth, first, _ = (np.diff(tail, axis=1) for tail in model.tails(levels))
    j = np.arange(powers)
    weights = j * p[:, None] ** (j - 1.0) + (j + 1) * p[:, None] ** j
    between: Numbers = (weights * first - (2 * j + 1) * p[:, None] ** (2 * j) * zeroth).sum(axis=1)
    mass, mean, _ = _below(model, levels[:, -1])
    bottom: Numbers = (
        powers * p ** (powers - 1) * mean if zero else 2 * powers * p ** (2 * powers - 1) * mass
    )
    return between + bottom


def _below(model: Histogram, x: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Integrals of dA, r dA and r^2 dA from 0 to x."""
    zeroth, first, second = model.tails(x)
    every = model.whole
    return every[0] - zeroth, every[1] - first, every[2] - second
