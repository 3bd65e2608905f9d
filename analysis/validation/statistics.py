"""Errors of a set of points: medians, percentiles, bias, and the worst points."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gcsim.analysis.validation.suite import Point

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors of points that were not used in a fit."""

    points: int
    median: float  # median of the absolute errors
    p90: float  # their 90th percentile, interpolated between order statistics
    bias: float  # median of the signed errors; above 0 if predictions are too large
    unfitted_median: float | None  # `median` with the catalogue alone, over points it can predict
    unfitted_p90: float | None
    worst: tuple[Point, ...]  # largest absolute error first


def not_fitted(points: Sequence[Point]) -> list[Point]:
    """Return the points that were not used in a fit."""
    return [point for point in points if not point.fitted]


def errors(points: Sequence[Point], worst: int = 3) -> Errors | None:
    """Return the errors of the points that were not used in a fit, if there are any."""
    own = not_fitted(points)
    if not own:
        return None
    absolute = [abs(point.error) for point in own]
    bare = [abs(point.unfitted_error) for point in own if point.unfitted_error is not None]
    return Errors(
        points=len(own),
        median=statistics.median(absolute),
        p90=float(np.percentile(absolute, 90)),
        bias=statistics.median(point.error for point in own),
        unfitted_median=statistics.median(bare) if bare else None,
        unfitted_p90=float(np.percentile(bare, 90)) if bare else None,
        worst=tuple(sorted(own, key=lambda point: -abs(point.error))[:worst]),
    )


def by_series(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Return the points by series, in order of first occurrence."""
    return grouped(points, lambda point: point.series)


def grouped(entries: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group entries by key, in order of first occurrence of the keys."""
    found: dict[K, list[T]] = {}
    for entry in entries:
        found.setdefault(key(entry), []).append(entry)
    return found
