"""Measurements of collectives, with ranks, bytes and seconds, and problems in their files.

All formats (`formats.py`) become `Measurement`s with one definition of size:

| collective     | bytes                                              |
|----------------|----------------------------------------------------|
| all_reduce     | of the vector                                      |
| all_gather     | of all ranks' blocks together (as nccl-tests)      |
| reduce_scatter | of the vector before it is scattered               |
| all_to_all     | that one rank hands over, its own part included    |
| send           | of one message from one rank to another            |

A file that measures no collective becomes a `Spread`: the goodput between two hosts, or a latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from gcsim.errors import InputError, Problem

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

C10_TYPES = {
    "Double": ("float64", 8), "Float": ("float32", 4), "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2), "Long": ("int64", 8), "Int": ("int32", 4), "Char": ("int8", 1),
    "Byte": ("uint8", 1),
}  # fmt: skip
"""torch's name and bytes per element, by c10's name."""

C10_COLLECTIVES: dict[str, tuple[Collective, Literal["input", "output"]]] = {
    "allreduce": ("all_reduce", "input"),
    "all_reduce": ("all_reduce", "input"),
    "allreduce_coalesced": ("all_reduce", "input"),
    "all_gather": ("all_gather", "output"),
    "_all_gather_base": ("all_gather", "output"),
    "_allgather_base": ("all_gather", "output"),
    "reduce_scatter": ("reduce_scatter", "input"),
    "_reduce_scatter_base": ("reduce_scatter", "input"),
    "all_to_all": ("all_to_all", "input"),
}
"""Collective, and the tensors that define its size, by c10's name."""

SHOWN = 5  # most wrong lines of a file that are reported
LEAST_SIZES = 3
LARGEST = 1 << 34
"""16 GiB: no benchmark sends more at once, and a fit simulates every one of Gloo's segments."""
MOST_RANKS = 100_000
LONGEST_S = 86_400  # a day
THIS_MACHINE = ("127.", "::1", "localhost")  # prefixes of addresses that need no network
_LONGEST = 200  # most characters that messages repeat from a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measured time, from a line of a file."""

    collective: Collective
    ranks: int
    devices_per_node: int = 1  # ranks per machine; if it is all ranks, no network was measured
    nbytes: int  # size as defined in the table above
    seconds: float
    element: int = 4  # bytes per element of a reduced vector
    dtype: str = "float32"  # type of the elements, by torch's name
    algorithm: str = "textbook"  # an algorithm, or a transport that chooses one
    place: str  # `file:line`, or the file and an entry of its JSON
    call: str = ""  # identifies the training's collective in files of several ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A directly measured figure, and its range."""

    value: float
    low: float
    high: float
    how: str  # kind of figure and of sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Content of a file."""

    file: str
    tool: str  # program that wrote it, with the version if stated
    measurements: tuple[Measurement, ...] = ()
    goodput: Spread | None = None  # bytes per second of long messages between two hosts
    latency: Spread | None = None  # seconds between two hosts, one way
    line_rate: float | None = None  # bytes per second of the network NIC, if stated
    device: str = ""  # GPU's name by its driver, if stated
    notes: tuple[str, ...] = ()  # notes that the report shows
    placed: bool = True  # whether it shows the ranks of each machine, or the format has one on each


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Facts stated by the user, which replace or complete those of a file."""

    ranks: tuple[int, ...] = ()  # select only these; or the number, if a file has none
    devices_per_node: int | None = None
    collective: Collective | None = None  # for files that do not name it
    algorithm: str | None = None


@dataclass(slots=True)
class Mistakes:
    """Problems of a file, of which only the first few are reported."""

    name: str
    found: list[Problem] = field(default_factory=list)

    def add(self, line: int, message: str, hint: str = "") -> None:
        """Add a problem in a line, counted from 1."""
        self.at(f"{self.name}:{line}", message, hint)

    def at(self, place: str, message: str, hint: str = "") -> None:
        """Add a problem at another place, such as a JSON entry."""
        self.found.append(Problem(place=place, message=message, hint=hint))

    def raise_any(self) -> None:
        """Raise `InputError` if there are any problems."""
        if not self.found:
            return
        more = len(self.found) - SHOWN
        if more > 1:
            left = Problem(place=self.found[SHOWN].place, message=f"and {more} lines more")
            raise InputError([*self.found[:SHOWN], left])
        raise InputError(self.found)


def as_collective(word: str) -> Collective | None:
    """Return the collective of a tool's word: `AllReduce`, `all-reduce` and `allreduce` are one."""
    plain = word.lower().replace("-", "").replace("_", "").replace(" ", "")
    for known in COLLECTIVES:
        if known.replace("_", "") == plain:
            return known
    return None


FAILED = "the test's own check failed"
MEASURE_AGAIN = "times of wrong results mean nothing: fix the cause and measure again"


def refused_table(place: str, wanted: Iterable[str], found: Iterable[str]) -> InputError:
    """Return the error for a table that lacks headings."""
    had = ", ".join(word for word in found if word)[:_LONGEST] or "none"
    message = f"the table needs the headings {', '.join(wanted)}; found: {had}"
    return InputError(message, place=place)


def unknown_collective(word: str) -> tuple[str, str]:
    """Return message and hint for a collective that gcsim does not simulate."""
    return (
        f"{word!r:.40} is not a collective that gcsim simulates",
        f"known: {', '.join(COLLECTIVES)}; leave the others out",
    )


def number(text: str) -> float | None:
    """Return a finite decimal number as tools print it; else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and text.isascii() and "_" not in text else None
