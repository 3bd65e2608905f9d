"""What does `gcsim reproduce` leave behind? The outcome, its table as text, and the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcsim.analysis.write import Writer, as_text, draw_all, drawn, write_all
from gcsim.csv_text import csv_text
from gcsim.scenarios.papers.preset import Reproduction
from gcsim.scenarios.reading import document


def to_csv(found: Reproduction) -> str:
    """The numbers: row, column, printed, what came out by seed with spaces between."""
    columns = ("row", "column", "printed", "here")
    cells = (
        (cell.row, cell.column, cell.printed, " ".join(map(str, cell.here)))
        for cell in found.outcome.cells
    )
    return csv_text(columns, (dict(zip(columns, cell, strict=True)) for cell in cells))


def write_reproduction(found: Reproduction, folder: Path) -> tuple[Path, ...]:
    """See `write_all`; the scenarios are there to be run by themselves."""
    texts: dict[str, Writer] = {
        "reproduction.json": as_text(Reproduction.to_json),
        "numbers.csv": as_text(to_csv),
    }
    for number, scenario in enumerate(found.scenarios, 1):
        texts[f"scenario_{number}.yaml"] = _scenario(scenario)
    return write_all(found, folder, texts, _FIGURES)


def _scenario(resolved: dict[str, Any]) -> Writer:
    return as_text(lambda _: document.write(resolved))


def draw_reproduction(found: Reproduction, folder: Path) -> tuple[Path, ...]:
    """See `draw_all`."""
    return draw_all(found, folder, _FIGURES, beside="reproduction.json")


_FIGURES: dict[str, Writer] = {"figure.png": drawn("gcsim.analysis.papers.picture:figure")}
