"""The simulated cluster: nodes, devices, links and the choice of collective algorithms."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from itertools import accumulate
from typing import Annotated, Literal

from gcsim.compressors.lockstep import Scope
from gcsim.fields import INTERNAL, Bytes, Count, RangeOf, Setting
from gcsim.simulator.devices.device import Device
from gcsim.simulator.host import Devices, Host, Sums, number_of_ranks
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
    """Algorithms for each kind of collective."""

    transport: TransportName = "textbook"  # library that decides for "auto"; custom: no "auto"
    library: LibraryName = "pytorch2"
    """Framework that brings the transport; selects a scenario's default prices."""
    all_reduce: AllReduceAlgorithm = "auto"
    """auto: chosen by the transport; nccl: chosen by NCCL's tuner, on any transport."""
    all_gather: AllGatherAlgorithm = "auto"
    pipeline_block: Bytes = 32 * 1024
    """Bytes of the pipelined all-gatherv's blocks and of the double tree's pieces."""
    push_pull: PushPullAlgorithm = "auto"
    """auto: parameter servers if there are any, else collectives (`requests.WithoutServer`).
    alltoall_allgather: only for methods whose server works on stripes, an all-gather for others."""
    servers: Servers = None
    """Parameter servers; per_node: one per node; None: none (`Cluster.servers`)."""
    server_hosts: Literal["nodes", "dedicated"] = "nodes"
    """nodes: server s runs on node s mod nodes and shares its NIC; dedicated: on machines of their
    own at the switch (with a shared medium: at the access point)."""
    server_network: Link | None = None
    """NIC of a dedicated server; None: `Cluster.network`, or no limit at an access point."""
    host_staging: bool | None = None
    """Whether device tensors are copied to host memory over `Cluster.intra_node` and back around a
    collective; None: as the transport does (Gloo and MPI copy)."""

    ring_over_tree: Annotated[Fraction, INTERNAL] = _ONE
    """Factor on the ring's time in the NCCL tuner's comparison with a tree."""
    ring_over_tree_range: Annotated[RangeOf[Fraction], INTERNAL] = None
    """The size at which NCCL changes to a ring depends on its version and on the NIC's speed."""
    grouped: Annotated[Fraction, INTERNAL] = _ONE
    """Share of the network's goodput that an all-to-all reaches (grouped sends and receives)."""
    grouped_range: Annotated[RangeOf[Fraction], INTERNAL] = None

    @property
    def names_servers(self) -> bool:
        """Whether a setting is given that needs parameter servers."""
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
    """Racks of nodes under switches, whose uplinks may be slower than the NICs together."""

    nodes: Count  # nodes per rack, in order; the last rack may have fewer
    uplink: Link  # between a rack's switch and the others, each direction; its latency is added
    uplinks: Count = 1
    """Number of equal uplinks of a rack. All messages share the sum of the rates, but the traffic
    of a single NIC crosses only one uplink."""
    pod: Count | None = None  # racks per pod, in order; None: one switch joins all racks
    pod_uplink: Link | None = None  # between a pod's switch and the others, as `uplink`
    pod_uplinks: Count = 1  # number of equal uplinks of a pod, as `uplinks`

    @property
    def levels(self) -> tuple[tuple[int, Link], ...]:
        """Return, per level from racks up, the nodes below a switch and its uplinks as one link."""
        racks = (self.nodes, bundle(self.uplink, self.uplinks))
        if self.pod is None or self.pod_uplink is None:
            return (racks,)
        return racks, (self.nodes * self.pod, bundle(self.pod_uplink, self.pod_uplinks))

    def least_shares(self, nics: int) -> tuple[Fraction, ...]:
        """Return, per level, the least divisor of the uplinks' total rate for a message: one sent
        by `nics` NICs crosses at most as many uplinks."""
        counts = (self.uplinks, self.pod_uplinks)[: len(self.levels)]
        return tuple(max(_ONE, Fraction(count, nics)) for count in counts)


def bundle(link: Link, count: int) -> Link:
    """Combine `count` equal links to one whose rates and connection limits are the sums."""
    if count == 1:
        return link
    return link.exactly(
        name=f"{count} x {link.name}",
        bandwidth=link.bandwidth * count,
        flow=None if link.flow is None else link.flow * count,
    )


def one_link_of(link: Link, count: int) -> Link:
    """Return a single link of a `bundle`."""
    if count == 1:
        return link
    return link.exactly(
        name=link.name.removeprefix(f"{count} x "),
        bandwidth=link.bandwidth / count,
        flow=None if link.flow is None else link.flow / count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Consecutive nodes with one kind of device; their links are in `Cluster.nics` and `buses`, the
    number of their devices in `Cluster.sizes`."""

    nodes: int
    device: Device
    batch: Fraction = _ONE  # a worker's micro-batch relative to the scenario's batch size


def whole_batches(
    samples: int, speeds: Sequence[float | Fraction], workers: Sequence[int]
) -> list[int]:
    """Return a worker's samples for each group, in proportion to its speed. Summed over all workers
    they equal `samples`, except for rounding to whole samples per worker."""
    total = sum(speed * count for speed, count in zip(speeds, workers, strict=True))
    return [max(1, round(samples * speed / total)) for speed in speeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`nodes` machines with `devices_per_node` workers each, numbered node by node."""

    nodes: int
    devices_per_node: int  # the largest number, if `sizes` differ
    sizes: tuple[int, ...] = ()
    """Number of devices of each node, in order, if it differs; empty: `devices_per_node`."""
    device: Device  # device of all nodes, or of the first group
    groups: tuple[NodeGroup, ...] = ()
    """Groups of nodes, in order, if devices differ; empty: all nodes have `device`."""
    network: Link
    """Link between a node (all of its NICs together) and the switch, each direction; with groups
    the slowest, since NCCL's ranks agree on the smallest rate and number of channels (src/init.cc,
    `initTransportsRank`)."""
    nics_per_node: Count = 1
    """Number of equal NICs per node. NCCL spreads a collective's channels over all of them; one
    message uses one (`at_one_nic`)."""
    intra_node: Link
    """Link between a device and its node's memory (PCIe) or another device, each direction; with
    groups the slowest."""
    shared_memory: Link | None = None
    """Link between a node's ranks with a library that copies in host memory; None: `intra_node`."""
    collectives: Collectives = Collectives()
    nics: Mapping[int, Link] = field(default_factory=dict)
    """Network links that differ from `network`, by node."""
    buses: Mapping[int, Link] = field(default_factory=dict)
    """Links inside a node that differ from `intra_node`, by node, for rings, rounds and trees.
    Copies to host memory, leaders, servers and in-switch sums use `intra_node`."""
    racks: Racks | None = None  # None: one ideal switch
    shared_bus: bool = False  # a node's devices share the rate of `intra_node` (one PCIe switch)
    host: Host | None = None  # processor costs of messages; None: messages cost no processor time
    sums: Sums = Sums()  # noqa: RUF009 (frozen)
    """Rates at which a worker, or a server in an all-reduce, adds."""

    @property
    def workers(self) -> int:
        """Number of devices."""
        return number_of_ranks(self.nodes, self.devices_by_node)

    @property
    def devices_by_node(self) -> Devices:
        """Number of devices of every node, or of each one if it differs."""
        return self.sizes or self.devices_per_node

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        devices = self.devices_per_node
        if not self.sizes:
            return range(node * devices, (node + 1) * devices)
        first = sum(self.sizes[:node])
        return range(first, first + self.sizes[node])

    def devices_of(self, group: int) -> int:
        """Return the number of devices of each node of a group (without groups: 0)."""
        return len(self.ranks_of(sum(before.nodes for before in self.groups[:group])))

    def ranks_in(self, scope: Scope) -> int:
        """Return the number of ranks in a collective of this scope."""
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
        """Number of parameter servers; one per node if they are named without a number."""
        chosen = self.collectives
        if isinstance(chosen.servers, int):
            return chosen.servers
        return self.nodes if chosen.names_servers else 0

    @property
    def wiring(self) -> tuple[object, ...]:
        """Hashable key of all fields that messages depend on: all but the devices."""
        own = (getattr(self, one.name) for one in fields(self) if one.name not in _NO_KEY)
        differing = (sorted(links.items()) for links in (self.nics, self.buses))
        return (*own, *(tuple(links) for links in differing))

    @property
    def nvlink(self) -> bool:
        """Whether a node's devices have NVLink, for which NCCL's tuner has separate constants (RCCL
        uses these for xGMI)."""
        return self.intra_node.name.startswith(("nvlink", "xgmi"))

    @property
    def between_ranks(self) -> Link:
        """Link between two ranks of a node."""
        memory = self.shared_memory if self.collectives.stages else None
        return memory or self.intra_node

    @property
    def crosses_intra_node(self) -> bool:
        """Whether any message or copy crosses `intra_node`."""
        chosen = self.collectives
        served = chosen.names_servers and chosen.server_hosts == "nodes"
        return self.devices_per_node > 1 or chosen.stages or served

    @property
    def uplinks(self) -> dict[str, tuple[int, Link]]:
        """Return, for "racks" and "pods", the nodes below a switch and its uplinks as one link;
        only levels of which the nodes fill more than one."""
        levels = zip(("racks", "pods"), self.racks.levels if self.racks else (), strict=False)
        return {name: level for name, level in levels if level[0] < self.nodes}

    def nic(self, node: int) -> Link:
        """Return the network link of a node."""
        return self.nics.get(node, self.network)

    def links(self) -> tuple[Link, ...]:
        """Return all links that a message may cross."""
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
        """Cluster with the network rates of an all-to-all (`Collectives.grouped`)."""
        share = self.collectives.grouped
        if share == 1:
            return self
        return self._with(lambda nic: nic.exactly(efficiency=nic.efficiency * share))

    @property
    def at_one_nic(self) -> Cluster:
        """Cluster with one NIC per node, for messages that use a single channel."""
        one = self._with(lambda nic: one_link_of(nic, self.nics_per_node))
        return replace(one, nics_per_node=1)

    def _with(self, changed: Callable[[Link], Link]) -> Cluster:
        """Return the cluster with `changed` applied to all network links."""
        nics = {node: changed(nic) for node, nic in self.nics.items()}
        return replace(self, network=changed(self.network), nics=nics)

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        if not self.sizes:
            return rank // self.devices_per_node
        return bisect_right(tuple(accumulate(self.sizes)), rank)

    @property
    def devices(self) -> str:
        """ "4 x 8 a100_sxm_80gb + 8 x 8 v100": nodes, devices of each, and their name."""
        return " + ".join(
            f"{nodes} x {len(self.ranks_of(first))} {device.name}"
            for first, nodes, device in self.kinds
        )

    @property
    def kinds(self) -> Iterator[tuple[int, int, Device]]:
        """Yield first node, number of nodes and device of each group, or of the whole cluster."""
        first = 0
        for group in self.groups or (NodeGroup(nodes=self.nodes, device=self.device),):
            yield first, group.nodes, group.device
            first += group.nodes

    @property
    def ranks_of_groups(self) -> tuple[int, ...]:
        """Number of ranks of each group; empty without groups."""
        return tuple(
            nodes * len(self.ranks_of(first)) for first, nodes, _ in self.kinds if self.groups
        )

    @property
    def batches(self) -> Fraction:
        """Samples of all workers' micro-batches, in units of the scenario's batch size."""
        if not self.groups:
            return Fraction(self.workers)
        counts = zip(self.ranks_of_groups, self.groups, strict=True)
        return sum((ranks * group.batch for ranks, group in counts), Fraction(0))

    def all_like(self, group: int) -> Cluster:
        """Return the cluster with a group's device in every node, on the same links."""
        if not self.groups:
            return self
        return replace(self, device=self.groups[group].device, groups=())


_NO_KEY = {"device", "groups", "nics", "buses"}
"""Fields that do not affect messages, or that are not hashable."""
