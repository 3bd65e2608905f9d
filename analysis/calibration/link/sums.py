"""Rates of additions by element type, from all-reduces of several types.

A link is fitted to one type, whose additions are part of its goodput. If another type takes longer
over the same link, the extra time is that of its additions. Each measurement gives the rate that
explains it (by bisection, to a thousandth); the median counts, with the middle half (of two, both)
as its range. A measurement that the link explains to within `LEAST` is not informative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from gcsim.analysis.calibration.link.model import Model
from gcsim.analysis.calibration.measurements.collectives import Measurement
from gcsim.analysis.report.numbers import plural
from gcsim.simulator.host import Sums
from gcsim.simulator.network.links import Link

LEAST = 0.8
_SLOWEST, _FASTEST = 1e5, 1e12  # bytes per second between which bisection searches
_STEPS = 34
_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRate:
    """Rate at which elements of a type are added."""

    dtype: str
    rate: float  # bytes per second added
    low: float
    high: float
    points: int  # number of informative measurements


def by_type(measurements: Sequence[Measurement]) -> tuple[list[Measurement], list[str]]:
    """Measurements for the link's fit, of one added type (float32, else the commonest); others."""
    added = [point for point in measurements if _added_on_host(point)]
    counts = Counter(point.dtype for point in added)
    main = "float32" if "float32" in counts else next(iter(counts), "")
    kept = [p for p in measurements if p.dtype == main or not _added_on_host(p)]
    return kept, [dtype for dtype in counts if dtype != main]


def _added_on_host(point: Measurement) -> bool:
    return point.collective in {"all_reduce", "reduce_scatter"} and "nccl" not in point.algorithm


def sums_report(rates: Sequence[SumRate], dtypes: Sequence[str]) -> Iterator[str]:
    """Yield the report, with the lines for a scenario."""
    told = {rate.dtype for rate in rates}
    for rate in rates:
        bounds = ", ".join(_bandwidth(end) for end in (rate.low, rate.high))
        yield (
            f"summation of {rate.dtype}: cluster.sums: {{{rate.dtype}: {_bandwidth(rate.rate)}, "
            f"{rate.dtype}_range: [{bounds}]}} ({plural(rate.points, 'size')})"
        )
    for dtype in dtypes:
        if dtype not in told:
            yield f"summation of {dtype}: the link alone explains its times"


def _bandwidth(rate: float) -> str:
    return f"{rate / 1e6:.4g} MB/s"


def fit_sums(
    measurements: Sequence[Measurement], link: Link, *, inside: Link, dtype: str
) -> SumRate | None:
    """Return the rate of a type over a link fitted to another type, if it is determined."""
    own = [Model([point], inside) for point in measurements if point.dtype == dtype]
    found = sorted(
        _rate(model, link)
        for model in own
        if _seconds(model, link) < LEAST * model.measurements[0].seconds
    )
    if not found:
        return None
    low, middle, high = (
        float(f"{float(q):.{_DIGITS}g}") for q in np.quantile(found, [0.25, 0.5, 0.75])
    )
    return SumRate(dtype=dtype, rate=middle, low=low, high=high, points=len(found))


def _seconds(model: Model, link: Link) -> float:
    return float(model.seconds(link)[0])


def _rate(model: Model, link: Link) -> float:
    """Return the rate at which the model's only measurement takes its time."""
    (point,) = model.measurements
    slow, fast = np.log(_SLOWEST), np.log(_FASTEST)
    for _ in range(_STEPS):
        middle = (slow + fast) / 2
        sums: dict[str, Any] = {point.dtype: Fraction(float(np.exp(middle)))}
        if _seconds(replace(model, sums=Sums(**sums)), link) > point.seconds:
            slow = middle
        else:
            fast = middle
    return float(np.exp((slow + fast) / 2))
