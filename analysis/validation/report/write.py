"""Files of a validation: page, tables and figures, written together or not at all.

validation.md: the page; validation.json: everything; points.csv: a line per point, with its
citation; pairs.csv: a line per pair of methods whose accuracies are compared; errors.png:
distribution of errors; scatter.png: predicted against measured; SUITE.png: scaling curves, if the
suite has any. A file that would be empty is omitted.
"""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import RenderableType
from rich.text import Text

from gcsim.analysis.plots.style import save
from gcsim.analysis.report.numbers import plural, significant
from gcsim.analysis.report.table import bare_table
from gcsim.analysis.validation.decisions import Decisions
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.leaving_out import fault, left_out
from gcsim.analysis.validation.report import table as tables
from gcsim.analysis.validation.report.series import AXES, by_value, lines, span
from gcsim.analysis.validation.statistics import Errors, by_series, grouped
from gcsim.analysis.validation.suite import IN_ALL, Factor, Point, Statement
from gcsim.analysis.write import Writer, as_text, write_all
from gcsim.files import csv_text, json_text, markdown_table
from gcsim.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure


T = TypeVar("T")


def points_csv(reports: Sequence[Report]) -> str:
    """Return all points as CSV in full precision, the suite in the first column."""
    rows = [
        {"suite": report.suite.name, **_point_row(point)}
        for report in reports
        for point in report.findings.points
    ]
    return csv_text(list(rows[0]), rows)


def pairs_csv(reports: Sequence[Report]) -> str:
    """Return all pairs of methods of every task as CSV, in full precision."""
    # a task's last agreement is on all fields, if it is compared with them
    widest = {one.task: one for report in reports for one in report.findings.agreements}
    rows = [
        {
            "task": one.task,
            "field": pair.field,
            "setting": pair.setting,
            "better": pair.better,
            "worse": pair.worse,
            "better_published": pair.published[0],
            "worse_published": pair.published[1],
            "better_here": pair.here[0],
            "worse_here": pair.here[1],
            "verdict": pair.verdict,
            "source": pair.source,
        }
        for one in widest.values()
        for pair in one.pairs
    ]
    return csv_text(list(rows[0]), rows) if rows else ""


def write(reports: Sequence[Report], folder: Path) -> tuple[Path, ...]:
    """Write all files into `folder`, which is created if missing. Raises `InputError` if the disk
    is full or the folder not writable; earlier files then remain."""
    makers = {"validation.md": page_text, "validation.json": to_json}
    if any(report.findings.points for report in reports):
        makers["points.csv"] = points_csv
    if any(one.pairs for report in reports for one in report.findings.agreements):
        makers["pairs.csv"] = pairs_csv
    texts = {name: as_text(make) for name, make in makers.items()}
    return write_all(reports, folder, texts | figures(reports), ())


def figures(reports: Sequence[Report]) -> dict[str, Writer]:
    """Return writers of the figures, by file name."""
    from gcsim.analysis.validation.plots import (
        curves_figure,
        errors_figure,
        has_curves,
        scatter_figure,
    )

    def drawing(figure: Callable[[T], Figure], own: T) -> Writer:
        return lambda _, path: save(figure(own), path)

    with_points = [
        report for report in reports if any(point.unit != "x" for point in report.findings.points)
    ]
    makers: dict[str, Writer] = {}
    if with_points:
        makers["errors.png"] = drawing(errors_figure, with_points)
        makers["scatter.png"] = drawing(scatter_figure, with_points)
    for report in with_points:
        if has_curves(report):
            makers[f"{report.suite.name}.png"] = drawing(curves_figure, report)
    return makers


_COMMAND = "make validation"
ERRORS = (
    "Errors are (predicted - measured) / measured, over the points that were not fitted; median "
    "and p90, the 90th percentile, are of the absolute error; the bias is the median of the signed "
    "error, above 0 where predictions are too large."
)
FEW = 100  # up to this many points the page lists all; points.csv has those of every suite
_SAME_WORK = 40  # common leading characters of two citations of the same work


def page_text(reports: Sequence[Report], images: str = "") -> str:
    """Return the page as Markdown; `images` is the folder of the figures, relative to it."""
    return "\n".join(_page(reports, images)) + "\n"


def _page(reports: Sequence[Report], images: str) -> Iterator[str]:
    yield from _block("# Validation: predicted against measured")
    yield from _block(
        f"Written by `gcsim validate` (`{_COMMAND}`). Every measurement is of a real run, with its "
        "citation; every prediction is the simulator's. Factors of links and devices are fitted on "
        "a stated subset, at most a third of a series, which is never judged; the columns "
        "*catalogue alone* show the prediction without any fit. " + ERRORS
    )
    yield from _overview(reports)
    yield from _left_out(reports)
    if any(point.unit != "x" for report in reports for point in report.findings.points):
        yield from _block(f"![How large the errors are]({images}errors.png)")
        yield from _block(
            "Share of the points with at most that error, with the fitted factors: each suite in a "
            "colour, all in black; dashed: all with the catalogue alone."
        )
        yield from _block(f"![Predicted against measured]({images}scatter.png)")
        yield from _block(
            "Grey: within 10 %. Hollow: fitted points. After a series' name: its median error."
        )
    for report in reports:
        yield from _suite(report, images)


def _overview(reports: Sequence[Report]) -> Iterator[str]:
    rows = []
    for report in reports:
        right = report.decisions
        kept = sum(bound.kept for bound in report.bounds)
        rows.append(
            (
                f"[{report.suite.name}](#{report.suite.name})",
                *_cells(report.overall),
                f"{right.right}/{right.decided}" if right and right.decided else "",
                f"{kept}/{len(report.bounds)}",
            )
        )
    yield from _block(*markdown_table((*_heading("suite"), "choices right", "bounds kept"), rows))


def _left_out(reports: Sequence[Report]) -> Iterator[str]:
    kinds = left_out(reports)
    if kinds:
        yield from _block(f"**Leaving the source out.** {tables.LEFT_OUT_LEGEND}")
    for kind, found in kinds.items():
        rows = list(tables.left_out_rows(found))
        yield from _block(*markdown_table((kind, *tables.LEFT_OUT), rows))
        if rows := list(tables.reliability_rows(found)):
            yield from _block(
                *markdown_table((f"P(faster than dense), {kind}", "choices", "paid [%]"), rows)
            )


def _suite(report: Report, images: str) -> Iterator[str]:
    suite, findings = report.suite, report.findings
    yield from _block(f"## {suite.name}")
    yield from _block(f"**{suite.title}.** {suite.about}")
    if suite.fitted_on:
        yield from _block(f"*Fitted on:* {suite.fitted_on}")
    yield from _outcome(report)
    if suite.missing:
        yield from _block(f"*What explains the rest:* {suite.missing}")
    if 0 < len(findings.points) <= FEW:
        table = markdown_table(tables.POINTS, tables.point_rows(findings.points), numbers=False)
        yield from _folded("Measured and predicted", *table)
    yield from _bias_table(findings.points)
    for one in findings.agreements:
        if one.compared != IN_ALL and (rows := list(tables.separated_rows(one))):
            pairs = "pairs that the seeds separate, the published better method first"
            summary = f"{one.task}, {one.compared}: {pairs}"
            yield from _folded(summary, *markdown_table(tables.SEPARATED, rows, numbers=False))
    yield from _factors(findings.factors)
    if any(point.panel and point.x is not None for point in findings.points):
        yield from _block(f"![{suite.title}: curves]({images}{suite.name}.png)")
    yield from _sources(report)


def _outcome(report: Report) -> Iterator[str]:
    """Yield the tables and sentences that the page and a terminal share."""
    findings = report.findings
    if report.lines:
        rows = [(name, *_cells(errors)) for name, errors in report.lines.items()]
        if len(rows) > 1:
            rows.append(("**in all**", *_cells(report.overall)))
        yield from _block(*markdown_table(_heading("series"), rows))
    yield from _statements(findings.statements)
    if findings.regrets:
        rows = list(tables.regret_rows(findings.regrets))
        yield from _block(*markdown_table(("regret", *tables.REGRET), rows))
        yield from _block(tables.REGRET_LEGEND)
    if findings.agreements:
        rows = list(tables.agreement_rows(findings.agreements))
        yield from _block(*markdown_table(("task", *tables.AGREEMENT), rows))
        yield from _block(tables.AGREEMENT_LEGEND)
    rows = [tables.bound_cells(kept) for kept in report.bounds]
    yield from _block(*markdown_table(tables.BOUNDS, rows, numbers=False))
    if notes := [f"- {note}" for note in _notes(report)]:
        yield from _block(*notes)


def _notes(report: Report) -> Iterator[str]:
    """Yield sentences on results that no table shows."""
    findings = report.findings
    for alarms in tables.alarm_lines(findings.agreements):
        yield f"{alarms}."
    for one in findings.orderings:
        yield f"Order of {tables.ordering_text(one)}."
    if any(point.fitted for point in findings.points):
        yield f"{tables.fit_text(findings).capitalize()}."
    if report.decisions is not None:
        yield f"Decisions: {tables.decisions_text(report.decisions)}."
    if report.overall is not None:
        worst = "; ".join(tables.point_text(point) for point in report.overall.worst)
        yield f"Worst: {worst}."
    for left in findings.excluded:
        yield f"Not compared: {left.count} {left.what}: {left.rule}"


def terminal_parts(
    reports: Sequence[Report], width: int, *, verbose: bool = False
) -> Iterator[RenderableType]:
    """Yield the page for a terminal of `width` cells: outcome of each suite (with `verbose` after
    its measurements), then the overview."""
    for report in reports:
        title = f"**{report.suite.name}**: {report.suite.title}"
        points = report.findings.points if verbose else ()
        rows = [cells[:-1] for cells in tables.point_rows(points)]
        listed = _block(*markdown_table(tables.POINTS[:-1], rows)) if rows else ()
        yield from _on_terminal([*_block(title), *listed, *_outcome(report)], width)
    yield from _on_terminal([*_overview(reports), *_left_out(reports), ERRORS], width)


def _on_terminal(lines: Sequence[str], width: int) -> Iterator[RenderableType]:
    """Yield Markdown as plain text; headings of numeric columns fold, cells do not."""
    for is_table, own in groupby(lines, key=lambda line: line.startswith("|")):
        if not is_table:
            for line in own:
                text = _MARKS.sub(r"\1", line)
                yield Text(textwrap.fill(text, max(40, width - 1), subsequent_indent="  "))
            continue
        plain = (_MARKS.sub(r"\1", line).strip("|").split("|") for line in own)
        headings, _, *rows = ([cell.strip() for cell in cells] for cells in plain)
        columns = zip(headings[1:], *(row[1:] for row in rows), strict=True)
        numbers = [max(map(len, cells)) <= _NUMBER for _, *cells in columns]
        folded = [
            f">{heading.replace(' ', chr(10))}" if number else heading
            for heading, number in zip(headings[1:], numbers, strict=True)
        ]
        yield bare_table([headings[0], *folded], rows, whole=True)


_MARKS = re.compile(r"\*+|\[([^]]*)\]\([^)]*\)")
_NUMBER = 16  # characters of the longest cell in a column of numbers


def _bias_table(points: Sequence[Point]) -> Iterator[str]:
    """Yield the bias of each line by ranks and by size, if there are several of either."""
    rows = []
    for name, own in lines(by_series(points)).items():
        cells = []
        for axis in AXES:
            groups = by_value(own, axis)
            biases = (
                f"{span(axis, group)}: {tables.signed(statistics.median(p.error for p in group))}"
                f" ({len(group)})"
                for group in groups.values()
            )
            cells.append("; ".join(biases) if len(groups) > 1 else "")
        if any(cells):
            rows.append((name, *cells))
    if rows:
        table = markdown_table(("series", "by ranks", "by size"), rows)
        yield from _folded("Bias by ranks and by size, % (points)", *table)


def _statements(statements: Sequence[Statement]) -> Iterator[str]:
    if not statements:
        return
    yield from _block(
        *markdown_table(
            ("statement", "stated", "right", "", "verdict", "source"),
            [
                (
                    one.name,
                    significant(one.stated),
                    significant(one.computed),
                    one.unit,
                    "agrees" if one.agrees else "**wrong**" if one.wrong else "**differs**",
                    one.source,
                )
                for one in statements
            ],
        )
    )
    for one in statements:
        if one.note:
            yield f"- {one.name}: {one.note}"
    yield ""


def _heading(first: str) -> tuple[str, ...]:
    return (
        first, "points", "median [%]", "p90 [%]", "bias [%]", "catalogue alone [%]", "its p90 [%]",
    )  # fmt: skip


def _cells(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("",) * 6
    bare = (errors.unfitted_median, errors.unfitted_p90)
    return (
        str(errors.points),
        tables.percent(errors.median),
        tables.percent(errors.p90),
        tables.signed(errors.bias),
        *("" if one is None else tables.percent(one) for one in bare),
    )


def _factors(factors: Sequence[Factor]) -> Iterator[str]:
    rows = [
        (
            factor.series,
            factor.name,
            tables.value(factor.value, factor.unit),
            "" if factor.catalogue is None else tables.value(factor.catalogue, factor.unit),
            "given" if factor.given else str(factor.points),
        )
        for factor in factors
    ]
    if rows:
        headings = ("used for", "factor", "fitted", "catalogue", "points")
        yield from _folded("What was fitted", *markdown_table(headings, rows))


def _sources(report: Report) -> Iterator[str]:
    sources = (point.source for point in report.findings.points)
    works = grouped(sources, lambda source: source[:_SAME_WORK])
    if works:
        cited = (f"- {_in_common(of)} ({plural(len(of), 'point')})" for of in works.values())
        yield from _folded("Sources (of each point: points.csv)", *cited)
    if report.findings.cited:
        yield from _folded("Sources", *(f"- {one}" for one in report.findings.cited))


def _in_common(sources: Sequence[str]) -> str:
    """Return the common start of one work's citations, up to its last separator."""
    first, last = min(sources), max(sources)
    same = [one == other for one, other in zip(first, last, strict=False)]
    common = first[: same.index(False)] if False in same else first[: len(same)]
    if set(sources) == {common}:
        return common
    end = max(common.rfind(separator) for separator in (", ", "; ", ": "))
    return f"{common[:end] if end > 0 else common}, …"


def _block(*lines: str) -> Iterator[str]:
    """Yield a paragraph, heading, table or list, followed by an empty line."""
    yield from lines
    yield ""


def _folded(summary: str, *lines: str) -> Iterator[str]:
    """Yield lines that are shown on demand."""
    yield from _block(f"<details><summary>{summary}</summary>")
    yield from _block(*lines)
    yield from _block("</details>")


def to_json(reports: Sequence[Report]) -> str:
    """Return JSON, the same for equal results except for `wall`."""
    content = {
        "gcsim_version": __version__,
        "kept": all(report.kept for report in reports) and not fault(reports),
        "left_out": {
            kind: [asdict(one) for one in found] for kind, found in left_out(reports).items()
        },
        "suites": [_report(report) for report in reports],
        "wall": {report.suite.name: round(report.seconds, 3) for report in reports},
    }
    return json_text(content)


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
        "points": [_point_row(point) for point in findings.points],
        "regrets": [asdict(one) for one in findings.regrets],
        "agreements": [asdict(one) for one in findings.agreements],
    }


def _point_row(point: Point) -> dict[str, Any]:
    """Return a point with its errors as plain values."""
    own = {name: each for name, each in asdict(point).items() if not name.endswith("worlds")}
    return {**own, "error": point.error, "unfitted_error": point.unfitted_error}


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
