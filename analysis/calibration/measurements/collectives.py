"""Measured collectives: ranks, bytes and seconds of each.

All formats (`formats.py`) become `Measurement`s in one convention of sizes:

| collective     | bytes                                              |
|----------------|----------------------------------------------------|
| all_reduce     | of the vector                                      |
| all_gather     | of all ranks' blocks together (as nccl-tests)      |
| reduce_scatter | of the vector before it is scattered               |
| all_to_all     | that one rank hands over, its own part included    |
| send           | of one message from one rank to another            |

What measures no collective becomes a `Spread`: the goodput between two hosts, or a latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gcsim.errors import InputError, Problem

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

C10_TYPES = {
    "Double": ("float64", 8), "Float": ("float32", 4), "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2), "Long": ("int64", 8), "Int": ("int32", 4), "Char": ("int8", 1),
    "Byte": ("uint8", 1),
}  # fmt: skip
"""torch's name and bytes of an element, by c10's."""

SHOWN = 5
"""Wrong lines of a file that are named one by one."""
LEAST_SIZES = 3
LARGEST = 1 << 34
"""Bytes, 16 GiB: no benchmark sends more at once, and a fit simulates each of Gloo's segments."""
MOST_RANKS = 100_000
LONGEST_S = 86_400
"""A day."""
THIS_MACHINE = ("127.", "::1", "localhost")
"""Prefixes of addresses that no network leads to."""
_LONGEST = 200
"""Characters of what is repeated of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One line of a file."""

    collective: Collective
    ranks: int
    devices_per_node: int = 1
    """Ranks that share a machine; all of them: no network was measured."""
    nbytes: int
    """Bytes, counted as in the table above."""
    seconds: float
    element: int = 4
    """Bytes an element of a vector that is reduced."""
    dtype: str = "float32"
    """Type of these elements, by torch's name."""
    algorithm: str = "textbook"
    """A transport, which chooses, or an algorithm, by gcsim's names."""
    place: str
    """`file:line`, or the file and an entry of its JSON."""
    call: str = ""
    """Number of the training's collective, where each rank wrote a file of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure that was measured itself, and between which values it lies."""

    value: float
    low: float
    high: float
    how: str
    """Kind and sample of the figure, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Contents of one file."""

    file: str
    tool: str
    """Program that made it, with its version where it states one."""
    measurements: tuple[Measurement, ...] = ()
    goodput: Spread | None = None
    """Bytes per second of long messages from one host to another."""
    latency: Spread | None = None
    """Seconds from one host to another, one way."""
    line_rate: float | None = None
    """Bytes per second, where the file states what the network NIC can do."""
    device: str = ""
    """Name of the GPU, as its driver gives it, where the file states it."""
    notes: tuple[str, ...] = ()
    """Notes for a reader of the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """User's statements that replace or complete those of a file."""

    ranks: tuple[int, ...] = ()
    """Only these; where a file does not say, the one number that it is."""
    devices_per_node: int | None = None
    collective: Collective | None = None
    """Collective of files that do not name one."""
    algorithm: str | None = None


Parser = Callable[[str, Any, Stated], Reading]
"""From the name of a file and its content: text, or what its JSON holds. Raises `InputError` with
`file:line` of each mistake."""


@dataclass(slots=True)
class Mistakes:
    """Problems of one file, of which the first few are told one by one."""

    name: str
    found: list[Problem] = field(default_factory=list)

    def add(self, line: int, message: str, hint: str = "") -> None:
        """A problem of a line, counted from 1."""
        self.at(f"{self.name}:{line}", message, hint)

    def at(self, place: str, message: str, hint: str = "") -> None:
        """A problem of a place that is no line: an entry of a JSON file."""
        self.found.append(Problem(place=place, message=message, hint=hint))

    def raise_any(self) -> None:
        """Raise `InputError` when there were any."""
        if not self.found:
            return
        more = len(self.found) - SHOWN
        if more > 1:
            left = Problem(place=self.found[SHOWN].place, message=f"and {more} lines more")
            raise InputError([*self.found[:SHOWN], left])
        raise InputError(self.found)


def as_collective(word: str) -> Collective | None:
    """The collective that a tool means: `AllReduce`, `all-reduce` and `allreduce` are one."""
    plain = word.lower().replace("-", "").replace("_", "").replace(" ", "")
    for known in COLLECTIVES:
        if known.replace("_", "") == plain:
            return known
    return None


FAILED = "the test's own check failed"
MEASURE_AGAIN = "times of wrong results are no measurement: mend the cause and measure again"


def refused_table(place: str, wanted: Iterable[str], found: Iterable[str]) -> InputError:
    """The error for a table that lacks headings, with those that are wanted and those it has."""
    had = ", ".join(word for word in found if word)[:_LONGEST] or "none"
    message = f"the table needs the headings {', '.join(wanted)}; found: {had}"
    return InputError(message, place=place)


def unknown_collective(word: str) -> tuple[str, str]:
    """Message and hint for a collective that gcsim does not simulate."""
    return (
        f"{word!r:.40} is no collective that gcsim simulates",
        f"known: {', '.join(COLLECTIVES)}; leave the others out",
    )


def number(text: str) -> float | None:
    """A finite decimal number, as tools print it; else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    finite = value == value and value not in (float("inf"), float("-inf"))  # noqa: PLR0124
    return value if finite and text.isascii() and "_" not in text else None
