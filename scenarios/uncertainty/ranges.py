"""Ranges over draws: 10th and 90th percentile.

numpy's percentile lies between two order statistics, so that it moves with two draws alone. Here
the curve through the same order statistics is a Bernstein polynomial (Muñoz-Pérez and
Fernández-Palacín 1987): order statistic k = 0, ..., n counts with the binomial probability of k in
n. Percentiles of evenly spaced draws are numpy's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.result import HIGH, LOW


def interval(draws: Any) -> tuple[Any, Any]:
    """`LOW`th and `HIGH`th percentile along the last axis; of infinite draws the nearest ones."""
    known = np.asarray(draws, dtype=np.float64)
    if not np.isfinite(known).all():  # nothing is between them
        low, high = np.percentile(known, (LOW, HIGH), axis=-1, method="closest_observation")
        return low, high
    ordered = np.sort(known, axis=-1)
    ends = (ordered @ _weights(known.shape[-1], share / 100) for share in (LOW, HIGH))
    low, high = (np.clip(end, ordered[..., 0], ordered[..., -1]) for end in ends)
    return low, high


@cache
def _weights(count: int, share: float) -> NDArray[np.float64]:
    """Binomial probabilities of 0, 1, ... in `count - 1`, each with probability `share`."""
    k = np.arange(count)
    factorials = np.cumsum(np.log(np.maximum(k, 1)))
    ways = factorials[-1] - factorials - factorials[::-1]
    found: NDArray[np.float64] = np.exp(ways + k * np.log(share) + k[::-1] * np.log1p(-share))
    return found
