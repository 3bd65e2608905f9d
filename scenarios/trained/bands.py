"""In which band does a speedup to target lie, with another seed and in a drawn world?

A few seeds seldom show how far a further one may be: the lowest and the highest of three hold the
next in half of the cases. So seeds are taken as draws of a log-normal distribution, of which the
next one lies around their middle as Student's t has it (a prediction interval: Hahn 1969, "Factors
for calculating two-sided prediction intervals for samples from a normal distribution"). An
evaluation every so many steps hides what lies between, so seeds that agree differ by that at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.result import HIGH, LOW

_PLACES = 64
"""Of Student's distribution, evenly spread over its probability."""


def band(gains: Sequence[NDArray[np.float64]], grain: float) -> tuple[float, float]:
    """The `LOW`th and `HIGH`th percentile of the speedup with a further seed.

    `gains` are by seed `[1 + worlds]`: the speedup as stated, and in each drawn world; `grain` is
    the share by which a seed's speedup is unknown because training is judged now and then. Where a
    seed does not reach the target, the percentiles are those of the seeds that there are.
    """
    known = np.array(gains)
    drawn = known[:, 1:]
    if len(known) == 1 or not (np.isfinite(known).all() and (known > 0).all()):
        finite = bool(np.isfinite(drawn).all())  # else there is nothing to interpolate
        way: Any = "linear" if finite else "closest_observation"
        low, high = np.percentile(drawn, (LOW, HIGH), method=way)
        return float(low), float(high)
    from scipy.special import stdtrit  # its quantiles: scipy.stats would take half a second

    stated, seeds = np.log(known[:, 0]), len(known)
    spread = max(float(stated.std(ddof=1)), grain) * math.sqrt(1 + 1 / seeds)
    further = spread * stdtrit(seeds - 1, (np.arange(_PLACES) + 0.5) / _PLACES)
    logs = np.median(np.log(drawn), axis=0)[:, None] + further
    low, high = np.exp(np.percentile(logs, (LOW, HIGH)))
    return float(low), float(high)


def grain(every: int, *steps: float) -> float:
    """Of a ratio of steps that are known to `every` so many: a uniform error's deviation each."""
    return math.sqrt(sum((every / each) ** 2 for each in steps) / 12)
