"""Report of a sweep: a row per point, speedups with ranges, and all rows of all points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gcsim.analysis.page import page as html
from gcsim.analysis.page.charts import POINTS, points_chart
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.sweep import notes_on, short_names, table_of
from gcsim.analysis.report.table import HEADING, answer_columns, brief_columns
from gcsim.scenarios.result import Row
from gcsim.scenarios.sweeps.grid import written
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult

_HEIGHT = 420  # height of the chart in pixels
_NODES = "cluster.nodes"  # a point may have several sizes, each with rows of its own


def sweep_page(result: SweepResult, command: str) -> str:
    """Return the report as HTML; `command` is the command that made it."""
    headings, lines = table_of(result)
    answer, below = notes_on(result)
    folds = [heading.replace("\n", " ") for heading in headings]
    after = folds.index("try") + 1
    folds[after:] = [f"try: {one}" if "[x]" in one else one for one in folds[after:]]
    first = [one for one in folds if "range" not in one and "cost" not in one]
    sections: list[tuple[str, html.Html]] = [
        ("Answer", html.paragraphs([answer], "verdict")),
        ("Points", html.table(folds, html.cells_of_texts(lines), first=first) + html.notes(below)),
        *_speedups(result),
        ("All rows", html.folded(plural(len(result.rows), "row"), _rows(result))),
        (
            "Grid",
            html.facts({key: list(map(written, values)) for key, values in result.grid.items()}),
        ),
        ("Versions", html.facts(result.versions)),
        ("Files", html.files(["results.json", "results.csv"])),
        ("Command", html.code(command)),
    ]
    under = f"{plural(len(result.points), 'point')}; predicted by gcsim"
    named = (str(point.result.scenario["name"]) for point in result.points if point.result)
    return html.page(f"{next(named, 'failed')}: sweep", under, sections)


def _speedups(result: SweepResult) -> Iterator[tuple[str, html.Html]]:
    compared = [point for point in result.points if point.result]
    if len(compared) > 1 and any(row.speedup_vs_dense for row in result.rows):
        said = ["Without ranges; `gcsim plot` draws maps."] if len(compared) > POINTS else []
        yield "Speedup by point", html.chart(points_chart(result), _HEIGHT) + html.notes(said)


def _rows(result: SweepResult) -> html.Html:
    every: list[tuple[SweepPoint, Row]] = [
        (point, row) for point in result.points if point.result for row in point.result.rows
    ]
    rows: Sequence[Row] = [row for _, row in every]
    keys = list(result.grid)
    if _NODES not in keys and len({row.nodes for row in rows}) > 1:
        keys.append(_NODES)
    columns = answer_columns(rows)
    brief = [column.flat for column in brief_columns(rows)]
    names = short_names(keys)
    return html.table(
        [HEADING, *names, *(column.flat for column in columns)],
        [
            [html.Cell(row.label), *(_value(point, row, key) for key in keys), *cells]
            for (point, row), cells in zip(every, html.cells_of(columns, rows), strict=True)
        ],
        first=[HEADING, *names, *brief],
    )


def _value(point: SweepPoint, row: Row, key: str) -> html.Cell:
    """Return the cell of a key: the row's own number of nodes, other values of its point."""
    if key == _NODES:
        return html.Cell(str(row.nodes), row.nodes)
    return html.Cell(written(point.values[key]))
