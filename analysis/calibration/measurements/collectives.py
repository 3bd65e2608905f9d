"""Which collectives were measured, on how many ranks, of how many bytes, in how many seconds?

Three formats are read, each in a file of its own: what nccl-tests prints, what Gloo's benchmark
prints, and a CSV. All of them become `Measurement`s in one convention of sizes:

| collective     | bytes                                              |
|----------------|----------------------------------------------------|
| all_reduce     | of the vector                                      |
| all_gather     | of all ranks' blocks together (as nccl-tests)      |
| reduce_scatter | of the vector before it is scattered               |
| all_to_all     | that one rank hands over, its own part included    |
| send           | of one message from one rank to another            |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from gcsim.errors import InputError, Problem
from gcsim.scenarios.reading.document import read_text

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

SHOWN = 5
"""Wrong lines of a file that are named one by one."""
LEAST_SIZES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One line of a file."""

    collective: Collective
    ranks: int
    devices_per_node: int = 1
    """Ranks that share a machine; all of them: no network was measured."""
    nbytes: int
    """As the table above counts them."""
    seconds: float
    element: int = 4
    """Bytes an element of a vector that is reduced."""
    dtype: str = "float32"
    """Type of these elements, by torch's name."""
    algorithm: str = "textbook"
    """A transport, which chooses, or an algorithm, by gcsim's names."""
    place: str
    """`file:line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one file says."""

    file: str
    tool: str
    """What made it, with its version where it says one."""
    measurements: tuple[Measurement, ...]
    line_rate: float | None = None
    """Bytes per second, where the file states what the network card can do."""
    notes: tuple[str, ...] = ()
    """What a reader of the fit should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What the user says in the place of, or beside, what a file says."""

    ranks: tuple[int, ...] = ()
    """Only these; where a file does not say, the one number that it is."""
    devices_per_node: int | None = None
    collective: Collective | None = None
    """Of files that do not say."""
    algorithm: str | None = None


Parser = Callable[[str, str, Stated], Reading]
"""From the name of a file and its text. Raises `InputError` with `file:line` of each mistake."""


@dataclass(slots=True)
class Mistakes:
    """Problems of one file, of which the first few are told one by one."""

    name: str
    found: list[Problem] = field(default_factory=list)

    def add(self, line: int, message: str, hint: str = "") -> None:
        """A problem of a line, counted from 1."""
        self.found.append(Problem(place=f"{self.name}:{line}", message=message, hint=hint))

    def raise_any(self) -> None:
        """Raise `InputError` when there were any."""
        if not self.found:
            return
        more = len(self.found) - SHOWN
        if more > 1:
            left = Problem(place=self.found[SHOWN].place, message=f"and {more} lines more")
            raise InputError([*self.found[:SHOWN], left])
        raise InputError(self.found)


def formats() -> Mapping[str, tuple[Callable[[str], bool], Parser]]:
    """By name: whether a text is of that format, and its parser. A new format is a line here."""
    from gcsim.analysis.calibration.measurements import csv_table as plain
    from gcsim.analysis.calibration.measurements import gloo_log as gloo
    from gcsim.analysis.calibration.measurements import nccl_tests as nccl

    return {
        "nccl-tests": (nccl.recognised, nccl.parse),
        "gloo": (gloo.recognised, gloo.parse),
        "csv": (plain.recognised, plain.parse),
    }


def read(
    files: Sequence[Path], file_format: str = "auto", stated: Stated | None = None
) -> list[Reading]:
    """Every file's measurements, those of `stated.ranks` only.

    Raises `InputError` for a file of no known format, for lines that are cut off or whose time is
    not positive (with file and line), for different numbers of ranks of which none was selected,
    for collectives that are not known, and for fewer than three sizes.
    """
    stated = stated or Stated()
    problems: list[Problem] = []
    readings: list[Reading] = []
    for path in files:
        try:
            readings.append(_read(path, file_format, stated))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return _selected(readings, stated)


def _read(path: Path, file_format: str, stated: Stated) -> Reading:
    text = read_text(path, str(path))
    known = formats()
    if file_format == "auto":
        fitting = [name for name, (recognised, _) in known.items() if recognised(text)]
        if not fitting:
            message = "is of no known format"
            hint = (
                "known: what nccl-tests prints (with its '# nThread ...' line and its headings), "
                "what Gloo's benchmark prints, and CSV with the header "
                "collective,ranks,bytes,seconds"
            )
            raise InputError(Problem(place=str(path), message=message, hint=hint))
        file_format = fitting[0]
    return known[file_format][1](str(path), text, stated)


def _selected(readings: Sequence[Reading], stated: Stated) -> list[Reading]:
    points = [point for reading in readings for point in reading.measurements]
    counts: dict[int, str] = {}
    for point in points:
        counts.setdefault(point.ranks, point.place)
    if stated.ranks:
        missing = [count for count in stated.ranks if count not in counts]
        if missing and counts:
            message = f"nothing was measured on {_listed(missing)} ranks"
            hint = f"there are measurements on {_listed(sorted(counts))}"
            raise InputError(Problem(place="--ranks", message=message, hint=hint))
    elif len(counts) > 1:
        where = ", ".join(f"{count} at {place}" for count, place in sorted(counts.items()))
        raise InputError(
            Problem(
                place=next(iter(counts.values())),
                message=f"different numbers of ranks were measured: {where}",
                hint=f"select one with --ranks {max(counts)}; "
                "given several times, --ranks fits one link to all of those",
            )
        )
    kept = []
    for reading in readings:
        chosen = tuple(
            point
            for point in reading.measurements
            if not stated.ranks or point.ranks in stated.ranks
        )
        if chosen:
            kept.append(replace(reading, measurements=chosen))
    sizes = {point.nbytes for reading in kept for point in reading.measurements}
    if len(sizes) < LEAST_SIZES:
        files = ", ".join(reading.file for reading in readings) or "the files"
        raise InputError(
            Problem(
                place=files,
                message=f"{len(sizes)} different sizes were measured; a fit needs {LEAST_SIZES}",
                hint="measure from a few kilobytes to some hundred megabytes",
            )
        )
    return kept


def as_collective(word: str) -> Collective | None:
    """The collective that a tool means: `AllReduce`, `all-reduce` and `allreduce` are one."""
    plain = word.lower().replace("-", "").replace("_", "").replace(" ", "")
    for known in COLLECTIVES:
        if known.replace("_", "") == plain:
            return known
    return None


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


def _listed(counts: Iterable[int]) -> str:
    return ", ".join(str(count) for count in counts)
