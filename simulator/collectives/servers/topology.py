"""Kinds of equal nodes with parameter servers, and the links that their flows cross.

| between a worker and a server  | a flow crosses                                              |
|--------------------------------|-------------------------------------------------------------|
| on one node                    | the worker's bus, or the node's shared one                  |
| on two machines                | the sender's NIC out, the receiver's NIC in                 |
| in two racks                   | also the uplinks of both, out and in                        |
| in two pods                    | also the pods' uplinks, out and in                          |
| one or both on a shared medium | the air, for each end on it, instead of the end's NIC       |

A dedicated server is at the switch that joins all racks or pods, so its flows cross only the
worker's uplinks. Stations with equal shared links are on one medium. Flows are also limited by
their connection ("capped" losses, size factors, one of several uplinks).

Nodes with equal NICs, workers, numbers of servers, racks and pods are one kind, which is simulated
once. With random delays each node is a kind of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gcsim.errors import InternalError
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.host import first_ranks
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import across_uplink, inward, outward, path
from gcsim.simulator.sharing.model import Capacity, never_less

Loads = dict[Hashable, int]  # flows on one link, by class of links


class Topology:
    """Links of a cluster with some kinds of machines."""

    def __init__(self, cluster: Cluster, kinds: Sequence[NodeKind]) -> None:
        self.cluster = cluster
        self.capacities: dict[Hashable, Capacity] = {}  # by class of links
        self._levels = cluster.racks.levels if cluster.racks else ()
        self._least = cluster.racks.least_shares(cluster.nics_per_node) if cluster.racks else ()
        self._paths: dict[tuple[Link | None, Link | None, int], Link] = {}
        self._one_uplink: set[Link] = set()
        for kind in kinds:
            self._add(kind)

    def _add(self, kind: NodeKind) -> None:
        nic = kind.nic
        if nic is not None and nic.shared:
            self.capacities["air", nic] = nic.line_goodput
        elif nic is not None:
            self.capacities["out", id(kind)] = outward(nic).line_goodput
            self.capacities["in", id(kind)] = inward(nic).line_goodput
        for (_, uplink), group in zip(self._levels, kind.groups, strict=False):
            for way in ("up", "down"):
                self.capacities[way, group] = uplink.line_goodput

    def link(self, sender: NodeKind, receiver: NodeKind, above: int) -> Link:
        """Return the link between two machines across the uplinks of `above` levels."""
        key = sender.nic, receiver.nic, above
        if key not in self._paths:
            self._paths[key] = self._link(*key)
        return self._paths[key]

    def _link(self, out: Link | None, into: Link | None, above: int) -> Link:
        if out is not None and into is not None:
            link = path(out, into)
        elif out is not None:
            link = outward(out)
        elif into is not None:
            link = inward(into)
        else:
            raise InternalError("a flow between two access points")
        for (_, uplink), least in zip(self._levels[:above], self._least[:above], strict=True):
            link = across_uplink(link, uplink, 1, least)
        if any(least > 1 for least in self._least[:above]):
            self._one_uplink.add(link)
        return link

    def own_limit(self, link: Link, nbytes: int) -> Capacity | None:
        """Return `own_limit` of a message, which may cross one of several equal uplinks."""
        return link.goodput_of(nbytes) if link in self._one_uplink else own_limit(link, nbytes)

    def between(
        self, sender: NodeKind, receiver: NodeKind, leaving: int, entering: int, above: int
    ) -> Loads:
        """Return the loads of a class of flows across the uplinks of `above` levels, of which
        `leaving` leave one machine of the sender's kind and `entering` enter one receiver."""
        loads: Loads = {("out", id(sender)): leaving, ("in", id(receiver)): entering}
        for end in (sender, receiver):
            if end.nic is not None and end.nic.shared:
                medium = "air", end.nic
                loads[medium] = loads.get(medium, 0) + leaving * sender.nodes
        for level in range(1, above + 1):
            for way, end, flows in (("up", sender, leaving), ("down", receiver, entering)):
                if end.groups:
                    loads[way, end.groups[level - 1]] = flows * end.sizes[level]
        return {link: flows for link, flows in loads.items() if link in self.capacities}

    def inside(self, at: NodeKind, worker: int, one: int, all_alike: int, way: str) -> Loads:
        """Return the loads of a class of flows inside a node; `way` is "to memory" or "from
        memory"; `one`: number of a worker's flows, `all_alike`: of its class on the node."""
        shared = self.cluster.shared_bus
        bus = (way, "node", id(at)) if shared else (way, "worker", worker)
        self.capacities[bus] = self.cluster.intra_node.line_goodput
        return {bus: all_alike if shared else one}

    def spread_evenly(self) -> bool:
        """Whether receiving NICs never limit a flow when all workers take part. With equal NICs,
        workers and servers on all nodes, each node's flows spread evenly over the others: n flows
        of a sending NIC get C / n each, so a receiving NIC carries at most C."""
        cluster = self.cluster
        network, collectives = cluster.network, cluster.collectives
        if cluster.racks is not None or network.shared or collectives.server_hosts != "nodes":
            return False
        differ = any(nic != network for nic in cluster.nics.values())
        if differ or cluster.servers % cluster.nodes:
            return False
        return never_less(inward(network).line_goodput, outward(network).line_goodput)


def own_limit(link: Link, nbytes: int) -> Capacity | None:
    """Return the highest rate of a message's connection; None if only its path limits it."""
    limit, line = link.goodput_of(nbytes), link.line_goodput
    return None if limit == line else limit


@dataclass(frozen=True, slots=True, eq=False)
class NodeKind:
    """Equal machines: nodes, or dedicated servers."""

    nic: Link | None  # None: no limit of its own
    groups: tuple[Hashable, ...]  # kinds of rack and pod; empty at the switch that joins all
    sizes: tuple[int, ...]  # machines of this kind: 1, in one rack, in one pod, in all
    workers: tuple[tuple[int, int], ...]  # class of workers, and their number on one node
    servers: tuple[tuple[int, int], ...]  # class of servers, and their number on one node

    @property
    def nodes(self) -> int:
        """All nodes of this kind."""
        return self.sizes[-1]

    def distances(self, other: NodeKind) -> Iterator[tuple[int, int, int]]:
        """Yield distances (levels of uplinks) between machines of this and the other kind, each
        with the number of the other's machines, and of this kind's, at that distance."""
        last = len(self.sizes) - 2
        for above in range(last + 1):
            mine, theirs = self.sizes[above + 1], other.sizes[above + 1]
            if above < last and self._at(above) != other._at(above):
                continue
            nearer = self is other if above == 0 else self._at(above - 1) == other._at(above - 1)
            if nearer:
                mine, theirs = mine - self.sizes[above], theirs - other.sizes[above]
            if mine and theirs:
                yield above, theirs, mine

    def _at(self, level: int) -> Hashable:
        return self.groups[level] if self.groups else None


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Classes of equal workers and servers."""

    kinds: list[NodeKind]
    worker_class: list[int]  # by rank
    servers: int  # number of server classes


def server_nic(cluster: Cluster) -> Link | None:
    """Return the NIC of a dedicated server; None for an access point, which has no limit."""
    own = cluster.collectives.server_network
    access_point = cluster.network.shared or cluster.network.up is not None
    return cluster.network if own is None and not access_point else own


def alike(cluster: Cluster, worker_kinds: Sequence[int], *, apart: bool) -> Placement:
    """Return kinds of nodes and classes of workers and servers. `worker_kinds[r]` is equal for
    workers of equal entry and payload; with `apart` all nodes and servers are distinct."""
    nodes, servers = cluster.nodes, cluster.servers
    by_node = _by_node(worker_kinds, cluster)
    hosting = cluster.collectives.server_hosts == "nodes"
    nics: dict[Link, int] = {}
    keys: list[tuple[object, ...]] = []
    for node in range(nodes):
        hosted = len(range(node, servers, nodes)) if hosting else 0
        nic = nics.setdefault(cluster.nic(node), len(nics)) if cluster.nics else 0
        keys.append((tuple(sorted(by_node[node])), hosted, nic, node if apart else 0))
    groups, number_of = _groups(cluster, keys)
    kind_of: dict[tuple[object, ...], int] = {}
    first: list[int] = []  # node of each kind
    kind_at: list[int] = []
    for node, key in enumerate(keys):
        whole = groups[node], key
        if whole not in kind_of:
            kind_of[whole] = len(first)
            first.append(node)
        kind_at.append(kind_of[whole])
    in_all = Counter(kind_at)
    classes: dict[tuple[int, int], int] = {}
    server_classes = 0
    kinds = []
    for kind, node in enumerate(first):
        workers = tuple(
            (classes.setdefault((kind, of), len(classes)), count)
            for of, count in sorted(Counter(by_node[node]).items())
        )
        hosted = len(range(node, servers, nodes)) if hosting else 0
        found: tuple[tuple[int, int], ...] = ()
        if hosted and apart:  # classes have the servers' numbers
            found = tuple((server, 1) for server in range(node, servers, nodes))
        elif hosted:
            found = ((server_classes, hosted),)
        server_classes += len(found)
        in_one = (in_all[kind] // number_of[group] for group in groups[node])
        kinds.append(
            NodeKind(
                nic=cluster.nic(node),
                groups=groups[node],
                sizes=(1, *in_one, in_all[kind]),
                workers=workers,
                servers=found,
            )
        )
    if not hosting:
        for server in range(servers if apart else 1):
            alone = ((server, 1),)
            number = 1 if apart else servers
            sizes = (1, *(number for _ in groups[0]), number)
            kinds.append(NodeKind(server_nic(cluster), (), sizes, (), alone))
        server_classes = servers if apart else 1
    worker_class = [classes[kind_at[node], of] for node in range(nodes) for of in by_node[node]]
    return Placement(kinds=kinds, worker_class=worker_class, servers=server_classes)


def _by_node(worker_kinds: Sequence[int], cluster: Cluster) -> list[Sequence[int]]:
    """Return the workers' kinds of each node."""
    first = first_ranks(cluster.nodes, cluster.devices_by_node).tolist()
    return [worker_kinds[begin:end] for begin, end in pairwise([*first, len(worker_kinds)])]


def _groups(
    cluster: Cluster, keys: Sequence[tuple[object, ...]]
) -> tuple[list[tuple[Hashable, ...]], Counter[Hashable]]:
    """Return each node's kinds of rack and pod, and the number of racks and pods of each kind.
    Racks with equal nodes in equal pods are of one kind."""
    levels = [below for below, _ in cluster.racks.levels] if cluster.racks else []
    numbers: dict[object, int] = {}
    inside = [numbers.setdefault(key, len(numbers)) for key in keys]
    contents, size = [], 1
    for below in levels:
        numbers, per = {}, below // size
        blocks = [tuple(sorted(inside[at : at + per])) for at in range(0, len(inside), per)]
        inside = [numbers.setdefault(block, len(numbers)) for block in blocks]
        contents.append(inside)
        size = below

    def kind(level: int, node: int) -> Hashable:
        at = zip(levels[level:], contents[level:], strict=True)
        return (level, *(content[node // below] for below, content in at))

    found: list[tuple[Hashable, ...]] = [
        tuple(kind(level, node) for level in range(len(levels))) for node in range(cluster.nodes)
    ]
    number = Counter(
        kind(level, first)
        for level, below in enumerate(levels)
        for first in range(0, cluster.nodes, below)
    )
    return found, number
