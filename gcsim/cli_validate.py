"""`gcsim validate`: run the suites, show their errors, write figures, fail on a broken bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcsim.analysis.validation.as_json import to_json
from gcsim.analysis.validation.judge import Report, run_suite
from gcsim.analysis.validation.suites import chosen
from gcsim.analysis.validation.table import suite_lines, summary_lines
from gcsim.analysis.validation.write import write
from gcsim.cli_folder import check_writable
from gcsim.cli_progress import watching
from gcsim.cli_show import emit, emit_exactly, note, width
from gcsim.errors import ExpectationError, InputError
from gcsim.scenarios.progress import Progress


def validate(
    names: Sequence[str],
    *,
    live: bool,
    quick: bool,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the named suites (or all, or the live one alone). Raises `ExpectationError` when a bound
    is broken, once everything is shown and written; `InputError` where live is all that is asked
    for and cannot be had."""
    folder = output or Path("runs") / "validation"
    check_writable(folder)
    suites = chosen(names) if names or not live else []
    reports: list[Report] = []
    with watching(quiet) as progress:
        if live:
            reports += _live(folder, quick=quick, alone=not suites, progress=progress)
        with progress.task("validate", len(suites)) as task:
            for suite in suites:
                task.advance(0, note=suite.name)
                reports.append(run_suite(suite))
                task.advance(note=suite.name)
    paths = write(reports, folder)
    if as_json:
        emit_exactly(to_json(reports))
    else:
        cells = width()
        for report in reports:
            emit(*suite_lines(report, cells))
        emit(*summary_lines(reports, cells))
    if not quiet:
        note("", f"Written to {folder}: {', '.join(path.name for path in paths)}")
    broken = [bound for report in reports for bound in report.bounds if not bound.kept]
    if broken:
        names_of = "; ".join(kept.bound.name for kept in broken)
        count = sum(len(report.bounds) for report in reports)
        raise ExpectationError(f"{len(broken)} of {count} bounds are broken: {names_of}")


def _live(folder: Path, *, quick: bool, alone: bool, progress: Progress) -> list[Report]:
    """The live suite; beside others it is skipped where this machine cannot run it."""
    from gcsim.cli_validate_live import validate_live

    try:
        return [validate_live(output=folder, quick=quick, progress=progress)]
    except InputError as error:
        if alone:
            raise
        for problem in error.problems:
            note(f"the live suite is skipped: {problem.message}; {problem.hint}")
        return []
