"""How do flows run that cross several shared links each, from their starts to their ends?

From event to event (a start, an end, a capacity that changes) all rates are constant:
`sharing/levels.py`. Flows that the same full link holds up are a group of one rate, and that has a
virtual time: the bytes that a flow would have got which had always been there. A flow with s bytes
left that joins the group at V ends when V + s is reached, so that the exact arithmetic of an event
is by group, and by flow only for those that change theirs (as on a single link,
`sharing/incast.py`).

All integers: bytes are in units of 1 / (K D), K the capacities' common denominator, D a group's
scale, a multiple of the denominators of its rates and of what its flows had left.
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
from gcsim.simulator.sharing.incast import divided_by_all
from gcsim.simulator.sharing.levels import Crossings, Ints
from gcsim.simulator.sharing.model import Capacity, Ended, FlowClass, supply

_NEW = -1
"""The number of the group of flows that have no rate yet."""
_LONG = 2048
"""Bits of D from which on it is reduced."""
_PATIENCE = 8
"""Changes of D before it takes what many numbers of flows divide."""
_LARGEST = 1 << 10


def share_several_links(
    starts: Mapping[int, Picoseconds],
    flows: Sequence[FlowClass],
    capacities: Mapping[Any, Capacity],
    ended: Ended,
) -> None:
    """Run flows to their ends; arguments as those of `fair.share_fairly`."""
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
        self.flows: Ints = np.zeros(0, dtype=np.int64)
        """Places, ascending."""
        self._held: Ints = self.flows
        """The number of each one's group."""
        self._groups: dict[int, _Group] = {_NEW: _Group(self._whole)}
        self._changed = True
        self._capacities: list[int] = []
        self._until: Picoseconds | None = None
        """When the first of them changes."""

    def start(self, places: list[int]) -> None:
        """Add flows that start now."""
        for place in places:
            self._groups[_NEW].add(place, self._nbytes[place], self._whole)
        new = np.array(sorted(places), dtype=np.int64)
        at = np.searchsorted(self.flows, new)
        self.flows, self._held = np.insert(self.flows, at, new), np.insert(self._held, at, _NEW)
        self._changed = True

    def through(self) -> list[int]:
        """Take out the flows whose bytes are through, in order."""
        done = sorted(place for group in self._groups.values() for place in group.through())
        if done:
            at = np.searchsorted(self.flows, done)
            self.flows, self._held = np.delete(self.flows, at), np.delete(self._held, at)
            self._changed = True
        return done

    def run(self, now: Picoseconds, upcoming: Picoseconds | None) -> Picoseconds:
        """Go on to the next event and say when that is."""
        if upcoming is not None and not self.flows.size:
            return upcoming
        if self._changed or (self._until is not None and now >= self._until):
            self._set_rates(now)
        ends = [group.next_end(now) for group in self._groups.values()]
        events = [event for event in (*ends, upcoming, self._until) if event is not None]
        if not events:
            raise InternalError(f"{self.flows.size} flows that never end, at {now} ps")
        reached = min(events)
        for group in self._groups.values():
            group.virtual += group.rate * (reached - now)
        return reached

    def _set_rates(self, now: Picoseconds) -> None:
        if not self._capacities or (self._until is not None and now >= self._until):
            self._read_capacities(now)
        levels = self._crossings.levels(self.flows, self._capacities)
        held, groups = levels.held, self._groups
        moved = np.flatnonzero(held != self._held)  # another link holds them up: another group
        moves = (each[moved].tolist() for each in (self.flows, self._held, held))
        for place, before, after in zip(*moves, strict=True):
            if after not in groups:
                groups[after] = _Group(self._whole)
            groups[after].add(place, *groups[before].take(place))
        self._held = held
        level = np.zeros(int(held.max(initial=0)) + 1, dtype=np.int64)
        level[held] = levels.level
        for number, group in list(groups.items()):
            if number == _NEW:
                continue
            if group.tags:
                group.set_rate(levels.shares[level[number]], levels.scale)
            else:
                del groups[number]
        self._changed = False

    def _read_capacities(self, now: Picoseconds) -> None:
        rates, until = zip(*(source.rate(now) for source in self._supplies), strict=True)
        self._capacities = [
            rate * (self._unit // source.scale)
            for rate, source in zip(rates, self._supplies, strict=True)
        ]
        self._until = min((time for time in until if time is not None), default=None)


class _Group:
    """Flows that have one rate as long as they are in the group."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        """D."""
        self.virtual = 0
        """What a flow would have got that had always been there."""
        self.rate = 0
        """By which it grows in a picosecond."""
        self.tags: dict[int, int] = {}
        """By place: what `virtual` will be at its end."""
        self._queue: list[tuple[int, int]] = []
        """Heap of (tag, place), and of some that have gone."""
        self._changes = 0

    def add(self, place: int, left: int, scale: int) -> None:
        """A flow that has so many bytes left, in units of its own scale."""
        common = gcd(left, scale)
        self._have_divided(scale // common)
        # left / scale in units of 1 / D, from now on: the flow is through when `virtual` is there
        tag = self.virtual + left // common * (self.scale // (scale // common))
        self.tags[place] = tag
        heappush(self._queue, (tag, place))

    def take(self, place: int) -> tuple[int, int]:
        """Take a flow out: what it has left, and in which scale."""
        return self.tags.pop(place) - self.virtual, self.scale

    def through(self) -> list[int]:
        """Take out the flows whose bytes are through."""
        places = []
        while self._queue and self._queue[0][0] <= self.virtual:
            tag, place = heappop(self._queue)
            if self.tags.get(place) == tag:  # else it has been taken out, or has a new tag
                del self.tags[place]
                places.append(place)
        return places

    def next_end(self, now: Picoseconds) -> Picoseconds | None:
        """When the next flow is through at this rate; None: there is none."""
        while self._queue and self.tags.get(self._queue[0][1]) != self._queue[0][0]:
            heappop(self._queue)
        if not self._queue or not self.rate:
            return None
        # rounded up: -((a - b) // rate) = ceil((b - a) / rate)
        return now - (self.virtual - self._queue[0][0]) // self.rate

    def set_rate(self, over: int, under: int) -> None:
        """So many units of bytes a picosecond from now on."""
        common = gcd(over, under)
        self._have_divided(under // common)
        self.rate = over // common * (self.scale // (under // common))

    def _have_divided(self, divisor: int) -> None:
        """Have the divisor divide D; after many such changes, most later ones too."""
        if self.scale % divisor == 0:
            return
        if self.scale.bit_length() > _LONG:
            self._shorten()
        self._changes += 1
        # rates are capacities over numbers of flows, which so many flows may take all of
        numbers = 1 << (len(self.tags) + 1).bit_length()
        if self._changes > _PATIENCE and numbers <= _LARGEST:
            divisor = lcm(divisor, divided_by_all(numbers))
        self._multiply(divisor // gcd(self.scale, divisor), 1)

    def _shorten(self) -> None:
        for place in self.tags:
            self.tags[place] -= self.virtual
        self.virtual = 0
        self._multiply(1, gcd(self.scale, *self.tags.values()))

    def _multiply(self, factor: int, divisor: int) -> None:
        self.scale = self.scale * factor // divisor
        self.virtual = self.virtual * factor // divisor
        self.tags = {place: tag * factor // divisor for place, tag in self.tags.items()}
        self._queue = [(tag, place) for place, tag in self.tags.items()]
        heapify(self._queue)
