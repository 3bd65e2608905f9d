"""`gcsim compare RUN RUN ...`: results of runs side by side, or next to measurements of a hook."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcsim.cli.outcome import reported
from gcsim.errors import InputError


@reported
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Folders from gcsim run, files from hook.measured().write(FILE)."
        ),
    ],
) -> None:
    """Show runs side by side, with differences.

    Shows each run at its largest size: iteration and speedup by method, the settings that differ,
    and each run's answer. Next to a measurement by gcsim.ddp_hook it shows the prediction for that
    method and number of workers, and its error.
    """
    from gcsim.analysis.report import compare
    from gcsim.cli.terminal import emit
    from gcsim.compressors.ddp.measured import measured_in
    from gcsim.scenarios.stored import read_results
    from gcsim.scenarios.sweeps.store import JSON, POINTS, is_sweep

    for path in filter(is_sweep, runs):
        if path.is_dir() or path.name == JSON:
            hint = f"compare files of its {POINTS}, each a run; {JSON} has the values of each"
            raise InputError("is a sweep", place=str(path), hint=hint)
    hooks = {path: hook for path in runs if (hook := measured_in(path)) is not None}
    folders = [path for path in runs if path not in hooks]
    if not folders:
        hint = "name the folder of a run, too"
        raise InputError("is a measurement without a prediction", place=str(runs[0]), hint=hint)
    results = [read_results(path) for path in folders]
    if len(runs) == 1:
        raise InputError("one run cannot be compared", place=str(runs[0]), hint="name another")
    names = [path.name if path.is_dir() else path.parent.name for path in folders]
    if len(set(names)) < len(names):
        names = list(map(str, folders))
    found = [
        (name, compare.row_of(result, of_hook, name, str(path)), of_hook, str(path))
        for path, of_hook in hooks.items()
        for name, result in zip(names, results, strict=True)
    ]
    if len(results) > 1:
        emit(*compare.parts(names, results))
    for one in found:
        emit(*compare.measured_parts(*one, compare.collectives_alone(one[2], hooks.values())))
