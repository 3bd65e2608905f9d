"""`gcsim plot RUN`: the pictures of a run again, in another format, and error against speed.

Everything heavy is imported when the command runs.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gcsim.cli.options import QuietOption
from gcsim.cli.outcome import reported


class Format(StrEnum):
    """Of a picture."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


@reported
def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that gcsim run wrote.")],
    *,
    form: Annotated[
        Format, typer.Option("--format", help="SVG and PDF are for papers.")
    ] = Format.png,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Default: RUN.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Draw the figures of a run again.

    Speedup, breakdown, and error against time and bytes.
    """
    from gcsim.analysis.write import draw_again
    from gcsim.cli.folder import check_writable
    from gcsim.cli.terminal import note
    from gcsim.scenarios.stored import read_results

    result = read_results(run)
    folder = output or (run if run.is_dir() else run.parent)
    check_writable(folder)
    paths = draw_again(result, folder, form.value)
    if not quiet:
        note(f"Written to {folder}: {', '.join(path.name for path in paths)}")
