"""Equal nodes for parameter servers, and the links that their flows cross.

| between a worker and a server  | a flow crosses                                              |
|--------------------------------|-------------------------------------------------------------|
| on one node                    | the worker's bus, or the node's shared one                  |
| on two machines                | the sender's NIC out, the receiver's NIC in                 |
| in two racks                   | also the uplinks of both, out and in                        |
| one or both on a shared medium | the air, for each end on it, instead of the end's NIC       |

A dedicated server is at the switch that joins the racks: its flows cross one uplink. Stations with
equal shared links are on one medium. Flows also have their connection's limits ("capped" losses,
size factors).

Nodes with equal NICs, workers, numbers of servers and racks are one kind, simulated once. With
random delays each node is its own kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from gcsim.errors import InternalError
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import inward, outward, path, through
from gcsim.simulator.sharing.model import Capacity, never_less

Loads = dict[Hashable, int]
"""Flows on one link, by class of links."""


class Topology:
    """Links of a cluster with some kinds of machines."""

    def __init__(self, cluster: Cluster, kinds: Sequence[NodeKind]) -> None:
        self.cluster = cluster
        self.capacities: dict[Hashable, Capacity] = {}  # by class of links
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
        if cluster.racks is not None and kind.rack != _CORE:
            for way in ("rack out", "rack in"):
                self.capacities[way, kind.rack] = cluster.racks.uplink.line_goodput

    def link(self, sender: NodeKind, receiver: NodeKind, *, racks: bool) -> Link:
        """Link between two machines, in different racks if `racks`."""
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
        """Loads of a class of flows between machines. `leaving` leave one machine of the sender's
        kind, `entering` enter one of the receiver's."""
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
        """Loads of a class of flows inside a node; `way` is "to memory" or "from memory". `one` of
        them are one worker's, `all_alike` those of its class on the node."""
        shared = self.cluster.shared_bus
        bus = (way, "node", id(at)) if shared else (way, "worker", worker)
        self.capacities[bus] = self.cluster.intra_node.line_goodput
        return {bus: all_alike if shared else one}

    def spread_evenly(self) -> bool:
        """Whether NICs in never limit a flow when all workers take part. With equal NICs, workers
        and servers on all nodes, each node's flows spread evenly over the others: n flows on a NIC
        out get C / n each, so a NIC in carries at most C."""
        cluster = self.cluster
        network, collectives = cluster.network, cluster.collectives
        if cluster.racks is not None or network.shared or collectives.server_hosts != "nodes":
            return False
        differ = any(nic != network for nic in cluster.nics.values())
        if differ or cluster.servers % cluster.nodes:
            return False
        return never_less(inward(network).line_goodput, outward(network).line_goodput)


def own_limit(link: Link, nbytes: int) -> Capacity | None:
    """Highest rate of a message's connection; None if only its path limits it."""
    limit, line = link.goodput_of(nbytes), link.line_goodput
    return None if limit == line else limit


_CORE = -1  # rack number of machines outside the racks, at the switch that joins them


@dataclass(frozen=True, slots=True, eq=False)
class NodeKind:
    """Equal machines: nodes, or dedicated servers."""

    nic: Link | None  # None: no limit of its own
    rack: int  # kind of rack, or `_CORE`
    in_rack: int  # nodes of this kind in one rack
    racks: int  # racks of this kind
    workers: tuple[tuple[int, int], ...]  # class of workers, and their number on one node
    servers: tuple[tuple[int, int], ...]  # class of servers, and their number on one node

    @property
    def nodes(self) -> int:
        """All nodes of this kind."""
        return self.in_rack * self.racks


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Classes of equal workers and servers."""

    kinds: list[NodeKind]
    worker_class: list[int]  # by rank
    servers: int  # number of server classes


def server_nic(cluster: Cluster) -> Link | None:
    """NIC of a dedicated server; None: an access point, without a limit of its own."""
    own = cluster.collectives.server_network
    access_point = cluster.network.shared or cluster.network.up is not None
    return cluster.network if own is None and not access_point else own


def alike(cluster: Cluster, worker_kinds: Sequence[int], *, apart: bool) -> Placement:
    """Kinds of nodes, and classes of their workers and servers. `worker_kinds[r]` is equal for
    workers of equal entry and payload; `apart` keeps all nodes and servers apart."""
    nodes, devices, servers = (cluster.nodes, cluster.devices_per_node, cluster.servers)
    hosting = cluster.collectives.server_hosts == "nodes"
    nics: dict[Link, int] = {}
    keys: list[tuple[object, ...]] = []
    for node in range(nodes):
        row = worker_kinds[node * devices : (node + 1) * devices]
        hosted = len(range(node, servers, nodes)) if hosting else 0
        nic = nics.setdefault(cluster.nic(node), len(nics)) if cluster.nics else 0
        keys.append((tuple(sorted(row)), hosted, nic, node if apart else 0))
    racks = _racks(cluster, keys)
    kind_of: dict[tuple[int, tuple[object, ...]], int] = {}
    first: list[tuple[int, int]] = []  # of each kind: a node and its rack
    kind_at: list[int] = []
    for rack, members in enumerate(racks.members):
        for node in members:
            key = racks.kind[rack], keys[node]
            if key not in kind_of:
                kind_of[key] = len(first)
                first.append((node, rack))
            kind_at.append(kind_of[key])
    in_all = Counter(kind_at)
    classes: dict[tuple[int, int], int] = {}
    server_classes = 0
    kinds = []
    for kind, (node, rack) in enumerate(first):
        here = worker_kinds[node * devices : (node + 1) * devices]
        workers = tuple(
            (classes.setdefault((kind, of), len(classes)), count)
            for of, count in sorted(Counter(here).items())
        )
        hosted = len(range(node, servers, nodes)) if hosting else 0
        found: tuple[tuple[int, int], ...] = ()
        if hosted and apart:  # classes have the servers' numbers
            found = tuple((server, 1) for server in range(node, servers, nodes))
        elif hosted:
            found = ((server_classes, hosted),)
        server_classes += len(found)
        alike_racks = racks.count[racks.kind[rack]]
        kinds.append(
            NodeKind(
                nic=cluster.nic(node),
                rack=racks.kind[rack],
                in_rack=in_all[kind] // alike_racks,
                racks=alike_racks,
                workers=workers,
                servers=found,
            )
        )
    if not hosting:
        for server in range(servers if apart else 1):
            alone = ((server, 1),)
            number = 1 if apart else servers
            kinds.append(NodeKind(server_nic(cluster), _CORE, number, 1, (), alone))
        server_classes = servers if apart else 1
    worker_class = [classes[kind_at[rank // devices], of] for rank, of in enumerate(worker_kinds)]
    return Placement(kinds=kinds, worker_class=worker_class, servers=server_classes)


@dataclass(frozen=True, slots=True)
class _Racks:
    members: list[range]  # nodes of each rack
    kind: list[int]  # of each rack
    count: Counter[int]  # racks by kind


def _racks(cluster: Cluster, keys: Sequence[tuple[object, ...]]) -> _Racks:
    """Racks, those with equal nodes of one kind; without racks, one of all nodes."""
    if cluster.racks is None:
        return _Racks([range(cluster.nodes)], [0], Counter([0]))
    size = cluster.racks.nodes
    members = [
        range(start, min(start + size, cluster.nodes)) for start in range(0, cluster.nodes, size)
    ]
    number = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    contents = [tuple(sorted(number[keys[node]] for node in rack)) for rack in members]
    kinds = {content: place for place, content in enumerate(dict.fromkeys(contents))}
    kind = [kinds[content] for content in contents]
    return _Racks(members, kind, Counter(kind))
