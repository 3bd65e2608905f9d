"""Ranges of a speedup to the target, over another seed and the drawn worlds.

Another seed lies between the lowest and highest of three seeds in only half of the cases. So seeds
are treated as draws of a log-normal distribution, and another one as Student's t around their mean
(a prediction interval: Hahn 1969, "Factors for calculating two-sided prediction intervals for
samples from a normal distribution"). Equal seeds are still uncertain by the evaluation interval.

Two methods are compared by Student's paired t-test over the seeds: if they are equally fast, the
mean logarithm of the speedup is 0. The p-value is the mean over the equally likely drawn worlds.
Several comparisons are corrected by Holm's step-down method (Holm 1979, "A simple sequentially
rejective multiple test procedure"), which is valid for any dependence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.result import Row
from gcsim.scenarios.uncertainty.ranges import interval

ALPHA = 0.1  # probability that any of several comparisons finds a difference by chance
_PLACES = 64  # number of quantiles of Student's distribution, equally probable
_WORLDS = 256  # least number of worlds: fewer are repeated, or `interval` would reach the tails


def band(gains: Sequence[NDArray[np.float64]], grain: float) -> tuple[float, float]:
    """Return the `interval` of `with_further_seed`."""
    return interval(with_further_seed(gains, grain))


def with_further_seed(gains: Sequence[NDArray[np.float64]], grain: float) -> NDArray[np.float64]:
    """Return draws of the speedup with another seed, over worlds and seeds.

    `gains`, by seed `[1 + worlds]`: median speedup, then each drawn world's; `grain`: relative
    uncertainty of a seed's speedup from the spacing of evaluations. For a single seed, or if one
    misses the target, only the existing seeds are drawn.
    """
    known = np.array(gains)
    drawn = known[:, 1:]
    if len(known) == 1 or not (np.isfinite(known).all() and (known > 0).all()):
        return drawn.ravel()
    from scipy.special import stdtrit  # quantiles; importing scipy.stats would take half a second

    middle, seeds = np.log(known[:, 0]), len(known)
    spread = max(float(middle.std(ddof=1)), grain) * math.sqrt(1 + 1 / seeds)
    further = spread * stdtrit(seeds - 1, (np.arange(_PLACES) + 0.5) / _PLACES)
    logs = np.median(np.log(drawn), axis=0)
    logs = np.tile(logs, math.ceil(_WORLDS / len(logs)))[:, None] + further
    found: NDArray[np.float64] = np.exp(logs).ravel()
    return found


def alike(gains: Sequence[NDArray[np.float64]], grain: float) -> float:
    """Return the two-sided p-value for equally fast methods; `gains` and `grain` as in
    `with_further_seed`. If a seed misses the target it is the sign test's (ties count half); for a
    single seed, which cannot show a difference, it is 1."""
    known = np.array(gains)
    drawn, seeds = known[:, 1:], len(known)
    if seeds > 1 and np.isfinite(known).all() and (known > 0).all():
        from scipy.special import stdtr

        middle = np.log(known[:, 0])
        spread = max(float(middle.std(ddof=1)), grain) / math.sqrt(seeds)
        if not spread:
            return float(not middle.any())
        slower = float(stdtr(seeds - 1, -np.log(drawn).mean(axis=0) / spread).mean())
        return min(1.0, 2 * min(slower, 1 - slower))
    ahead = float((known[:, 0] > 1).sum() + (known[:, 0] == 1).sum() / 2)
    behind = seeds - ahead
    most = math.ceil(max(ahead, behind))
    same = sum(math.comb(seeds, k) for k in range(most, seeds + 1))
    return min(1.0, same / 2.0 ** (seeds - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values; a difference is significant up to `ALPHA`."""
    adjusted, least = [1.0] * len(p_values), 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - done) * p_values[place]))
        adjusted[place] = least
    return adjusted


def target_speed_ratio(one: Row, other: Row) -> NDArray[np.float64]:
    """Return draws of `one`'s speed to the target over `other`'s; both were trained. 0 with a seed
    that misses the target, infinite if only `other` misses it."""
    worlds = [np.array(row.iteration_draws_s or (row.iteration_s,)) for row in (other, one)]
    faster = worlds[0] / worlds[1]
    over = np.concatenate([[np.median(faster)], faster])
    own, others = (
        np.array(row.speedups_to_target) / (row.speedup_vs_dense or 1.0) for row in (one, other)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        shorter = np.where(own == 0, 0.0, own / others)
    rough = math.hypot(one.steps_to_target_error, other.steps_to_target_error)
    return with_further_seed([each * over for each in shorter], rough)


def grain(every: int, *steps: float) -> float:
    """Return the relative error of a ratio of steps, each with a uniform error of `every` steps."""
    return math.sqrt(sum((every / each) ** 2 for each in steps) / 12)
