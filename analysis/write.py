"""What does a run leave behind? Its results, and figures of them.

Results are all whole or as they were: they are produced under temporary names first and renamed
when the last of them is whole. They are on disk before the first figure is drawn; a figure that
cannot be drawn costs nothing but itself.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

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

Writer = Callable[[Result, Path], None]


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


def _text(make: Callable[[Result], str]) -> Writer:
    def produce(result: Result, path: Path) -> None:
        path.write_text(make(result), encoding="utf-8", newline="\n")

    return produce


def _drawn(figure: Callable[[Result], Figure]) -> Writer:
    return lambda result, path: save(figure(result), path)


RESULTS: dict[str, Writer] = {
    "results.json": _text(Result.to_json),
    "results.csv": _text(to_csv),
    "timeline.json": _text(chrome_trace),
    "scenario.yaml": _text(to_yaml),
}
FIGURES: dict[str, Writer] = {
    "speedup.png": _drawn(speedup_figure),
    "breakdown.png": _drawn(breakdown_figure),
    "faults.png": _drawn(faults_figure),
}
FAULTS_ONLY = {"faults.png"}
"""Of a scenario with `training.faults` only."""


def write_results(result: Result, folder: Path) -> tuple[Path, ...]:
    """Write a run's results into `folder`, which is made when it is missing.

    Figures that an earlier run has left there are removed: they are not of these results.

    Raises `InputError` when the disk is full or the folder cannot be written; files of an
    earlier run are then as they were.
    """
    paths = tuple(folder / name for name in RESULTS)
    with ExitStack() as renamed_together:
        for path in paths:
            RESULTS[path.name](result, renamed_together.enter_context(replacing(path)))
    for name in FIGURES:
        (folder / name).unlink(missing_ok=True)
    return paths


def draw_figures(result: Result, folder: Path) -> tuple[Path, ...]:
    """Draw a run's figures into `folder`.

    Raises `InputError` when the disk is full or the folder cannot be written, and, when all others
    are drawn, `InternalError` that names those that could not be.
    """
    left_out = FAULTS_ONLY if result.faulty is None else set()
    paths = [folder / name for name in FIGURES if name not in left_out]
    failed: dict[str, Exception] = {}
    for path in list(paths):
        try:
            with replacing(path) as temporary:
                FIGURES[path.name](result, temporary)
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
