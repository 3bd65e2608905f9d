"""How do flows run that cross several shared links each, from their starts to their ends?

From event to event (a start, an end, a capacity that changes) all rates are constant:
`fluid_levels.py`. Flows that started together with the same bytes and have always had the same
rate are one cohort: what is left of one is left of all, so that the exact arithmetic is by cohort,
and only the assignment of flows to cohorts is by flow.

All integers: bytes left are in units of 1 / (K D) bytes, K the capacities' common denominator, D a
multiple of the scales of all levels so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import gcd, lcm
from typing import Any

import numpy as np

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.collectives.servers.fluid_levels import Crossings, Ints
from gcsim.simulator.collectives.servers.fluid_model import Capacity, Ended, FlowClass, supply

_LONG = 2048
"""Bits of D from which on it is reduced."""


def share_several_links(
    starts: Mapping[int, Picoseconds],
    flows: Sequence[FlowClass],
    capacities: Mapping[Any, Capacity],
    ended: Ended,
) -> None:
    """Run flows to their ends; arguments as those of `fair_sharing.share_fairly`."""
    waiting = [(start, place) for place, start in starts.items()]
    heapify(waiting)
    running = _Running(flows, capacities)
    now = min(starts.values(), default=0)
    while waiting or running.flows.size:
        while waiting and waiting[0][0] <= now:
            due = []
            while waiting and waiting[0][0] <= now:
                start, place = heappop(waiting)
                if start < now:
                    raise InternalError(f"flow {place} starts in the past, before {now} ps")
                due.append(place)
            running.start(due)
            for place in running.through():
                for further, start in ended(place, now).items():
                    heappush(waiting, (start, further))
        if not waiting and not running.flows.size:
            break
        now = running.run(now, waiting[0][0] if waiting else None)
        for place in running.through():
            for further, start in ended(place, now).items():
                heappush(waiting, (start, further))


class _Running:
    """The flows under way."""

    def __init__(self, flows: Sequence[FlowClass], capacities: Mapping[Any, Capacity]) -> None:
        self._crossings = Crossings(flows)
        self._supplies = [supply(capacities[link]) for link in self._crossings.links]
        self._unit = lcm(*(source.scale for source in self._supplies))
        sizes = {flow.nbytes for flow in flows}
        self._whole = lcm(*(Fraction(nbytes).denominator for nbytes in sizes))
        self._nbytes = [int(flow.nbytes * self._whole) * self._unit for flow in flows]
        self._scale = self._whole
        """D."""
        self.flows: Ints = np.zeros(0, dtype=np.int64)
        """Places, ascending."""
        self._cohort: Ints = self.flows
        """Of each of them."""
        self._left: list[int] = []
        """Bytes left, by cohort."""
        self._rates: list[int] = []
        """Per picosecond, by cohort."""
        self._changed = True
        self._capacities: list[int] = []
        self._until: Picoseconds | None = None
        """When the first of them changes."""

    def start(self, places: list[int]) -> None:
        """Add flows that start now."""
        cohorts: dict[int, int] = {}
        of = []
        for place in sorted(places):
            nbytes = self._nbytes[place]
            if nbytes not in cohorts:
                cohorts[nbytes] = len(self._left)
                self._left.append(nbytes * (self._scale // self._whole))
            of.append(cohorts[nbytes])
        flows = np.concatenate((self.flows, np.array(sorted(places), dtype=np.int64)))
        order = np.argsort(flows, kind="stable")
        self.flows = flows[order]
        self._cohort = np.concatenate((self._cohort, np.array(of, dtype=np.int64)))[order]
        self._changed = True

    def through(self) -> list[int]:
        """Take out the flows whose bytes are through, in order."""
        done = [cohort for cohort, left in enumerate(self._left) if left <= 0]
        if not done:
            return []
        number = np.full(len(self._left), -1, dtype=np.int64)
        kept = [cohort for cohort, left in enumerate(self._left) if left > 0]
        number[kept] = np.arange(len(kept))
        self._left = [self._left[cohort] for cohort in kept]
        cohort = number[self._cohort]
        places: list[int] = self.flows[cohort < 0].tolist()
        self.flows, self._cohort = self.flows[cohort >= 0], cohort[cohort >= 0]
        self._changed = True
        return places

    def run(self, now: Picoseconds, upcoming: Picoseconds | None) -> Picoseconds:
        """Go on to the next event and say when that is."""
        if upcoming is not None and not self.flows.size:
            return upcoming
        if self._changed or (self._until is not None and now >= self._until):
            self._set_rates(now)
        ends = [
            now - (-left // rate)
            for left, rate in zip(self._left, self._rates, strict=True)
            if rate
        ]
        events = [event for event in (*ends, upcoming, self._until) if event is not None]
        if not events:
            raise InternalError(f"{self.flows.size} flows that never end, at {now} ps")
        reached = min(events)
        if reached > now:
            elapsed = reached - now
            moved = zip(self._left, self._rates, strict=True)
            self._left = [left - rate * elapsed for left, rate in moved]
        return reached

    def _set_rates(self, now: Picoseconds) -> None:
        if not self._capacities or (self._until is not None and now >= self._until):
            self._read_capacities(now)
        levels = self._crossings.levels(self.flows, self._capacities)
        self._rescale(levels.scale)
        cells = self._cohort * len(levels.shares) + levels.level
        occupied = np.zeros(len(self._left) * len(levels.shares), dtype=bool)
        occupied[cells] = True
        self._cohort = (np.cumsum(occupied) - 1)[cells]
        factor = self._scale // levels.scale
        places = [divmod(cell, len(levels.shares)) for cell in np.flatnonzero(occupied).tolist()]
        self._left = [self._left[cohort] for cohort, _ in places]
        self._rates = [levels.shares[level] * factor for _, level in places]
        self._changed = False

    def _read_capacities(self, now: Picoseconds) -> None:
        rates, until = zip(*(source.rate(now) for source in self._supplies), strict=True)
        self._capacities = [
            rate * (self._unit // source.scale)
            for rate, source in zip(rates, self._supplies, strict=True)
        ]
        self._until = min((time for time in until if time is not None), default=None)

    def _rescale(self, divisor: int) -> None:
        """Have the divisor divide D."""
        if self._scale.bit_length() > _LONG:
            keep = lcm(divisor, self._whole)
            common = gcd(self._scale // gcd(self._scale, keep), *self._left)
            if common > 1:
                self._scale //= common
                self._left = [left // common for left in self._left]
        factor = divisor // gcd(self._scale, divisor)
        if factor > 1:
            self._scale *= factor
            self._left = [left * factor for left in self._left]
