"""Which nodes are alike for an exchange with parameter servers?

Nodes with equal NICs, equal workers, equally many servers and alike racks see the same, so one of
each kind is enough. Where messages have random delays, everybody is of a kind of his own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.links import Link

CORE = -1
"""Number of the rack of those who are beside the racks, at the switch that joins them."""
ABSENT = -1
"""Kind, and class, of a worker that takes no part."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeKind:
    """Machines that are alike: nodes, or dedicated servers."""

    nic: Link | None
    """None: nothing of its own limits it."""
    rack: int
    """Number of the kind of rack, or `CORE`."""
    in_rack: int
    """Of them in one rack."""
    racks: int
    """Of this kind."""
    workers: tuple[tuple[int, int], ...]
    """Class of workers and how many of them on one node."""
    servers: tuple[tuple[int, int], ...]
    """Class of servers and how many of them on one node."""

    @property
    def nodes(self) -> int:
        """Of them in all."""
        return self.in_rack * self.racks


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Who is alike."""

    kinds: list[NodeKind]
    worker_class: list[int]
    """By rank; `ABSENT` for one that takes no part."""
    servers: int
    """Number of classes of servers."""


def server_nic(cluster: Cluster) -> Link | None:
    """The NIC of a dedicated server; None: an access point, which limits nothing itself."""
    own = cluster.collectives.server_network
    access_point = cluster.network.shared or cluster.network.up is not None
    return cluster.network if own is None and not access_point else own


def alike(cluster: Cluster, worker_kinds: Sequence[int], *, apart: bool) -> Placement:
    """The kinds of nodes.

    `worker_kinds[r]` is a number that workers with equal entry and payload share, or `ABSENT`;
    `apart` keeps all nodes and servers apart (and expects workers that differ).
    """
    nodes, devices, servers = (
        cluster.nodes,
        cluster.devices_per_node,
        cluster.servers,
    )
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
        present = [of for of in worker_kinds[node * devices : (node + 1) * devices] if of != ABSENT]
        workers = tuple(
            (classes.setdefault((kind, of), len(classes)), count)
            for of, count in sorted(Counter(present).items())
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
            kinds.append(NodeKind(server_nic(cluster), CORE, number, 1, (), alone))
        server_classes = servers if apart else 1
    worker_class = [
        ABSENT if of == ABSENT else classes[kind_at[rank // devices], of]
        for rank, of in enumerate(worker_kinds)
    ]
    return Placement(kinds=kinds, worker_class=worker_class, servers=server_classes)


@dataclass(frozen=True, slots=True)
class _Racks:
    members: list[range]
    """Nodes of each rack."""
    kind: list[int]
    """Of each rack."""
    count: Counter[int]
    """Racks of each kind."""


def _racks(cluster: Cluster, keys: Sequence[tuple[object, ...]]) -> _Racks:
    """Racks with alike nodes are of one kind. All nodes are one rack where there are none."""
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
