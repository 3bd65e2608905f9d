"""Which flows does an exchange with parameter servers have?

A class of flows is what all workers of a class push to all servers of a class, or pull from them,
as far as they are placed alike to each other: on one node, in one rack, or in two.

Where the topology spreads flows evenly (`Topology.spread_evenly`), the NICs in are left out, and
all that a class of workers or servers sends to other nodes is one class of flows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.servers.locations import ABSENT, NodeKind, Placement
from gcsim.simulator.collectives.servers.topology import Loads, Topology, own_limit
from gcsim.simulator.network.links import Link
from gcsim.simulator.sharing.model import Capacity, FlowClass


@dataclass(frozen=True, slots=True)
class Ends:
    """Who is at the ends of a class of flows."""

    push: bool
    source: int
    """Class of the sender."""
    targets: int | NDArray[np.int64]
    """Class or classes, all different, of the receivers."""
    link: Link
    """What a message sees from one to the other."""
    nbytes: int
    """Of a message: a stripe, rounded up."""


class Flows:
    """All classes of flows of an exchange."""

    def __init__(
        self, cluster: Cluster, places: Placement, pushed: Sequence[int], pulled: int
    ) -> None:
        """`pushed[w]`: bytes of a worker of class w; `pulled`: what each worker receives."""
        self.flows: list[FlowClass] = []
        self.ends: list[Ends] = []
        self._topology = Topology(cluster, places.kinds)
        self._servers = cluster.servers
        self._pushed, self._pulled = pushed, pulled
        everyone = ABSENT not in places.worker_class
        if everyone and self._topology.spread_evenly():
            self._add_bundles(places.kinds)
        else:
            self._add_pairs(places.kinds)

    @property
    def capacities(self) -> dict[Hashable, Capacity]:
        """Of all classes of links that flows cross."""
        return self._topology.capacities

    def _add_pairs(self, kinds: Sequence[NodeKind]) -> None:
        hosts = [kind for kind in kinds if kind.servers]
        racks = self._topology.cluster.racks is not None
        for at in [kind for kind in kinds if kind.workers]:
            self._add_local(at)
            for home in hosts:
                same, neighbours = home is at, home.rack == at.rack
                if neighbours:
                    homes, nodes = home.in_rack - same, at.in_rack - same
                    self._add_remote(at, home, homes, nodes, racks=False)
                homes = home.in_rack * (home.racks - neighbours)
                nodes = at.in_rack * (at.racks - neighbours)
                self._add_remote(at, home, homes, nodes, racks=racks)

    def _add_remote(
        self, at: NodeKind, home: NodeKind, homes: int, nodes: int, *, racks: bool
    ) -> None:
        """Each node `at` uses servers on `homes` machines, each of which serves `nodes`."""
        if not homes or not nodes:
            return
        between = self._topology.between
        out = self._topology.link(at, home, racks=racks)
        back = self._topology.link(home, at, racks=racks)
        for worker, alike in at.workers:
            for server, hosted in home.servers:
                one = alike * hosted
                push = between(at, home, one * homes, one * nodes, racks=racks)
                pull = between(home, at, one * nodes, one * homes, racks=racks)
                self._add(True, worker, server, push, out)
                self._add(False, server, worker, pull, back)

    def _add_local(self, at: NodeKind) -> None:
        bus, inside = self._topology.cluster.intra_node, self._topology.inside
        for worker, alike in at.workers:
            for server, hosted in at.servers:
                push = inside(at, worker, hosted, alike * hosted, "to memory")
                pull = inside(at, worker, hosted, alike * hosted, "from memory")
                self._add(True, worker, server, push, bus)
                self._add(False, server, worker, pull, bus)

    def _add_bundles(self, kinds: Sequence[NodeKind]) -> None:
        """As NICs are equal, so are all paths between nodes."""
        for push in (True, False):
            senders = [kind.workers if push else kind.servers for kind in kinds]
            receivers = [kind.servers if push else kind.workers for kind in kinds]
            on_node = [sum(count for _, count in of) for of in receivers]
            total = sum(kind.nodes * n for kind, n in zip(kinds, on_node, strict=True))
            number = np.repeat(np.arange(len(kinds)), [len(of) for of in receivers])
            classes = np.array([to for of in receivers for to, _ in of], dtype=np.int64)
            for place, kind in enumerate(kinds):
                targets = classes if kind.nodes > 1 else classes[number != place]
                link = self._topology.link(kind, kind, racks=False)
                for source, count in senders[place] if targets.size else ():
                    loads: Loads = {("out", id(kind)): count * (total - on_node[place])}
                    self._add(push, source, targets, loads, link)
        for kind in kinds:
            self._add_local(kind)

    def _add(
        self,
        push: bool,
        source: int,
        targets: int | NDArray[np.int64],
        loads: Loads,
        link: Link,
    ) -> None:
        payload = self._pushed[source] if push else self._pulled
        nbytes = -(-payload // self._servers)
        limit = own_limit(link, nbytes)
        if limit is not None:
            own = "own", len(self.flows)
            self._topology.capacities[own] = limit
            loads = {**loads, own: 1}
        self.flows.append(FlowClass(Fraction(payload, self._servers), loads))
        self.ends.append(Ends(push, source, targets, link, nbytes))
