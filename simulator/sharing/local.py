"""How do single flows run that cross shared links, where most do not concern each other?

The fluid of `sharing/fair.py`, flow by flow and place by place: when a flow starts or ends, rates
change only among flows that are joined to it by links that two of them cross. Those are looked for,
and filled progressively; all others run on with the ends that they had. So an event costs what it
touches, and what is left of a flow is a fraction of its own, brought up to date when its rate
changes.

An end is at the first whole picosecond at which a flow's bytes are through. Or it is at the nearest
one, as for messages that take the engine's durations (`Link.serialization`): then

    end = start - round(before) + round(before + duration)

with `before` the picoseconds that its sender has spent on it already; halves go to the even sum.
From its end on a flow takes nothing. At one instant, flows end, then others start, then rates are
found; then whatever has nothing left to send ends, and so on.

Source: Bertsekas and Gallager 1992, Data Networks, sec. 6.5.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import gcd, lcm
from typing import Any

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.sharing.levels import progressive_filling
from gcsim.simulator.sharing.model import Capacity, Ended, FlowClass, supply

_NEVER = -1
_LONG = 1 << 64
"""Denominators from which on a fraction is reduced."""


class LocalFlows:
    """Flows on links, prepared for any start times; one run at a time."""

    def __init__(
        self,
        flows: Sequence[FlowClass],
        capacities: Mapping[Any, Capacity],
        before: Sequence[Fraction | None],
    ) -> None:
        """`before[f]`, picoseconds: flow f ends at the nearest one; None: at the first whole one.

        Each flow crosses a link at least; `capacities` by name of the link.
        """
        names = list({link: None for flow in flows for link in flow.loads})
        number = {name: place for place, name in enumerate(names)}
        kinds = {id(flow.loads): flow.loads for flow in flows}
        of = {
            kind: tuple((number[name], count) for name, count in loads.items())
            for kind, loads in kinds.items()
        }
        self._loads = [of[id(flow.loads)] for flow in flows]
        self._supplies = [supply(capacities[name]) for name in names]
        self._whole = lcm(*{Fraction(flow.nbytes).denominator for flow in flows})
        self._nbytes = [int(flow.nbytes * self._whole) for flow in flows]
        self._before = [each or (None if each is None else 0) for each in before]
        self._starting()

    def _starting(self) -> None:
        flows, links = len(self._loads), len(self._supplies)
        self._left, self._scale = self._nbytes[:], [self._whole] * flows
        """Bytes left, as fractions."""
        self._over, self._under = [0] * flows, [1] * flows
        """Rates, bytes a picosecond, in lowest terms."""
        self._since, self._began = [0] * flows, [0] * flows
        self._end = [_NEVER] * flows
        self._on: list[dict[int, None]] = [{} for _ in range(links)]
        """Flows by link."""
        self._load = [0] * links
        rates = [source.rate(0) for source in self._supplies]
        self._room = [
            (rate, source.scale) for (rate, _), source in zip(rates, self._supplies, strict=True)
        ]
        self._until = [until for _, until in rates]
        self._ends: list[tuple[Picoseconds, int]] = []
        self._changes: list[tuple[Picoseconds, int]] = []
        self._reached, self._met = [0] * links, [0] * flows
        self._round = 0

    def run(self, starts: Mapping[int, Picoseconds], ended: Ended) -> None:
        """Run flows to their ends; arguments as those of `fair_sharing.share_fairly`."""
        self._starting()
        waiting = [(start, place) for place, start in starts.items()]
        heapify(waiting)
        running = 0
        while waiting or running:
            now = self._next(waiting)
            touched: set[int] = set()
            through = self._through(now, touched)
            running -= len(through)
            for place in through:
                for further, start in ended(place, now).items():
                    heappush(waiting, (start, further))
            while waiting and waiting[0][0] <= now:
                start, place = heappop(waiting)
                if start < now:
                    raise InternalError(f"flow {place} starts in the past, before {now} ps")
                self._start(place, now, touched)
                running += 1
            while self._changes and self._changes[0][0] <= now:
                time, link = heappop(self._changes)
                if self._on[link] and self._until[link] == time:
                    self._read(link, now)
                    touched.add(link)
            self._share(touched, now)

    def _next(self, waiting: Sequence[tuple[Picoseconds, int]]) -> Picoseconds:
        """When something happens again."""
        ends = self._ends
        while ends and self._end[ends[0][1]] != ends[0][0]:
            heappop(ends)
        events = [queue[0][0] for queue in (waiting, ends, self._changes) if queue]
        if not events:
            raise InternalError("flows that never end")
        return min(events)

    def _through(self, now: Picoseconds, touched: set[int]) -> list[int]:
        """Take out the flows that end now, in order."""
        found = []
        while self._ends and self._ends[0][0] <= now:
            time, flow = heappop(self._ends)
            if self._end[flow] == time:
                self._end[flow] = _NEVER
                found.append(flow)
                for link, count in self._loads[flow]:
                    del self._on[link][flow]
                    self._load[link] -= count
                    touched.add(link)
        found.sort()
        return found

    def _start(self, flow: int, now: Picoseconds, touched: set[int]) -> None:
        self._since[flow] = self._began[flow] = now
        if not self._left[flow]:
            self._end[flow] = now
            heappush(self._ends, (now, flow))
        for link, count in self._loads[flow]:
            if self._until[link] is not None and not self._on[link]:
                self._read(link, now)
            self._on[link][flow] = None
            self._load[link] += count
            touched.add(link)

    def _read(self, link: int, now: Picoseconds) -> None:
        """A link's rate from now on, and when it changes."""
        source = self._supplies[link]
        rate, until = source.rate(now)
        self._room[link], self._until[link] = (rate, source.scale), until
        if until is not None:
            heappush(self._changes, (until, link))

    def _share(self, touched: Iterable[int], now: Picoseconds) -> None:
        """Find the rates of all flows that links join to those touched."""
        self._round += 1
        number, reached, met, on = self._round, self._reached, self._met, self._on
        for first in touched:
            if reached[first] == number or not on[first]:
                continue
            reached[first] = number
            links, alone = [first], len(on[first]) == 1
            for link in links:
                for flow in on[link]:
                    if met[flow] != number:
                        met[flow] = number
                        for other, _ in self._loads[flow]:
                            if reached[other] != number:
                                reached[other] = number
                                links.append(other)
                                alone = alone and len(on[other]) == 1
            if alone:
                (flow,) = on[first]
                over, under = self._least(flow)
                if over != self._over[flow] or under != self._under[flow]:
                    self._set(flow, over, under, now)
            else:
                self._fill(links, now)

    def _least(self, flow: int) -> tuple[int, int]:
        """The rate of a flow that has all its links for itself."""
        over, under = 1, 0
        for link, count in self._loads[flow]:
            room, scale = self._room[link]
            if room * under < over * scale * count:
                over, under = room, scale * count
        common = gcd(over, under)
        return over // common, under // common

    def _fill(self, links: list[int], now: Picoseconds) -> None:
        """Set the rates of all flows on links that are joined."""
        load = {link: self._load[link] for link in links}
        room = {link: self._room[link] for link in links}
        for over, under, flows in progressive_filling(self._on, self._loads, load, room):
            for flow in flows:
                if over != self._over[flow] or under != self._under[flow]:
                    self._set(flow, over, under, now)

    def _set(self, flow: int, over: int, under: int, now: Picoseconds) -> None:
        """Let a flow run at over / under bytes a picosecond from now on."""
        left, scale = self._left[flow], self._scale[flow]
        elapsed, old = now - self._since[flow], self._over[flow]
        if elapsed and old:
            per = self._under[flow]
            if scale % per:
                left, scale = left * per - elapsed * old * scale, scale * per
            else:
                left -= elapsed * old * (scale // per)
            if scale >= _LONG:
                common = gcd(left, scale)
                left, scale = left // common, scale // common
            self._left[flow], self._scale[flow] = left, scale
        self._since[flow], self._over[flow], self._under[flow] = now, over, under
        if not over:
            self._end[flow] = _NEVER
            return
        amount, per = left * under, scale * over
        before = self._before[flow]
        if before is None:
            end = now - (-amount // per)
        elif not before:
            whole, rest = divmod(amount, per)
            rest = 2 * rest - per
            odd = (now - self._began[flow] + whole) & 1
            end = now + whole + (rest > 0 or (rest == 0 and odd))
        else:
            taken = before + now - self._began[flow] + Fraction(amount, per)
            end = self._began[flow] - round(before) + round(taken)
        self._end[flow] = end = max(now, end)
        heappush(self._ends, (end, flow))
