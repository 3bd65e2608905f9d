"""Which points does a sweep have? The product of the values of every grid, checked before any runs.

All problems are reported at once. First every value is tried on its own, which takes the sum of the
grids' lengths, not their product; only when each of them is right the combinations are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcsim.errors import InputError, Problem
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sweeps.grid import Grid, Value, written

MANY = 1000
"""Points whose checking takes seconds, which somebody who waits sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of values, and the scenario that it makes."""

    values: dict[str, Any]
    """By the grids' keys, in their order."""
    scenario: Scenario
    key: str
    """A hash of the resolved scenario: what the point's results are stored under."""


def named(values: Mapping[str, Any]) -> str:
    """The name of a point in messages: `cluster.nodes=8, seed=1`."""
    return ", ".join(f"{key}={written(data)}" for key, data in values.items())


def points(
    source: str | os.PathLike[str],
    grid: Grid,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[Point]:
    """Every point, the last key changing fastest.

    Raises `InputError` with every problem of the scenario, the options and all values.
    """
    fixed = {assignment.partition("=")[0].strip() for assignment in overrides}
    both = [key for key in grid if key in fixed or (key == "seed" and seed is not None)]
    if both:
        raise InputError(
            Problem(place=f"--grid {key}", message="has one value already", hint="give it once")
            for key in both
        )
    faults = _Faults(grid)
    first = [values[0] for values in grid.values()]
    for number, alternatives in enumerate(grid.values()):
        for value in alternatives:
            alone = [*first[:number], value, *first[number + 1 :]]
            faults.trying(source, overrides, seed, alone)
    faults.raise_any()
    found: dict[str, Point] = {}
    size = math.prod(map(len, grid.values()))
    watcher = progress if progress and size >= MANY else SilentProgress()
    with watcher.task("scenarios", size) as task:
        for chosen in itertools.product(*grid.values()):
            scenario = faults.trying(source, overrides, seed, chosen)
            task.advance()
            if scenario is None:
                continue
            values = {key: value.data for key, value in zip(grid, chosen, strict=True)}
            text = json.dumps(scenario.resolved, sort_keys=True)
            key = hashlib.sha256(text.encode()).hexdigest()
            if key in found:
                faults.same(chosen, found[key])
            found[key] = Point(values=values, scenario=scenario, key=key)
    faults.raise_any(combined=True)
    return list(found.values())


class _Faults:
    """Problems of many points that are much alike, each told once."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._found: dict[tuple[str, str, str], list[tuple[Value, ...]]] = {}
        self._tried = 0

    def trying(
        self,
        source: str | os.PathLike[str],
        overrides: Sequence[str],
        seed: int | None,
        chosen: Sequence[Value],
    ) -> Scenario | None:
        """The scenario with the chosen value of every key; None when it has a problem."""
        self._tried += 1
        pairs = zip(self._grid, chosen, strict=True)
        assignments = [f"{key}={value.text}" for key, value in pairs]
        try:
            return load_scenario(source, [*overrides, *assignments], seed)
        except InputError as error:
            for problem in error.problems:
                self._add(problem, chosen)
        return None

    def same(self, chosen: Sequence[Value], other: Point) -> None:
        """Two points that are one scenario."""
        message = f"is the same scenario as {named(other.values)}"
        self._add(Problem(place="--set", message=message, hint="leave one of them out"), chosen)

    def _add(self, problem: Problem, chosen: Sequence[Value]) -> None:
        key = (problem.place, problem.message, problem.hint)
        self._found.setdefault(key, []).append(tuple(chosen))

    def raise_any(self, *, combined: bool = False) -> None:
        """Raise `InputError` when there were problems, of values alone or of combinations."""
        if self._found:
            raise InputError(
                self._told(Problem(place=place, message=message, hint=hint), where, combined)
                for (place, message, hint), where in self._found.items()
            )

    def _told(self, problem: Problem, where: Sequence[Sequence[Value]], combined: bool) -> Problem:
        """The problem as a person reads it: which value, or which combination of values."""
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
        """`--set` becomes `--grid`, with the value unless all values of the key are wrong alike."""
        key = place.removeprefix("--set ")
        if key not in self._grid or key == place:
            return place
        number = list(self._grid).index(key)
        texts = {chosen[number].text for chosen in where}
        alike = len(texts) > 1 and len(texts) == len(self._grid[key])
        return f"--grid {key}" if alike else f"--grid {key}={where[0][number].text}"
