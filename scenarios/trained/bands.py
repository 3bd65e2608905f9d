"""Bands of a speedup to target, over another seed and drawn worlds.

The lowest and highest of three seeds hold the next in half of the cases. So seeds are draws of a
log-normal distribution, and the next is distributed around their middle as Student's t (a
prediction interval: Hahn 1969, "Factors for calculating two-sided prediction intervals for samples
from a normal distribution"). Seeds that agree still differ by the steps between evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.result import HIGH, LOW, Row

_MOST = 1e6  # speed relative to a method that misses the target with a seed
_PLACES = 64  # points of Student's distribution, even in probability


def band(gains: Sequence[NDArray[np.float64]], grain: float) -> tuple[float, float]:
    """`LOW`th and `HIGH`th percentile of the speedup of `with_further_seed`."""
    draws = with_further_seed(gains, grain)
    finite = bool(np.isfinite(draws).all())  # else there is nothing to interpolate
    way: Any = "linear" if finite else "closest_observation"
    low, high = np.percentile(draws, (LOW, HIGH), method=way)
    return float(low), float(high)


def with_further_seed(gains: Sequence[NDArray[np.float64]], grain: float) -> NDArray[np.float64]:
    """Draws of the speedup with a further seed, over worlds and seeds.

    `gains`, by seed `[1 + worlds]`: median speedup, then each drawn world's; `grain`: relative
    uncertainty of a seed's speedup from the spacing of evaluations. If a seed misses the target,
    only the seeds at hand are drawn.
    """
    known = np.array(gains)
    drawn = known[:, 1:]
    if len(known) == 1 or not (np.isfinite(known).all() and (known > 0).all()):
        return drawn.ravel()
    from scipy.special import stdtrit  # its quantiles: scipy.stats would take half a second

    middle, seeds = np.log(known[:, 0]), len(known)
    spread = max(float(middle.std(ddof=1)), grain) * math.sqrt(1 + 1 / seeds)
    further = spread * stdtrit(seeds - 1, (np.arange(_PLACES) + 0.5) / _PLACES)
    logs = np.median(np.log(drawn), axis=0)[:, None] + further
    found: NDArray[np.float64] = np.exp(logs).ravel()
    return found


def sooner(one: Row, other: Row) -> NDArray[np.float64]:
    """Draws of `one`'s speed to the target over `other`'s; both were trained."""
    worlds = [np.array(row.iteration_draws_s or (row.iteration_s,)) for row in (other, one)]
    faster = worlds[0] / worlds[1]
    over = np.concatenate([[np.median(faster)], faster])
    own, others = (
        np.array(row.speedups_to_target) / (row.speedup_vs_dense or 1.0) for row in (one, other)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        shorter = np.minimum(np.where(own == others, 1.0, own / others), _MOST)
    rough = math.hypot(one.steps_to_target_error, other.steps_to_target_error)
    return with_further_seed([each * over for each in shorter], rough)


def grain(every: int, *steps: float) -> float:
    """Deviation of a ratio of steps known to within `every` steps, of uniform errors."""
    return math.sqrt(sum((every / each) ** 2 for each in steps) / 12)
