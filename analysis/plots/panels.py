"""Panels of a sweep's figures: which keys they show, and the verdict in each cell.

The axes are the two keys with the most values. Each combination of the other keys has a panel, up
to `PANELS`; further keys stay at their first value.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcsim import units
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.selection import Verdict, largest_verdict, surely_faster
from gcsim.analysis.report.sweep import recommendation, short_names
from gcsim.analysis.report.trust import is_safe
from gcsim.errors import InputError, InternalError
from gcsim.scenarios import catalog
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.sweeps.grid import written
from gcsim.scenarios.sweeps.result import SweepResult
from gcsim.simulator.training import DENSE

PANELS = 12  # most panels of one figure
_LONGEST = 24  # most letters of a value on an axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A swept key; values that are numbers or quantities of one dimension ascend."""

    name: str
    short: str  # shortest unique suffix among the swept keys
    values: tuple[Any, ...]
    numbers: tuple[float, ...] | None  # in SI units, if all values are numbers

    @property
    def shown(self) -> tuple[str, ...]:
        """Values as text."""
        return tuple(map(_shown, self.values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A point of the sweep at its largest cluster."""

    verdict: Verdict
    recommended: Row | None  # the method to use
    winner: Row | None  # fastest method to train with, if any
    sure: bool  # whether it surely beats dense training (dense training: every other method)

    @property
    def risky(self) -> bool:
        """Whether the recommended update is known to train but is not practically the dense one."""
        return self.recommended is not None and not is_safe(self.recommended)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPicture:
    """A sweep arranged for a figure."""

    result: SweepResult
    x: Key
    y: Key | None  # None if one key is swept
    panel_keys: tuple[Key, ...]  # keys with a panel for each combination of values
    fixed: tuple[Key, ...]  # keys that stay at their first value
    cells: Mapping[str, Cell]

    @property
    def first(self) -> Result:
        """First result of the sweep."""
        return next(point.result for point in self.result.points if point.result is not None)

    @property
    def kinds(self) -> dict[str, str]:
        """Registered names by label, in the scenario's order."""
        done = (point.result for point in self.result.points if point.result is not None)
        return {row.label: row.compressor for one in done for row in one.rows}

    def panels(self) -> list[dict[str, Any]]:
        """Return the values of the keys that are not on the axes, for each panel."""
        every = itertools.product(*(key.values for key in self.panel_keys))
        names = [key.name for key in self.panel_keys]
        kept = {key.name: key.values[0] for key in self.fixed}
        return [{**dict(zip(names, values, strict=True)), **kept} for values in every]

    def cell(self, values: Mapping[str, Any]) -> Cell | None:
        """Return the cell with these values; None if it has no result."""
        return self.cells.get(_same({**self._single, **values}))

    def lost(self, values: Mapping[str, Any]) -> str:
        """Return why the point with these values has no result (`SweepPoint.lost`)."""
        whole = _same({**self._single, **values})
        return next((one.lost for one in self.result.failed if _same(one.values) == whole), "")

    @property
    def _single(self) -> dict[str, Any]:
        return {key: each[0] for key, each in self.result.grid.items() if len(each) == 1}

    @property
    def size(self) -> str:
        """Size of the clusters as text."""
        found = {(cell.verdict.rows[0].nodes, cell.verdict.rows[0].workers)
                 for cell in self.cells.values()}  # fmt: skip
        if len(found) > 1:
            return "at each point's largest cluster"
        ((nodes, workers),) = found
        return f"on {plural(nodes, 'node')}, {plural(workers, 'worker')}"


def _shown(value: Any) -> str:
    """Return a value's label; a long one loses its middle."""
    if isinstance(value, dict) and isinstance(value.get("label"), str):
        value = value["label"]
    text = f"{value:.6g}" if isinstance(value, float) else written(value)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def picture_of(result: SweepResult) -> SweepPicture:
    """Arrange a sweep that has at least one result."""
    cells = {
        _same(point.values): _cell(point.result)
        for point in result.points
        if point.result is not None
    }
    if not cells:
        raise InternalError("a figure was asked for of a sweep without results")
    x, *others = _keys(result.grid)
    y, rest = (others[0], others[1:]) if others else (None, [])
    panel_keys: list[Key] = []
    for key in rest:
        if math.prod(len(one.values) for one in (*panel_keys, key)) <= PANELS:
            panel_keys.append(key)
    fixed = tuple(key for key in rest if key not in panel_keys)
    return SweepPicture(
        result=result, x=x, y=y, panel_keys=tuple(panel_keys), fixed=fixed, cells=cells
    )


def _keys(grid: Mapping[str, Sequence[Any]]) -> list[Key]:
    """Return the keys with more than one value, the most values first."""
    names = [name for name, values in grid.items() if len(values) > 1] or list(grid)[:1]
    keys = [
        _key(name, short, grid[name]) for name, short in zip(names, short_names(names), strict=True)
    ]
    return sorted(keys, key=lambda key: -len(key.values))


def _key(name: str, short: str, values: Sequence[Any]) -> Key:
    numbers = numbers_of(values)
    if numbers is None:
        return Key(name=name, short=short, values=tuple(values), numbers=None)
    order = sorted(range(len(values)), key=lambda place: numbers[place])
    return Key(
        name=name,
        short=short,
        values=tuple(values[place] for place in order),
        numbers=tuple(numbers[place] for place in order),
    )


def numbers_of(values: Sequence[Any]) -> tuple[float, ...] | None:
    """Return values in SI units if all are numbers or quantities of one dimension, and no links."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return tuple(map(float, values))
    if not catalog.links().keys().isdisjoint(map(str, values)):
        return None
    for dimension in units.UNITS:
        try:
            return tuple(float(units.parse(value, dimension)) for value in values)
        except InputError:
            continue
    return None


def _cell(result: Result) -> Cell:
    verdict = largest_verdict(result)
    out = [*(row for row, _ in verdict.left_out), *verdict.not_trained]
    usable = [row for row in verdict.rows if not any(row is one for one in out)]
    winner = usable[0] if usable else None
    plain = [row for row in usable if row.compressor == DENSE]
    others = usable[1:] if not plain or winner in plain else plain
    sure = winner is not None and surely_faster(winner, others)
    use = recommendation(result).use
    return Cell(verdict=verdict, recommended=use, winner=winner, sure=sure)


def _same(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
