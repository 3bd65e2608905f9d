"""What does a message between two ranks cross, and how much does each of it carry?

| crossed                                   | by messages                                      |
|-------------------------------------------|--------------------------------------------------|
| the link of the device that they reach    | inside a node                                    |
| the bus of the node, in its place         | inside a node (`Cluster.shared_bus`)             |
| the sender's card out, the receiver's in  | between nodes                                    |
| the air, for each end that is a station   | between nodes (`Link.shared`), in a card's place |
| the uplinks of two racks, out and in      | between racks                                    |

The link of the device that sends is left out: a rank sends one message at a time, and the link in
is as fast. A message is moreover never faster than its connection: what losses leave ("capped"),
and what size factors leave to a message of its size, are limits of its own; factors that make it
faster than its link let it count for fewer bytes.

A message alone takes what `fabric/round_paths.py` says, to the picosecond.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Racks
from gcsim.simulator.fabric.round_paths import Framing
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import inward, outward, path, through
from gcsim.simulator.network.rate_trace import RateTrace
from gcsim.simulator.sharing.model import Capacity, FlowClass

Loads = dict[Hashable, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What a message is to the fluid, and what it sees when it is alone."""

    flow: FlowClass
    link: Link
    before: Fraction | None
    """As of `LocalFlows`: the overhead, picoseconds; None where the rate changes over time."""


class SharedPaths:
    """The capacities of a fabric and who crosses them; arguments as of `RoundPaths`."""

    def __init__(
        self,
        *,
        devices: int,
        nodes: int,
        cards: Sequence[Link],
        buses: Sequence[Link],
        racks: Racks | None,
        shared_bus: bool,
        framing: Framing,
    ) -> None:
        self.capacities: dict[Hashable, Capacity] = {}
        """Of all that has been crossed, by name."""
        self._devices, self._shared_bus, self._framing = devices, shared_bus, framing
        self._racks = racks if racks is not None and racks.nodes < nodes else None
        self._cards, self._buses = cards, buses
        self._ways: dict[tuple[int, int], tuple[Loads, Link]] = {}

    def crossing(self, sender: int, receiver: int, nbytes: int) -> Crossing:
        """Of one message."""
        loads, link = self._way(sender, receiver)
        size: int | Fraction = nbytes
        goodput, line = link.goodput, link.line_goodput
        if link.factors or goodput != line:
            place = bisect_right([factor.from_bytes for factor in link.factors], nbytes)
            factor = link.factors[place - 1].bandwidth if place else Fraction(1)
            if factor > 1:
                size, factor = nbytes / factor, Fraction(1)
            if factor < 1 or goodput != line:
                own = "connection", len(self.capacities)
                self.capacities[own] = _times(goodput, factor)
                loads = {**loads, own: 1}
        changes = isinstance(goodput, RateTrace)
        return Crossing(
            flow=FlowClass(size, loads),
            link=link,
            before=None if changes else link.overhead * PS_PER_SECOND,
        )

    def _way(self, sender: int, receiver: int) -> tuple[Loads, Link]:
        """From one rank to another, the same dictionary each time."""
        out, into = sender // self._devices, receiver // self._devices
        inside = out == into and not self._shared_bus
        name = (-1, receiver) if inside else (out, into)
        if name not in self._ways:
            found = self._inside(receiver, out) if out == into else self._between(out, into)
            self._ways[name] = found
        return self._ways[name]

    def _inside(self, receiver: int, node: int) -> tuple[Loads, Link]:
        link = self._framing.of(self._buses[node % len(self._buses)], self._framing.inside)
        name = ("bus", node) if self._shared_bus else ("device in", receiver)
        return self._crossed((name, link.line_goodput)), link

    def _between(self, out: int, into: int) -> tuple[Loads, Link]:
        first, last = self._cards[out % len(self._cards)], self._cards[into % len(self._cards)]
        link = path(first, last)
        share = self._framing.share
        passed: list[tuple[Hashable, Capacity]] = []
        for card, node, way, leg in ((first, out, "out", outward), (last, into, "in", inward)):
            name: Hashable = ("air", card) if card.shared else (way, node)
            passed.append((name, _times(leg(card).line_goodput, share)))
        if self._racks is not None:
            racks = out // self._racks.nodes, into // self._racks.nodes
            if racks[0] != racks[1]:
                uplink = self._racks.uplink
                link = through(link, uplink, 1)
                carried = _times(uplink.line_goodput, share)
                passed.append((("rack out", racks[0]), carried))
                passed.append((("rack in", racks[1]), carried))
        return self._crossed(*passed), self._framing.of(link, self._framing.network)

    def _crossed(self, *passed: tuple[Hashable, Capacity]) -> Loads:
        loads: Loads = {}
        for name, capacity in passed:
            self.capacities[name] = capacity
            loads[name] = loads.get(name, 0) + 1
        return loads


def _times(capacity: Capacity, factor: Fraction) -> Capacity:
    if isinstance(capacity, RateTrace):
        return capacity.times_factor(factor)
    return capacity * factor
