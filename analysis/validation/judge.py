"""Judgement of a suite: its bounds, and whether its fit was honest."""

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
from gcsim.analysis.validation.statistics import Errors, by_series, errors, judged
from gcsim.analysis.validation.suite import IN_ALL, Agreement, Bound, Findings, Point, Suite, Unit
from gcsim.errors import InputError

MOST_FITTED = 1 / 3  # share of a series' points that may serve a fit
LEAST_ROWS = 2  # least measurements behind a fitted factor; one alone is met whatever is believed
MOST_FACTORS = 2 / 3  # most fitted factors per measurement that served


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A bound and the value reached."""

    bound: Bound
    reached: float
    points: int  # number of points, decisions or statements
    kept: bool
    unfitted: float | None = None  # the catalogue's own median


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A suite's outcome."""

    suite: Suite
    findings: Findings
    series: dict[str, Errors]  # errors by series, without those entirely fitted
    lines: dict[str, Errors]
    """Lines of the report: a series, or the parts of a mixture (`report/series.py`)."""
    overall: Errors | None  # errors of times and rates; bytes are inputs of predictions
    decisions: Decisions | None
    bounds: tuple[Kept, ...]
    seconds: float  # duration of the prediction here

    @property
    def kept(self) -> bool:
        """Whether no bound is broken."""
        return all(bound.kept for bound in self.bounds)


def run_suite(suite: Suite) -> Report:
    """Predict a suite's points and judge them. Raises `InputError` if more than a third of a
    series serves the fit, a factor is fitted on one point or more than two on three, names repeat,
    or a value is not positive and finite."""
    start = time.perf_counter()
    findings = suite.find()
    return judge(suite, findings, time.perf_counter() - start)


def judge(suite: Suite, findings: Findings, seconds: float = 0.0) -> Report:
    """Judge existing findings, as `run_suite` does."""
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
        fitted = len(own) - len(judged(own))
        if fitted > MOST_FITTED * len(own):
            raise _wrong(
                suite,
                f"{fitted} of the {len(own)} points of {name!r} are fitted, more than a third",
            )


def _check_freedom(suite: Suite, findings: Findings) -> None:
    """Check the number of fitted factors, without `Factor.given`. If no point serves a fit, they
    explain a miss and are in no prediction."""
    served = sum(point.fitted for point in findings.points)
    solved = [factor for factor in findings.factors if not factor.given] if served else []
    for factor in solved:
        if factor.points < LEAST_ROWS:
            count = plural(factor.points, "point")
            raise _wrong(suite, f"{factor.name!r} of {factor.series!r} is fitted on {count}")
    # a row that gives a step of one device tells nothing else
    alone = sum(factor.given and factor.points == 1 for factor in findings.factors)
    rows = max([served - alone, *(factor.points for factor in solved)])
    if len(solved) > MOST_FACTORS * rows:
        raise _wrong(
            suite,
            f"{plural(len(solved), 'factor')} fitted on {plural(rows, 'point')}, "
            "more than two per three points",
        )


def _without_points(bound: Bound, findings: Findings) -> Kept | None:
    """A bound on what is no point."""
    if bound.statistic == "statements":
        own = findings.statements
        right = [one for one in own if one.exact and one.agrees != one.wrong]
        return Kept(
            bound=bound,
            reached=len(right) / len(own) if own else 0.0,
            points=len(own),
            kept=bool(own) and len(right) == len(own),
        )
    if bound.statistic == "ordering":
        pairs = sum(len(one.pairs) for one in findings.orderings)
        wrong = sum(len(one.wrong) for one in findings.orderings)
        return _share(bound, pairs - wrong, pairs)
    if bound.statistic == "regret":
        (one,) = (r for r in findings.regrets if (r.source, r.rule) == (IN_ALL, *bound.series))
        kept = one.mean <= bound.limit
        return Kept(bound=bound, reached=one.mean, points=one.settings, kept=kept)
    if bound.statistic in ("alarms", "pairs"):
        return _agreeing(bound, findings.agreements)
    return None


def _judge(suite: Suite, bound: Bound, findings: Findings, series: dict[str, list[Point]]) -> Kept:
    if (kept := _without_points(bound, findings)) is not None:
        return kept
    unknown = sorted(set(bound.series) - set(series))
    if unknown:
        raise _wrong(suite, f"the bound {bound.name!r} is over unknown series {unknown}")
    names = bound.series or tuple(series)
    points = [point for name in names for point in series[name]]
    if bound.statistic == "decisions":
        found = decisions(points)
        share, count = (found.share, found.decided) if found and found.decided else (0.0, 0)
        return Kept(bound=bound, reached=share, points=count, kept=share >= bound.limit)
    summary = errors(points)
    if summary is None:
        return Kept(bound=bound, reached=math.inf, points=0, kept=False)
    ninth = bound.statistic == "p90"
    reached = summary.p90 if ninth else summary.median
    return Kept(
        bound=bound,
        reached=reached,
        points=summary.points,
        kept=reached <= bound.limit,
        unfitted=summary.unfitted_p90 if ninth else summary.unfitted_median,
    )


def _agreeing(bound: Bound, found: Sequence[Agreement]) -> Kept:
    """Bound on false alarms or on pairs, of the tasks' own settings or, by its series, of all."""
    own = [one for one in found if (one.compared == IN_ALL) == (bound.series == (IN_ALL,))]
    if bound.statistic == "alarms":
        count = sum(one.reported for one in own)
        share = sum(len(one.alarms) for one in own) / count if count else math.inf
        return Kept(bound=bound, reached=share, points=count, kept=share <= bound.limit)
    right = sum(one.count("right") for one in own)
    other = sum(one.count("reversed") for one in own)
    return _share(bound, right, right + other)


def _share(bound: Bound, right: int, count: int) -> Kept:
    share = right / count if count else 0.0
    return Kept(bound=bound, reached=share, points=count, kept=bool(count) and share >= bound.limit)
