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

from gcsim.scenarios.result import HIGH, LOW


def interval(draws: Any) -> tuple[Any, Any]:
    """`LOW`th and `HIGH`th percentile along the last axis; the nearest draws where some are
    infinite, or the least is 0, the speedup of what misses its target."""
    ordered = np.sort(np.asarray(draws, dtype=np.float64), axis=-1)
    if not (np.isfinite(ordered).all() and ordered[..., 0].all()):  # nothing is between them
        return tuple(np.percentile(ordered, (LOW, HIGH), axis=-1, method="closest_observation"))
    low, high = (
        np.clip(ordered @ weights, ordered[..., 0], ordered[..., -1])
        for weights in _weights(ordered.shape[-1])
    )
    return low, high


@cache
def _weights(n: int) -> list[Any]:
    """Weights of n order statistics in each percentile."""
    k = np.arange(n)
    factorials = np.cumsum(np.log(np.maximum(k, 1)))
    ways = factorials[-1] - factorials - factorials[::-1]
    return [
        np.exp(ways + k * np.log(share) + k[::-1] * np.log1p(-share))
        for share in (LOW / 100, HIGH / 100)
    ]
