"""Does a suite keep its bounds? Runs it, and checks that its fit was honest."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from gcsim.analysis.validation.decisions import Decisions, decisions
from gcsim.analysis.validation.statistics import Errors, by_series, errors, judged
from gcsim.analysis.validation.suite import Bound, Findings, Point, Suite, Unit
from gcsim.errors import InternalError

MOST_FITTED = 1 / 3
"""Share of a series' points that may serve a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A bound, and what was reached."""

    bound: Bound
    reached: float
    points: int
    """Points, decisions or statements that it is over."""
    kept: bool
    unfitted: float | None = None
    """What the catalogue alone would have reached, of a median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A suite's outcome."""

    suite: Suite
    findings: Findings
    series: dict[str, Errors]
    """Without those all of whose points served the fit."""
    overall: Errors | None
    """Of times and rates; bytes are what goes into the predictions, and have series alone."""
    decisions: Decisions | None
    bounds: tuple[Kept, ...]
    seconds: float
    """That it took here."""

    @property
    def kept(self) -> bool:
        """Whether no bound is broken."""
        return all(bound.kept for bound in self.bounds)


def run_suite(suite: Suite) -> Report:
    """Predict a suite's points and judge them. Raises `InternalError` where more than a third of
    a series serves the fit, two points have one name, or a value is not positive and finite."""
    start = time.perf_counter()
    findings = suite.find()
    return judge(suite, findings, time.perf_counter() - start)


def judge(suite: Suite, findings: Findings, seconds: float = 0.0) -> Report:
    """As `run_suite`, of findings that are there."""
    points = findings.points
    series = by_series(points)
    _check(suite, points, series)
    summaries = {name: errors(own) for name, own in series.items()}
    return Report(
        suite=suite,
        findings=findings,
        series={name: found for name, found in summaries.items() if found is not None},
        overall=errors([point for point in points if point.unit != "bytes"]),
        decisions=decisions(points),
        bounds=tuple(_judge(bound, findings, series) for bound in suite.bounds),
        seconds=seconds,
    )


def _check(suite: Suite, points: Sequence[Point], series: dict[str, list[Point]]) -> None:
    for name, count in Counter(point.name for point in points).items():
        if count > 1:
            raise InternalError(f"{suite.name}: two points are called {name!r}")
    for point in points:
        values = [
            point.measured,
            point.predicted,
            1.0 if (bare := point.unfitted) is None else bare,
        ]
        if not all(0 < value < math.inf for value in values):
            raise InternalError(f"{suite.name}: {point.name!r} has no error: {values}")
    units = sorted({point.unit for point in points} - set(get_args(Unit)))
    if units:
        known = ", ".join(get_args(Unit))
        raise InternalError(f"{suite.name}: points in {units[0]!r}; units are {known}")
    for name, own in series.items():
        fitted = len(own) - len(judged(own))
        if fitted > MOST_FITTED * len(own):
            raise InternalError(
                f"{suite.name}: {fitted} of the {len(own)} points of {name!r} serve the fit, "
                "more than a third"
            )


def _judge(bound: Bound, findings: Findings, series: dict[str, list[Point]]) -> Kept:
    if bound.statistic == "statements":
        own = findings.statements
        right = [one for one in own if one.exact and one.agrees != one.wrong]
        return Kept(
            bound=bound,
            reached=len(right) / len(own) if own else 0.0,
            points=len(own),
            kept=bool(own) and len(right) == len(own),
        )
    unknown = sorted(set(bound.series) - set(series))
    if unknown:
        raise InternalError(f"the bound {bound.name!r} is over unknown series {unknown}")
    names = bound.series or tuple(series)
    points = [point for name in names for point in series[name]]
    if bound.statistic == "decisions":
        found = decisions(points)
        share, count = (found.share, found.decided) if found and found.decided else (0.0, 0)
        return Kept(bound=bound, reached=share, points=count, kept=share >= bound.limit)
    summary = errors(points)
    if summary is None:
        return Kept(bound=bound, reached=math.inf, points=0, kept=False)
    return Kept(
        bound=bound,
        reached=summary.median,
        points=summary.points,
        kept=summary.median <= bound.limit,
        unfitted=summary.unfitted_median,
    )
