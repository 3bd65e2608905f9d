"""Progress is shown where it helps: bars on a terminal, lines in a log, nothing when quiet."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from gcsim.cli_progress import BarProgress, LineProgress, watching
from gcsim.scenarios.progress import Progress, SilentProgress


def use(progress: Progress) -> None:
    with progress.task("cluster sizes", 6) as task:
        task.advance()
        task.advance(5)


def test_a_log_gets_one_line_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(quiet=False) as progress:
        use(progress)
        use(progress)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("cluster sizes: 6 of 6 in ") for line in lines)
    assert captured.out == ""


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(quiet=True) as progress:
        use(progress)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_with_steps() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, console=console) as bars:
        use(BarProgress(bars))
        assert [(task.description, task.completed, task.total) for task in bars.tasks] == [
            ("cluster sizes", 6, 6)
        ]
    assert "6/6" in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_interrupted_stage_lets_the_interrupt_through() -> None:
    def interrupt(progress: Progress) -> None:
        with progress.task("compressors", 2):
            raise KeyboardInterrupt

    console = Console(file=io.StringIO())
    with Bars(console=console) as bars:
        for progress in (SilentProgress(), LineProgress(console), BarProgress(bars)):
            with pytest.raises(KeyboardInterrupt):
                interrupt(progress)
