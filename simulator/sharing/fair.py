"""How fast do flows run that share links, and when does each end?

Max-min fairness: no flow can go faster without slowing one that is not faster than itself
(Bertsekas and Gallager, Data Networks, 1992, sec. 6.5.2), the fluid picture of long TCP flows;
rates change at once when a flow starts or ends, or a capacity changes. Equal flows are one class
with a multiplicity.

Exact: rates and remaining bytes are rational. A flow ends at the first whole picosecond at which
its bytes are through, and its share is free from then on; that keeps the clock integer.

A link that can never hold a flow up is left out: one whose flows all cross, as often, another
link that has no more capacity. If each flow then crosses one link, the links are independent and
have virtual times (`sharing/incast.py`); else rates follow from event to event
(`sharing/flows.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.sharing.flows import share_several_links
from gcsim.simulator.sharing.incast import share_single_links
from gcsim.simulator.sharing.model import Capacity, Ended, FlowClass, never_less


def share_fairly(
    starts: Mapping[int, Picoseconds],
    flows: Sequence[FlowClass],
    capacities: Mapping[Any, Capacity],
    ended: Ended,
) -> None:
    """Run flows to their ends.

    `starts` maps places in `flows` to start times >= 0; `capacities` by class of links;
    `ended(place, time)` is told of each end, in order of time, and returns the start times of
    further flows, none before `time`. Each flow crosses a link at least.
    """
    needed = _without_idle_links(flows, capacities)
    single = all(len(flow.loads) == 1 for flow in needed)
    run = share_single_links if single else share_several_links
    run(starts, needed, capacities, ended)


def _without_idle_links(
    flows: Sequence[FlowClass], capacities: Mapping[Any, Capacity]
) -> Sequence[FlowClass]:
    """The flows without links that can never be the ones that hold them up."""
    on: dict[Hashable, list[int]] = {}
    for place, flow in enumerate(flows):
        for link in flow.loads:
            on.setdefault(link, []).append(place)
    idle: set[Hashable] = set()
    for link, places in on.items():
        first, last = flows[places[0]].loads, flows[places[-1]].loads
        for other in first:
            if other == link or other in idle or other not in last:
                continue
            if never_less(capacities[link], capacities[other]) and all(
                flows[place].loads[link] <= flows[place].loads.get(other, 0) for place in places
            ):
                idle.add(link)
                break
    if not idle:
        return flows
    return [
        FlowClass(flow.nbytes, {at: count for at, count in flow.loads.items() if at not in idle})
        for flow in flows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes from one end of a star to another."""

    source: Hashable
    destination: Hashable
    nbytes: int
    start: Picoseconds = 0


def concurrent_transfers(
    transfers: Sequence[Transfer], rates: Mapping[Any, Fraction]
) -> list[Picoseconds]:
    """When the last byte of each transfer is through, on a switch that holds nothing up.

    `rates` is the goodput of each end's card, bytes per second, each direction. A latency comes on
    top of the result. Ends of one card: a transfer to itself takes no time.
    """
    ends = [transfer.start for transfer in transfers]
    capacities: dict[Hashable, Capacity] = {}
    for name, rate in rates.items():
        capacities["out", name] = capacities["in", name] = rate
    flows = [
        FlowClass(one.nbytes, {("out", one.source): 1, ("in", one.destination): 1})
        for one in transfers
    ]
    starts = {
        place: one.start for place, one in enumerate(transfers) if one.source != one.destination
    }

    def ended(place: int, time: Picoseconds) -> Mapping[int, Picoseconds]:
        ends[place] = time
        return {}

    share_fairly(starts, flows, capacities, ended)
    return ends
