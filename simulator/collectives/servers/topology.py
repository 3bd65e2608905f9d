"""What do flows between workers and parameter servers cross, and what does each of it carry?

| between a worker and a server  | a flow crosses                                              |
|--------------------------------|-------------------------------------------------------------|
| on one node                    | the worker's bus, or the node's, where its devices share one |
| on two machines                | the sender's NIC out, the receiver's NIC in               |
| in two racks                   | also the uplinks of both, out and in                        |
| one or both on a shared medium | the air, for each end on it, in the place of the end's NIC |

A dedicated server is at the switch that joins the racks, outside of them: its flows cross one
uplink. Stations with equal shared links are on one medium.

A flow is never faster than its connection: what losses leave ("capped"), and what size factors
leave to a message of its size, are limits of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from gcsim.errors import InternalError
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.servers.locations import CORE, NodeKind
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import inward, outward, path, through
from gcsim.simulator.sharing.model import Capacity, never_less

Loads = dict[Hashable, int]
"""Name of a class of links to the number of flows on one such link."""


class Topology:
    """The links of a cluster with some kinds of machines."""

    def __init__(self, cluster: Cluster, kinds: Sequence[NodeKind]) -> None:
        self.cluster = cluster
        self.capacities: dict[Hashable, Capacity] = {}
        """Of all but the buses and the flows' own limits, by class of links."""
        self._paths: dict[tuple[Link | None, Link | None, bool], Link] = {}
        for kind in kinds:
            self._add(kind)

    def _add(self, kind: NodeKind) -> None:
        cluster, nic = self.cluster, kind.nic
        if nic is not None and nic.shared:
            self.capacities["air", nic] = nic.line_goodput
        elif nic is not None:
            self.capacities["out", id(kind)] = outward(nic).line_goodput
            self.capacities["in", id(kind)] = inward(nic).line_goodput
        if cluster.racks is not None and kind.rack != CORE:
            for way in ("rack out", "rack in"):
                self.capacities[way, kind.rack] = cluster.racks.uplink.line_goodput

    def link(self, sender: NodeKind, receiver: NodeKind, *, racks: bool) -> Link:
        """What a message sees between two machines; `racks`: in two of them."""
        key = sender.nic, receiver.nic, racks
        if key not in self._paths:
            self._paths[key] = self._link(sender.nic, receiver.nic, racks)
        return self._paths[key]

    def _link(self, out: Link | None, into: Link | None, racks: bool) -> Link:
        if out is not None and into is not None:
            link = path(out, into)
        elif out is not None:
            link = outward(out)
        elif into is not None:
            link = inward(into)
        else:
            raise InternalError("a flow between two access points")
        uplinks = self.cluster.racks
        return through(link, uplinks.uplink, 1) if racks and uplinks is not None else link

    def between(
        self, sender: NodeKind, receiver: NodeKind, leaving: int, entering: int, *, racks: bool
    ) -> Loads:
        """What a class of flows between machines crosses.

        `leaving` of them leave one machine of the sender's kind, `entering` enter one of the
        receiver's kind.
        """
        loads: Loads = {("out", id(sender)): leaving, ("in", id(receiver)): entering}
        for end in (sender, receiver):
            if end.nic is not None and end.nic.shared:
                medium = "air", end.nic
                loads[medium] = loads.get(medium, 0) + leaving * sender.nodes
        if racks:
            loads["rack out", sender.rack] = leaving * sender.in_rack
            loads["rack in", receiver.rack] = entering * receiver.in_rack
        return {link: flows for link, flows in loads.items() if link in self.capacities}

    def inside(self, at: NodeKind, worker: int, one: int, all_alike: int, way: str) -> Loads:
        """What a class of flows inside a node crosses, `way` "to memory" or "from memory".

        `one` of them are one worker's, `all_alike` those of all workers of its class on the node.
        """
        shared = self.cluster.shared_bus
        bus = (way, "node", id(at)) if shared else (way, "worker", worker)
        self.capacities[bus] = self.cluster.intra_node.line_goodput
        return {bus: all_alike if shared else one}

    def spread_evenly(self) -> bool:
        """Whether NICs in never hold a flow up when all workers take part.

        Where every node has as many workers and servers as the others, and equal NICs, each
        node's outgoing flows are spread evenly over all other nodes: with C / n for each of n
        flows on a NIC out, a NIC in carries at most C.
        """
        cluster = self.cluster
        network, collectives = cluster.network, cluster.collectives
        if cluster.racks is not None or network.shared or collectives.server_hosts != "nodes":
            return False
        differ = any(nic != network for nic in cluster.nics.values())
        if differ or cluster.servers % cluster.nodes:
            return False
        return never_less(inward(network).line_goodput, outward(network).line_goodput)


def own_limit(link: Link, nbytes: int) -> Capacity | None:
    """What a message's connection reaches at most; None: as much as its path carries."""
    limit, line = link.goodput_of(nbytes), link.line_goodput
    return None if limit == line else limit
