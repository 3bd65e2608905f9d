"""`gcsim sweep`: bars while the points run, then the table, then the failures."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcsim.cli import options
from gcsim.cli.outcome import INTERRUPTED, reported, say
from gcsim.errors import InputError, InternalError, Problem

if TYPE_CHECKING:
    from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult


@reported
def sweep(
    scenario: options.ScenarioArgument,
    *,
    grid: Annotated[
        list[str],
        options.option(
            "--grid KEY=V1,V2,...",
            "Values to run, e.g. cluster.nodes=8,16. Repeatable: every combination.",
        ),
    ],
    jobs: options.JobsOption = None,
    dask: options.DaskOption = None,
    output: Annotated[
        Path | None, options.option("-o --output DIR", "Default: runs/NAME_sweep.")
    ] = None,
    sets: options.SetOption = None,
    seed: options.SeedOption = None,
    as_json: options.ResultsOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Run every combination of given values.

    Each is a `gcsim run`. After an interruption, the same command continues.
    """
    from gcsim.analysis.report.sweep import parts
    from gcsim.analysis.write import draw_sweep_report
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note, show, width
    from gcsim.scenarios.sweeps.store import POINTS
    from gcsim.scenarios.sweeps.sweep import execute, prepare
    from gcsim.scenarios.trained.known import TrainingJudge

    with watching(quiet) as progress:
        plan = prepare(scenario, grid, overrides=sets or (), seed=seed, progress=progress)
    folder = options.results_folder(output, f"{plan.name}_sweep")
    try:
        with watching(quiet) as progress:
            tell = (lambda _: None) if quiet else note
            result = execute(
                plan,
                folder,
                jobs=jobs,
                dask=dask,
                judge=TrainingJudge,
                progress=progress,
                tell=tell,
            )
    except KeyboardInterrupt:
        done = len(list((folder / POINTS).glob("[!.]*.json")))
        points = f"{done} of {len(plan.points)} points are in {folder}"
        say(f"interrupted; {points}: repeat the command to continue")
        raise typer.Exit(INTERRUPTED) from None
    show(as_json, result.to_json, lambda: parts(result, width()))
    asked = [scenario, *(f"--grid={one}" for one in grid), *options.again(sets, seed)]
    draw_sweep_report(result, folder, shlex.join(["gcsim", "sweep", *asked]))
    if not quiet:
        names = "report.html, results.csv, results.json, sweep.json, points/"
        note("", f"Written to {folder}: {names}")
    _raise_failures(result)


def _raise_failures(result: SweepResult) -> None:
    """Raise the failures other than lack of memory: each problem once, with its first point."""
    from gcsim.analysis.report.numbers import plural

    points_of: dict[Problem, list[SweepPoint]] = {}
    bugs: dict[str, SweepPoint] = {}
    for point in result.failed:
        if point.failure is not None and not point.unfit:
            for problem in point.failure.problems:
                points_of.setdefault(problem, []).append(point)
            if point.failure.is_bug:
                bugs.setdefault(point.failure.traceback, point)
    problems = []
    for problem, points in points_of.items():
        others = f" and {plural(len(points) - 1, 'other point')}" if len(points) > 1 else ""
        place = f"point {points[0].name}{others}" + (f": {problem.place}" if problem.place else "")
        problems.append(Problem(place=place, message=problem.message, hint=problem.hint))
    if bugs:
        for problem in problems:
            say(str(problem))
        text = "\n".join(f"At {point.name}:\n{text}" for text, point in bugs.items())
        first = next(iter(bugs.values()))
        raise InternalError(f"point {first.name} failed") from _RemoteTraceback(text)
    if problems:
        raise InputError(problems)


class _RemoteTraceback(Exception):  # noqa: N818 - not an error of its own
    """A traceback from another process."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])
