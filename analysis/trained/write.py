"""What does `gcsim train` leave behind? Results first, then figures, as a run does."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from gcsim.analysis.trained.page import training_page
from gcsim.analysis.write import REPORT, Writer, as_text, draw_all, drawn, write_all
from gcsim.csv_text import csv_text
from gcsim.scenarios.reading import document
from gcsim.scenarios.trained.result import TrainingResult


def to_csv(result: TrainingResult) -> str:
    """The rows; what is of several seeds is a list with spaces between."""
    records = [
        {
            key: " ".join("" if v is None else str(v) for v in value)
            if isinstance(value, tuple | list)
            else value
            for key, value in asdict(row).items()
        }
        for row in result.rows
    ]
    return csv_text(list(records[0]), records)


RESULTS: dict[str, Writer] = {
    "training.json": as_text(TrainingResult.to_json),
    "training.csv": as_text(to_csv),
    "scenario.yaml": as_text(lambda result: document.write(result.scenario)),
}
FIGURES: dict[str, Writer] = {
    "accuracy.png": drawn("gcsim.analysis.trained.curves:curves_figure"),
    "speedup_to_target.png": drawn("gcsim.analysis.trained.curves:gains_figure"),
    "accuracy_and_compression.png": drawn("gcsim.analysis.trained.curves:ratio_figure"),
}


def write_training(result: TrainingResult, folder: Path) -> tuple[Path, ...]:
    """See `write_all`."""
    return write_all(result, folder, RESULTS, (*FIGURES, REPORT))


def draw_training(result: TrainingResult, folder: Path, command: str = "") -> tuple[Path, ...]:
    """See `draw_all`; the report names the command that made it."""
    report = as_text(lambda shown: training_page(shown, command))
    return draw_all(result, folder, {REPORT: report, **FIGURES}, beside="training.json")
