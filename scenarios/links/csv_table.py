"""CSV files with a rate that changes over time, and their faults.

A header `seconds,UNIT` (`RATE_UNITS`), then a row per change; empty lines and those with # are
skipped. Numbers are exact; mistakes name their line.

    seconds,mbit_per_second
    0,50.5
    1,20
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios.reading.document import read_text

RATE_UNITS: Mapping[str, Fraction] = {
    f"{prefix}{unit}_per_second": Fraction(factor, per_byte)
    for unit, per_byte in (("bit", 8), ("byte", 1))
    for prefix, factor in (("", 1), ("k", 10**3), ("m", 10**6), ("g", 10**9))
}
"""Second column of the header, and bytes per second of 1 of it."""

MOST_POINTS = 10_000

Row = TypeVar("Row")
Point = tuple[Fraction, Fraction]  # seconds, and bytes per second from then on

_SHOWN = 5  # most wrong rows to name: a wrong separator makes all wrong
_NUMBER = re.compile(r"(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})(?:[eE][+-]?\d{1,2})?", re.ASCII)
_SMALLEST, _LARGEST = Fraction(1, 10**12), 10**15


def shown(path: Path) -> str:
    """Return the path for a message, relative if that is shorter."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def read_rows(
    path: Path, name: str, header: Callable[[int, str], Callable[[str], Row]], *, most: int,
    hints: tuple[str, str], what: str, too_many: str = "",
) -> list[tuple[str, Row]]:  # fmt: skip
    """Rows of a table with their places, except empty lines and those with #. `header` turns the
    first line into a reader of rows, which raises `ValueError`, or `InputError` without a place;
    `hints` are for the header and a row; `what`: content of rows. Raises `InputError` with the
    mistakes."""
    lines = [
        (number, line.strip())
        for number, line in enumerate(read_text(path, name).splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise InputError("is empty", place=name, hint=hints[0])
    read = header(*lines[0])
    if len(lines) == 1:
        raise InputError(f"has a header and no {what}", place=name, hint=hints[1])
    if len(lines) - 1 > most:
        message = f"has {len(lines) - 1:,} {what}; {most:,} are allowed"
        raise InputError(message, place=name, hint=too_many)
    rows: list[tuple[str, Row]] = []
    problems: list[Problem] = []
    for number, line in lines[1:]:
        place = f"{name}:{number}"
        try:
            rows.append((place, read(line)))
        except ValueError as error:
            problems.append(Problem(place=place, message=str(error), hint=hints[1]))
        except InputError as error:
            problems += [replace(one, place=place) for one in error.problems]
    if problems:
        raise InputError(few(problems))
    return rows


def few(problems: list[Problem]) -> list[Problem]:
    """Return the first problems only: a wrong separator makes all rows wrong."""
    if len(problems) <= _SHOWN:
        return problems
    left = f"and {len(problems) - _SHOWN:,} more of the rows"
    return [*problems[:_SHOWN], Problem(place=problems[_SHOWN].place, message=left)]


def read_points(path: Path) -> list[tuple[str, Point]]:
    """Read the points of a file with their places; raises `InputError` with all mistakes: no file,
    too large, no header, a row other than a time and a rate, a negative number."""
    name = shown(path)

    def header(number: int, line: str) -> Callable[[str], Point]:
        unit = _unit(name, number, line)
        return lambda row: _row(row, unit)

    hints = (_header_hint(), "a row is a time in seconds, a comma and a rate, such as 1.5,20")
    too_many = "average over longer intervals"
    return read_rows(
        path, name, header, most=MOST_POINTS, hints=hints, what="rates", too_many=too_many
    )


def _unit(name: str, number: int, header: str) -> Fraction:
    time, comma, rate = (part.strip().lower() for part in header.partition(","))
    if comma and time == "seconds" and rate in RATE_UNITS:
        return RATE_UNITS[rate]
    hint = _header_hint()
    if time == "seconds" and comma:
        hint = did_you_mean(rate, RATE_UNITS)
    message = f"{header!r:.60} is not the header seconds,UNIT"
    raise InputError(message, place=f"{name}:{number}", hint=hint)


def _header_hint() -> str:
    return f"begin with seconds,mbit_per_second; units: {', '.join(RATE_UNITS)}"


def _row(row: str, unit: Fraction) -> Point:
    cells = [cell.strip() for cell in row.split(",")]
    if len(cells) != 2:
        raise ValueError(f"{row!r:.60} has {len(cells)} values, not 2")
    for cell in cells:
        if cell.startswith("-") and _NUMBER.fullmatch(cell[1:]):
            raise ValueError(f"{cell:.40} is negative")
        if not _NUMBER.fullmatch(cell):
            raise ValueError(f"{cell!r:.40} is not a number")
    time, rate = map(Fraction, cells)
    for cell, number in zip(cells, (time, rate), strict=True):
        if number != 0 and not _SMALLEST <= number <= _LARGEST:
            raise ValueError(f"{cell:.40} is neither 0 nor between 1e-12 and 1e15")
    return time, rate * unit
