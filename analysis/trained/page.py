"""What does the report of `gcsim train` say? Answer, rows, accuracies over steps and seconds."""

from __future__ import annotations

from collections.abc import Sequence

from gcsim.analysis.page.charts import training_sections
from gcsim.analysis.page.page import Cell, Html, code, folded, notes, page, paragraphs, table
from gcsim.analysis.trained.table import answer, columns_of, legend, ranked, title
from gcsim.scenarios.reading import document
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult


def training_page(result: TrainingResult, command: str) -> Html:
    """The report as HTML; `command` is what made it."""
    rows = ranked(result)
    every = sorted(result.rows, key=lambda row: (-row.workers, -(row.speedup_to_target or 0.0)))
    kinds = {row.label: row.compressor for row in result.rows}
    sections: list[tuple[str, Html]] = [
        ("Answer", paragraphs(answer(result), "verdict")),
        (title(result), _table(result, rows) + notes([legend(result)])),
        *training_sections(kinds, result.curves, result.measure),
        ("All sizes", folded(f"{len(every)} rows", _table(result, every, nodes=True))),
        ("What was learned", notes([result.data])),
        ("The command that made it", code(command)),
        ("The scenario", folded("with every default", code(document.write(result.scenario)))),
    ]
    return page(str(result.scenario.get("name", "scenario")), f"time to {result.target}", sections)


def _table(result: TrainingResult, rows: Sequence[TrainedRow], *, nodes: bool = False) -> Html:
    columns = columns_of(result.measure, rows)
    headings = ["method", *(["nodes"] if nodes else [])]
    headings += [heading.replace("\n", " ") for heading, _ in columns]
    return table(
        headings,
        (
            [
                Cell(row.label),
                *([Cell(str(row.nodes), row.nodes)] if nodes else []),
                *(Cell(text, _number(text)) for text in (shown(row) for _, shown in columns)),
            ]
            for row in rows
        ),
    )


def _number(text: str) -> float:
    """What a cell is sorted by: its number, of a range the lower end."""
    try:
        return float(text.split("-", maxsplit=1)[0].split("/", maxsplit=1)[0])
    except ValueError:
        return -1.0
