"""How fast do flows run that share links, and when does each end?

Max-min fairness: no flow can go faster without slowing one that is not faster than itself
(Bertsekas and Gallager, Data Networks, 1992, sec. 6.5.2), the fluid picture of long TCP flows;
rates change at once when a flow starts or ends. Equal flows are one class with a multiplicity.

Exact: rates and remaining bytes are rational. A flow ends at the first whole picosecond at which
its bytes are through, and its share is free from then on; that keeps the clock integer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowClass:
    """Flows that are alike in everything: same size, same start, same kinds of links."""

    nbytes: int
    """Of one flow."""
    loads: Mapping[Hashable, int]
    """Name of a class of links to the number of these flows on one such link."""


def max_min_rates(
    flows: Sequence[FlowClass], capacities: Mapping[Hashable, Fraction]
) -> list[Fraction]:
    """The rate of one flow of each class; `capacities` by class of links.

    Progressive filling: the links with the smallest fair share fix the rates of their flows.
    """
    rates = [Fraction(0)] * len(flows)
    left = dict(capacities)
    loads: dict[Hashable, int] = {}
    for flow in flows:
        for link, count in flow.loads.items():
            loads[link] = loads.get(link, 0) + count
    free = list(range(len(flows)))
    while free:
        shares = {link: left[link] / load for link, load in loads.items() if load}
        smallest = min(shares.values())
        tight = {link for link, share in shares.items() if share == smallest}
        fixed = [place for place in free if not tight.isdisjoint(flows[place].loads)]
        for place in fixed:
            rates[place] = smallest
            for link, count in flows[place].loads.items():
                left[link] -= smallest * count
                loads[link] -= count
        gone = set(fixed)
        free = [place for place in free if place not in gone]
    return rates


def share_fairly(
    starts: Mapping[int, Picoseconds],
    flows: Sequence[FlowClass],
    capacities: Mapping[Hashable, Fraction],
    ended: Callable[[int, Picoseconds], Mapping[int, Picoseconds]],
) -> None:
    """Run flows to their ends.

    `starts` maps places in `flows` to start times; `capacities` is bytes per picosecond by class of
    links; `ended(place, time)` is told of each end, in order of time, then of place, and returns
    the start times of further flows, none before `time`.
    """
    waiting = dict(starts)
    remaining: dict[int, Fraction] = {}
    now = min(waiting.values())
    while waiting or remaining:
        due = [place for place, start in waiting.items() if start <= now]
        for place in due:
            if waiting.pop(place) < now:
                raise InternalError(f"flow {place} starts in the past, before {now} ps")
            remaining[place] = Fraction(flows[place].nbytes)
        through = sorted(place for place, nbytes in remaining.items() if nbytes <= 0)
        for place in through:
            del remaining[place]
            waiting.update(ended(place, now))
        if through:
            continue  # a flow that has just ended may let others start now
        upcoming = min(waiting.values(), default=None)
        if remaining:
            running = list(remaining)
            rates = max_min_rates([flows[place] for place in running], capacities)
            ends = min(
                -(-remaining[place] // rate) for place, rate in zip(running, rates, strict=True)
            )
            elapsed = ends if upcoming is None else min(ends, upcoming - now)
            for place, rate in zip(running, rates, strict=True):
                remaining[place] -= rate * elapsed
            now += elapsed
        elif upcoming is not None:
            now = upcoming
