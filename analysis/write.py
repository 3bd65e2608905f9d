"""What does a run leave behind? Its results, and figures of them.

Results are all whole or as they were: they are produced under temporary names first and renamed
when the last of them is whole. They are on disk before the first figure is drawn; a figure that
cannot be drawn costs nothing but itself.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gcsim.analysis.plots.breakdown import breakdown_figure
from gcsim.analysis.plots.faults import faults_figure
from gcsim.analysis.plots.speedup import speedup_figure
from gcsim.analysis.plots.style import save
from gcsim.analysis.timeline.perfetto import chrome_trace
from gcsim.errors import InputError, InternalError
from gcsim.files import replacing
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import Result, columns_of

Writer = Callable[[Any, Path], None]
"""Writes a result, or a figure of it, to a path."""


def to_csv(result: Result) -> str:
    """The rows with full precision; the empty field where there is no dense row to compare to."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, fieldnames=Result.columns(), extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(columns_of(row) for row in result.rows)
    return text.getvalue()


def to_yaml(result: Result) -> str:
    """The scenario with every default filled in, keys in order: it can be run again."""
    return document.write(result.scenario)


def as_text(make: Callable[[Any], str]) -> Writer:
    """What makes a text of a result, as a writer of it."""

    def produce(result: Any, path: Path) -> None:
        path.write_text(make(result), encoding="utf-8", newline="\n")

    return produce


def drawn(figure: Callable[[Any], Figure]) -> Writer:
    """What draws a result, as a writer of the picture."""
    return lambda result, path: save(figure(result), path)


RESULTS: dict[str, Writer] = {
    "results.json": as_text(Result.to_json),
    "results.csv": as_text(to_csv),
    "timeline.json": as_text(chrome_trace),
    "scenario.yaml": as_text(to_yaml),
}
FIGURES: dict[str, Writer] = {
    "speedup.png": drawn(speedup_figure),
    "breakdown.png": drawn(breakdown_figure),
    "faults.png": drawn(faults_figure),
}
FAULTS_ONLY = {"faults.png"}
"""Of a scenario with `training.faults` only."""


def write_results(result: Result, folder: Path) -> tuple[Path, ...]:
    """Write a run's results into `folder`; see `write_all`."""
    return write_all(result, folder, RESULTS, FIGURES)


def draw_figures(result: Result, folder: Path) -> tuple[Path, ...]:
    """Draw a run's figures into `folder`; see `draw_all`."""
    left_out = FAULTS_ONLY if result.faulty is None else set()
    return draw_all(result, folder, {n: made for n, made in FIGURES.items() if n not in left_out})


def write_all(
    result: Any, folder: Path, texts: Mapping[str, Writer], figures: Iterable[str]
) -> tuple[Path, ...]:
    """Write what a result says into `folder`, which is made when it is missing.

    `texts` are by name of the file. Figures of these names that an earlier run has left there are
    removed: they are not of this result.

    Raises `InputError` when the disk is full or the folder cannot be written; files of an
    earlier run are then as they were.
    """
    paths = tuple(folder / name for name in texts)
    with ExitStack() as renamed_together:
        for path in paths:
            texts[path.name](result, renamed_together.enter_context(replacing(path)))
    for name in figures:
        (folder / name).unlink(missing_ok=True)
    return paths


def draw_all(result: Any, folder: Path, figures: Mapping[str, Writer]) -> tuple[Path, ...]:
    """Draw figures of a result into `folder`, by name of the file.

    Raises `InputError` when the disk is full or the folder cannot be written, and, when all others
    are drawn, `InternalError` that names those that could not be.
    """
    paths = [folder / name for name in figures]
    failed: dict[str, Exception] = {}
    for path in list(paths):
        try:
            with replacing(path) as temporary:
                figures[path.name](result, temporary)
        except InputError:
            raise
        except Exception as error:
            failed[path.name] = error
            paths.remove(path)
    if failed:
        last = list(failed.values())[-1]
        raise InternalError(
            f"{' and '.join(failed)} could not be drawn ({type(last).__name__}: {last}); "
            f"the results are in {folder}"
        ) from last
    return tuple(paths)
