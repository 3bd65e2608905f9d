"""The cluster as the simulator sees it: nodes, devices, links, and who talks to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Annotated, Literal

from gcsim.fields import INTERNAL, Bytes, Count, RangeOf, Setting
from gcsim.simulator.devices.device import Device
from gcsim.simulator.host import Host, Sums
from gcsim.simulator.network.links import Link

TransportName = Literal["textbook", "gloo", "nccl", "mpich", "custom"]
LibraryName = Literal["pytorch1", "pytorch2"]
AllReduceAlgorithm = Literal[
    "auto",
    "ring",
    "hierarchical",
    "halving_doubling",
    "recursive_doubling",
    "binomial_tree",
    "double_tree",
    "alltoall_allgather",
    "parameter_server",
    "gloo_ring",
    "nccl",
    "nccl_ring_ll",
    "nccl_ring_ll128",
    "nccl_ring_simple",
    "nccl_tree_ll",
    "nccl_tree_ll128",
    "nccl_tree_simple",
]
AllGatherAlgorithm = Literal[
    "auto",
    "parameter_server",
    "ring",
    "pipelined_ring",
    "pipelined_ring_sync",
    "recursive_doubling",
    "bruck",
    "gather_broadcast",
    "gloo_ring",
    "nccl",
    "nccl_ring_ll",
    "nccl_ring_ll128",
    "nccl_ring_simple",
]
PushPullAlgorithm = Literal["auto", "parameter_server", "alltoall_allgather", "all_gather"]
Servers = int | Literal["per_node"] | None

_ONE = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives(Setting):
    """Algorithm that carries out each kind of request."""

    transport: TransportName = "textbook"
    """The library in whose place "auto" chooses; custom: nothing is "auto"."""
    library: LibraryName = "pytorch2"
    """Library that the transport was built into; it sets a scenario's default prices."""
    all_reduce: AllReduceAlgorithm = "auto"
    """auto: what the transport would choose; nccl: what NCCL's tuner would, on any transport."""
    all_gather: AllGatherAlgorithm = "auto"
    pipeline_block: Bytes = 32 * 1024
    """Bytes a block of the pipelined all-gatherv, and a piece of the double tree's all-reduce."""
    push_pull: PushPullAlgorithm = "auto"
    """auto: by parameter servers where there are any, else as the method says that it can do
    without (`requests.WithoutServer`). alltoall_allgather: of methods whose server can act on
    stripes; those of others still by an all-gather."""
    servers: Servers = None
    """Parameter servers; per_node: as many as nodes; None: there are none (`Cluster.servers`)."""
    server_hosts: Literal["nodes", "dedicated"] = "nodes"
    """nodes: server s lives on node s mod nodes and shares its network NIC; dedicated: each on a
    machine of its own, at the switch (with a shared medium: at the access point)."""
    server_network: Link | None = None
    """NIC of a dedicated server; None: as `Cluster.network`, but at a shared medium's or a cell's
    access point: no limit of its own."""
    host_staging: bool | None = None
    """Device tensors are copied through host memory over `Cluster.intra_node` before and after a
    collective; None: as the transport does (Gloo and MPI do)."""

    ring_over_tree: Annotated[Fraction, INTERNAL] = _ONE
    """Factor on the time that NCCL's tuner predicts of a ring before it is compared with a tree's;
    1: as its tables have it."""
    ring_over_tree_range: Annotated[RangeOf[Fraction], INTERNAL] = None
    """Versions of NCCL, and what it takes the NIC for, move its border between the two."""
    grouped: Annotated[Fraction, INTERNAL] = _ONE
    """Share of a network's goodput that an all-to-all has: NCCL's sends and receives in a group
    reach less than its rings."""
    grouped_range: Annotated[RangeOf[Fraction], INTERNAL] = None

    @property
    def names_servers(self) -> bool:
        """Whether it says anything that makes no sense without parameter servers."""
        served = "parameter_server" in {self.all_reduce, self.all_gather, self.push_pull}
        placed = self.server_hosts == "dedicated" or self.server_network is not None
        return served or placed or self.servers is not None

    @property
    def stages(self) -> bool:
        """Whether device tensors are copied to host memory and back."""
        if self.host_staging is None:
            return self.transport in {"gloo", "mpich"}
        return self.host_staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Racks(Setting):
    """Nodes grouped under switches, whose uplinks may carry less than their nodes together."""

    nodes: Count
    """Nodes a rack, in order; the last rack may have fewer."""
    uplink: Link
    """Between a rack's switch and the others', each direction. Its latency comes on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`nodes` machines with `devices_per_node` workers each, one network NIC a machine.

    Ranks count node by node: worker r is device r mod devices_per_node of node
    r // devices_per_node.
    """

    nodes: int
    devices_per_node: int
    device: Device
    network: Link
    """Between a node's network NIC and the switch, each direction."""
    intra_node: Link
    """Between a device and its node's memory (PCIe), or between two devices of a node, each
    direction."""
    shared_memory: Link | None = None
    """Between two ranks of a node whose library copies in host memory (MPI); None: as
    `intra_node`."""
    collectives: Collectives = Collectives()
    nics: Mapping[int, Link] = field(default_factory=dict)
    """Network links that differ from `network`, by number of the node."""
    racks: Racks | None = None
    """None: one switch that never holds anything up."""
    shared_bus: bool = False
    """The devices of a node share the rate of `intra_node` (one PCIe switch) instead of each
    having it for itself."""
    host: Host | None = None
    """Processors that carry the messages of collectives; None: that costs nothing."""
    sums: Sums = Sums()  # noqa: RUF009 (frozen)
    """Rates at which a worker, or the server of an all-reduce, adds what it has received."""

    @property
    def workers(self) -> int:
        """Number of devices, one worker each."""
        return self.nodes * self.devices_per_node

    @property
    def servers(self) -> int:
        """Number of parameter servers; one a node where they are named without a number."""
        chosen = self.collectives
        if isinstance(chosen.servers, int):
            return chosen.servers
        return self.nodes if chosen.names_servers else 0

    @property
    def wiring(self) -> tuple[object, ...]:
        """All but the device, which carries no message; hashable, equal where clusters are."""
        own = (getattr(self, one.name) for one in fields(self) if one.name not in _NO_KEY)
        return (*own, *sorted(self.nics.items(), key=lambda item: item[0]))

    @property
    def between_ranks(self) -> Link:
        """Link of a message between two ranks of a node."""
        memory = self.shared_memory if self.collectives.stages else None
        return memory or self.intra_node

    @property
    def crosses_intra_node(self) -> bool:
        """Whether anything passes `intra_node`."""
        chosen = self.collectives
        served = chosen.names_servers and chosen.server_hosts == "nodes"
        return self.devices_per_node > 1 or chosen.stages or served

    def nic(self, node: int) -> Link:
        """The network link of a node."""
        return self.nics.get(node, self.network)

    def links(self) -> tuple[Link, ...]:
        """All links that a message may see a part of."""
        own = [self.network, self.intra_node, self.between_ranks, *self.nics.values()]
        if self.racks is not None:
            own.append(self.racks.uplink)
        chosen = self.collectives
        if chosen.server_hosts == "dedicated" and chosen.server_network is not None:
            own.append(chosen.server_network)
        return tuple(own)

    @property
    def at_grouped_rates(self) -> Cluster:
        """The cluster as an all-to-all finds its network (`Collectives.grouped`)."""
        share = self.collectives.grouped
        if share == 1:
            return self

        def slower(link: Link) -> Link:
            return link.exactly(efficiency=link.efficiency * share)

        return replace(
            self,
            network=slower(self.network),
            nics={node: slower(nic) for node, nic in self.nics.items()},
        )

    def node_of(self, rank: int) -> int:
        """The node that a rank is on."""
        return rank // self.devices_per_node


_NO_KEY = {"device", "nics"}
"""Fields that no message passes, or that cannot be hashed."""
