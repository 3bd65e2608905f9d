"""What does somebody who waits see? Bars on a terminal's stderr, one line a stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from gcsim.scenarios.progress import Progress, SilentProgress, Task


class _BarTask:
    def __init__(self, bars: Bars, number: int) -> None:
        self._bars, self._number = bars, number

    def advance(self, n: int = 1) -> None:
        self._bars.advance(self._number, n)  # type: ignore[arg-type]  # TaskID is an int


class BarProgress:
    """A bar for each stage; finished stages stay visible until the run ends."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Task]:
        """A stage with a bar."""
        number = self._bars.add_task(description, total=total)
        yield _BarTask(self._bars, number)
        self._bars.refresh()


class _CountingTask:
    def __init__(self) -> None:
        self.done = 0

    def advance(self, n: int = 1) -> None:
        self.done += n


class LineProgress:
    """A line for each stage when it is done: for logs, where a bar would be noise."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Task]:
        """A stage that ends with a line."""
        counting, started = _CountingTask(), time.perf_counter()
        yield counting
        spent = time.perf_counter() - started
        self._console.print(f"{description}: {counting.done} of {total} in {spent:.1f} s")


@contextmanager
def watching(quiet: bool) -> Iterator[Progress]:
    """Progress on stderr while the context lasts; none when `quiet`."""
    console = Console(stderr=True, highlight=False, markup=False)
    if quiet:
        yield SilentProgress()
    elif not console.is_terminal or console.is_dumb_terminal:
        yield LineProgress(console)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=console, transient=True, redirect_stdout=False) as bars:
            yield BarProgress(bars)
