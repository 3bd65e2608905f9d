"""Progress is shown where it helps: bars on a terminal, lines in a log, nothing when quiet."""

import contextlib
import ctypes
import io
import itertools
import signal
from fractions import Fraction

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from gcsim.cli.progress import BarProgress, LineProgress, _Left, _Rate, note_column, watching
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.signals import stoppable


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


def test_parts_of_a_step_add_up_to_it_and_are_not_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcsim.cli.progress.LOG_EVERY", 0.0)
    monkeypatch.setattr(
        "time.monotonic", iter([0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 61.0]).__next__
    )
    with watching(quiet=False) as progress, progress.task("cluster sizes", 2) as task:
        for _ in range(6):
            task.advance(Fraction(1, 3))
    assert capsys.readouterr().err.splitlines() == [
        "cluster sizes: 0 of 2",  # a part of the first step says nothing about the others
        "cluster sizes: 0 of 2",
        "cluster sizes: 1 of 2, 0.033/s, 30 s left",
        "cluster sizes: 1 of 2, 0.033/s, 20 s left",
        "cluster sizes: 1 of 2, 0.033/s, 10 s left",
        "cluster sizes: 2 of 2 in 61.0 s",
    ]
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Bars(MofNCompleteColumn(), console=console) as bars:
        with BarProgress(bars).task("methods", 10) as task:
            for _ in range(30):
                task.advance(Fraction(1, 3))
        assert bars.finished
    assert "10/10" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_bar_estimates_nothing_before_the_first_whole_step() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    columns = (_Rate(), _Left(elapsed_when_finished=True))
    bars = Bars(*columns, get_time=map(float, itertools.count()).__next__, console=console)
    shown = []
    with BarProgress(bars).task("methods", 10) as task:
        for _ in range(4):
            task.advance(Fraction(1, 2))
            shown.append([column.render(bars.tasks[0]).plain for column in columns])
    assert shown[0] == ["", "-:--:--"]
    assert all(rate.endswith("/s") and left != "-:--:--" for rate, left in shown[1:])


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


def test_a_bar_shows_the_last_note_as_it_is() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    columns = (TextColumn("{task.description}"), note_column())
    with Bars(*columns, console=console) as bars:
        with BarProgress(bars).task("compressors", 3) as task:
            task.advance(note="topk")
            task.advance(note="[b]own:Kind[/b]")
            task.advance()
        assert [(task.completed, task.fields["note"]) for task in bars.tasks] == [
            (3, "[b]own:Kind[/b]")
        ]
    assert "[b]own:Kind[/b]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_long_note_is_cut_at_the_terminals_edge() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=40)
    with Bars(TextColumn("{task.description}"), note_column(), console=console) as bars:
        with BarProgress(bars).task("compressors", 1) as task:
            task.advance(note="n" * 200)
        (line,) = console.render_lines(bars.get_renderable(), pad=False)
    assert "".join(part.text for part in line).rstrip().endswith("n\N{HORIZONTAL ELLIPSIS}")


def test_a_log_gives_the_last_note_of_a_stage_that_ended_early(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with watching(quiet=False) as progress:
        for steps in (1, 2):
            with progress.task("gradients", 2) as task:
                task.advance(steps, note="kept 1 of 2 iterations: no more fit")
    early, whole = capsys.readouterr().err.splitlines()
    assert early.startswith("gradients: 1 of 2 in ")
    assert early.endswith(" s (kept 1 of 2 iterations: no more fit)")
    assert "kept" not in whole


def test_an_interrupt_that_c_code_dropped_is_raised_by_the_next_step() -> None:
    """The handler raises within an attribute that `PyObject_HasAttrString` looks up, as torch's
    C++ code does, and which drops every exception (Python's C API, before 3.13)."""

    class Slow:
        @property
        def part(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    has = ctypes.pythonapi.PyObject_HasAttrString
    has.argtypes = (ctypes.py_object, ctypes.c_char_p)
    console = Console(file=io.StringIO())
    with Bars(console=console) as bars:
        for progress in (SilentProgress(), LineProgress(console), BarProgress(bars)):
            with progress.task("compressors", 2) as task:
                with stoppable():
                    with contextlib.suppress(KeyboardInterrupt):  # Python 3.13 and later
                        has(Slow(), b"part")
                    with pytest.raises(KeyboardInterrupt):
                        task.advance()
                task.advance()  # it is raised once


def test_an_interrupted_stage_lets_the_interrupt_through() -> None:
    def interrupt(progress: Progress) -> None:
        with progress.task("compressors", 2):
            raise KeyboardInterrupt

    console = Console(file=io.StringIO())
    with Bars(console=console) as bars:
        for progress in (SilentProgress(), LineProgress(console), BarProgress(bars)):
            with pytest.raises(KeyboardInterrupt):
                interrupt(progress)
