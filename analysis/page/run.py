"""Report of a run: answer, all rows, charts, causes of the ranges, sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gcsim.analysis.page import page as html
from gcsim.analysis.page.charts import breakdown_chart, speedup_chart, training_sections
from gcsim.analysis.report import table as tables
from gcsim.analysis.report.answer import notes as notes_of
from gcsim.analysis.report.intervals import shares
from gcsim.analysis.report.numbers import duration, percent, plural, scaled
from gcsim.analysis.report.sections import Recommendation, answer_sections
from gcsim.analysis.report.selection import Verdict, largest_verdict, sizes
from gcsim.analysis.report.sources import are_synthetic
from gcsim.analysis.report.wording import input_named, to_narrow
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import Result, Row, fastest_first, known_to_target

_FILES = (
    "results.json", "results.csv", "timeline.json", "scenario.yaml", "speedup.png", "breakdown.png",
)  # fmt: skip
"""Files in the report's folder."""
SPEEDUPS = 480  # height of the speedup chart in pixels
RANGED = 12  # number of methods with whiskers, the fastest ones


def run_page(result: Result, command: str) -> str:
    """Return the report as HTML; `command` is the command that made it."""
    found = largest_verdict(result)
    first = found.rows[0]
    advised = Recommendation(result=result, verdict=found)
    said = notes_of(result, found, full=True)
    bars, height = breakdown_chart(result)
    ranged = [row.label for row in found.rows[:RANGED]]
    everywhere = [
        row
        for size in reversed(sizes(result))
        for row in fastest_first(row for row in result.rows if row.workers == size)
    ]
    drawn = any(row.iteration_low_s is not None for row in found.rows)
    ranges = ["Bars: default inputs. Lines: 10th to 90th percentile."] if drawn else []
    sections: list[tuple[str, html.Html]] = [
        ("Answer", html.worded(answer_sections(advised)) + html.paragraphs(said, "verdict")),
        (
            f"Methods on {plural(first.nodes, 'node')}",
            _table(found.rows, found) + html.notes(tables.footnotes(result, found)),
        ),
        ("Speedup", html.chart(speedup_chart(result, ranged), SPEEDUPS)),
        ("Parts of an iteration", html.chart(bars, height) + html.notes(ranges)),
        *_training(result),
        *_ranges(result, found),
        ("All sizes", html.folded(f"{len(everywhere)} rows", _table(everywhere, None))),
        ("Sources", html.folded("devices, links, methods, versions", html.facts(_sources(result)))),
        ("Files", html.files((*_FILES, *(["faults.png"] if result.faulty else [])))),
        ("Command", html.code(command)),
        ("Scenario", html.folded("with every default", html.code(document.write(result.scenario)))),
    ]
    return html.page(str(result.scenario.get("name", "scenario")), _under(result, first), sections)


def _under(result: Result, row: Row) -> str:
    drawn = ", synthetic gradients" if are_synthetic(result) else ""
    version = result.provenance.get("versions", {}).get("gcsim", "")
    size = f"{plural(row.nodes, 'node')}, {plural(row.workers, 'worker')}"
    return f"{size}{drawn}; predicted by gcsim {version}"


def _table(rows: Sequence[Row], found: Verdict | None) -> html.Html:
    """Return a table of every column, sorted by exact values. Rows of one size (`found` given) have
    their verdict's marks, rows of all sizes their number of nodes."""
    columns = (*tables.answer_columns(rows), *tables.other_columns(rows))
    nodes = [] if found else ["nodes"]
    error = [] if known_to_target(rows) else ["NMSE"]
    shown = [tables.HEADING, "nodes", *error, *(one.flat for one in tables.brief_columns(rows))]
    best = (tables.BEST, tables.SAFE)
    return html.table(
        [tables.HEADING, *nodes, *(one.flat for one in columns)],
        [
            [
                html.Cell(_label(row, found)),
                *(html.Cell(str(row.nodes), row.nodes) for _ in nodes),
                *cells,
            ]
            for row, cells in zip(rows, html.cells_of(columns, rows), strict=True)
        ],
        first=shown,
        marked=[found is not None and tables.mark_of(row, found) in best for row in rows],
    )


def _label(row: Row, found: Verdict | None) -> str:
    mark = "" if found is None else tables.mark_of(row, found).lstrip()
    via = f", via {row.via}" if row.via and not row.label.endswith(row.via) else ""
    return f"{mark}{row.label}{tables.PERIODIC if row.period > 1 else ''}{via}"


def _training(result: Result) -> Iterator[tuple[str, html.Html]]:
    """Yield the title and table of training with known outcomes."""
    training = result.trained
    if training is None:
        return
    known = {curve.label for curve in training.curves}
    kinds = {row.label: row.compressor for row in result.rows}
    steps, (heading, seconds) = training_sections(kinds, training.curves, training.measure)
    largest = max(result.rows, key=lambda row: row.nodes)
    said = [f"On {plural(largest.nodes, 'node')}, {plural(largest.workers, 'worker')}."]
    unknown = [label for label in kinds if label not in known]
    if unknown:
        said.append(f"Not trained, so without a curve: {', '.join(unknown)}. Try: gcsim train.")
    yield steps
    yield heading, seconds + html.notes([" ".join(said)])


def _ranges(result: Result, found: Verdict) -> Iterator[tuple[str, html.Html]]:
    """Yield the inputs that cause the range of the method to try, or of the safe one."""
    row = found.to_try or found.safe
    of_row = shares(result, row, found.dense) if row is not None else ()
    if row is None or not of_row:
        return
    lines = [
        [
            html.Cell(input_named(one.input.name)),
            html.Cell(percent(one.share), one.share),
            *(
                html.Cell(_valued(value, one.input.unit), value)
                for value in (one.input.stated, one.input.low, one.input.high)
            ),
            html.Cell(to_narrow(one.input.measure)),
        ]
        for one in of_row
    ]
    headings = ["input", "share of the variance", "assumed", "low", "high", "to narrow it"]
    yield f"Uncertainties of {row.label}", html.table(headings, lines)


def _valued(value: float, unit: str) -> str:
    return duration(value) if unit == "s" else scaled(value, unit)


def _sources(result: Result) -> Any:
    """Return the provenance without parts that no reader needs, rates and times with units."""
    kept = {
        key: value
        for key, value in result.provenance.items()
        if key not in ("profiles", "scenario_sha256")
    }
    return _with_units(kept)


_SUFFIXES = {"_bytes_per_s": "B/s", "_per_s": "FLOP/s", "_s": "s"}
"""Units of provenance values by suffix of the key, the longest suffix first."""


def _with_units(value: Any) -> Any:
    """Return provenance with units; an uncertain input without a range has none."""
    if isinstance(value, Mapping):
        if "unit" in value:
            ends = (_valued(end, value["unit"]) for end in value["range"] or ())
            shown = {"value": _valued(value["value"], value["unit"]), "range": " to ".join(ends)}
            return {key: one for key, one in {**value, **shown}.items() if key != "unit"}
        return dict(_without_unit(*each) for each in value.items())
    return list(map(_with_units, value)) if isinstance(value, list | tuple) else value


def _without_unit(key: str, value: Any) -> tuple[str, Any]:
    """Return a key without its unit suffix, and its value with the unit."""
    for end, unit in _SUFFIXES.items():
        if key.endswith(end) and (value is None or isinstance(value, int | float)):
            return key.removesuffix(end), value if value is None else _valued(value, unit)
    return key, _with_units(value)
