"""Ends of flows that each cross one shared link, such as a server's NIC.

Each of n flows on a link of capacity C has C / n. Virtual time V is the bytes that an ever-present
flow would have got, dV = C dt / n; a flow of s bytes that starts at V ends at V + s: O(log n) per
start and end. When all start together with sorted sizes s, flow i ends at

    t_i = sum over j <= i of (n - j + 1)(s_j - s_{j-1}) / C

Ends are rounded as in `sharing/fair.py`.

Source: virtual time of processor sharing, Demers, Keshav and Shenker 1989 (SIGCOMM), sec. 2.2.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from heapq import heapify, heappop, heappush
from math import gcd, lcm
from typing import Any

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.sharing.model import Capacity, Ended, FlowClass, Supply, supply

_PATIENCE = 16  # changes of scale before it is made divisible by many numbers of flows
_LARGEST = 1 << 15


def share_single_links(
    starts: Mapping[int, Picoseconds],
    flows: Sequence[FlowClass],
    capacities: Mapping[Any, Capacity],
    ended: Ended,
) -> None:
    """Run flows, each on one link, to their ends; arguments as `fair.share_fairly`."""
    waiting = [(start, place) for place, start in starts.items()]
    heapify(waiting)
    links: dict[Hashable, _SharedLink] = {}
    ends: list[tuple[Picoseconds, int, int]] = []  # time, number of the link, its version
    numbered: list[_SharedLink] = []
    while waiting or ends:
        now = min(queue[0][0] for queue in (waiting, ends) if queue)
        touched: dict[int, _SharedLink] = {}
        # at one instant flows start and end until nothing more does: what ends may start others,
        # and one of no bytes ends as it starts
        while True:
            while ends and ends[0][0] <= now:
                _, number, version = heappop(ends)
                if numbered[number].version == version:  # else somebody came or went since
                    touched[number] = numbered[number]
            while waiting and waiting[0][0] <= now:
                start, place = heappop(waiting)
                if start < now:
                    raise InternalError(f"flow {place} starts in the past, before {now} ps")
                ((name, load),) = flows[place].loads.items()
                if name not in links:
                    links[name] = _SharedLink(len(numbered), supply(capacities[name]))
                    numbered.append(links[name])
                link = links[name]
                touched[link.number] = link
                link.add(now, place, flows[place].nbytes, load)
            through = [place for link in touched.values() for place in link.through(now)]
            for place in sorted(through):
                for further, start in ended(place, now).items():
                    heappush(waiting, (start, further))
            if not waiting or waiting[0][0] > now:
                break
        for number, link in touched.items():
            link.version += 1
            end = link.next_end()
            if end is not None:
                heappush(ends, (end, number, link.version))


class _SharedLink:
    def __init__(self, number: int, supply: Supply) -> None:
        self.number, self.version = number, 0
        self.tags: list[tuple[int, int, int]] = []  # heap of (virtual time of the end, place, load)
        self._supply = supply
        self._scale = 1  # units of virtual time per byte
        self._virtual = 0
        self._delivered = 0  # the link's bytes at the last update of virtual time
        self._load = 0
        self._changes = 0

    def add(self, now: Picoseconds, place: int, nbytes: int | Fraction, load: int) -> None:
        self._advance(now)
        if not isinstance(nbytes, int) and self._scale % nbytes.denominator:
            self._rescale(nbytes.denominator)
        self._load += load
        heappush(self.tags, (self._virtual + int(nbytes * self._scale), place, load))

    def through(self, now: Picoseconds) -> list[int]:
        self._advance(now)
        places = []
        while self.tags and self.tags[0][0] <= self._virtual:
            _, place, load = heappop(self.tags)
            self._load -= load
            places.append(place)
        return places

    def next_end(self) -> Picoseconds | None:
        """Time of the next end if nothing starts before; None without flows."""
        if not self.tags:
            return None
        unit = self._unit()
        missing = -((self._virtual - self.tags[0][0]) // unit)
        return self._supply.reached(self._delivered + missing)

    def _advance(self, now: Picoseconds) -> None:
        delivered = self._supply.delivered(now)
        if self._load and delivered != self._delivered:
            self._virtual += self._unit() * (delivered - self._delivered)
        self._delivered = delivered

    def _unit(self) -> int:
        """Progress of virtual time per unit delivered."""
        per_byte = self._supply.scale * self._load
        if self._scale % per_byte:
            self._rescale(per_byte)
        return self._scale // per_byte

    def _rescale(self, divisor: int) -> None:
        """Make the scale divisible by `divisor`; after many changes, by most later ones too."""
        self._changes += 1
        if self._changes > _PATIENCE and self.tags:
            common = gcd(*(load for _, _, load in self.tags))
            numbers = 1 << (self._load // common - 1).bit_length()
            if numbers <= _LARGEST:
                divisor = lcm(divisor, self._supply.scale * common * divided_by_all(numbers))
        factor = divisor // gcd(self._scale, divisor)
        self._scale *= factor
        self._virtual *= factor
        self.tags = [(tag * factor, place, load) for tag, place, load in self.tags]


@cache
def divided_by_all(numbers: int) -> int:
    """Least common multiple of 1 ... numbers."""
    return lcm(*range(1, numbers + 1))
