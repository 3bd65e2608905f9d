"""ALQ: random rounding to levels that follow the distribution of the gradient.

The table of `adaptive_levels.py` is fitted such that the expected variance of rounding at random,
Psi = sum_j integral (l_{j+1} - r) (r - l_j) dF, is least. Coordinate descent: with its neighbours
a and b held, the best place of a level is

    l = F^-1( F(b) - integral_a^b (r - a) / (b - a) dF ),

level by level, `sweeps` times; from uniform, exponential and quantile tables, of which the best
end is kept. Psi never grows. Unbiased whatever the table; the variance is
sum (|v| - lo) (hi - |v|), levels times the norm, exactly.

Symmetric tables hold zero: 2^bits - 1 levels, fitted to |r|. Otherwise 2^bits levels are free but
for -1 and 1. Before the first fit at step 0 the table is exponential, p = 1/2.

Assumes the closed form above; the published code descends by finite differences unless told to
use it. A model of normals puts few levels where heavy-tailed gradients have their large elements:
with 4 bits and buckets of 1024 its table has NMSE .038 on normal gradients, where the exponential
one has .095, but .13 on Laplace's (.10) and .72 on cubes of normals (.10). The better one on the
worker's own gradient is used.

Source: F. Faghri et al., "Adaptive Gradient Quantization for Data-Parallel SGD", NeurIPS 2020,
arXiv:2010.12460; code: Tabrizian/learning-to-quantize (nuq/quantize.py, estim/dist.py).
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About
from gcsim.compressors.coding.rounding.levels import Table
from gcsim.compressors.coding.rounding.tables import exponential_levels
from gcsim.compressors.coding.rounding.truncated_normals import (
    Histogram,
    Numbers,
    coordinate_descent,
    separate,
)
from gcsim.compressors.quantization.rounding.adaptive_levels import (
    AdaptiveLevels,
    AdaptiveParameters,
)


class AlqParameters(AdaptiveParameters):
    symmetric: bool = Field(
        True, description="levels 0 and ±, fitted to |r|; else all but -1 and 1 are free"
    )
    sweeps: int = Field(10, ge=1, description="of coordinate descent over all levels")


class Alq(AdaptiveLevels[AlqParameters]):
    """Table at a coordinate-wise minimum of the expected variance."""

    about = About(
        title="ALQ",
        family="quantization",
        collective="all-gather (and an all-reduce of statistics every update_every steps)",
        bits="bits + 32 / bucket",
        unbiased=True,
        state="levels (2^bits a DDP bucket), which table (1 bit a tensor)",
        paper="Faghri et al., NeurIPS 2020, arXiv:2010.12460",
    )

    @classmethod
    def initial(cls, parameters: AlqParameters) -> Table:
        return exponential_levels(parameters.bits, 0.5, zero=parameters.symmetric)

    @classmethod
    def fitted(cls, parameters: AlqParameters, components: Numbers, before: Table) -> Table:
        """The table of least expected variance; the table now has no influence."""
        chosen = parameters
        model = Histogram(components, folded=chosen.symmetric)
        first = 0.0 if chosen.symmetric else -1.0
        exponential = exponential_levels(chosen.bits, 0.5, zero=chosen.symmetric)
        exponential = exponential[exponential >= first]
        uniform = np.linspace(first, 1.0, exponential.size)
        quantiles = model.quantiles(np.linspace(0.0, 1.0, exponential.size))
        ends = [
            coordinate_descent(model, start, chosen.sweeps)
            for start in (uniform, exponential.astype(np.float64), separate(quantiles))
        ]
        best = min(ends, key=model.variance).astype(np.float32)
        return np.concatenate((-best[:0:-1], best)) if chosen.symmetric else best
