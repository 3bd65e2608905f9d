"""How long does a message occupy its sender when the devices of a node share its network card?

Between two devices of a node a message takes the sending device's own link; to another node it
takes the network card of the sender's node. Messages that leave through the same outlet in the
same round share it:

    left = start + sharing * serialisation        arrival = left + latency

with `sharing` the number of messages of the round on that outlet. A rank's own link is shared only
where an algorithm has the rank send several messages at a time.

Assumptions: messages are buffered, as in `ring.py`; messages of a round that share a card take as
long as if they started together, also when skew keeps them apart; a receiver's card never holds a
message up, and neither does the switch.

Source: alpha-beta links (Hockney 1994); a card's share as in the fluid picture of
`fair_sharing.py`, with equal messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import PS_PER_SECOND, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.ring import NO_COST, check_range, classes
from gcsim.simulator.links import Link

Ranks = NDArray[np.int64]
Bytes = NDArray[np.int64]
_LARGEST = 2**62


class Fabric:
    """The links of `nodes * devices` ranks, counted node by node."""

    def __init__(
        self, *, nodes: int, devices: int, cards: Sequence[Link], buses: Sequence[Link]
    ) -> None:
        """`cards` leave the nodes, `buses` the devices of a node: one for all nodes or one each."""
        self.nodes, self.devices, self.ranks = nodes, devices, nodes * devices
        self.node = np.arange(self.ranks, dtype=np.int64) // devices
        named = {id(link): link for link in (*buses, *cards)}
        names, kinds = classes([id(link) for link in (*buses, *cards)])
        self.links = [named[name] for name in names]
        self._buses, self._cards = kinds[: len(buses)], kinds[len(buses) :]
        self._latency = np.array([link.latency_ps for link in self.links], dtype=np.int64)
        rates = [PS_PER_SECOND / (link.bandwidth * link.efficiency) for link in self.links]
        self._over = np.array([rate.numerator for rate in rates])
        self._under = np.array([rate.denominator for rate in rates])
        self._times: dict[int, Times] = {}

    @staticmethod
    def of(cluster: Cluster) -> Fabric:
        """Every node of a cluster has the same links."""
        return Fabric(
            nodes=cluster.nodes,
            devices=cluster.devices_per_node,
            cards=[cluster.network],
            buses=[cluster.intra_node],
        )

    @cached_property
    def everyone(self) -> Ranks:
        """All ranks, in order."""
        return np.arange(self.ranks, dtype=np.int64)

    def check(self, entry: Times, rounds: int, volume: int, gamma: Fraction = NO_COST) -> None:
        """Raise `InputError` when so many rounds are beyond the clock.

        `volume` is the bytes of the largest message of each round, of all rounds together.
        """
        busy = max(link.serialization(volume) for link in self.links) + rounds
        adding = round(gamma * volume * PS_PER_SECOND) + rounds
        check_range(entry, self.devices * busy + rounds * int(self._latency.max()) + adding)

    def messages(
        self, senders: Ranks, receivers: Ranks, nbytes: Bytes | int
    ) -> tuple[Times, Times]:
        """For how long each message of one round occupies its sender, and its latency.

        Sender and receiver differ; `nbytes` is one size for all or one a message.
        """
        kinds, outlets = self._outlets(senders, receivers)
        sharing = np.bincount(outlets)[outlets]
        return self._serialisation(kinds, nbytes) * sharing, self._latency[kinds]

    def exchange(
        self,
        ready: Times,
        senders: Ranks,
        receivers: Ranks,
        nbytes: Bytes | int,
        gamma: Fraction = NO_COST,
    ) -> Times:
        """When each rank is ready for the next round, given when it was ready for this one.

        Each rank sends and receives at most one message, and is ready when its own has left and
        the other has arrived and been reduced (`gamma` seconds a byte).
        """
        if self.devices == 1:  # no card is shared
            kinds = _by_node(self._cards, senders)
            busy, latency = self._serialisation(kinds, nbytes), self._latency[kinds]
        else:
            busy, latency = self.messages(senders, receivers, nbytes)
        left = ready[senders] + busy
        ready = ready.copy()
        ready[senders] = left
        arrived = np.maximum(ready[receivers], left + latency)
        if gamma:
            cost = gamma * PS_PER_SECOND
            arrived += scaled(np.asarray(nbytes), cost.numerator, cost.denominator)
        ready[receivers] = arrived
        return ready

    def ring_links(self) -> list[Link]:
        """The hop from each rank to its successor (mod p)."""
        kinds, _ = self._outlets(self.everyone, np.roll(self.everyone, -1))
        return [self.links[kind] for kind in np.broadcast_to(kinds, self.ranks).tolist()]

    def _outlets(self, senders: Ranks, receivers: Ranks) -> tuple[NDArray[np.int64], Ranks]:
        """Link class and number of the outlet of each message."""
        node = self.node[senders]
        crosses = node != self.node[receivers]
        kinds = np.where(crosses, _by_node(self._cards, node), _by_node(self._buses, node))
        return kinds, np.where(crosses, node, self.nodes + senders)

    def _serialisation(self, kinds: NDArray[np.int64], nbytes: Bytes | int) -> Times:
        if not isinstance(nbytes, int):
            return scaled(nbytes, self._over[kinds], self._under[kinds])
        if nbytes not in self._times:
            times = [link.serialization(nbytes) for link in self.links]
            self._times[nbytes] = np.array(times, dtype=np.int64)
        return self._times[nbytes][kinds]


def scaled(values: NDArray[np.int64], over: NDArray[Any] | int, under: NDArray[Any] | int) -> Times:
    """`values * over / under`, rounded to the nearest whole number, halves to the even one."""
    if values.size == 0:
        return values
    numerator, denominator = int(np.max(over)), int(np.max(under))
    if max(numerator * max(1, int(values.max())), 2 * denominator) >= _LARGEST:
        values = values.astype(object)  # Python's integers have no limit
    product = values * over
    whole = product if denominator == 1 else product // under
    if denominator > 1:
        twice = 2 * (product - whole * under)
        whole = whole + ((twice > under) | ((twice == under) & (whole % 2 == 1)))
    rounded: Times = whole.astype(np.int64, copy=False)
    return rounded


def _by_node(kinds: NDArray[np.int64], node: Ranks) -> NDArray[np.int64]:
    return kinds[0] if len(kinds) == 1 else kinds[node]
