"""What does somebody who waits see? Bars on a terminal's stderr, one line a stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Column

from gcsim.scenarios.progress import Progress, SilentProgress, Task


class _BarTask:
    def __init__(self, bars: Bars, number: int) -> None:
        self._bars, self._number = bars, number

    def advance(self, n: int = 1, note: str = "") -> None:
        fields = {"note": note} if note else {}  # without a new one, the last stays
        self._bars.update(
            self._number,  # type: ignore[arg-type]  # TaskID is an int
            advance=n,
            **fields,  # type: ignore[arg-type]  # any name is a field
        )


class BarProgress:
    """A bar for each stage; finished stages stay visible until the run ends."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Task]:
        """A stage with a bar."""
        number = self._bars.add_task(description, total=total, note="")
        yield _BarTask(self._bars, number)
        self._bars.refresh()


class _CountingTask:
    def __init__(self) -> None:
        self.done, self.note = 0, ""

    def advance(self, n: int = 1, note: str = "") -> None:
        self.done += n
        self.note = note or self.note


class LineProgress:
    """A line for each stage when it is done: for logs, where a bar would be noise.

    The last note stands in it when the stage ended before its last step, to say why.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Task]:
        """A stage that ends with a line."""
        counting, started = _CountingTask(), time.perf_counter()
        yield counting
        spent = time.perf_counter() - started
        why = f" ({counting.note})" if counting.note and counting.done < total else ""
        self._console.print(f"{description}: {counting.done} of {total} in {spent:.1f} s{why}")


def note_column() -> TextColumn:
    """Where a stage is: one line, cut at the terminal's edge, and text as it is."""
    column = Column(no_wrap=True, overflow="ellipsis")
    return TextColumn("{task.fields[note]}", style="dim", markup=False, table_column=column)


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
            note_column(),
        )
        with Bars(*columns, console=console, transient=True, redirect_stdout=False) as bars:
            yield BarProgress(bars)
