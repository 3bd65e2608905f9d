"""`gcsim compare RUN RUN ...`: results of runs side by side, and what was different.

Everything heavy is imported when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcsim.cli.outcome import reported
from gcsim.errors import InputError


@reported
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders that gcsim run wrote.")
    ],
) -> None:
    """Show runs side by side, and what differs.

    Each at its largest size: iteration and speedup by method, then the settings whose values are
    not the same, then each run's answer.
    """
    from gcsim.analysis.report.compare import parts
    from gcsim.cli.terminal import emit
    from gcsim.scenarios.stored import read_results

    if len(runs) < len(("one", "another")):
        raise InputError("one run is nothing to compare", place=str(runs[0]), hint="name another")
    results = [read_results(path) for path in runs]
    names = [path.name if path.is_dir() else path.parent.name for path in runs]
    if len(set(names)) < len(names):
        names = list(map(str, runs))
    emit(*parts(names, results))
