"""`gcsim sweep`: bars while the points run, the table when they are done, then what failed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.progress import Task as BarTask
from rich.table import Column
from rich.text import Text

from gcsim.analysis.report.numbers import plural, significant
from gcsim.analysis.report.sweep import parts
from gcsim.cli.folder import check_writable
from gcsim.cli.outcome import INTERRUPTED, say
from gcsim.cli.progress import BarProgress
from gcsim.cli.terminal import emit, emit_exactly, note, width
from gcsim.errors import InputError, InternalError, Problem
from gcsim.scenarios.progress import Progress, SilentProgress, Task
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult
from gcsim.scenarios.sweeps.store import POINTS
from gcsim.scenarios.sweeps.sweep import carry_out, prepare

LOG_EVERY = 30.0
"""Seconds between two lines in a log."""


def sweep(
    scenario: str,
    grids: Sequence[str],
    *,
    sets: Sequence[str],
    seed: int | None,
    jobs: int | None,
    dask: str | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the sweep, show it, and raise what failed once everything else is done."""
    with watching(quiet) as progress:
        plan = prepare(scenario, grids, overrides=sets, seed=seed, progress=progress)
    folder = output or Path("runs") / f"{plan.name}_sweep"
    check_writable(folder)
    try:
        with watching(quiet) as progress:
            result = carry_out(
                plan,
                folder,
                jobs=jobs,
                dask=dask,
                progress=progress,
                tell=lambda line: None if quiet else note(line),
            )
    except KeyboardInterrupt:
        done = len(list((folder / POINTS).glob("[!.]*.json")))
        points = f"{done} of {len(plan.points)} points are in {folder}"
        say(f"interrupted; {points}: give the same command again to go on")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        emit_exactly(result.to_json())
    else:
        emit(*parts(result, width()))
    if not quiet:
        note("", f"Written to {folder}: results.csv, results.json, sweep.json, points/")
    _raise_failures(result)


# --- while it runs -------------------------------------------------------------------------------


class _Rate(ProgressColumn):
    def render(self, task: BarTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{significant(speed, 2)}/s", justify="right")


@contextmanager
def watching(quiet: bool) -> Iterator[Progress]:
    """As `gcsim.cli.progress.watching`, with the rate and the time that remains."""
    console = Console(stderr=True, highlight=False, markup=False)
    if quiet:
        yield SilentProgress()
    elif not console.is_terminal or console.is_dumb_terminal:
        yield _Log(console)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(elapsed_when_finished=True),
            # what is left of the line: a long note must not squeeze the numbers
            TextColumn(
                "{task.fields[note]}",
                style="dim",
                markup=False,
                table_column=Column(
                    no_wrap=True, overflow="ellipsis", max_width=max(8, console.width - 62)
                ),
            ),
        )
        with Bars(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            speed_estimate_period=300,
        ) as bars:
            yield BarProgress(bars)


class _Log:
    """Lines for a log: how far it is, now and then, and when a stage is done."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Task]:
        """A stage that ends with a line."""
        stage = _LoggedStage(self._console, description, total)
        yield stage
        stage.end()


class _LoggedStage:
    def __init__(self, console: Console, description: str, total: int) -> None:
        self._console, self._description, self._total, self._done = console, description, total, 0
        self._start = self._last = time.monotonic()

    def advance(self, n: int = 1, note: str = "") -> None:
        self._done += n
        now = time.monotonic()
        if 0 < self._done < self._total and now - self._last >= LOG_EVERY:
            self._last = now
            rate = self._done / (now - self._start)
            left = f"{significant(rate, 2)}/s, {(self._total - self._done) / rate:.0f} s left"
            self._console.print(f"{self._description}: {self._done} of {self._total}, {left}")

    def end(self) -> None:
        spent = time.monotonic() - self._start
        told = f"{self._description}: {self._done} of {self._total} in {spent:.1f} s"
        self._console.print(told)


# --- when it is done -----------------------------------------------------------------------------


def _raise_failures(result: SweepResult) -> None:
    """Raise what failed: each problem once, with the first of the points that have it."""
    told: dict[Problem, list[SweepPoint]] = {}
    bugs: dict[str, SweepPoint] = {}
    for point in result.failed:
        if point.failure is not None:
            for problem in point.failure.problems:
                told.setdefault(problem, []).append(point)
            if point.failure.is_bug:
                bugs.setdefault(point.failure.traceback, point)
    problems = []
    for problem, points in told.items():
        others = f" and {plural(len(points) - 1, 'other point')}" if len(points) > 1 else ""
        place = f"point {points[0].name}{others}" + (f": {problem.place}" if problem.place else "")
        problems.append(Problem(place=place, message=problem.message, hint=problem.hint))
    if bugs:
        for problem in problems:
            say(str(problem))
        text = "\n".join(f"At {point.name}:\n{text}" for text, point in bugs.items())
        first = next(iter(bugs.values()))
        raise InternalError(f"point {first.name} failed") from _There(text)
    if problems:
        raise InputError(problems)


class _There(Exception):  # noqa: N818 - not an error of its own
    """A traceback of another process."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])
