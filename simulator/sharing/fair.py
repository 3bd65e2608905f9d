"""Rates and ends of flows that share links max-min fairly.

No flow can be faster without slowing down one that is not faster than itself: the fluid model of
long TCP flows. Rates change at once when a flow starts or ends, or a capacity changes. Equal flows
form one class.

Exact: rates and remaining bytes are rational. A flow ends, and frees its share, at the first whole
picosecond at which its bytes have passed, so the clock stays integer.

Rates are constant between events (a start, an end, a change of capacity). Flows that are limited by
the same full link form a group with one virtual time: the bytes of a flow present from the start.
One with s bytes left that joins at V ends at V + s. So an event needs exact arithmetic per group,
and per flow only for flows that change their group.

All numbers are integers: bytes are in units of 1 / (K D), with K the capacities' common denominator
and D a group's scale, a multiple of the denominators of its rates and its flows' remaining bytes.

Progressive filling: all flows' rates rise together; flows on links that fill up are fixed at that
level, the others rise on. A compiled floating-point loop finds the links that fill at each level;
their exact shares follow in integers:

    share(link, level) = (capacity - sum over lower levels of count * share) / count at the level

The levels are correct if all links of a level have equal exact shares: the loop counts links within
1e-8 of the smallest share as full, far above its rounding errors, so no other link has a share as
small. If shares differ, or counts are so large that rounding matters, levels are filled exactly.

Source: Bertsekas and Gallager 1992, Data Networks, sec. 6.5.2; virtual time of processor sharing,
Demers, Keshav and Shenker 1989 (SIGCOMM), sec. 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.sharing.model import Capacity, Ended, FlowClass, supply


def share_fairly(
    starts: Mapping[int, Picoseconds],
    flows: Sequence[FlowClass],
    capacities: Mapping[Any, Capacity],
    ended: Ended,
) -> None:
    """Run flows, each of which crosses some link, until all have ended. `starts`: start times >= 0
    by index in `flows`; `capacities` by link class. `ended(place, time)` is called at each end, in
    time order, and returns the start times of further flows, none before `time`."""
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


_NEW = -1  # group of flows without a rate


class _Running:
    def __init__(self, flows: Sequence[FlowClass], capacities: Mapping[Any, Capacity]) -> None:
        self._crossings = Crossings(flows)
        self._supplies = [supply(capacities[link]) for link in self._crossings.links]
        self._unit = lcm(*(source.scale for source in self._supplies))
        sizes = {flow.nbytes for flow in flows}
        self._whole = lcm(*(Fraction(nbytes).denominator for nbytes in sizes))
        self._nbytes = [int(flow.nbytes * self._whole) * self._unit for flow in flows]
        self.flows: _Ints = np.zeros(0, dtype=np.int64)  # places, ascending
        self._held: _Ints = self.flows  # group of each flow
        self._groups: dict[int, _Group] = {_NEW: _Group(self._whole)}
        self._changed = True
        self._capacities: list[int] = []
        self._until: Picoseconds | None = None  # time of the first change

    def start(self, places: list[int]) -> None:
        for place in places:
            self._groups[_NEW].add(place, self._nbytes[place], self._whole)
        new = np.array(sorted(places), dtype=np.int64)
        at = np.searchsorted(self.flows, new)
        self.flows, self._held = np.insert(self.flows, at, new), np.insert(self._held, at, _NEW)
        self._changed = True

    def through(self) -> list[int]:
        done = sorted(place for group in self._groups.values() for place in group.through())
        if done:
            at = np.searchsorted(self.flows, done)
            self.flows, self._held = np.delete(self.flows, at), np.delete(self._held, at)
            self._changed = True
        return done

    def run(self, now: Picoseconds, upcoming: Picoseconds | None) -> Picoseconds:
        """Advance to the next event and return its time."""
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
        moved = np.flatnonzero(held != self._held)  # limited by another link, so in another group
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
    def __init__(self, scale: int) -> None:
        self.scale = scale  # D
        self.virtual = 0  # bytes that a flow present from the start would have received
        self.rate = 0  # growth of `virtual` per picosecond
        self.tags: dict[int, int] = {}  # value of `virtual` at each flow's end, by place
        self._queue: list[tuple[int, int]] = []  # heap of (tag, place); some entries are stale

    def add(self, place: int, left: int, scale: int) -> None:
        """Add a flow with `left` bytes left, in units of its own scale."""
        common = gcd(left, scale)
        self._have_divided(scale // common)
        # left / scale in units of 1 / D, added to `virtual`: its value at the flow's end
        tag = self.virtual + left // common * (self.scale // (scale // common))
        self.tags[place] = tag
        heappush(self._queue, (tag, place))

    def take(self, place: int) -> tuple[int, int]:
        """Remove a flow; return its remaining bytes and their scale."""
        return self.tags.pop(place) - self.virtual, self.scale

    def through(self) -> list[int]:
        places = []
        while self._queue and self._queue[0][0] <= self.virtual:
            tag, place = heappop(self._queue)
            if self.tags.get(place) == tag:  # else the entry is stale
                del self.tags[place]
                places.append(place)
        return places

    def next_end(self, now: Picoseconds) -> Picoseconds | None:
        """Return the time of the next end at this rate; None without flows."""
        while self._queue and self.tags.get(self._queue[0][1]) != self._queue[0][0]:
            heappop(self._queue)
        if not self._queue or not self.rate:
            return None
        # rounded up: -((a - b) // rate) = ceil((b - a) / rate)
        return now - (self.virtual - self._queue[0][0]) // self.rate

    def set_rate(self, over: int, under: int) -> None:
        """Set the rate, `over / under` units of bytes per picosecond."""
        common = gcd(over, under)
        self._have_divided(under // common)
        self.rate = over // common * (self.scale // (under // common))

    def _have_divided(self, divisor: int) -> None:
        """Make D divisible by `divisor`."""
        factor = divisor // gcd(self.scale, divisor)
        if factor > 1:
            self.scale *= factor
            self.virtual *= factor
            self.tags = {place: tag * factor for place, tag in self.tags.items()}
            self._queue = [(tag, place) for place, tag in self.tags.items()]
            heapify(self._queue)


_Ints = NDArray[np.int64]
_BAND = 1e-8
_ROUNDING = 1e-10  # bound of the loop's relative rounding errors


@dataclass(frozen=True, slots=True)
class _Levels:
    """Levels of flows: flow f's rate is `shares[level[f]] / scale` capacity units."""

    level: _Ints
    shares: list[int]
    scale: int
    held: _Ints
    """Group of each flow: a number that only flows of one level share, mostly a full link's."""


class Crossings:
    """Links that each flow class crosses, and how many of its flows cross each."""

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
        """Last capacities, and their floating-point values, at most 1."""
        self._room = np.zeros(0, dtype=np.float64)

    @cached_property
    def largest(self) -> int:
        """Most flows on one link."""
        load: Any = np.bincount(self.link, weights=self.count, minlength=len(self.links))
        return int(load.max())

    def levels(self, active: _Ints, capacities: Sequence[int]) -> _Levels:
        """Return the levels of the active flow classes (ascending indices). `capacities` by link,
        in any unit; the list must never change."""
        if len(self.links) == 1:
            load, none = int(self.count[active].sum()), np.zeros(len(active), dtype=np.int64)
            return _Levels(none, [capacities[0]], max(load, 1), none)
        if capacities is not self._capacities:
            room = np.array(capacities, dtype=np.float64)
            self._capacities, self._room = capacities, room / max(room.max(), 1)
        level, steps, counts, full, held = _fill(
            active, self.first, self.link, self.count, self._room, _BAND
        )
        if self.largest * (steps + 8) * 2.0**-52 < _ROUNDING:
            found = _exact_shares(capacities, counts, full, steps)
            if found is not None:
                return _Levels(level, *found, held)
        return self._exact(active, capacities)

    def _exact(self, active: _Ints, capacities: Sequence[int]) -> _Levels:
        flows = []
        for place in active.tolist():
            part = slice(self.first[place], self.first[place + 1])
            flows.append(
                dict(zip(self.link[part].tolist(), self.count[part].tolist(), strict=True))
            )
        rates = _filled(flows, dict(enumerate(map(Fraction, capacities))))
        distinct = sorted(set(rates))
        scale = lcm(*(rate.denominator for rate in distinct))
        level_of = {rate: place for place, rate in enumerate(distinct)}
        level = np.array([level_of[rate] for rate in rates], dtype=np.int64)
        return _Levels(level, [int(rate * scale) for rate in distinct], scale, level)


def _filled(flows: Sequence[dict[Any, int]], capacities: dict[Any, Fraction]) -> list[Fraction]:
    """Return the rate of a flow of each class, given its loads, by exact progressive filling."""
    load: dict[Any, int] = {}
    for flow in flows:
        for link, count in flow.items():
            load[link] = load.get(link, 0) + count
    room, rising = dict(capacities), set(range(len(flows)))  # free capacity; classes without a rate
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
    capacities: Sequence[int], counts: _Ints, full: _Ints, steps: int
) -> tuple[list[int], int] | None:
    """Return the levels' shares over a common scale; None if the levels are wrong."""
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
    active: _Ints,
    first: _Ints,
    link: _Ints,
    count: _Ints,
    capacity: NDArray[np.float64],
    band: float,
) -> tuple[_Ints, int, _Ints, _Ints, _Ints]:
    """Return the levels of the active flows, their number, flows by link and level, the level of
    full links, and the full link that limits each flow."""
    links = capacity.size
    flows = active.size
    left = capacity.copy()  # [links]: capacity that flows with a level have not taken
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
        bound = smallest * (1 + band)  # includes links that are as full, except for rounding
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
            else:  # its rate still rises
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
