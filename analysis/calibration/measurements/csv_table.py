"""Reader of measured collectives in CSV.

    # backend: gloo                      '#' lines are comments; the keys below are read
    # devices_per_node: 1
    # line_rate: 10 Gbit/s
    # device: NVIDIA H100 80GB HBM3     as the driver names it
    collective,ranks,bytes,seconds
    all_reduce,4,1048576,0.0031

Columns in any order, also `devices_per_node` and `dtype` (torch's names, default float32). Sizes:
`measurements/collectives.py`.
"""

from __future__ import annotations

import csv
import io
import re

from gcsim import units
from gcsim.analysis.calibration.measurements import collectives
from gcsim.errors import InputError, Problem, did_you_mean

COLUMNS = ("collective", "ranks", "bytes", "seconds")
_OPTIONAL = ("devices_per_node", "dtype")
HEADINGS = re.compile(
    rf"(?<![\w,])(?:(?:{'|'.join((*COLUMNS, *_OPTIONAL))})[ \t]*,[ \t]*){{2,}}", re.IGNORECASE
)
ELEMENTS = dict(collectives.C10_TYPES.values())
"""Bytes per element of the supported types."""


def recognised(text: str) -> bool:
    """Whether the first line that is not a comment is such a header."""
    header = next((line for line in text.splitlines() if _counts(line)), "")
    words = {word.strip().lower() for word in header.split(",")}
    return len(words & set(COLUMNS)) >= 3


def parse(name: str, text: str, stated: collectives.Stated) -> collectives.Reading:
    """Read a CSV; raises `InputError` with every wrong line (the first few)."""
    facts = _facts(text)
    lines = [(count, line) for count, line in enumerate(text.splitlines(), 1) if _counts(line)]
    if not lines:
        raise InputError("is empty", place=name, hint=f"begin with the header {','.join(COLUMNS)}")
    header = _header(name, *lines[0])
    mistakes = collectives.Mistakes(name)
    found: list[collectives.Measurement] = []
    for count, line in lines[1:]:
        cells = [cell.strip() for cell in next(csv.reader(io.StringIO(line)))]
        if len(cells) != len(header):
            message = f"has {len(cells)} values, the header {len(header)}"
            mistakes.add(count, message, "is the line cut off?")
            continue
        row = dict(zip(header, cells, strict=True))
        row.setdefault("devices_per_node", facts.get("devices_per_node", "1"))
        row.setdefault("dtype", "float32")
        point = _point(row, count, mistakes, facts.get("backend", "textbook"))
        if point is not None:
            found.append(point)
    mistakes.raise_any()
    rate = facts.get("line_rate")
    return collectives.Reading(
        file=name,
        tool=facts.get("tool", "CSV"),
        device=facts.get("device", ""),
        measurements=tuple(found),
        line_rate=None if rate is None else float(units.parse(rate, "bandwidth")),
    )


def _point(
    row: dict[str, str], line: int, mistakes: collectives.Mistakes, algorithm: str
) -> collectives.Measurement | None:
    collective = collectives.as_collective(row["collective"])
    if collective is None:
        mistakes.add(line, *collectives.unknown_collective(row["collective"]))
        return None
    ranks = _whole(row["ranks"], 2)
    nbytes = _whole(row["bytes"], 1)
    each = _whole(row["devices_per_node"], 1)
    seconds = collectives.number(row["seconds"])
    if row["dtype"] not in ELEMENTS:
        hint = did_you_mean(row["dtype"], ELEMENTS)
        mistakes.add(line, f"dtype: {row['dtype']!r:.30} is not a type of all-reduces", hint)
        return None
    if ranks is None:
        mistakes.add(line, f"ranks: {row['ranks']!r:.30} is not a number of ranks (2 or more)")
    elif each is None:
        mistakes.add(line, f"{row['devices_per_node']!r:.30} is not a number of devices")
    if nbytes is None:
        mistakes.add(line, f"bytes: {row['bytes']!r:.30} is not a number of bytes (1 or more)")
    if seconds is None:
        mistakes.add(line, f"seconds: {row['seconds']!r:.30} is not a number")
    elif seconds <= 0:
        mistakes.add(line, f"a time of {row['seconds']} s", "times are positive")
    elif ranks and nbytes and each:
        return collectives.Measurement(
            collective=collective,
            ranks=ranks,
            devices_per_node=each,
            nbytes=nbytes,
            seconds=seconds,
            element=ELEMENTS[row["dtype"]],
            dtype=row["dtype"],
            algorithm=algorithm,
            place=f"{mistakes.name}:{line}",
        )
    return None


def _facts(text: str) -> dict[str, str]:
    """Return the values of `# key: value` lines."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.lstrip("# ").partition(":")
        if line.startswith("#") and colon and key.strip().isidentifier():
            found.setdefault(key.strip().lower(), value.strip())
    if not found.get("devices_per_node", "1").isdigit():
        del found["devices_per_node"]
    return found


def _counts(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _header(name: str, line: int, text: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",")]
    place = f"{name}:{line}"
    if not set(COLUMNS) <= set(words):
        raise collectives.refused_table(place, COLUMNS, words)
    problems: list[Problem] = []
    known = (*COLUMNS, *_OPTIONAL)
    problems += [
        Problem(place=place, message=f"unknown column {word!r:.40}", hint=did_you_mean(word, known))
        for word in words
        if word not in known
    ]
    if not problems and len(set(words)) < len(words):
        problems.append(Problem(place=place, message="a column appears twice"))
    if problems:
        raise InputError(problems)
    return words


def _whole(text: str, least: int) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        return None
    return int(text) if least <= int(text) else None
