"""Progress of a command: bars on a terminal's stderr, one line per stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.progress import Task as BarState
from rich.table import Column
from rich.text import Text

from gcsim.analysis.report.numbers import significant
from gcsim.cli.outcome import users_code
from gcsim.scenarios.progress import Progress, SilentProgress, Task
from gcsim.signals import raise_if_asked

LOG_EVERY = 30.0
"""Seconds between two lines in a log."""


class _BarTask:
    def __init__(self, bars: Bars, number: int) -> None:
        self._bars, self._number = bars, number

    def advance(self, n: int | Fraction = 1, note: str = "") -> None:
        raise_if_asked()
        fields = {"note": note} if note else {}  # without a new note the last one stays
        self._bars.update(
            self._number,  # type: ignore[arg-type]  # TaskID is an int
            advance=n,  # type: ignore[arg-type]  # sums of parts are exact
            **fields,  # type: ignore[arg-type]  # any name is a field
        )


class BarProgress:
    """A bar for each stage; finished stages stay visible until the run ends."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Task]:
        """Show a bar for a stage."""
        number = self._bars.add_task(description, total=total, note="")
        yield _BarTask(self._bars, number)
        self._bars.refresh()


class _LoggedTask:
    def __init__(self, console: Console, description: str, total: int) -> None:
        self._console, self._description, self._total = console, description, total
        self._done, self._note = Fraction(0), ""
        self._start = self._last = time.monotonic()

    def advance(self, n: int | Fraction = 1, note: str = "") -> None:
        raise_if_asked()
        self._done += n
        self._note = note or self._note
        now = time.monotonic()
        if 0 < self._done < self._total and now - self._last >= LOG_EVERY:
            self._last = now
            left = ""
            if self._done >= 1:  # a part of the first step says nothing about the others
                rate = float(self._done) / (now - self._start)
                seconds = float(self._total - self._done) / rate
                left = f", {significant(rate, 2)}/s, {seconds:.0f} s left"
            self._console.print(f"{self._status()}{left}")

    def _status(self) -> str:
        return f"{self._description}: {int(self._done)} of {self._total}"

    def end(self) -> None:
        spent = time.monotonic() - self._start
        why = f" ({self._note})" if self._note and self._done < self._total else ""
        self._console.print(f"{self._status()} in {spent:.1f} s{why}")


class LineProgress:
    """Progress as lines for logs: one when a stage ends, and one now and then before.

    If a stage ends before its last step, the line has the last note as the reason.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Task]:
        """Log a line for a stage when it ends."""
        stage = _LoggedTask(self._console, description, total)
        yield stage
        stage.end()


class _Left(TimeRemainingColumn):
    def render(self, task: BarState) -> Text:
        return super().render(task) if task.completed >= 1 else Text("-:--:--")


class _Rate(ProgressColumn):
    def render(self, task: BarState) -> Text:
        speed = (task.finished_speed or task.speed) if task.completed >= 1 else None
        return Text("" if speed is None else f"{significant(speed, 2)}/s", justify="right")


def note_column(widest: int | None = None) -> TextColumn:
    """Make the column with a stage's note: one line without markup, cut at the terminal's edge."""
    column = Column(no_wrap=True, overflow="ellipsis", max_width=widest)
    return TextColumn("{task.fields[note]}", style="dim", markup=False, table_column=column)


@contextmanager
def watching(quiet: bool) -> Iterator[Progress]:
    """Show progress on stderr in this context, unless `quiet`. Users' code may run in it."""
    with users_code(), _display(quiet) as progress:
        yield progress


@contextmanager
def _display(quiet: bool) -> Iterator[Progress]:
    console = Console(stderr=True, highlight=False, markup=False)
    if quiet:
        yield SilentProgress()
    elif not console.is_terminal or console.is_dumb_terminal:
        yield LineProgress(console)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            _Rate(),
            _Left(elapsed_when_finished=True),
            # the rest of the line: a long note must not squeeze the numbers
            note_column(max(8, console.width - 62)),
        )
        with Bars(
            *columns, console=console, transient=True, redirect_stdout=False,
            speed_estimate_period=300,
        ) as bars:  # fmt: skip
            yield BarProgress(bars)
