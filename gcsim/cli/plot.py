"""`gcsim plot FOLDER`: figures of a stored run, also in other formats, or of a sweep."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gcsim.cli.options import QuietOption, check_writable, option
from gcsim.cli.outcome import reported
from gcsim.errors import InputError


class Format(StrEnum):
    """Format of a figure, or of a run's table."""

    png = "png"
    svg = "svg"
    pdf = "pdf"
    tex = "tex"
    md = "md"


@reported
def plot(
    run: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder from gcsim run or gcsim sweep.")
    ],
    *,
    form: Annotated[
        Format, option("--format", "tex and md write a run's table; tex adds its references.")
    ] = Format.png,
    output: Annotated[Path | None, option("-o --output DIR", "Default: FOLDER.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Draw the figures of a run or a sweep.

    For a run: speedup, breakdown, and error against time and bytes. For a sweep: maps of the
    fastest method and of the speedup of the method to use over two keys, with one panel for each
    combination of the others; lines for a single key.
    """
    from gcsim.analysis.report.numbers import plural
    from gcsim.analysis.write import TABLES, draw_again, draw_sweep
    from gcsim.cli.terminal import note, note_written
    from gcsim.scenarios.stored import read_results
    from gcsim.scenarios.sweeps.store import is_sweep, read_sweep

    folder = output or (run if run.is_dir() else run.parent)
    failed = 0
    if is_sweep(run):
        if form in TABLES:
            raise InputError(
                "a sweep has no single table", place=str(run), hint="its results.csv has all rows"
            )
        swept = read_sweep(run)
        check_writable(folder)
        paths, failed = draw_sweep(swept, folder, form.value), len(swept.failed)
    else:
        result = read_results(run)
        check_writable(folder)
        paths = draw_again(result, folder, form.value)
    if failed and not quiet:
        note(f"{plural(failed, 'point')} of the sweep failed and stay empty")
    if not quiet:
        note_written(folder, paths)
