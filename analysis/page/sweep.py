"""Report of a sweep: a row per point, speedups with ranges, all rows of all points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gcsim.analysis.page.charts import points_chart
from gcsim.analysis.page.page import (
    Cell,
    Html,
    chart,
    code,
    facts,
    folded,
    notes,
    page,
    paragraphs,
    table,
)
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.sweep import notes_on, table_of
from gcsim.analysis.report.table import HEADING, answer_columns
from gcsim.scenarios.result import Row
from gcsim.scenarios.sweeps.grid import written
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult

_HEIGHT = 420  # pixels of the chart


def sweep_page(result: SweepResult, command: str) -> str:
    """The report as HTML; `command` is what made it."""
    headings, lines = table_of(result)
    answer, below = notes_on(result)
    folds = [heading.replace("\n", " ") for heading in headings]
    after = folds.index("try") + 1
    folds[after:] = [f"try: {one}" if "[x]" in one else one for one in folds[after:]]
    first = [one for one in folds if "range" not in one and "cost" not in one]
    cells = [[Cell(text, _number(text)) for text in line] for line in lines]
    sections: list[tuple[str, Html]] = [
        ("Answer", paragraphs([answer], "verdict")),
        ("Points", table(folds, cells, first=first) + notes(below)),
        *_speedups(result),
        ("All rows", folded(plural(len(result.rows), "row"), _rows(result))),
        ("Grid", facts({key: list(map(written, values)) for key, values in result.grid.items()})),
        ("Versions", facts(result.versions)),
        ("Command", code(command)),
    ]
    under = f"{plural(len(result.points), 'point')}; predicted by gcsim"
    named = (str(point.result.scenario["name"]) for point in result.points if point.result)
    return page(f"{next(named, 'failed')}: sweep", under, sections)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _speedups(result: SweepResult) -> Iterator[tuple[str, Html]]:
    compared = [point for point in result.points if point.result]
    if len(compared) > 1 and any(row.speedup_vs_dense for row in result.rows):
        yield "Speedup by point", chart(points_chart(compared), _HEIGHT)


def _rows(result: SweepResult) -> Html:
    keys = list(result.grid)
    every: list[tuple[SweepPoint, Row]] = [
        (point, row) for point in result.points if point.result for row in point.result.rows
    ]
    rows: Sequence[Row] = [row for _, row in every]
    columns = answer_columns(rows)
    shown = zip(*(column.cells(rows) for column in columns), strict=True)
    headings = [HEADING, *keys, *(column.heading.replace("\n", " ") for column in columns)]
    return table(
        headings,
        (
            [
                Cell(row.label),
                *(Cell(written(point.values[key])) for key in keys),
                *(
                    Cell(text, float(column.value(row) or 0.0))
                    for column, text in zip(columns, texts, strict=True)
                ),
            ]
            for (point, row), texts in zip(every, shown, strict=True)
        ),
    )
