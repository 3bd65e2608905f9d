"""Worlds: joint draws of everything uncertain in a scenario.

A Latin hypercube (McKay, Beckman and Conover 1979, Technometrics 21(2)) of N draws: each of N parts
of an input's range of equal probability occurs once, positive figures on a logarithmic scale. An
input's draws depend on the seed and its name alone, whatever happens to other ranges.

Of a square number of draws, each of the `FACTORS` and any other input are even as well: a grid of
sqrt(N) by sqrt(N) cells of equal probability has one draw in each. The factors are rows and columns
of a random Latin square of the other's levels (Tang 1993, "Orthogonal array-based Latin
hypercubes").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt
from typing import Any
from zlib import crc32

import numpy as np

from gcsim.scenarios.uncertainty.figures import (
    Column,
    Figure,
    Input,
    KeyPath,
    is_of_device,
    passes_path,
)
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.training import Training


@dataclass(frozen=True, slots=True)
class World:
    """Slowness of inputs, 0 to 1, by name; absent ones are as stated."""

    slowness: Mapping[str, float]

    def figures(self, inputs: Sequence[Input]) -> list[tuple[Figure, float]]:
        """Figures that differ from the stated ones, with their slowness."""
        return [
            (figure, self.slowness[one.name])
            for one in inputs
            if one.name in self.slowness
            for figure in one.figures
        ]


STATED = World({})
FACTORS = "measured steps over predicted ones", "measured gains of compression over predicted ones"
"""Names of inputs that move all methods, and all compressed ones (`uncertainty/discrepancy.py`)."""


def draw(inputs: Sequence[Input], count: int, seed: int) -> list[World]:
    """The drawn worlds."""
    columns = {one.name: _drawn(one.name, count, seed) for one in inputs}
    return [World({name: column[k] for name, column in columns.items()}) for k in range(count)]


@lru_cache(maxsize=1 << 10)
def _drawn(name: str, count: int, seed: int) -> list[float]:
    """Slowness of an input by draw, cached for all points of a sweep."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    part, side = rng.permutation(count), isqrt(count)
    if side >= 8 and side * side == count:  # inputs would share a smaller square
        row, column = (rng.permutation(side)[each] for each in np.divmod(np.arange(count), side))
        level = dict(zip(FACTORS, (row, column), strict=True)).get(name, (row + column) % side)
        part = np.argsort(np.lexsort((part, rng.permutation(side)[level])))
    drawn: list[float] = ((part + rng.random(count)) / count).tolist()
    return drawn


def alone(inputs: Sequence[Input]) -> list[World]:
    """Worlds with one input each at its farther end."""
    return [World({one.name: one.main.far}) for one in inputs]


def slowness(one: Input, worlds: Sequence[World]) -> Column:
    """An input's slowness by world; NaN: as stated."""
    return np.array([world.slowness.get(one.name, np.nan) for world in worlds])


def coordinates(inputs: Sequence[Input], worlds: Sequence[World]) -> Column:
    """Coordinates `[worlds, inputs]` of times or reciprocal rates: 0 as stated, 1 at the end."""
    found = np.zeros((len(worlds), len(inputs)))
    for number, one in enumerate(inputs):
        figure = one.main
        times = np.array([float(figure.stated), float(figure.exactly(figure.far))])
        drawn = figure.values(slowness(one, worlds))
        if figure.rate:
            times, drawn = 1 / times, 1 / drawn
        found[:, number] = (drawn - times[0]) / (times[1] - times[0])
    return found


def moves_links(one: Input) -> bool:
    """Whether it belongs to links, hosts or sums."""
    return one.main.key_path[0] == "cluster" and not is_of_device(one.main.key_path)


def cluster_in(world: World, cluster: Cluster, inputs: Sequence[Input]) -> Cluster:
    """The cluster in a world, device included."""
    changed: Cluster = _put(cluster, "cluster", world.figures(inputs))
    return changed


def training_in(world: World, training: Training, inputs: Sequence[Input]) -> Training:
    """The training in a world."""
    changed: Training = _put(training, "training", world.figures(inputs))
    return changed


def passes_in(worlds: Sequence[World], inputs: Sequence[Input], group: int = 0) -> Column:
    """Factor on the stated passes of a group."""
    for one in inputs:
        if one.main.key_path == passes_path(group):
            slow, stated = slowness(one, worlds), float(one.main.stated)
            return np.where(np.isnan(slow), 1.0, one.main.at(slow) / stated)
    return np.ones(len(worlds))


def _put(value: Any, root: str, figures: Sequence[tuple[Figure, float]]) -> Any:
    """A value with figures as drawn and without ranges."""
    changes: dict[KeyPath, dict[str, Any]] = {}
    for figure, slow in figures:
        if figure.key_path[0] == root:
            drawn = changes.setdefault(figure.key_path[1:], {})
            drawn |= {figure.field: figure.exactly(slow), f"{figure.field}_range": None}
    return _changed(value, changes) if changes else value


def _changed(value: Any, changes: Mapping[KeyPath, Mapping[str, Any]]) -> Any:
    """A value with other fields at and below it, made once for any number of them."""
    below: dict[Any, dict[KeyPath, Mapping[str, Any]]] = {}
    for key_path, drawn in changes.items():
        if key_path:
            below.setdefault(key_path[0], {})[key_path[1:]] = drawn
    if isinstance(value, Mapping):  # of a node that this size does not have nothing is known
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
