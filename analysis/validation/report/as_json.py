"""Output of `gcsim validate --json`: points, errors, factors, bounds, sources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gcsim.analysis.validation.coverage import broken, coverages
from gcsim.analysis.validation.decisions import Decisions
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.statistics import Errors
from gcsim.analysis.validation.suite import Point
from gcsim.version import __version__


def to_json(reports: Sequence[Report]) -> str:
    """Plain JSON, the same for equal results but for `wall`."""
    by_suite, by_kind, whole = coverages(reports)
    content = {
        "gcsim_version": __version__,
        "kept": all(report.kept for report in reports) and not broken(reports),
        "coverage": {
            "suites": [asdict(one) for one in by_suite],
            "kinds": [asdict(one) for one in by_kind],
            "all": whole and asdict(whole),
        },
        "suites": [_report(report) for report in reports],
        "wall": {report.suite.name: round(report.seconds, 3) for report in reports},
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _report(report: Report) -> dict[str, Any]:
    suite, findings = report.suite, report.findings
    return {
        "name": suite.name,
        "title": suite.title,
        "about": suite.about,
        "fitted_on": suite.fitted_on,
        "missing": suite.missing,
        "kept": report.kept,
        "bounds": [
            {
                **asdict(kept.bound),
                "reached": kept.reached if kept.points else None,
                "points": kept.points,
                "kept": kept.kept,
                "unfitted": kept.unfitted,
            }
            for kept in report.bounds
        ],
        "overall": _errors(report.overall),
        "series": {name: _errors(errors) for name, errors in report.lines.items()},
        "decisions": _decisions(report.decisions),
        "factors": [asdict(factor) for factor in findings.factors],
        "excluded": [asdict(excluded) for excluded in findings.excluded],
        "statements": [
            {**asdict(one), "agrees": one.agrees, "exact": one.exact} for one in findings.statements
        ],
        "orderings": [
            {**asdict(one), "pairs": len(one.pairs), "wrong": one.wrong}
            for one in findings.orderings
        ],
        "points": [point_row(point) for point in findings.points],
    }


def point_row(point: Point) -> dict[str, Any]:
    """A point with its errors, plain values."""
    return {**asdict(point), "error": point.error, "unfitted_error": point.unfitted_error}


def _errors(errors: Errors | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    return {**asdict(errors), "worst": [point.name for point in errors.worst]}


def _decisions(found: Decisions | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        **asdict(found),
        "commoner": found.commoner,
        "wrong": [point.name for point in found.wrong],
    }
