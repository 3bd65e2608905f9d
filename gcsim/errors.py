"""Errors, with the exit code of the command line for each.

GcsimError
├── InputError          the user's file, option or data is wrong          exit 2
│   └── TraceError      a stored trace is damaged, truncated or too small exit 2
├── ExpectationError    the run is fine, but an expectation is not met    exit 1
└── InternalError       a bug in gcsim: a state that must not occur       exit 3
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that neither a file nor a terminal should receive: control characters except tabs and
line ends, and lone surrogates."""


def printable(text: str) -> str:
    """Return `text` with escapes for characters that could move a terminal's cursor or do worse."""
    return UNPRINTABLE.sub(lambda odd: repr(odd[0])[1:-1], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A mistake in the input: where it is, what is wrong, and what to do instead.

    `place` is `file:line:column`, an option's name, or a tensor's name; it may be empty.
    """

    message: str
    place: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{where}error: {self.message}{hint}"


class GcsimError(Exception):
    """Base of all errors that gcsim raises on purpose."""

    exit_code = 3


class InputError(GcsimError):
    """The user's input cannot be used; nothing was simulated or changed.

    Carries every problem found in one pass, not only the first. A single problem may be given by
    its message, with `place` and `hint` as in `Problem`.
    """

    exit_code = 2

    def __init__(
        self, problems: str | Problem | Iterable[Problem], *, place: str = "", hint: str = ""
    ) -> None:
        if isinstance(problems, str):
            problems = Problem(message=problems, place=place, hint=hint)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)  # so that a copy, such as simpy makes, has the same text

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class TraceError(InputError):
    """A stored trace is damaged, truncated, edited, or smaller than required."""


class ExpectationError(GcsimError):
    """A stated expectation or bound does not hold for the result."""

    exit_code = 1


class InternalError(GcsimError):
    """A state that correct code never reaches; please report it."""


def did_you_mean(word: str, known: Iterable[str], near: int = 60) -> str:
    """Suggest the nearest known word, or list all known words if fewer than `near` per cent of the
    letters agree."""
    from rapidfuzz import fuzz, process

    known = sorted(known)
    found = process.extractOne(
        word, known, scorer=fuzz.ratio, processor=str.casefold, score_cutoff=near
    )
    if found:
        return f"did you mean {found[0]!r}?"
    return "known: " + ", ".join(known)
