"""Worlds: joint random draws of all uncertain inputs of a scenario.

The N draws are a Latin hypercube (McKay, Beckman and Conover 1979, Technometrics 21(2)): the range
of each input, logarithmic for positive figures, is cut into N parts of equal probability, each of
which has one draw. An input's draws depend only on the seed and its name, not on other inputs.

If N is a square, each of the `FACTORS` together with any other input is stratified as well: of
sqrt(N) by sqrt(N) cells of equal probability each has one draw. The factors are rows and columns of
a random Latin square of the other input's levels (Tang 1993, "Orthogonal array-based Latin
hypercubes").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import isnan, isqrt
from typing import Any, overload
from zlib import crc32

import numpy as np

from gcsim.scenarios.uncertainty.figures import (
    Column,
    Input,
    KeyPath,
    is_of_device,
    passes_path,
    values,
)
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.training import Training

World = Mapping[str, float]
"""Slowness of inputs, 0 to 1, by name; an input that is absent has its stated value."""
FACTORS = "measured steps over predicted ones", "measured gains of compression over predicted ones"
"""Names of the factors common to all methods, and to all compressors (`discrepancy.py`)."""


class Worlds(Sequence[World]):
    """A sequence of worlds, stored as one array per input."""

    def __init__(self, columns: Mapping[str, Column], count: int) -> None:
        """`columns`: slowness by input and world; NaN: the stated value."""
        self._columns, self._count = columns, count
        self._values: dict[int, tuple[Input, tuple[Column, ...]]] = {}  # by identity

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> World: ...
    @overload
    def __getitem__(self, number: slice) -> Worlds: ...
    def __getitem__(self, number: int | slice) -> World | Worlds:
        if isinstance(number, slice):
            columns = {name: column[number] for name, column in self._columns.items()}
            return Worlds(columns, len(range(self._count)[number]))
        own = {name: float(column[number]) for name, column in self._columns.items()}
        return {name: slow for name, slow in own.items() if not isnan(slow)}

    def twice(self) -> Worlds:
        """Return these worlds, then all of them again."""
        columns = {name: np.tile(column, 2) for name, column in self._columns.items()}
        return Worlds(columns, 2 * self._count)

    def with_stated(self, inputs: Sequence[Input]) -> Worlds:
        """Return the stated world, then these, then for each input one that changes only it."""
        first = 1 + self._count
        columns = {
            name: np.concatenate(([np.nan], column, np.full(len(inputs), np.nan)))
            for name, column in self._columns.items()
        }
        for place, one in enumerate(inputs, first):
            columns.setdefault(one.name, np.full(first + len(inputs), np.nan))
            columns[one.name][place] = one.main.far
        return Worlds(columns, first + len(inputs))

    def slowness(self, one: Input) -> Column:
        """Return an input's slowness by world; NaN: the stated value."""
        known = self._columns.get(one.name)
        return np.full(self._count, np.nan) if known is None else known

    def values(self, inputs: Sequence[Input]) -> list[tuple[Column, ...]]:
        """Return the values of the inputs' figures by world, cached."""
        new = [one for one in inputs if id(one) not in self._values]
        if new:
            slow = np.stack([self.slowness(one) for one in new for _ in one.figures])
            columns = iter(values([figure for one in new for figure in one.figures], slow))
            for one in new:
                self._values[id(one)] = one, tuple(next(columns) for _ in one.figures)
        return [self._values[id(one)][1] for one in inputs]

    def coordinates(self, inputs: Sequence[Input]) -> Column:
        """Return coordinates `[worlds, inputs]`, linear in times and reciprocals of rates: 0 at the
        stated value, 1 at the farther end."""
        found = np.zeros((self._count, len(inputs)))
        for number, (one, columns) in enumerate(zip(inputs, self.values(inputs), strict=True)):
            figure, drawn = one.main, columns[0]
            times = np.array([float(figure.stated), float(figure.exactly(figure.far))])
            if figure.rate:
                times, drawn = 1 / times, 1 / drawn
            found[:, number] = (drawn - times[0]) / (times[1] - times[0])
        return found

    def passes(self, inputs: Sequence[Input], group: int = 0) -> Column:
        """Return the factor on the stated passes of a group, by world."""
        for one in inputs:
            if one.main.key_path == passes_path(group):
                slow, stated = self.slowness(one), float(one.main.stated)
                return np.where(np.isnan(slow), 1.0, one.main.at(slow) / stated)
        return np.ones(self._count)


def draw(inputs: Sequence[Input], count: int, seed: int) -> Worlds:
    """Draw `count` worlds."""
    return Worlds({one.name: _drawn(one.name, count, seed) for one in inputs}, count)


@lru_cache(maxsize=1 << 10)
def _drawn(name: str, count: int, seed: int) -> Column:
    """Return the slowness of an input by draw, cached for all points of a sweep."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    part, side = rng.permutation(count), isqrt(count)
    if side >= 8 and side * side == count:  # with a smaller square, inputs would share levels
        row, column = (rng.permutation(side)[each] for each in np.divmod(np.arange(count), side))
        level = dict(zip(FACTORS, (row, column), strict=True)).get(name, (row + column) % side)
        part = np.argsort(np.lexsort((part, rng.permutation(side)[level])))
    drawn: Column = (part + rng.random(count)) / count
    return drawn


def moves_links(one: Input) -> bool:
    """Whether an input belongs to links, hosts or sums, and so may change collectives."""
    return one.main.key_path[0] == "cluster" and not is_of_device(one.main.key_path)


def cluster_in(world: World, cluster: Cluster, inputs: Sequence[Input]) -> Cluster:
    """Return the cluster in a world, device included."""
    changed: Cluster = _put(cluster, "cluster", world, inputs)
    return changed


def training_in(world: World, training: Training, inputs: Sequence[Input]) -> Training:
    """Return the training in a world."""
    changed: Training = _put(training, "training", world, inputs)
    return changed


def _put(value: Any, root: str, world: World, inputs: Sequence[Input]) -> Any:
    """Return a value with the drawn figures, whose ranges are removed."""
    changes: dict[KeyPath, dict[str, Any]] = {}
    for one in inputs:
        for figure in one.figures if one.name in world else ():
            if figure.key_path[0] == root:
                drawn, slow = changes.setdefault(figure.key_path[1:], {}), world[one.name]
                drawn |= {figure.field: figure.exactly(slow), f"{figure.field}_range": None}
    return _changed(value, changes) if changes else value


def _changed(value: Any, changes: Mapping[KeyPath, Mapping[str, Any]]) -> Any:
    """Replace fields of a nested value; each dataclass is rebuilt only once."""
    below: dict[Any, dict[KeyPath, Mapping[str, Any]]] = {}
    for key_path, drawn in changes.items():
        if key_path:
            below.setdefault(key_path[0], {})[key_path[1:]] = drawn
    if isinstance(value, Mapping):  # this size may lack the node
        inner = {key: _changed(value[key], more) for key, more in below.items() if key in value}
        return {**value, **inner}
    if isinstance(value, tuple):
        return tuple(
            _changed(each, below[place]) if place in below else each
            for place, each in enumerate(value)
        )
    own = dict(changes.get((), {}))
    inner = {str(key): _changed(getattr(value, str(key)), more) for key, more in below.items()}
    return replace(value, **own, **inner)
