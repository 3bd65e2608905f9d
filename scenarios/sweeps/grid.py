"""How is a grid written? `KEY=V1,V2,...`: the key, and values as `gcsim run --set` takes them.

Commas inside quotes, brackets and braces belong to a value: `cluster.nodes=[1, 2],[4, 8]` are two
values. Whether a key exists and a value is allowed, `sweep_points` says.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcsim.errors import InputError, Problem
from gcsim.scenarios.reading.document import read, scalar

LARGEST = 100_000
"""Points of the largest sweep that is taken on."""

_PLAIN = re.compile(r"\w[\w%./+-]*([ :][\w%./+-]+)*", re.ASCII)
_CLOSING = {"[": "]", "{": "}"}
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\'\'|[^\'])*\'', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of a grid."""

    text: str
    """YAML, as it was given."""
    data: Any
    """What the YAML means."""


Grid = dict[str, tuple[Value, ...]]
"""By key, in the order in which the keys were given."""


def written(data: Any, *, inside: bool = False) -> str:
    """A value as people write it: in tables, in CSV, in the names of points.

    It is YAML; only a text that stands alone is as it is, without quotes.
    """
    if isinstance(data, list):
        return f"[{', '.join(written(item, inside=True) for item in data)}]"
    if isinstance(data, dict):
        pairs = (f"{written(k, inside=True)}: {written(v, inside=True)}" for k, v in data.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(data, str) and (not inside or (_PLAIN.fullmatch(data) and scalar(data) == data)):
        return data
    return json.dumps(data, ensure_ascii=False)


def read_grid(given: Sequence[str] | Mapping[str, Sequence[Any]]) -> Grid:
    """A grid from options (`["KEY=V1,V2"]`) or from a mapping of keys to values.

    In a mapping a text is YAML, as in `load_scenario`'s overrides; anything else stands for itself.
    Raises `InputError` with every problem of the language; whether a key exists and a value is
    allowed, `points` says.
    """
    problems: list[Problem] = []
    grid: Grid = {}
    for key, texts in _entries(given, problems):
        place = f"--grid {key}"
        if key in grid:
            hint = "write all its values behind one"
            problems.append(Problem(place=place, message="is given twice", hint=hint))
        elif not texts:
            problems.append(Problem(place=place, message="has no values"))
        else:
            grid[key] = tuple(_values(place, texts, problems))
    if not grid and not problems:
        message, hint = "nothing to sweep over", "write --grid key=value,value"
        problems.append(Problem(place="--grid", message=message, hint=hint))
    if problems:
        raise InputError(problems)
    size = math.prod(map(len, grid.values()))
    if size > LARGEST:
        message = f"{size:,} points are too many; at most {LARGEST:,} are taken on"
        raise InputError(message, place="--grid")
    return grid


def _entries(
    given: Sequence[str] | Mapping[str, Sequence[Any]], problems: list[Problem]
) -> Iterator[tuple[str, list[str]]]:
    if isinstance(given, Mapping):
        for key, values in given.items():
            try:
                yield key, split(values) if isinstance(values, str) else list(map(_text, values))
            except ValueError as error:
                problems.append(Problem(place=f"--grid {key}", message=str(error)))
        return
    for assignment in given:
        key, equals, text = assignment.partition("=")
        if not equals:
            hint = "write --grid key=value,value"
            problems.append(Problem(place=f"--grid {assignment}", message="no values", hint=hint))
            continue
        try:
            yield key.strip(), split(text)
        except ValueError as error:
            problems.append(Problem(place=f"--grid {key.strip()}", message=str(error)))


def _text(data: Any) -> str:
    """YAML of a Python value; a text is YAML already."""
    if isinstance(data, str):
        return data
    try:  # numpy's scalars have `item`
        return json.dumps(
            data, ensure_ascii=False, allow_nan=False, default=lambda value: value.item()
        )
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{data!r} cannot stand in a scenario") from None


def split(text: str) -> list[str]:
    """The values between the commas that stand outside quotes, brackets and braces.

    Raises `ValueError` for what is not closed.
    """
    values, start, place, awaited, fresh = [], 0, 0, "", True
    while place < len(text):
        letter, quoted = text[place], _QUOTED.match(text, place)
        if letter in "\"'" and fresh:  # an apostrophe inside a word opens nothing
            if quoted is None:
                raise ValueError(f"{letter} is missing at the end of {text.strip()}")
            place, fresh = quoted.end(), False
            continue
        if letter in _CLOSING and (fresh or awaited):
            awaited += _CLOSING[letter]
        elif awaited and letter == awaited[-1]:
            awaited = awaited[:-1]
        elif letter == "," and not awaited:
            values.append(text[start:place].strip())
            start = place + 1
        fresh = letter in ",[{:" or (fresh and letter.isspace())
        place += 1
    if awaited:
        raise ValueError(f"{awaited[-1]} is missing at the end of {text.strip()}")
    return [*values, text[start:].strip()]


def _values(place: str, texts: Iterable[str], problems: list[Problem]) -> Iterator[Value]:
    seen: set[str] = set()
    for text in texts:
        if not text:
            hint = "write null for nothing"
            problems.append(Problem(place=place, message="a value is empty", hint=hint))
            continue
        try:
            data = read(text, f"{place}={text}", position=False).data
        except InputError as error:
            problems.extend(error.problems)
            continue
        try:
            same = json.dumps(data, allow_nan=False)
        except ValueError:
            problems.append(Problem(place=f"{place}={text}", message="must be finite"))
            continue
        if same in seen:
            problems.append(Problem(place=f"{place}={text}", message="stands there twice"))
        seen.add(same)
        yield Value(text=text, data=data)
