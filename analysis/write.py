"""What does a run leave behind? Six files, a seventh where nodes die: all whole, or none of them.

All files are produced under temporary names first and renamed when the last of them is whole:
a full disk or an interrupt while a figure is drawn changes nothing in the folder.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from gcsim.analysis.plots.breakdown import breakdown_figure
from gcsim.analysis.plots.faults import faults_figure
from gcsim.analysis.plots.speedup import speedup_figure
from gcsim.analysis.plots.style import save
from gcsim.analysis.timeline.perfetto import chrome_trace
from gcsim.files import replacing
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import Result

Writer = Callable[[Result, Path], None]


def to_csv(result: Result) -> str:
    """The rows with full precision; the empty field where there is no dense row to compare to."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, fieldnames=Result.columns(), extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(asdict(row) for row in result.rows)
    return text.getvalue()


def to_yaml(result: Result) -> str:
    """The scenario with every default filled in, keys in order: it can be run again."""
    return document.write(result.scenario)


def _text(make: Callable[[Result], str]) -> Writer:
    def produce(result: Result, path: Path) -> None:
        path.write_text(make(result), encoding="utf-8", newline="\n")

    return produce


def _drawn(figure: Callable[[Result], Figure]) -> Writer:
    return lambda result, path: save(figure(result), path)


FILES: dict[str, Writer] = {
    "results.json": _text(Result.to_json),
    "results.csv": _text(to_csv),
    "speedup.png": _drawn(speedup_figure),
    "breakdown.png": _drawn(breakdown_figure),
    "timeline.json": _text(chrome_trace),
    "scenario.yaml": _text(to_yaml),
    "faults.png": _drawn(faults_figure),
}
FAULTS_ONLY = {"faults.png"}
"""Of a scenario with `training.faults` only."""


def write(result: Result, folder: Path) -> tuple[Path, ...]:
    """Write all files of a run into `folder`, which is made when it is missing.

    What an earlier run with faults has left there, and this one does not write, is removed.

    Raises `InputError` when the disk is full or the folder cannot be written; files of an
    earlier run are then as they were.
    """
    left_out = FAULTS_ONLY if result.faulty is None else set()
    paths = tuple(folder / name for name in FILES if name not in left_out)
    with ExitStack() as renamed_together:
        for path in paths:
            FILES[path.name](result, renamed_together.enter_context(replacing(path)))
    for name in left_out:
        (folder / name).unlink(missing_ok=True)
    return paths
