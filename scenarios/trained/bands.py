"""Bands of a speedup to target, over another seed and drawn worlds.

The lowest and highest of three seeds hold the next in half of the cases. So seeds are draws of a
log-normal distribution, and the next is distributed around their middle as Student's t (a
prediction interval: Hahn 1969, "Factors for calculating two-sided prediction intervals for samples
from a normal distribution"). Seeds that agree still differ by the steps between evaluations.

Two methods are told apart by Student's paired t-test over the seeds: the mean logarithm of their
speedup is 0 where they are alike. The drawn worlds are equally likely, so its probability is their
mean. Several comparisons at once are corrected by Holm's step-down method (Holm 1979, "A simple
sequentially rejective multiple test procedure"), whatever their dependence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.result import Row
from gcsim.scenarios.uncertainty.ranges import interval

ALPHA = 0.1  # probability that methods that are alike are told apart, in any of the comparisons
_MOST = 1e6  # speed relative to a method that misses the target with a seed
_PLACES = 64  # points of Student's distribution, even in probability


def band(gains: Sequence[NDArray[np.float64]], grain: float) -> tuple[float, float]:
    """`interval` of the speedup of `with_further_seed`."""
    return interval(with_further_seed(gains, grain))


def with_further_seed(gains: Sequence[NDArray[np.float64]], grain: float) -> NDArray[np.float64]:
    """Draws of the speedup with a further seed, over worlds and seeds.

    `gains`, by seed `[1 + worlds]`: median speedup, then each drawn world's; `grain`: relative
    uncertainty of a seed's speedup from the spacing of evaluations. Of one seed, or if one misses
    the target, only the seeds at hand are drawn.
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


def alike(gains: Sequence[NDArray[np.float64]], grain: float) -> float:
    """Two-sided p-value of methods that reach the target equally soon; `gains` and `grain` as in
    `with_further_seed`. The sign test's where a seed misses the target (ties count half), and of
    one seed, which tells nothing apart: 1."""
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
    """Adjusted p-values: at most `ALPHA` where a comparison is told apart among all of these."""
    adjusted, least = [1.0] * len(p_values), 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - done) * p_values[place]))
        adjusted[place] = least
    return adjusted


def target_speed_ratio(one: Row, other: Row) -> NDArray[np.float64]:
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
