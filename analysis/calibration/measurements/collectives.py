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
"""torch's name and element bytes by c10's name."""

SHOWN = 5  # wrong lines of a file named one by one
LEAST_SIZES = 3
LARGEST = 1 << 34
"""16 GiB: no benchmark sends more at once, and a fit simulates each of Gloo's segments."""
MOST_RANKS = 100_000
LONGEST_S = 86_400  # a day
THIS_MACHINE = ("127.", "::1", "localhost")  # prefixes of addresses that use no network
_LONGEST = 200  # characters repeated from a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Line of a file."""

    collective: Collective
    ranks: int
    devices_per_node: int = 1  # ranks of a machine; if all, no network was measured
    nbytes: int  # bytes, as in the table above
    seconds: float
    element: int = 4  # bytes per element of a reduced vector
    dtype: str = "float32"  # their type, by torch's name
    algorithm: str = "textbook"  # transport, which chooses, or algorithm
    place: str  # `file:line`, or the file and an entry of its JSON
    call: str = ""  # number of the training's collective, in files by rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Directly measured figure, and its range."""

    value: float
    low: float
    high: float
    how: str  # kind and sample of the figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Contents of a file."""

    file: str
    tool: str  # program that wrote it, with version if stated
    measurements: tuple[Measurement, ...] = ()
    goodput: Spread | None = None  # bytes per second of long messages between two hosts
    latency: Spread | None = None  # seconds between two hosts, one way
    line_rate: float | None = None  # bytes per second of the network NIC, if stated
    device: str = ""  # GPU's name by its driver, if stated
    notes: tuple[str, ...] = ()  # notes for a reader of the fit
    placed: bool = True  # whether the file tells ranks of a machine, or its form has one on each


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """User's statements in place of, or beside, a file's."""

    ranks: tuple[int, ...] = ()  # only these; the number where a file has none
    devices_per_node: int | None = None
    collective: Collective | None = None  # for files that name none
    algorithm: str | None = None


@dataclass(slots=True)
class Mistakes:
    """Problems of a file, the first few told one by one."""

    name: str
    found: list[Problem] = field(default_factory=list)

    def add(self, line: int, message: str, hint: str = "") -> None:
        """Add a problem of a line, counted from 1."""
        self.at(f"{self.name}:{line}", message, hint)

    def at(self, place: str, message: str, hint: str = "") -> None:
        """Add a problem of a JSON entry."""
        self.found.append(Problem(place=place, message=message, hint=hint))

    def raise_any(self) -> None:
        """Raise `InputError` if there are any."""
        if not self.found:
            return
        more = len(self.found) - SHOWN
        if more > 1:
            left = Problem(place=self.found[SHOWN].place, message=f"and {more} lines more")
            raise InputError([*self.found[:SHOWN], left])
        raise InputError(self.found)


def as_collective(word: str) -> Collective | None:
    """A tool's collective: `AllReduce`, `all-reduce` and `allreduce` are one."""
    plain = word.lower().replace("-", "").replace("_", "").replace(" ", "")
    for known in COLLECTIVES:
        if known.replace("_", "") == plain:
            return known
    return None


FAILED = "the test's own check failed"
MEASURE_AGAIN = "times of wrong results mean nothing: fix the cause and measure again"


def refused_table(place: str, wanted: Iterable[str], found: Iterable[str]) -> InputError:
    """Error for a table that lacks headings."""
    had = ", ".join(word for word in found if word)[:_LONGEST] or "none"
    message = f"the table needs the headings {', '.join(wanted)}; found: {had}"
    return InputError(message, place=place)


def unknown_collective(word: str) -> tuple[str, str]:
    """Message and hint for a collective that gcsim does not simulate."""
    return (
        f"{word!r:.40} is not a collective that gcsim simulates",
        f"known: {', '.join(COLLECTIVES)}; leave the others out",
    )


def number(text: str) -> float | None:
    """Finite decimal number as tools print it; else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    finite = value == value and value not in (float("inf"), float("-inf"))  # noqa: PLR0124
    return value if finite and text.isascii() and "_" not in text else None
