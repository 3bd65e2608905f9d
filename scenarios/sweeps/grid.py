"""Grids of a sweep, and its points, the product of all grids' values.

Commas inside quotes, brackets and braces belong to a value: `cluster.nodes=[1, 2],[4, 8]` has two.
All problems are reported at once: first every value is checked on its own; combinations are checked
only if all values are valid.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcsim.errors import InputError, Problem
from gcsim.scenarios.checks.fits import DoesNotFitError
from gcsim.scenarios.load import load_scenario, read_scenario, scenario_of
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.reading.document import read, scalar
from gcsim.scenarios.scenario import Scenario

LARGEST = 100_000  # most points of a sweep

_PLAIN = re.compile(r"\w[\w%./+-]*([ :][\w%./+-]+)*", re.ASCII)
_CLOSING = {"[": "]", "{": "}"}
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\'\'|[^\'])*\'', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of a grid."""

    text: str  # YAML as given
    data: Any  # value of the YAML text


Grid = dict[str, tuple[Value, ...]]  # values by key, as given


def written(data: Any, *, inside: bool = False) -> str:
    """Return a value for tables, CSV and names: YAML, but without quotes around a text."""
    if isinstance(data, list):
        return f"[{', '.join(written(item, inside=True) for item in data)}]"
    if isinstance(data, dict):
        pairs = (f"{written(k, inside=True)}: {written(v, inside=True)}" for k, v in data.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(data, str) and (not inside or (_PLAIN.fullmatch(data) and scalar(data) == data)):
        return data
    return json.dumps(data, ensure_ascii=False)


def read_grid(given: Sequence[str] | Mapping[str, Sequence[Any]]) -> Grid:
    """Read a grid from options (`["KEY=V1,V2"]`) or a mapping of keys to values, in which a text is
    YAML, as in `load_scenario`'s overrides. Raises `InputError` with every syntax error; `points`
    checks keys and values."""
    problems: list[Problem] = []
    grid: Grid = {}
    for key, texts in _entries(given, problems):
        place = f"--grid {key}"
        if key in grid:
            hint = "write all its values after one"
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
        message = f"{size:,} points are too many; at most {LARGEST:,} are allowed"
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
    """Convert a Python value to YAML; a text is already YAML."""
    if isinstance(data, str):
        return data
    try:  # numpy's scalars have `item`
        return json.dumps(
            data, ensure_ascii=False, allow_nan=False, default=lambda value: value.item()
        )
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{data!r} cannot be a value in a scenario") from None


def split(text: str) -> list[str]:
    """Split at commas outside quotes, brackets and braces; `ValueError` if one is not closed."""
    values, start, place, awaited, fresh = [], 0, 0, "", True
    while place < len(text):
        letter, quoted = text[place], _QUOTED.match(text, place)
        if letter in "\"'" and fresh:  # an apostrophe inside a word is no quote
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
            problems.append(Problem(place=f"{place}={text}", message="appears twice"))
        seen.add(same)
        yield Value(text=text, data=data)


_SHOWN = 3  # most problems of one key that are reported
_MANY = 1000  # number of points from which the progress of checking is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A combination of values, and its scenario."""

    values: dict[str, Any]  # values by the grids' keys, in order
    scenario: Scenario
    key: str  # hash of the resolved scenario, under which results are stored
    unfit: DoesNotFitError | None = None  # why it is not run


def named(values: Mapping[str, Any]) -> str:
    """Return the name of a point in messages: `cluster.nodes=8, seed=1`."""
    return ", ".join(f"{key}={written(data)}" for key, data in values.items())


def points(
    source: str | os.PathLike[str],
    grid: Grid,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[Point]:
    """Return all points, the last key changing fastest; `InputError` with every problem."""
    fixed = {assignment.partition("=")[0].strip() for assignment in overrides}
    both = [key for key in grid if key in fixed or (key == "seed" and seed is not None)]
    if both:
        raise InputError(
            Problem(place=f"--grid {key}", message="has one value already", hint="give it once")
            for key in both
        )
    scenarios = _Scenarios(source, grid, overrides, seed)
    first = [values[0] for values in grid.values()]
    known: dict[tuple[str, ...], tuple[Scenario | None, DoesNotFitError | None]] = {}
    for number, alternatives in enumerate(grid.values()):
        for value in alternatives:
            alone = [*first[:number], value, *first[number + 1 :]]
            if (texts := _texts(alone)) not in known:
                known[texts] = scenarios.built(alone)
    scenarios.raise_any()
    found: dict[str, Point] = {}
    size = math.prod(map(len, grid.values()))
    watcher = progress if progress and size >= _MANY else SilentProgress()
    with watcher.task("scenarios", size) as task:
        for chosen in itertools.product(*grid.values()):
            texts = _texts(chosen)
            there = texts in known
            scenario, unfit = known.pop(texts) if there else scenarios.built(chosen)
            task.advance()
            if scenario is None:
                continue
            values = {key: value.data for key, value in zip(grid, chosen, strict=True)}
            text = json.dumps(scenario.resolved, sort_keys=True)
            key = hashlib.sha256(text.encode()).hexdigest()
            if key in found:
                scenarios.same(chosen, found[key])
            found[key] = Point(values=values, scenario=scenario, key=key, unfit=unfit)
    scenarios.raise_any(combined=True)
    return list(found.values())


def _texts(chosen: Sequence[Value]) -> tuple[str, ...]:
    return tuple(value.text for value in chosen)


class _Scenarios:
    """Scenarios of many points, and their problems, of which similar ones are reported once."""

    def __init__(
        self, source: str | os.PathLike[str], grid: Grid, overrides: Sequence[str], seed: int | None
    ) -> None:
        self._source, self._grid, self._overrides, self._seed = source, grid, overrides, seed
        self._found: dict[tuple[str, str, str], list[tuple[Value, ...]]] = {}
        self._tried = 0

    def built(self, chosen: Sequence[Value]) -> tuple[Scenario | None, DoesNotFitError | None]:
        """Build the scenario with the chosen value of every key; None if it has a problem. A
        scenario of which no method fits keeps all methods."""
        self._tried += 1
        pairs = zip(self._grid, chosen, strict=True)
        given = [*self._overrides, *(f"{key}={value.text}" for key, value in pairs)]
        try:
            return load_scenario(self._source, given, self._seed), None
        except DoesNotFitError as error:
            read = read_scenario(self._source)
            return scenario_of(*read, given, self._seed, warn=False, fitting=False), error
        except InputError as error:
            for problem in error.problems:
                self._add(problem, chosen)
        return None, None

    def same(self, chosen: Sequence[Value], other: Point) -> None:
        """Record that two points are the same scenario."""
        message = f"is the same scenario as {named(other.values)}"
        self._add(Problem(place="--set", message=message, hint="leave one of them out"), chosen)

    def _add(self, problem: Problem, chosen: Sequence[Value]) -> None:
        key = (problem.place, problem.message, problem.hint)
        self._found.setdefault(key, []).append(tuple(chosen))

    def raise_any(self, *, combined: bool = False) -> None:
        """Raise `InputError` for problems, of single values or combinations, but at most `_SHOWN`
        of one key."""
        if not self._found:
            return
        number = Counter(place for place, _, _ in self._found)
        shown: Counter[str] = Counter()
        problems = []
        for (place, message, hint), where in self._found.items():
            shown[place] += 1
            left = number[place] - _SHOWN
            if shown[place] > _SHOWN:
                continue
            more = left > 0 and shown[place] == _SHOWN
            text = f"{message} (and {left} more problems of this key)" if more else message
            problem = Problem(place=place, message=text, hint=hint)
            problems.append(self._with_values(problem, where, combined))
        raise InputError(problems)

    def _with_values(
        self, problem: Problem, where: Sequence[Sequence[Value]], combined: bool
    ) -> Problem:
        """Return the problem with its value, or combination of values."""
        place, message = problem.place, problem.message
        if not place.startswith("--set"):
            if len(where) < self._tried:  # in the file, and only with some values
                message += f" (with {self._combination(where[0])})"
        elif combined:
            place = self._combination(where[0])
            message += f" (and so in {len(where) - 1} other points)" if len(where) > 1 else ""
        else:
            place = self._place(place, where)
        return Problem(place=place, message=message, hint=problem.hint)

    def _combination(self, chosen: Sequence[Value]) -> str:
        pairs = zip(self._grid, chosen, strict=True)
        return " ".join(f"--grid {key}={value.text}" for key, value in pairs)

    def _place(self, place: str, where: Sequence[Sequence[Value]]) -> str:
        """Replace `--set` by `--grid`, with the value unless all values of the key are wrong."""
        key = place.removeprefix("--set ")
        if key not in self._grid or key == place:
            return place
        number = list(self._grid).index(key)
        texts = {chosen[number].text for chosen in where}
        alike = len(texts) > 1 and len(texts) == len(self._grid[key])
        return f"--grid {key}" if alike else f"--grid {key}={where[0][number].text}"
