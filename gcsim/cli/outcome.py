"""Ends of commands: every exception becomes an exit code and a message for people.

0    done (also when the reader of a pipe went away)
1    an expectation failed
2    wrong usage or input: nothing was simulated
3    our bug: a short message, and where the traceback is
130  interrupted, by Ctrl-C, SIGTERM or SIGHUP (a closed terminal)
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import ParamSpec

import typer

from gcsim.errors import GcsimError, InputError, InternalError, Problem, printable

P = ParamSpec("P")

_TRACEBACK = "gcsim-traceback-"
_LARGE = {"jinja2", "matplotlib", "numba", "safetensors", "scipy", "torch"}
"""Libraries that the small installation leaves out (docs/advice.md)."""
DONE, EXPECTATION_FAILED, WRONG_INPUT, BUG, INTERRUPTED = 0, 1, 2, 3, 130


class Reporting:
    """Detail of a bug report; set by `--debug` and `GCSIM_DEBUG=1`."""

    debug = False


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command end with an exit code and one clear message, whatever happens in it."""

    @functools.wraps(command)
    def ending(*args: P.args, **kwargs: P.kwargs) -> None:
        code = DONE
        try:
            command(*args, **kwargs)
            sys.stdout.flush()  # a full disk or a closed pipe shows here, not at exit
        except KeyboardInterrupt:
            code = interrupted()
        except BrokenPipeError:
            _abandon_stdout()
        except Exception as error:
            code = _report(error)
        except BaseException as left:
            code = _wrong_input(_left_early(left))
        if code != DONE:
            raise typer.Exit(code)

    return ending


def interrupted() -> int:
    """Report an interruption."""
    say("interrupted; no file is half written")
    return INTERRUPTED


@contextmanager
def users_code() -> Iterator[None]:
    """Send output to stderr while a user's modules may run: stdout is the result's."""
    with redirect_stdout(sys.stderr):
        yield


def _left_early(left: BaseException) -> Problem:
    """Problem of a compressor, a model or an import of theirs that calls `sys.exit`."""
    import traceback

    frames = [
        f for f in traceback.extract_tb(left.__traceback__) if "sitebuiltins" not in f.filename
    ]
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    what = f"sys.exit({left.code!r})" if isinstance(left, SystemExit) else type(left).__name__
    return Problem(
        place=place,
        message=f"{what} ended the command before it had finished",
        hint="raise an exception that says what is wrong, or return",
    )


@contextmanager
def kept_on_interrupt() -> Iterator[None]:
    """End a training by Ctrl-C with a line and the exit code."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; finished training runs are stored: repeat the command to continue")
        raise typer.Exit(INTERRUPTED) from None


def say(text: str) -> None:
    """Write a line to stderr, unless the terminal was closed."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)


def _report(error: Exception) -> int:  # noqa: PLR0911 - a case each
    if isinstance(error, typer.Exit | typer.Abort) or is_usage_error(error):
        raise error
    if isinstance(error, InputError):
        for problem in error.problems:
            say(str(problem))
        return error.exit_code
    if isinstance(error, GcsimError) and not isinstance(error, InternalError):
        say(f"error: {error}")
        return error.exit_code
    library = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and library in _LARGE:
        message = f"this needs {library}, which is not installed"
        return _wrong_input(Problem(message=message, hint=f"pip install {library}"))
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of `os.getcwd`
        message = "the folder that the command was started in is gone"
        return _wrong_input(Problem(message=message, hint="cd to an existing one"))
    if isinstance(error, OSError):
        _abandon_stdout()
        reason = error.strerror or str(error) or type(error).__name__
        place = "" if error.filename is None else str(error.filename)
        return _wrong_input(Problem(place=place, message=reason))
    if isinstance(error, MemoryError):
        hint = "use a smaller model, fewer workers or fewer iterations"
        return _wrong_input(Problem(message="not enough memory", hint=hint))
    return _bug(error)


def is_usage_error(error: BaseException) -> bool:
    """Whether typer raised it for the command line itself."""
    # the class lies in click or in typer's own copy of it, by typer's version
    return callable(getattr(error, "format_message", None))


def _wrong_input(problem: Problem) -> int:
    say(str(problem))
    return WRONG_INPUT


def _bug(error: Exception) -> int:
    import tempfile
    import traceback

    from gcsim.files import remove_left

    text = "".join(traceback.format_exception(error))
    if Reporting.debug:
        say(text.rstrip("\n"))
        where = "its traceback is above"
    else:
        remove_left(Path(tempfile.gettempdir()), _TRACEBACK)  # the last one is enough
        handle, name = tempfile.mkstemp(prefix=_TRACEBACK, suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        where = f"its traceback is in {name} (GCSIM_DEBUG=1 shows it here)"
    first_line = str(error).partition("\n")[0]
    say(f"error: a bug in gcsim, {type(error).__name__}: {first_line}; {where}; please report it")
    return BUG


def _abandon_stdout() -> None:
    """Discard the buffer of stdout, so that nothing fails again at exit."""
    try:
        handle = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, handle)
    os.close(null)
