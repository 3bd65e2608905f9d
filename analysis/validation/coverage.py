"""Share of the measurements that the intervals hold: by suite, by kind of input, and in all.

Counted is every point with an interval of its prediction without a fit that served no fit itself.
An 80 % interval that is right holds 80 % of them; what holds nearly all is too wide.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.registry import SUITES
from gcsim.analysis.validation.statistics import judged
from gcsim.analysis.validation.suite import Point

LEAST, MOST = 0.7, 0.9
"""Share of all measurements that the intervals must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of some points."""

    name: str
    points: int
    held: int
    faster: int
    """Outside because they were faster than the interval."""
    slower: int
    width: float
    """Median of high over low."""

    @property
    def share(self) -> float:
        """Held."""
        return self.held / self.points


def coverages(reports: Sequence[Report]) -> tuple[list[Coverage], list[Coverage], Coverage | None]:
    """Coverage by suite, by kind of the input with most of the width, and in all; None without any
    interval."""
    by_suite = {report.suite.name: _counted(report.findings.points) for report in reports}
    everything = [point for points in by_suite.values() for point in points]
    kinds = dict.fromkeys(sorted({point.kind for point in everything}))
    by_kind = {kind: [point for point in everything if point.kind == kind] for kind in kinds}
    whole = _of("in all", everything) if everything else None
    return list(_each(by_suite)), list(_each(by_kind)), whole


def broken(reports: Sequence[Report]) -> str:
    """The fault of the share in all, once every suite of the table was run; else empty."""
    whole = coverages(reports)[2]
    if whole is None or {report.suite.name for report in reports} < set(SUITES):
        return ""
    if LEAST <= whole.share <= MOST:
        return ""
    return (
        f"the intervals hold {whole.share:.0%} of {whole.points} measurements, not "
        f"{LEAST:.0%} to {MOST:.0%}"
    )


def _counted(points: Iterable[Point]) -> list[Point]:
    return [point for point in judged(list(points)) if point.covered is not None]


def _each(groups: dict[str, list[Point]]) -> Iterator[Coverage]:
    for name, points in groups.items():
        if points:
            yield _of(name, points)


def _of(name: str, points: Sequence[Point]) -> Coverage:
    below = sum(point.measured < (point.low or 0) for point in points)
    above = sum(point.measured > (point.high or 0) for point in points)
    rates = [point for point in points if not point.less_is_better]
    swapped = sum((point.measured > (point.high or 0)) - (point.measured < (point.low or 0))
                  for point in rates)  # fmt: skip
    return Coverage(
        name=name,
        points=len(points),
        held=len(points) - below - above,
        faster=below + swapped,
        slower=above - swapped,
        width=statistics.median((point.high or 0) / (point.low or 1) for point in points),
    )
