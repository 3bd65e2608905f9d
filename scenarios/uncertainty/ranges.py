"""Ranges over draws: 10th and 90th percentile.

numpy's percentile interpolates between two order statistics, so only two draws determine it. Here
all order statistics do: a Bernstein polynomial (Muñoz-Pérez and Fernández-Palacín 1987) weights
order statistic k = 0, ..., n with the binomial probability of k in n. For evenly spaced draws both
are equal.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gcsim.scenarios.result import HIGH, LOW


def interval(draws: Any) -> tuple[Any, Any]:
    """Return the `LOW`th and `HIGH`th percentile along the last axis; the nearest draws if some are
    infinite or 0 (the speedup of a method that misses its target)."""
    ordered = np.sort(np.asarray(draws, dtype=np.float64), axis=-1)
    if not (np.isfinite(ordered).all() and ordered[..., 0].all()):  # these cannot be interpolated
        return tuple(np.percentile(ordered, (LOW, HIGH), axis=-1, method="closest_observation"))
    low, high = (
        np.clip(ordered @ weights, ordered[..., 0], ordered[..., -1])
        for weights in _weights(ordered.shape[-1])
    )
    return low, high


@cache
def _weights(n: int) -> list[Any]:
    """Return the weights of n order statistics in each percentile."""
    k = np.arange(n)
    factorials = np.cumsum(np.log(np.maximum(k, 1)))
    ways = factorials[-1] - factorials - factorials[::-1]
    return [
        np.exp(ways + k * np.log(share) + k[::-1] * np.log1p(-share))
        for share in (LOW / 100, HIGH / 100)
    ]
