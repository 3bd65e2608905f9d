"""Report of a run: answer, all rows, charts, sources of the ranges, sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gcsim.analysis.page.charts import breakdown_chart, speedup_chart, training_sections
from gcsim.analysis.page.page import (
    Cell,
    Html,
    chart,
    code,
    facts,
    files,
    folded,
    notes,
    page,
    paragraphs,
    table,
    worded,
)
from gcsim.analysis.report.answer import notes as notes_of
from gcsim.analysis.report.intervals import shares
from gcsim.analysis.report.numbers import duration, percent, plural, scaled
from gcsim.analysis.report.sections import Recommendation, answer_sections
from gcsim.analysis.report.selection import Verdict, largest_verdict, sizes
from gcsim.analysis.report.sources import are_synthetic
from gcsim.analysis.report.table import (
    BEST,
    HEADING,
    PERIODIC,
    SAFE,
    Column,
    answer_columns,
    brief_columns,
    footnotes,
    mark_of,
    other_columns,
)
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import Result, Row, fastest_first

_FILES = {
    "results.json": "all numbers",
    "results.csv": "all rows",
    "timeline.json": "a sample iteration, for https://ui.perfetto.dev",
    "scenario.yaml": "the scenario with every default",
    "speedup.png": "",
    "breakdown.png": "",
}
"""Files beside a report."""
SPEEDUPS = 480
"""Pixels of the chart."""
RANGED = 12
"""Fastest methods that have whiskers."""


def run_page(result: Result, command: str) -> str:
    """The report as HTML; `command` is what made it."""
    found = largest_verdict(result)
    first = found.rows[0]
    advised = Recommendation(result=result, verdict=found)
    said = notes_of(result, found, full=True)
    bars, height = breakdown_chart(result)
    ranged = [row.label for row in found.rows[:RANGED]]
    everywhere = [row for size in reversed(sizes(result)) for row in _of_size(result, size)]
    sections: list[tuple[str, Html]] = [
        ("Answer", worded(answer_sections(advised)) + paragraphs(said, "verdict")),
        (
            f"Methods on {plural(first.nodes, 'node')}",
            _table(found.rows, found) + notes(footnotes(result, found)),
        ),
        ("Speedup", chart(speedup_chart(result, ranged), SPEEDUPS)),
        ("Parts of an iteration", chart(bars, height)),
        *_training(result),
        *_ranges(result, found),
        ("All sizes", folded(f"{len(everywhere)} rows", _table(everywhere, None))),
        ("Sources", folded("devices, links, methods, versions", facts(_told(result)))),
        ("Files", files(_FILES)),
        ("Command", code(command)),
        ("Scenario", folded("with every default", code(document.write(result.scenario)))),
    ]
    return page(str(result.scenario.get("name", "scenario")), _under(result, first), sections)


def _of_size(result: Result, workers: int) -> tuple[Row, ...]:
    return fastest_first(row for row in result.rows if row.workers == workers)


def _under(result: Result, row: Row) -> str:
    drawn = ", synthetic gradients" if are_synthetic(result) else ""
    facts = result.provenance.get("versions", {})
    return (
        f"{plural(row.nodes, 'node')}, {plural(row.workers, 'worker')}{drawn}; predicted by gcsim "
        f"{facts.get('gcsim', '') if isinstance(facts, dict) else ''}"
    )


def _table(rows: Sequence[Row], found: Verdict | None) -> Html:
    """Every column, sorted by full values; rows of one size with their verdict's marks, or with the
    number of nodes."""
    columns = (*answer_columns(rows), *other_columns(rows))
    headings = [HEADING, *(["nodes"] if found is None else [])]
    headings += map(_flat, columns)
    shown = zip(*(column.cells(rows) for column in columns), strict=True)
    return table(
        headings,
        (
            [
                Cell(_label(row, found)),
                *([Cell(str(row.nodes), row.nodes)] if found is None else []),
                *(
                    Cell(text, _number(column, row))
                    for column, text in zip(columns, texts, strict=True)
                ),
            ]
            for row, texts in zip(rows, shown, strict=True)
        ),
        first=[HEADING, "nodes", "NMSE", *(_flat(one) for one in brief_columns(rows))],
        marked=[found is not None and mark_of(row, found) in (BEST, SAFE) for row in rows],
    )


def _flat(column: Column) -> str:
    return column.heading.replace("\n", " ")


def _label(row: Row, found: Verdict | None) -> str:
    mark = "" if found is None else mark_of(row, found).lstrip()
    via = f", via {row.via}" if row.via and not row.label.endswith(row.via) else ""
    return f"{mark}{row.label}{PERIODIC if row.period > 1 else ''}{via}"


def _number(column: Column, row: Row) -> float:
    """Sort key of a cell; unknown values come first."""
    value = column.value(row)
    return -1.0 if value is None else float(value)


def _training(result: Result) -> Iterator[tuple[str, Html]]:
    """Table of training with known outcomes, and its title."""
    told = result.trained
    if told is None:
        return
    known = {curve.label for curve in told.curves}
    kinds = {row.label: row.compressor for row in result.rows}
    steps, (heading, seconds) = training_sections(kinds, told.curves, told.measure)
    largest = max(result.rows, key=lambda row: row.nodes)
    said = [f"On {plural(largest.nodes, 'node')}, {plural(largest.workers, 'worker')}."]
    unknown = [label for label in kinds if label not in known]
    if unknown:
        said.append(f"Not trained, so without a curve: {', '.join(unknown)}. Try: gcsim train.")
    yield steps
    yield heading, seconds + notes([" ".join(said)])


def _ranges(result: Result, found: Verdict) -> Iterator[tuple[str, Html]]:
    """Inputs behind the ranges of the method to try, or the safe one."""
    row = found.to_try or found.safe
    of_row = shares(result, row, found.dense) if row is not None else ()
    if row is None or not of_row:
        return
    lines = [
        [
            Cell(one.input.name),
            Cell(percent(one.share), one.share),
            *(
                Cell(_valued(value, one.input.unit), value)
                for value in (one.input.stated, one.input.low, one.input.high)
            ),
            Cell(one.input.measure),
        ]
        for one in of_row
    ]
    headings = ["input", "share of the width", "stated", "low", "high", "to narrow it"]
    yield f"Uncertainties of {row.label}", table(headings, lines)


def _valued(value: float, unit: str) -> str:
    return duration(value) if unit == "s" else scaled(value, unit)


def _told(result: Result) -> dict[str, Any]:
    """Provenance without long parts of no use to a reader."""
    return {
        key: value
        for key, value in result.provenance.items()
        if key not in ("profiles", "scenario_sha256")
    }
