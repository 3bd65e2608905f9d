"""`gcsim reproduce`: a paper's experiment in miniature, published and obtained side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcsim.cli.options import JobsOption, JsonOption, QuietOption, option, results_folder
from gcsim.cli.outcome import kept_on_interrupt, reported


@reported
def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A preset; gcsim list papers shows them.")
    ],
    *,
    data: Annotated[
        Path | None,
        option(
            "--data FOLDER", "Train ResNet-20 on your images: train/CLASS/*.png, test/CLASS/*.png."
        ),
    ] = None,
    steps: Annotated[
        int | None, option("--steps", "Steps per training run. Default: the preset's.", min=1)
    ] = None,
    jobs: JobsOption = None,
    small: Annotated[
        bool, option("--quick", "Reduced size, takes seconds; its verdicts mean little.")
    ] = False,
    output: Annotated[Path | None, option("-o --output DIR", "Default: runs/NAME.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Reproduce a paper's result in miniature.

    Reports whether a table or figure keeps its order and shape; the exit code is 0 in either case.
    Training runs are cached; after an interruption, the same command continues.
    """
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note_written, show
    from gcsim.scenarios.papers.preset import preset
    from gcsim.scenarios.papers.preset import reproduce as run

    chosen = preset(name)
    folder = results_folder(output, f"{name}{'_quick' if small else ''}")
    with kept_on_interrupt(), watching(quiet) as progress:
        found = run(chosen, quick=small, data=data, steps=steps, jobs=jobs, progress=progress)
    from gcsim.analysis.papers.table import draw_reproduction, parts, write_reproduction

    paths = write_reproduction(found, folder)
    show(as_json, found.to_json, lambda: parts(found))
    paths += draw_reproduction(found, folder)
    if not quiet:
        note_written(folder, paths)
