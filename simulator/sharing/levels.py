"""Which links hold which flows up, and at what rates? Max-min fairness, level by level.

Progressive filling: the rates of all flows rise together; when links are full their flows are
fixed at that level, and the others rise on. A compiled loop in floating point finds out which
links fill up at each level; their exact shares follow in integers:

    share(link, level) = (capacity - sum over lower levels of count * share) / count at the level

The levels are right if the exact shares of all links of a level are equal: the loop takes links
within 1e-8 of the smallest share as full, far more than its rounding errors, so that no other link
can have an exact share as small. Where they differ, or the counts are so large that rounding
might matter, exact progressive filling finds the levels.

Source: Bertsekas and Gallager 1992, Data Networks, sec. 6.5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.sharing.model import FlowClass

Ints = NDArray[np.int64]
_BAND = 1e-8
_ROUNDING = 1e-10
"""Bound of the loop's relative rounding errors, well inside the band."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Rates of flows: flow f has `shares[level[f]] / scale` times the capacities' unit."""

    level: Ints
    shares: list[int]
    scale: int
    held: Ints
    """By flow: a number that only flows of one level share, mostly that of a link that is full."""


class Crossings:
    """Which flow classes cross which links, how many of a class on one link."""

    def __init__(self, flows: Sequence[FlowClass]) -> None:
        self.links = list({link: None for flow in flows for link in flow.loads})
        number = {link: place for place, link in enumerate(self.links)}
        lengths = np.array([len(flow.loads) for flow in flows], dtype=np.int64)
        self.first = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
        self.link = np.array(
            [number[link] for flow in flows for link in flow.loads], dtype=np.int64
        )
        self.count = np.array(
            [count for flow in flows for count in flow.loads.values()], dtype=np.int64
        )

        self._capacities: Sequence[int] | None = None
        """The last ones; in floating point, of at most 1:"""
        self._room = np.zeros(0, dtype=np.float64)

    @cached_property
    def largest(self) -> int:
        """Flows on one link, at most."""
        load: Any = np.bincount(self.link, weights=self.count, minlength=len(self.links))
        return int(load.max())

    def levels(self, active: Ints, capacities: Sequence[int]) -> Levels:
        """Levels of the active flow classes (ascending places), by place among them.

        `capacities` by number of the link, in any unit; a list that never changes.
        """
        if capacities is not self._capacities:
            room = np.array(capacities, dtype=np.float64)
            self._capacities, self._room = capacities, room / max(room.max(), 1)
        level, steps, counts, full, held = _fill(
            active, self.first, self.link, self.count, self._room, _BAND
        )
        if self.largest * (steps + 8) * 2.0**-52 < _ROUNDING:
            found = _exact_shares(capacities, counts, full, steps)
            if found is not None:
                return Levels(level, *found, held)
        return self._exact(active, capacities)

    def _exact(self, active: Ints, capacities: Sequence[int]) -> Levels:
        flows = []
        for place in active.tolist():
            part = slice(self.first[place], self.first[place + 1])
            flows.append(
                dict(zip(self.link[part].tolist(), self.count[part].tolist(), strict=True))
            )
        rates = filled(flows, dict(enumerate(map(Fraction, capacities))))
        distinct = sorted(set(rates))
        scale = lcm(*(rate.denominator for rate in distinct))
        level_of = {rate: place for place, rate in enumerate(distinct)}
        level = np.array([level_of[rate] for rate in rates], dtype=np.int64)
        return Levels(level, [int(rate * scale) for rate in distinct], scale, level)


def filled(flows: Sequence[dict[Any, int]], capacities: dict[Any, Fraction]) -> list[Fraction]:
    """The rate of one flow of each class, given its loads: exact progressive filling."""
    load: dict[Any, int] = {}
    for flow in flows:
        for link, count in flow.items():
            load[link] = load.get(link, 0) + count
    room, rising = dict(capacities), set(range(len(flows)))  # what is left; who has no rate yet
    rates = [Fraction(0)] * len(flows)
    while load:
        rate = min(room[link] / count for link, count in load.items())
        full = {link for link, count in load.items() if room[link] == rate * count}
        fixed = {place for place in rising if not full.isdisjoint(flows[place])}
        rising -= fixed
        for place in fixed:
            rates[place] = rate
            for link, count in flows[place].items():
                room[link] -= rate * count
                load[link] -= count
        load = {link: count for link, count in load.items() if count}
    return rates


def _exact_shares(
    capacities: Sequence[int], counts: Ints, full: Ints, steps: int
) -> tuple[list[int], int] | None:
    """The levels' shares over a common scale; None when the levels cannot be right."""
    shares: list[int] = []
    scale = 1
    for step in range(steps):
        over, under = 0, 0
        for link in np.flatnonzero(full == step).tolist():
            row = counts[link, : step + 1].tolist()
            left = capacities[link] * scale
            left -= sum(count * share for count, share in zip(row, shares, strict=False))
            if not under:
                over, under = left, row[step]
            elif left * under != over * row[step]:
                return None
        factor = under // gcd(over, under)
        shares = [share * factor for share in shares]
        shares.append(over * factor // under)
        scale *= factor
    return shares, scale


@loop
def _fill(  # noqa: PLR0912, PLR0917 - a compiled loop
    active: Ints, first: Ints, link: Ints, count: Ints, capacity: NDArray[np.float64], band: float
) -> tuple[Ints, int, Ints, Ints, Ints]:
    """Levels of the active flows, their number, flows by link and level, level of full links, and
    the full link that holds each flow up."""
    links = capacity.size
    flows = active.size
    left = capacity.copy()  # [links]: what flows with a level have not taken
    load = np.zeros(links, dtype=np.int64)  # [links]: flows without a level
    taken = np.zeros(links, dtype=np.int64)  # [links]: flows that get their level in this step
    full = np.full(links, -1, dtype=np.int64)  # [links]: the step in which each became full
    level, held = np.zeros(flows, dtype=np.int64), np.full(flows, -1, dtype=np.int64)
    free = np.arange(flows)
    for flow in range(flows):
        for at in range(first[active[flow]], first[active[flow] + 1]):
            load[link[at]] += count[at]
    steps = 0
    waiting = flows  # free[:waiting] are the flows without a level
    while waiting:
        smallest = np.inf  # all flows rise together until the first link is full
        for number in range(links):
            if load[number]:
                smallest = min(smallest, left[number] / load[number])
        bound = smallest * (1 + band)  # links as full, but for rounding
        for number in range(links):
            if load[number] and left[number] / load[number] <= bound:
                full[number] = steps
        kept = 0
        for place in range(waiting):
            flow = free[place]
            begin, end = first[active[flow]], first[active[flow] + 1]
            for at in range(begin, end):
                if full[link[at]] == steps:
                    held[flow] = link[at]
            if held[flow] >= 0:
                level[flow] = steps
                for at in range(begin, end):
                    taken[link[at]] += count[at]
            else:  # goes on rising
                free[kept] = flow
                kept += 1
        waiting = kept
        # after all flows have their level: two of them may cross one link
        for number in range(links):
            if taken[number]:
                left[number] -= smallest * taken[number]
                load[number] -= taken[number]
                taken[number] = 0
        steps += 1
    counts = np.zeros((links, steps), dtype=np.int64)
    for flow in range(flows):
        for at in range(first[active[flow]], first[active[flow] + 1]):
            counts[link[at], level[flow]] += count[at]
    return level, steps, counts, full, held
