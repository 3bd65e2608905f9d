"""`gcsim validate`: run the suites, show errors, write figures, fail if a bound is broken."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcsim.analysis.validation.registry import SUITES, chosen
from gcsim.cli.options import JsonOption, QuietOption, option, results_folder
from gcsim.cli.outcome import reported
from gcsim.errors import ExpectationError, InputError

if TYPE_CHECKING:
    from gcsim.analysis.validation.judge import Report
    from gcsim.scenarios.progress import Progress


@reported
def validate(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUITE", help=f"{', '.join(SUITES)}, or your own folder. Default: all."
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None, option("-o --output DIR", "Default: runs/validation, plus the suites' names.")
    ] = None,
    live: Annotated[
        bool, option("--live", "Measure on this machine, in network namespaces (root).")
    ] = False,
    quick: Annotated[bool, option("--quick", "With --live: a minute, not five.")] = False,
    verbose: Annotated[
        bool, option("-v --verbose", "Each measurement with its prediction.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare predictions with real clusters.

    Exit code 1 if a bound, on an error or on the share of right choices, is broken.
    """
    from gcsim.analysis.validation.judge import run_suite
    from gcsim.analysis.validation.leaving_out import fault
    from gcsim.analysis.validation.report.write import terminal_parts, to_json, write
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note_written, show, width

    names = suites or []
    if quick and not live:
        message = "--quick shortens the live suite, but --live is not given"
        raise InputError(message, place="--quick", hint="add --live")
    asked = chosen(names) if names or not live else []
    folder = results_folder(output, _folder_name(names, live=live))
    reports: list[Report] = []
    with watching(quiet) as progress:
        if live:
            reports += _live(folder, quick=quick, alone=not asked, progress=progress)
        if asked:
            with progress.task("validate", len(asked)) as task:
                for suite in asked:
                    task.advance(0, note=suite.name)
                    reports.append(run_suite(suite))
                    task.advance()
    paths = write(reports, folder)
    text = partial(terminal_parts, reports, width(), verbose=verbose)
    show(as_json, lambda: to_json(reports), text)
    if not quiet:
        note_written(folder, paths)
    broken = [bound for report in reports for bound in report.bounds if not bound.kept]
    if broken:
        names_of = "; ".join(kept.bound.name for kept in broken)
        count = sum(len(report.bounds) for report in reports)
        raise ExpectationError(f"{len(broken)} of {count} bounds are broken: {names_of}")
    if wrong := fault(reports):
        raise ExpectationError(wrong)


def _folder_name(names: Sequence[str], *, live: bool) -> str:
    """Return the name of the results' folder, one per set of suites: figures of one suite must not
    mix with another's tables."""
    parts = [*(["live"] if live else []), *names]
    words = [part.strip("/").replace("/", "_") for part in parts]
    return "_".join(["validation", *words])


def _live(folder: Path, *, quick: bool, alone: bool, progress: Progress) -> list[Report]:
    """Run the live suite; with other suites, skip it if this machine cannot run it. Predictions and
    measurements go to a new subfolder of `folder`, named by the time (UTC)."""
    from gcsim.analysis.live.live import run_live
    from gcsim.cli.terminal import note

    begun = datetime.now(UTC).strftime("live-%Y%m%dT%H%M%SZ")
    try:
        return [run_live(folder / begun, quick=quick, progress=progress)]
    except InputError as error:
        if alone:
            raise
        for problem in error.problems:
            note(f"the live suite is skipped: {problem.message}; {problem.hint}")
        return []
