"""The cluster as simulated: nodes, devices, links and collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Annotated, Literal

from gcsim.compressors.lockstep import Scope
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
    "nccl_nvls_simple",
    "nccl_nvls_tree_simple",
    "nccl_collnet_simple",
]
AllGatherAlgorithm = Literal[
    "auto",
    "parameter_server",
    "ring",
    "pipelined_ring",
    "pipelined_ring_sync",
    "recursive_doubling",
    "bruck",
    "gloo_ring",
    "nccl",
    "nccl_ring_ll",
    "nccl_ring_ll128",
    "nccl_ring_simple",
    "nccl_nvls_simple",
]
PushPullAlgorithm = Literal["auto", "parameter_server", "alltoall_allgather", "all_gather"]
Servers = int | Literal["per_node"] | None

_ONE = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives(Setting):
    """Algorithms for each kind of request."""

    transport: TransportName = "textbook"  # library whose choices "auto" follows; custom: no "auto"
    library: LibraryName = "pytorch2"
    """Framework of the transport; sets a scenario's default prices."""
    all_reduce: AllReduceAlgorithm = "auto"
    """auto: the transport's choice; nccl: the choice of NCCL's tuner, on any transport."""
    all_gather: AllGatherAlgorithm = "auto"
    pipeline_block: Bytes = 32 * 1024
    """Bytes of the pipelined all-gatherv's blocks, and of the double tree's pieces."""
    push_pull: PushPullAlgorithm = "auto"
    """auto: parameter servers if any, else the method's way without (`requests.WithoutServer`).
    alltoall_allgather: where the method's server can act on stripes; else an all-gather."""
    servers: Servers = None
    """Parameter servers; per_node: one per node; None: none (`Cluster.servers`)."""
    server_hosts: Literal["nodes", "dedicated"] = "nodes"
    """nodes: server s is on node s mod nodes and shares its network NIC; dedicated: machines at the
    switch (with a shared medium: at the access point)."""
    server_network: Link | None = None
    """NIC of a dedicated server; None: `Cluster.network`, or no limit at an access point."""
    host_staging: bool | None = None
    """Copy device tensors through host memory over `Cluster.intra_node` around a collective; None:
    as the transport does (Gloo and MPI do)."""

    ring_over_tree: Annotated[Fraction, INTERNAL] = _ONE
    """Factor on the NCCL tuner's time of a ring before comparison with a tree's."""
    ring_over_tree_range: Annotated[RangeOf[Fraction], INTERNAL] = None
    """NCCL's versions and its idea of the NIC move the border between the two."""
    grouped: Annotated[Fraction, INTERNAL] = _ONE
    """Share of the network's goodput in an all-to-all (NCCL's grouped sends and receives)."""
    grouped_range: Annotated[RangeOf[Fraction], INTERNAL] = None

    @property
    def names_servers(self) -> bool:
        """Whether a setting makes sense only with parameter servers."""
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
    """Nodes grouped under switches with possibly slower uplinks."""

    nodes: Count  # nodes per rack, in order; the last rack may have fewer
    uplink: Link  # from a rack's switch to the others', each direction; its latency is added
    uplinks: Count = 1
    """Equal uplinks of a rack. Messages share the sum of their rates; what one NIC sends crosses
    one of them."""
    pod: Count | None = None  # racks per pod, in order; None: the switches of all racks meet at one
    pod_uplink: Link | None = None  # from a pod's switch to the others', as `uplink`
    pod_uplinks: Count = 1  # equal uplinks of a pod, as `uplinks`

    @property
    def levels(self) -> tuple[tuple[int, Link], ...]:
        """Nodes below a switch and all of its uplinks as one, from racks up."""
        racks = (self.nodes, bundle(self.uplink, self.uplinks))
        if self.pod is None or self.pod_uplink is None:
            return (racks,)
        return racks, (self.nodes * self.pod, bundle(self.pod_uplink, self.pod_uplinks))

    def least_shares(self, nics: int) -> tuple[Fraction, ...]:
        """Smallest divisor of each level's rate for a message that `nics` NICs send: that crosses
        no more uplinks than NICs."""
        counts = (self.uplinks, self.pod_uplinks)[: len(self.levels)]
        return tuple(max(_ONE, Fraction(count, nics)) for count in counts)


def bundle(link: Link, count: int) -> Link:
    """`count` equal links as one: their rates and connections add up."""
    if count == 1:
        return link
    return link.exactly(
        name=f"{count} x {link.name}",
        bandwidth=link.bandwidth * count,
        flow=None if link.flow is None else link.flow * count,
    )


def one_link_of(link: Link, count: int) -> Link:
    """Link of which there are `bundle`."""
    if count == 1:
        return link
    return link.exactly(
        name=link.name.removeprefix(f"{count} x "),
        bandwidth=link.bandwidth / count,
        flow=None if link.flow is None else link.flow / count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Consecutive nodes with one kind of device. Their links are `Cluster.nics` and `buses`."""

    nodes: int
    device: Device
    batch: Fraction = _ONE  # samples of a worker's micro-batch, over the scenario's


def whole_batches(
    samples: int, speeds: Sequence[float | Fraction], nodes: Sequence[int]
) -> list[int]:
    """Samples of a worker of each group, in proportion to its speed: together as many as `samples`
    of one worker per node, to a sample a worker."""
    total = sum(speed * count for speed, count in zip(speeds, nodes, strict=True))
    return [max(1, round(samples * speed / total)) for speed in speeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`nodes` machines with `devices_per_node` workers each. Worker r is device r mod
    devices_per_node of node r // devices_per_node."""

    nodes: int
    devices_per_node: int
    device: Device  # device of all nodes, or of the first group's
    groups: tuple[NodeGroup, ...] = ()
    """Groups of unlike nodes, in the nodes' order; empty: all are alike."""
    network: Link
    """Between all network NICs of a node and the switch, each direction; with groups the slowest,
    as NCCL's ranks agree on the smallest rate and number of channels (src/init.cc,
    `initTransportsRank`)."""
    nics_per_node: Count = 1
    """Equal network NICs, among which NCCL divides a collective's channels; a message of its own
    (`at_one_nic`) has one."""
    intra_node: Link
    """Between a device and its node's memory (PCIe) or another device, each direction; with groups
    the slowest."""
    shared_memory: Link | None = None
    """Between ranks of a node whose library copies in host memory (MPI); None: `intra_node`."""
    collectives: Collectives = Collectives()
    nics: Mapping[int, Link] = field(default_factory=dict)
    """Network links that differ from `network`, by node."""
    buses: Mapping[int, Link] = field(default_factory=dict)
    """Links inside a node that differ from `intra_node`, by node: what rings, rounds and trees
    cross. Copies to host memory, leaders, servers and switches that add have `intra_node`."""
    racks: Racks | None = None  # None: one ideal switch
    shared_bus: bool = False  # a node's devices share the rate of `intra_node` (one PCIe switch)
    host: Host | None = None  # processors that carry collectives' messages; None: at no cost
    sums: Sums = Sums()  # noqa: RUF009 (frozen)
    """Rates at which a worker, or an all-reduce's server, adds."""

    @property
    def workers(self) -> int:
        """Number of devices."""
        return self.nodes * self.devices_per_node

    def ranks_in(self, scope: Scope) -> int:
        """Number of ranks that take part in a collective of this scope."""
        racks = 1 if self.racks is None else -(-self.nodes // self.racks.nodes)
        return {
            "all": self.workers,
            "node": self.devices_per_node,
            "nodes": self.nodes,
            "rack": self.workers // racks,
            "racks": racks,
        }[scope]

    @property
    def servers(self) -> int:
        """Number of parameter servers; one per node where they are named without a number."""
        chosen = self.collectives
        if isinstance(chosen.servers, int):
            return chosen.servers
        return self.nodes if chosen.names_servers else 0

    @property
    def wiring(self) -> tuple[object, ...]:
        """Hashable identity of all that carries messages: everything but the device."""
        own = (getattr(self, one.name) for one in fields(self) if one.name not in _NO_KEY)
        differing = (sorted(links.items()) for links in (self.nics, self.buses))
        return (*own, *(tuple(links) for links in differing))

    @property
    def nvlink(self) -> bool:
        """Whether a node's devices have NVLink, for which NCCL's tuner has constants of its own
        (RCCL's takes xGMI as NVLink)."""
        return self.intra_node.name.startswith(("nvlink", "xgmi"))

    @property
    def between_ranks(self) -> Link:
        """Link between two ranks of a node."""
        memory = self.shared_memory if self.collectives.stages else None
        return memory or self.intra_node

    @property
    def crosses_intra_node(self) -> bool:
        """Whether anything crosses `intra_node`."""
        chosen = self.collectives
        served = chosen.names_servers and chosen.server_hosts == "nodes"
        return self.devices_per_node > 1 or chosen.stages or served

    def nic(self, node: int) -> Link:
        """Network link of a node."""
        return self.nics.get(node, self.network)

    def links(self) -> tuple[Link, ...]:
        """All links that a message may cross."""
        own = [self.network, self.intra_node, self.between_ranks]
        own += [*self.nics.values(), *self.buses.values()]
        if self.racks is not None:
            own += [uplink for _, uplink in self.racks.levels]
        chosen = self.collectives
        if chosen.server_hosts == "dedicated" and chosen.server_network is not None:
            own.append(chosen.server_network)
        return tuple(own)

    @property
    def at_grouped_rates(self) -> Cluster:
        """The cluster with an all-to-all's network rates (`Collectives.grouped`)."""
        share = self.collectives.grouped
        if share == 1:
            return self
        return self._with(lambda nic: nic.exactly(efficiency=nic.efficiency * share))

    @property
    def at_one_nic(self) -> Cluster:
        """The cluster with one NIC a node: as messages see it that one channel carries."""
        one = self._with(lambda nic: one_link_of(nic, self.nics_per_node))
        return replace(one, nics_per_node=1)

    def _with(self, changed: Callable[[Link], Link]) -> Cluster:
        """The cluster with all network links changed."""
        nics = {node: changed(nic) for node, nic in self.nics.items()}
        return replace(self, network=changed(self.network), nics=nics)

    def node_of(self, rank: int) -> int:
        """Node of a rank."""
        return rank // self.devices_per_node

    @property
    def devices(self) -> str:
        """ "4 x 8 a100_sxm_80gb + 8 x 8 v100": nodes, devices of each, and their name."""
        return " + ".join(
            f"{nodes} x {self.devices_per_node} {device.name}" for _, nodes, device in self.kinds
        )

    @property
    def kinds(self) -> Iterator[tuple[int, int, Device]]:
        """First node, number of nodes and device of each group, or of the whole cluster."""
        first = 0
        for group in self.groups or (NodeGroup(nodes=self.nodes, device=self.device),):
            yield first, group.nodes, group.device
            first += group.nodes

    @property
    def ranks_of_groups(self) -> tuple[int, ...]:
        """Number of ranks of each group; empty: all nodes are alike."""
        return tuple(group.nodes * self.devices_per_node for group in self.groups)

    @property
    def batches(self) -> Fraction:
        """Micro-batches of the scenario's size in one of all workers."""
        if not self.groups:
            return Fraction(self.workers)
        return self.devices_per_node * sum(
            (group.nodes * group.batch for group in self.groups), Fraction(0)
        )

    def all_like(self, group: int) -> Cluster:
        """The cluster with a group's device in every node, on the same links."""
        if not self.groups:
            return self
        return replace(self, device=self.groups[group].device, groups=())


_NO_KEY = {"device", "groups", "nics", "buses"}
"""Fields that no message crosses, or that are not hashable."""
