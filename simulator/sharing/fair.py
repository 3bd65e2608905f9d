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
