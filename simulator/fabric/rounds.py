"""Times of a round's messages, and a cluster's links prepared for them.

    left = start + serialisation      arrival = left + latency + random delay

on each message's path, shared with the round's other messages (`fabric/round_paths.py`). Messages
are buffered, as in `rings/recurrence.py`, and numbered from 0 per rank. Source: Hockney 1994.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from gcsim.simulator.clock import NO_COST, PS_PER_SECOND, Times, check_range
from gcsim.simulator.cluster import Cluster, Racks
from gcsim.simulator.fabric.link_table import Bytes, Kinds, LinkTable, Ranks, scaled
from gcsim.simulator.fabric.round_paths import Framing, Hops, Integers, RoundPaths
from gcsim.simulator.host import Devices, first_ranks
from gcsim.simulator.network.links import Link

_KEPT_ROUNDS = 64


class Fabric:
    """Links of all ranks, numbered node by node."""

    def __init__(
        self,
        *,
        nodes: int,
        devices: Devices,
        nics: Sequence[Link],
        buses: Sequence[Link],
        racks: Racks | None = None,
        nics_per_node: int = 1,
        shared_bus: bool = False,
        framing: Framing | None = None,
    ) -> None:
        """`nics` join a node to the others, `buses` its devices: one for all nodes or one per node.
        Each of `nics` represents `nics_per_node` NICs."""
        self.nodes, self.devices = nodes, devices
        self.ranks = nodes * devices if isinstance(devices, int) else sum(devices)
        self.everyone: Ranks = np.arange(self.ranks, dtype=np.int64)
        self._of: dict[str, Any] = {
            "nodes": nodes,
            "devices": devices,
            "nics": nics,
            "buses": buses,
            "racks": racks,
            "nics_per_node": nics_per_node,
            "shared_bus": shared_bus,
        }
        self._framing = framing or Framing()
        self._rounds: OrderedDict[tuple[bytes, bytes], Hops] = OrderedDict()
        self._rings: dict[tuple[int, bool], tuple[Link, ...]] = {}
        self._framed: dict[Framing, Fabric] = {}

    @cached_property
    def _paths(self) -> RoundPaths:
        return RoundPaths(**self._of, framing=self._framing)

    @staticmethod
    def of(cluster: Cluster) -> Fabric:
        """Return the fabric of a cluster."""
        nodes = range(cluster.nodes)
        return Fabric(
            nodes=cluster.nodes,
            devices=cluster.devices_by_node,
            nics=[cluster.nic(node) for node in nodes] if cluster.nics else [cluster.network],
            buses=[cluster.buses.get(node, cluster.between_ranks) for node in nodes]
            if cluster.buses and cluster.between_ranks is cluster.intra_node
            else [cluster.between_ranks],
            racks=cluster.racks,
            nics_per_node=cluster.nics_per_node,
            shared_bus=cluster.shared_bus,
        )

    @cached_property
    def of_nodes(self) -> Fabric:
        """Fabric of one rank per node."""
        return Fabric(**{**self._of, "devices": 1})

    @property
    def flat(self) -> bool:
        """Whether messages have one unshared path in rounds of one send and receive per rank."""
        return self._paths.flat

    @property
    def alike(self) -> bool:
        """Whether nodes are equal: then paths depend only on the distance between ranks."""
        return self._paths.alike

    def ends(self) -> tuple[LinkTable, Kinds, Times] | None:
        """Table of NICs, each rank's number in it and its latency, if messages depend only on their
        ends' NICs in rounds as those of `flat`; else None."""
        found = self._paths.ends()
        return None if found is None else (self._paths.table, *found)

    def with_framing(self, framing: Framing) -> Fabric:
        """Return the fabric with a protocol's overheads."""
        if framing not in self._framed:
            self._framed[framing] = Fabric(**self._of, framing=framing)
        return self._framed[framing]

    def hops(self, senders: Ranks, receivers: Ranks) -> Hops:
        """Return the links of the messages of one round, `[n]`; senders and receivers differ.
        Cached, unlike in `exchange`, for collectives of few rounds."""
        name = senders.tobytes(), receivers.tobytes()
        if name not in self._rounds:
            if len(self._rounds) >= _KEPT_ROUNDS:
                self._rounds.popitem(last=False)
            self._rounds[name] = self._paths.hops(senders, receivers)
        return self._rounds[name]

    @property
    def form(self) -> tuple[object, ...]:
        """Key of fabrics in which the same messages of a round share links, of any speed."""
        return self._paths.form

    def alike_messages(self, senders: Ranks, receivers: Ranks) -> tuple[list[list[int]], Integers]:
        """Return the different paths of a round's messages, and each message's index among them;
        both are equal for fabrics of one `form`."""
        return self._paths.alike_messages(senders, receivers)

    def hops_on(self, paths: Sequence[Sequence[int]]) -> Hops:
        """Return a hop for each of these paths, without senders and receivers."""
        return self._paths.hops_on(paths)

    def exchange(
        self,
        ready: Times,
        senders: Ranks,
        receivers: Ranks,
        nbytes: Bytes | int,
        gamma: Fraction = NO_COST,
        *,
        key: int = 0,
        message: int = 0,
    ) -> Times:
        """Return when ranks are ready for the next round, given when they are ready for this one.

        Each rank sends and receives at most one message, number `message` of its sender, and is
        ready when its own has left and the other has been received and reduced (`gamma` seconds a
        byte). `nbytes`: one size, or one per message.
        """
        hops = self._paths.hops(senders, receivers)
        left, arrival = hops.flight(ready[senders], nbytes, key=key, message=message)
        ready = ready.copy()
        ready[senders] = left
        ready[receivers] = np.maximum(ready[receivers], arrival) + reduction(nbytes, gamma)
        return ready

    def ring_links(self, *, backwards: bool = False) -> tuple[Link, ...]:
        """Return the hop from each rank to its successor (mod p), or predecessor, while all hops of
        the ring are in use."""
        return self._ring(self.everyone, backwards=backwards)

    def ring_paths(self, *, backwards: bool = False) -> tuple[list[list[int]], Integers]:
        """Return the different paths of `ring_links`, and each rank's index among them."""
        return self.alike_messages(self.everyone, np.roll(self.everyone, 2 * backwards - 1))

    def leader_links(self) -> tuple[Link, ...]:
        """Return the hop from each node's first device to the next node's (mod N)."""
        return self._ring(first_ranks(self.nodes, self.devices), backwards=False)

    def _ring(self, ranks: Ranks, *, backwards: bool) -> tuple[Link, ...]:
        name = len(ranks), backwards
        if name not in self._rings:
            self._rings[name] = self.links(ranks, np.roll(ranks, 2 * backwards - 1))
        return self._rings[name]

    def links(self, senders: Ranks, receivers: Ranks) -> tuple[Link, ...]:
        """Return the path of each message of a round, with its share."""
        if self.ranks == 1:
            return ()
        return self._paths.links(senders, receivers)


def reduction(nbytes: Bytes | int, gamma: Fraction) -> Times | int:
    """Return the time to add `nbytes` bytes at `gamma` seconds each; `InputError` if too long."""
    if not gamma:
        return 0
    each = gamma * PS_PER_SECOND
    longest = round(each * int(np.max(nbytes, initial=0)))
    check_range(np.zeros(1, dtype=np.int64), longest)
    if isinstance(nbytes, int):
        return longest
    return scaled(nbytes, each.numerator, each.denominator)
