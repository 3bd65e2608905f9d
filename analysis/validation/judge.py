"""Judgement of a suite: whether its bounds hold, and whether its fit is legitimate."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.decisions import Decisions, decisions
from gcsim.analysis.validation.report.series import lines
from gcsim.analysis.validation.statistics import Errors, by_series, errors, not_fitted
from gcsim.analysis.validation.suite import IN_ALL, Bound, Findings, Point, Suite, Unit
from gcsim.errors import InputError

MOST_FITTED = 1 / 3  # largest share of a series' points that may be used in a fit
LEAST_ROWS = 2  # least measurements per fitted factor; a single one is always matched
MOST_FACTORS = 2 / 3  # most fitted factors per measurement used


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A bound, the value reached, and whether the bound holds."""

    bound: Bound
    reached: float
    points: int  # number of points, decisions or statements
    kept: bool
    unfitted: float | None = None  # median with the catalogue alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Outcome of a suite."""

    suite: Suite
    findings: Findings
    series: dict[str, Errors]  # errors by series, without series used entirely in fits
    lines: dict[str, Errors]
    """Errors by line of the report: a series, or the parts of a mixture (`report/series.py`)."""
    overall: Errors | None  # errors of times and rates; bytes are inputs of predictions
    decisions: Decisions | None
    bounds: tuple[Kept, ...]
    seconds: float  # time that the predictions took

    @property
    def kept(self) -> bool:
        """Whether all bounds hold."""
        return all(bound.kept for bound in self.bounds)


def run_suite(suite: Suite) -> Report:
    """Predict a suite's points and judge them. Raises `InputError` if more than a third of a series
    is used in the fit, a factor is fitted on one point or more than two factors on three, names
    repeat, or a value is not positive and finite."""
    start = time.perf_counter()
    findings = suite.find()
    return judge(suite, findings, time.perf_counter() - start)


def judge(suite: Suite, findings: Findings, seconds: float = 0.0) -> Report:
    """Judge existing findings as `run_suite` does."""
    points = findings.points
    series = by_series(points)
    _check(suite, points, series)
    _check_freedom(suite, findings)
    summaries = {name: errors(own) for name, own in series.items()}
    return Report(
        suite=suite,
        findings=findings,
        series={name: found for name, found in summaries.items() if found is not None},
        lines={
            name: found
            for name, part in lines(series).items()
            if (found := errors(part)) is not None
        },
        overall=errors([point for point in points if point.unit != "bytes"]),
        decisions=decisions(points),
        bounds=tuple(_judge(suite, bound, findings, series) for bound in suite.bounds),
        seconds=seconds,
    )


def _wrong(suite: Suite, message: str) -> InputError:
    hint = "docs/validation-method.md has a suite to start from"
    return InputError(message, place=f"suite {suite.name}", hint=hint)


def _check(suite: Suite, points: Sequence[Point], series: dict[str, list[Point]]) -> None:
    for name, count in Counter(point.name for point in points).items():
        if count > 1:
            raise _wrong(suite, f"two points are called {name!r}")
    for point in points:
        bare = 1.0 if point.unfitted is None else point.unfitted
        values = [point.measured, point.predicted, bare]
        if not all(0 < value < math.inf for value in values):
            raise _wrong(suite, f"{point.name!r} has no error: {values}")
    units = sorted({point.unit for point in points} - set(get_args(Unit)))
    if units:
        known = ", ".join(get_args(Unit))
        raise _wrong(suite, f"points in {units[0]!r}; units are {known}")
    for name, own in series.items():
        fitted = len(own) - len(not_fitted(own))
        if fitted > MOST_FITTED * len(own):
            raise _wrong(
                suite,
                f"{fitted} of the {len(own)} points of {name!r} are fitted, more than a third",
            )


def _check_freedom(suite: Suite, findings: Findings) -> None:
    """Check the number of fitted factors, without `Factor.given`. If no point is used in a fit, the
    factors only explain a miss and are in no prediction."""
    served = sum(point.fitted for point in findings.points)
    solved = [factor for factor in findings.factors if not factor.given] if served else []
    for factor in solved:
        if factor.points < LEAST_ROWS:
            count = plural(factor.points, "point")
            raise _wrong(suite, f"{factor.name!r} of {factor.series!r} is fitted on {count}")
    # a row that gives the step of one device has no other information
    alone = sum(factor.given and factor.points == 1 for factor in findings.factors)
    rows = max([served - alone, *(factor.points for factor in solved)])
    if len(solved) > MOST_FACTORS * rows:
        raise _wrong(
            suite,
            f"{plural(len(solved), 'factor')} fitted on {plural(rows, 'point')}, "
            "more than two per three points",
        )


_AT_LEAST = {"decisions", "statements", "ordering", "pairs"}
"""Statistics that a bound limits from below."""


def _judge(suite: Suite, bound: Bound, findings: Findings, series: dict[str, list[Point]]) -> Kept:
    reached, points, unfitted = _reached(suite, bound, findings, series)
    limit = 1.0 if bound.statistic == "statements" else bound.limit
    held = reached >= limit if bound.statistic in _AT_LEAST else reached <= limit
    return Kept(
        bound=bound, reached=reached, points=points, kept=points > 0 and held, unfitted=unfitted
    )


def _reached(  # noqa: PLR0911 - a statistic each
    suite: Suite, bound: Bound, findings: Findings, series: dict[str, list[Point]]
) -> tuple[float, int, float | None]:
    """Return the value of a bound's statistic, the number of points, decisions or statements behind
    it, and its value with the catalogue alone."""
    if bound.statistic == "statements":
        own = findings.statements
        return _share(sum(one.exact and one.agrees != one.wrong for one in own), len(own))
    if bound.statistic == "ordering":
        pairs = sum(len(one.pairs) for one in findings.orderings)
        return _share(pairs - sum(len(one.wrong) for one in findings.orderings), pairs)
    if bound.statistic == "regret":
        (one,) = (r for r in findings.regrets if (r.source, r.rule) == (IN_ALL, *bound.series))
        return one.mean, one.settings, None
    if bound.statistic in {"alarms", "pairs"}:  # in a task's own settings or (`IN_ALL`) in all
        everywhere = bound.series == (IN_ALL,)
        tasks = [one for one in findings.agreements if (one.compared == IN_ALL) == everywhere]
        if bound.statistic == "pairs":
            right = sum(one.count("right") for one in tasks)
            return _share(right, right + sum(one.count("reversed") for one in tasks))
        count = sum(one.reported for one in tasks)
        alarms = sum(len(one.alarms) for one in tasks)
        return (alarms / count if count else math.inf), count, None
    unknown = sorted(set(bound.series) - set(series))
    if unknown:
        raise _wrong(suite, f"the bound {bound.name!r} is over unknown series {unknown}")
    points = [point for name in bound.series or series for point in series[name]]
    if bound.statistic == "decisions":
        found = decisions(points)
        return _share(found.right, found.decided) if found else _share(0, 0)
    summary = errors(points)
    if summary is None:
        return math.inf, 0, None
    if bound.statistic == "p90":
        return summary.p90, summary.points, summary.unfitted_p90
    return summary.median, summary.points, summary.unfitted_median


def _share(right: int, count: int) -> tuple[float, int, None]:
    return right / count if count else 0.0, count, None
