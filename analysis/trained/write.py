"""Files of `gcsim train`: results, figures, the report, and runs for TensorBoard.

`curves.csv` has a line per run, step and metric, as experiment trackers import them. TensorBoard
has a run per method and seed. Wall times are simulated seconds on the largest cluster, so its
horizontal axis "relative" compares methods by time to the target, and "step" by iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from gcsim.analysis.page.page import (
    Html,
    cells_of_texts,
    code,
    files,
    folded,
    notes,
    page,
    paragraphs,
    table,
)
from gcsim.analysis.trained.charts import chart_sections
from gcsim.analysis.trained.table import WIDE, answer, columns_of, legend, ranking, title
from gcsim.analysis.write import REPORT, Writer, as_text, draw_all, drawing, write_all
from gcsim.errors import InputError
from gcsim.files import csv_text
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import Curve
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult


def to_csv(result: TrainingResult) -> str:
    """Return the rows as CSV; values of several seeds are separated by spaces."""
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


CURVES = ("run", "method", "seed", "learning_rate", "step", "seconds", "metric", "value")
"""Columns of `curves.csv`; a run is a method with a seed, and seconds are those on the largest
cluster."""


def curves_csv(result: TrainingResult) -> str:
    """Return all curves as CSV, a line per value."""
    records = (
        dict(zip(CURVES, (_name(one), one.label, one.seed, one.learning_rate, *point), strict=True))
        for one in result.curves
        for point in _points(one)
    )
    return csv_text(CURVES, records)


RESULTS: dict[str, Writer] = {
    "training.json": as_text(TrainingResult.to_json),
    "training.csv": as_text(to_csv),
    "curves.csv": as_text(curves_csv),
    "scenario.yaml": as_text(lambda result: document.write(result.scenario)),
}
FIGURES: dict[str, Writer] = {
    "accuracy.png": drawing("gcsim.analysis.trained.curves:curves_figure"),
    "speedup_to_target.png": drawing("gcsim.analysis.trained.intervals:gains_figure"),
}


def write_training(result: TrainingResult, folder: Path) -> tuple[Path, ...]:
    """Write the files of a training (`write_all`)."""
    return write_all(result, folder, RESULTS, (*FIGURES, REPORT))


def draw_training(result: TrainingResult, folder: Path, command: str = "") -> tuple[Path, ...]:
    """Draw the figures of a training (`draw_all`); the report shows `command`."""
    report = as_text(lambda shown: training_page(shown, command))
    return draw_all(result, folder, {REPORT: report, **FIGURES}, beside="training.json")


def training_page(result: TrainingResult, command: str) -> str:
    """Return the report as HTML; `command` is the command that made it."""
    rows = ranking(result)
    every = sorted(result.rows, key=lambda row: (-row.workers, -(row.speedup_to_target or 0.0)))
    sections: list[tuple[str, Html]] = [
        ("Answer", paragraphs(answer(result), "verdict")),
        (title(result), _table(result, rows) + notes([legend(result)])),
        *chart_sections(result),
        ("All sizes", folded(f"{len(every)} rows", _table(result, every, nodes=True))),
        ("Data", notes([result.data])),
        ("Files", files([*RESULTS, *FIGURES])),
        ("Command", code(command)),
        ("Scenario", folded("with every default", code(document.write(result.scenario)))),
    ]
    return page(str(result.scenario.get("name", "scenario")), f"time to {result.target}", sections)


def _table(result: TrainingResult, rows: Sequence[TrainedRow], *, nodes: bool = False) -> Html:
    columns = (*columns_of(result, rows), *WIDE)
    headings = ["method", *(["nodes"] if nodes else [])]
    headings += [heading.replace("\n", " ") for heading, _ in columns]
    lines = [
        [row.label, *([str(row.nodes)] if nodes else []), *(shown(row) for _, shown in columns)]
        for row in rows
    ]
    later = ("vs ", "iteration ", "sent ", "learning ", "cost ", *(("range ",) if nodes else ()))
    first = [one for one in headings if not one.startswith(later)]
    return table(headings, cells_of_texts(lines), first=first)


def require_tensorboard(place: str) -> None:
    """Raise `InputError` unless the package is installed; `place` is the option that needs it."""
    if find_spec("tensorboard") is None:
        hint = "pip install 'gcsim[tensorboard]'"
        raise InputError("needs tensorboard, which is not installed", place=place, hint=hint)


def write_events(result: TrainingResult, folder: Path) -> tuple[Path, ...]:
    """Write a folder per curve, which replaces older events, and return the folders. Scalars:
    `held_out/accuracy` (a fraction), `held_out/loss`, `sent/bytes_per_worker_and_step` and
    `update/nmse`."""
    return tuple(_write(curve, folder / _name(curve)) for curve in result.curves)


def _name(curve: Curve) -> str:
    return f"{curve.label.replace('/', '_')}, seed {curve.seed}"


def _points(curve: Curve) -> Iterator[tuple[int, float, str, float]]:
    """Yield step, simulated seconds, metric and value, by metric."""
    points = list(zip(curve.steps, curve.seconds, strict=True))
    series: dict[str, tuple[float | None, ...]] = {
        "held_out/accuracy": curve.accuracy,
        "held_out/loss": curve.loss,
        "sent/bytes_per_worker_and_step": curve.wire_bytes_per_worker,
        "update/nmse": curve.nmse,
    }
    for name, values in series.items():
        # values for the steps between two evaluations are at the second
        for (step, seconds), value in zip(points[len(points) - len(values) :], values, strict=True):
            if value is not None:
                yield step, seconds, name, value


def _write(curve: Curve, folder: Path) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    with SummaryWriter(str(folder)) as writer:
        for step, seconds, name, value in _points(curve):
            writer.add_scalar(name, value, step, walltime=seconds)
    return folder
