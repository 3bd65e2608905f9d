"""Rate of the slowest link up to which a method pays, or from which on.

Uncompressed training and the method are simulated over rates, from fast to slow. A method's gain,
the logarithm of its speedup, is linear in the logarithm of the rate between two of them: as stated,
and how much it differs in the printed iterations (medians over the drawn worlds) and in each world.
Worlds are drawn where this curve crosses 0, until the printed iterations are equal there, and near
both ends of the range over the worlds' own crossings.

In a cluster of unlike groups of nodes the rate is that of the group with the slowest links.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.slowest_link import slowest_link
from gcsim.scenarios.findings import FASTEST, SLOWEST, BreakEven
from gcsim.scenarios.result import Row
from gcsim.scenarios.uncertainty.ranges import interval

_RATES = (FASTEST, 8e11, 1e11, 1.25e10, 1.6e9, 1e8, SLOWEST)
"""Rates that are simulated first; between slow ones gains hardly change."""
_STEP = 8  # factor to the next slower rate, if the worlds need one
_CLOSE = 2e-3  # relative difference of both printed iterations that ends a search
_MOST = 12  # most rates with drawn worlds of a method
_NEAR = math.log(1.5)  # most distance of an end of the range from a rate with drawn worlds
_BEYOND = 0.5  # share of that distance by which such a rate is farther than the end
_CLEAR = math.log(2)  # stated gain from which the worlds' median surely has the same sign


def no_break_even(engine: Engine) -> str:
    """Reason for no break-even, in words; empty if there is one."""
    link = slowest_link(engine.question)
    return "" if link is None else link.no_one_rate


def break_even(
    engine: Engine, labels: Sequence[str], ranged: Sequence[str], progress: Callable[[], None]
) -> list[BreakEven]:
    """Break-evens of methods, with the drawn worlds' range for those in `ranged`. Empty if the
    slowest link's rate is no single number, or nothing is dense. `progress` is called after the
    scan of rates and after each method."""
    scenario, link = engine.scenario, slowest_link(engine.question)
    number = scenario.dense
    if link is None or link.no_one_rate or number is None:
        return []
    dense = scenario.compressors[number].label
    curves = {label: _Curve() for label in labels}

    def simulated(names: Sequence[str], rate: float, *, draws: bool = False) -> bool:
        rows = engine.rows(link.at(rate), names, draws=draws) or {}
        for label in names if rows else ():
            curves[label].add(rate, rows[label], rows[dense])
        return bool(rows)

    for rate in _RATES:
        left = [label for label, curve in curves.items() if not curve.falls]
        if not left or not simulated(left, rate):
            break  # slower rates are refused too, for their messages are too long
    progress()
    found = []
    for label, curve in curves.items():
        if curve.stated:
            simulate = partial(simulated, [label])
            found.append(_of_method(label, curve, simulate, wide=label in ranged))
        progress()
    return found


class _Crossing(NamedTuple):
    rate: float
    middle: float  # of the two rates around it that were simulated
    falls: bool


def _rounded(logarithm: float) -> float:
    return float(f"{math.exp(logarithm):.4g}")


class _Curve:
    """Gains of a method by rate, positive if it is faster."""

    def __init__(self) -> None:
        self.stated: dict[float, float] = {}
        self.drawn: dict[float, NDArray[np.float64]] = {}
        """Differences of the printed gain, and of that in each world, from the stated one."""

    def add(self, rate: float, row: Row, dense: Row) -> None:
        """Add the rows at a rate."""
        printed = math.log(row.speedup_vs_dense or 1.0)
        stated = math.log(row.speedup_as_stated or row.speedup_vs_dense or 1.0)
        self.stated[rate] = stated
        if row.iteration_draws_s:
            worlds = np.log(np.divide(dense.iteration_draws_s, row.iteration_draws_s))
            self.drawn[rate] = np.array([printed, *worlds]) - stated

    def _known(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return logarithms of rates, and the printed gain and those in the worlds at each."""
        rates, drawn = sorted(self.stated), sorted(self.drawn)
        at, gains = np.log(rates), np.array([self.stated[rate] for rate in rates])[:, None]
        if drawn:
            more = np.array([self.drawn[rate] for rate in drawn]).T
            gains = gains + np.array([np.interp(at, np.log(drawn), each) for each in more]).T
        return at, gains

    def gain(self, rate: float) -> float:
        """Return the printed gain at a rate that was simulated."""
        return self.stated[rate] + float(self.drawn.get(rate, (0.0,))[0])

    def crossing(self) -> _Crossing | None:
        """Return the fastest crossing of the printed gain below 0; if there is none, the fastest
        above it."""
        at, gains = self._known()
        faster = gains[:, 0] > 0
        changes = np.flatnonzero(faster[:-1] != faster[1:])
        if not len(changes):
            return None
        falls = changes[faster[changes]]
        place = (falls if len(falls) else changes)[-1]
        (slow, fast), (before, after) = at[place : place + 2], gains[place : place + 2, 0]
        rate = slow + before / (before - after) * (fast - slow)
        return _Crossing(_rounded(rate), _rounded((slow + fast) / 2), bool(len(falls)))

    @property
    def pays(self) -> bool:
        """Whether the printed gain is above 0 at any rate."""
        return bool((self._known()[1][:, 0] > 0).any())

    @property
    def falls(self) -> bool:
        """Whether the printed gain falls below 0 between two rates."""
        found = self.crossing()
        return found is not None and found.falls

    def ends(self) -> tuple[float, float]:
        """Return the range over the worlds of the fastest rate at which the gain is 0: 0 or
        infinite beyond the rates that were simulated."""
        at, gains = self._known()
        worlds = gains[:, 1:]
        last = len(at) - 1 - np.argmax(worlds[::-1] > 0, axis=0)
        left = np.minimum(last, len(at) - 2)
        before, after = np.take_along_axis(worlds, np.array([left, left + 1]), axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            places = at[left] + before / (before - after) * (at[left + 1] - at[left])
        places[after > 0] = math.inf
        places[(worlds <= 0).all(axis=0)] = -math.inf
        low, high = np.exp(interval(places)).tolist()
        return low, high

    def turned_end(self, stated: _Crossing) -> float | None:
        """Return the end of the rates whose order is not the stated one any more, where printed
        gains do not cross 0; None if worlds are drawn there."""
        end = max(self.stated)
        if stated.falls != self.pays:
            end = max(SLOWEST, min(self.stated) / _STEP)
        return None if end in self.drawn else end

    def far_end(self) -> float | None:
        """Return an end of the range that is far from all rates with drawn worlds, or the next
        slower rate if the range may extend below those that were simulated."""
        if not self.drawn:
            return None
        slowest, (low, high) = min(self.stated), self.ends()
        for end in (low or slowest / _STEP, high):
            place = math.log(min(max(end, SLOWEST), FASTEST))
            away = min((place - math.log(known) for known in self.drawn), key=abs)
            if abs(away) > _NEAR:
                return min(max(_rounded(place + _BEYOND * away), SLOWEST), FASTEST)
        return None


def _of_method(
    label: str, curve: _Curve, simulated: Callable[..., bool], *, wide: bool
) -> BreakEven:
    """Break-even of a method, given its stated gains over all rates; `simulated` adds a rate.
    `wide`: with the range over the worlds."""
    stated = curve.crossing()
    rate = min(curve.stated, key=lambda rate: abs(curve.stated[rate]))
    if stated is None and abs(curve.stated[rate]) > _CLEAR:
        return BreakEven(label=label, rate=None, pays=curve.pays)
    found, equal, sides = stated, None, list[bool]()
    rate = found.rate if found else rate
    for _ in range(_MOST):
        if not simulated(rate, draws=True):
            break
        before, found = found, curve.crossing()
        sides.append(curve.gain(rate) > 0)
        if found and equal is None:
            if not before or abs(curve.gain(rate)) > _CLOSE:
                creeps = len(sides) > 1 and sides[-1] == sides[-2]
                rate = found.middle if creeps else found.rate
                continue
            equal = rate
        far = curve.turned_end(stated) if stated and not found else None
        if far is None and wide and (stated or found):
            far = curve.far_end()
        if far is None:
            break
        rate = far
    one = BreakEven(label=label, rate=None, pays=curve.pays)
    if found:
        one = BreakEven(label=label, rate=equal or found.rate, pays=True, above=not found.falls)
    if not wide or not curve.drawn or one.above or not (stated or found):
        return one
    low, high = curve.ends()
    low_open, high_open = low <= SLOWEST, high >= FASTEST
    low, high = max(low, SLOWEST), min(high, FASTEST)
    one = replace(one, low=low, high=high, low_open=low_open, high_open=high_open)
    return replace(one, rate=one.rate and min(max(one.rate, low), high))
