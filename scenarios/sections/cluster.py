"""Section `cluster`: machines, devices, links, topology, collectives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.reading import checking
from gcsim.scenarios.reading.document import Keys
from gcsim.scenarios.reading.types import (
    LARGEST_CLUSTER,
    Count,
    NodeNumber,
    Price,
    asking,
    in_catalogue,
)
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.scenarios.sections.link import LinkSection, build_link, carrier
from gcsim.scenarios.sections.named_files import device_in, usual_bus
from gcsim.scenarios.sections.transports import GROUPED, NONE, defaults, few_cores, on_machines
from gcsim.simulator.cluster import (
    Cluster,
    Collectives,
    NodeGroup,
    Racks,
    TransportName,
    bundle,
    one_link_of,
)
from gcsim.simulator.devices.device import Device
from gcsim.simulator.host import MANY, Host, Sums
from gcsim.simulator.network.links import Link
from gcsim.simulator.training import Noise, Training

PER_NODE: Final = "per_node"
DEDICATED: Final = "dedicated"
_ALL_NICS = {"nccl", "custom"}
"""Transports that divide a collective among a node's NICs; Gloo, MPI and textbook rings have one
connection between two ranks."""
_NEAR, _OVER_TCP = (Fraction(3, 4), Fraction(4, 3)), (Fraction(1, 2), Fraction(2))
"""Assumed error factors of NCCL's tuner between ring and tree; wider over TCP, whose goodput and
latency the tuner does not know, so that either is possible for long vectors."""


AnyLink = Annotated[
    Annotated[str, in_catalogue(catalog.link), Tag(checking.NAMED)]
    | Annotated[LinkSection, Tag(checking.SPELLED_OUT)],
    Discriminator(checking.by_shape),
]
"""Name of a link in the catalogue, or a link's own section."""


class DeviceSection(checking.Section):
    """Device of the catalogue or a file, with its fingerprint when the scenario was resolved."""

    file: Annotated[str, Field(min_length=1)] | None = None
    name: str
    fingerprint: str

    @field_validator("name")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        file = info.data.get("file")
        asking(lambda: catalog.device(name) if file is None else device_in(file, name))
        return name

    @model_validator(mode="after")
    def _unchanged(self) -> DeviceSection:
        if catalog.fingerprint(self.device) != self.fingerprint:
            owner = "the catalogue" if self.file is None else self.file
            written = self.name if self.file is None else f"{self.file}:{self.name}"
            raise checking.invalid(
                f"{owner}'s {self.name} has changed since this scenario was resolved",
                f"write `device: {written}` to use what it is now",
            )
        return self

    @property
    def device(self) -> Device:
        """Device of this section."""
        return catalog.device(self.name) if self.file is None else device_in(self.file, self.name)


class ServerCount(NamedTuple):
    """Number and place of parameter servers."""

    number: int | Literal["per_node"]
    dedicated: bool  # on machines of their own


def _servers(value: Any) -> ServerCount | None:
    if value is None:
        return None
    checking.not_a_list(value)
    words = value.split() if isinstance(value, str) else [str(value)]
    dedicated = words[-1:] == [DEDICATED]
    count = words[:-1] if dedicated else words
    if count == [PER_NODE] or (dedicated and not count):
        return ServerCount(PER_NODE, dedicated)
    digits = len(count) == 1 and count[0].isascii() and count[0].isdigit()
    if digits and len(count[0]) < 19 and not isinstance(value, bool):
        if not int(count[0]):
            raise checking.invalid("0 must be at least 1", "leave it out if there are none")
        return ServerCount(int(count[0]), dedicated)
    hint = "write a number, per_node, dedicated (as many machines as nodes) or 2 dedicated"
    raise checking.invalid(f"{value!r:.40} is not a number of parameter servers", hint)


_SERVERS = Annotated[
    ServerCount | None,
    PlainValidator(_servers),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^(per_node|([1-9]\d* )?dedicated)$"},
                {"type": "null"},
            ]
        }
    ),
]
COLLECTIVES = As(
    Collectives,
    transport=(TransportName | None, None),
    servers=(_SERVERS, None),
    server_hosts=None,
    server_network=(AnyLink | None, None),
)
"""Default transport: the device's (`usual_transport`)."""


_Nodes = Annotated[int, Field(ge=1, le=LARGEST_CLUSTER)]


def _ascending(nodes: list[int]) -> list[int]:
    for smaller, larger in itertools.pairwise(nodes):
        if larger <= smaller:
            message = f"{larger} comes after {smaller}; cluster sizes must ascend"
            raise checking.invalid(message, f"write {sorted(set(nodes))}")
    return nodes


def _none_or_spelled_out(value: object) -> str:
    return checking.NAMED if value == NONE else checking.SPELLED_OUT


_Device = Annotated[
    Annotated[str, in_catalogue(catalog.device), Tag(checking.NAMED)]
    | Annotated[DeviceSection, Tag(checking.SPELLED_OUT)],
    Discriminator(checking.by_shape),
]
_Nics = Annotated[int, Field(ge=1, le=32)]
"""Limit: NCCL has at most 32 ring channels (src/init.cc, `MAXCHANNELS / 2`), each on one NIC."""


_RACKS = As(Racks, uplink=(AnyLink, ...), pod_uplink=(AnyLink | None, None))


class GroupSection(checking.Section):
    """Group of equal nodes; the first group's keys are moved to the cluster (`groups.py`)."""

    nodes: Count
    devices_per_node: Count | None = None
    device: _Device | None = None
    network: AnyLink | None = None
    nics_per_node: _Nics = 1
    intra_node: AnyLink | None = None
    batch_size: Count | None = None  # samples per worker and micro-batch; None: the scenario's
    per_hour: Price | None = None  # of a node; None: `cost.per_hour`


class ClusterSection(checking.Section):
    """Machines, devices and links."""

    nodes: Annotated[
        Annotated[_Nodes, Tag(checking.NAMED)]
        | Annotated[
            list[_Nodes], Field(min_length=1), AfterValidator(_ascending), Tag(checking.SPELLED_OUT)
        ],
        Discriminator(
            lambda value: checking.SPELLED_OUT if isinstance(value, list) else checking.NAMED
        ),
    ]
    devices_per_node: Count = 1
    device: _Device
    groups: Annotated[list[GroupSection], Field(min_length=2)] | None = None
    """Groups of different nodes; None: all nodes are equal."""
    batch: Literal["equal", "by_speed"] = "equal"
    """Samples per worker: equal, or in proportion to the device's speed."""
    network: AnyLink
    nics_per_node: _Nics = 1
    """Number of NICs like `network` in each node, all of which carry a collective with NCCL."""
    nics: dict[NodeNumber, AnyLink] = {}  # noqa: RUF012
    racks: Annotated[Spelled, _RACKS] | None = None
    intra_node: AnyLink | None = None  # None: `usual_bus`, which a section without a name changes
    shared_bus: bool = False
    collectives: Annotated[Spelled, COLLECTIVES] = Field(default_factory=COLLECTIVES.section)
    host: Annotated[
        Annotated[Literal["none", "bare_metal", "virtual_machine"], Tag(checking.NAMED)]
        | Annotated[Spelled, As(Host), Tag(checking.SPELLED_OUT)],
        Discriminator(checking.by_shape),
    ] | None = None  # fmt: skip
    sums: Annotated[
        Annotated[Literal["none"], Tag(checking.NAMED)]
        | Annotated[Spelled, As(Sums), Tag(checking.SPELLED_OUT)],
        Discriminator(_none_or_spelled_out),
    ] | None = None  # fmt: skip

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of nodes, ascending."""
        return tuple(self.nodes) if isinstance(self.nodes, list) else (self.nodes,)


# --- the simulator's own value --------------------------------------------------------------------


def build_cluster(section: ClusterSection, batch_size: int) -> Cluster:
    """Build the cluster at its largest size; `batch_size`: of workers whose group states none."""
    largest = section.sizes[-1]
    racks = section.racks
    built = _built(section.device)
    collectives = _collectives(section.collectives)
    transport = collectives.transport
    sums, host = _prices(section, collectives)
    nics = [section.nics_per_node, *(one.nics_per_node for one in (section.groups or [])[1:])]
    together = min(nics) if transport in _ALL_NICS else 1
    sizes = _sizes(section)
    groups, networks, buses = _groups(section, built, batch_size, together)
    if collectives.host_staging is None and all(
        device.processor == "cpu" for device in [built, *(group.device for group in groups)]
    ):
        collectives = replace(collectives, host_staging=False)  # tensors are there already
    crossed = [bus for bus, devices in zip(buses, sizes, strict=True) if devices > 1]
    network, bus = _slowest(networks), _slowest(crossed or buses)
    if collectives.ring_over_tree_range:
        wire = carrier(transport, one_link_of(network, together).name)
        if wire.endswith("TCP"):
            collectives = replace(collectives, ring_over_tree_range=_OVER_TCP)
    return Cluster(
        nodes=largest,
        devices_per_node=max(sizes),
        sizes=sizes if len(set(sizes)) > 1 else (),
        device=built,
        groups=groups,
        network=network,
        nics_per_node=together,
        intra_node=bus,
        shared_memory=build_link("host_memory", transport)
        if transport == "mpich" and built.processor != "cpu" and max(sizes) > 1
        else None,
        collectives=collectives,
        nics={
            int(node): bundle_nics(build_link(nic, transport), together)
            for node, nic in section.nics.items()
        }
        | {node: link for node, link in enumerate(networks) if link != network},
        buses={node: link for node, link in enumerate(buses) if link != bus},
        racks=None
        if racks is None
        else racks.value(
            Racks,
            uplink=build_link(racks.uplink, transport),
            pod_uplink=racks.pod_uplink and build_link(racks.pod_uplink, transport),
        ),
        shared_bus=section.shared_bus,
        host=host,
        sums=sums,
    )


def _built(device: str | DeviceSection) -> Device:
    return catalog.device(device) if isinstance(device, str) else device.device


def _sizes(section: ClusterSection) -> tuple[int, ...]:
    """Return the number of devices of each node; without groups of one node."""
    first, *others = section.groups or [GroupSection(nodes=1)]
    sizes = [section.devices_per_node] * first.nodes
    for group in others:
        sizes += [group.devices_per_node or 1] * group.nodes
    return tuple(sizes)


def _groups(
    section: ClusterSection, device: Device, batch_size: int, together: int
) -> tuple[tuple[NodeGroup, ...], list[Link], list[Link]]:
    """Return the groups, and by node the network links and buses; without groups one of each."""
    transport = section.collectives.transport
    groups: list[NodeGroup] = []
    networks: list[Link] = []
    buses: list[Link] = []
    for group in section.groups or [GroupSection(nodes=1)]:
        own = group.device is None  # the first group's keys are the cluster's
        built = device if group.device is None else _built(group.device)
        network = bundle_nics(build_link(group.network or section.network, transport), together)
        named = section.intra_node if own else group.intra_node
        devices = section.devices_per_node if own else group.devices_per_node or 1
        usual = usual_bus(built, devices, transport)
        networks += [network] * group.nodes
        buses += [build_link(named or usual, transport)] * group.nodes
        batch = Fraction(group.batch_size or 1, batch_size if group.batch_size else 1)
        groups.append(NodeGroup(nodes=group.nodes, device=built, batch=batch))
    return tuple(groups) if section.groups else (), networks, buses


def _slowest(links: Sequence[Link]) -> Link:
    """Return the first link with the least long-run rate."""
    return min(links, key=lambda link: link.rate)


def bundle_nics(link: Link, count: int) -> Link:
    """Combine `count` equal NICs to one link whose rates and connection limits are the sums."""
    if count == 1:
        return link
    if link.trace is not None or link.up is not None or link.shared:
        raise InputError(
            f"{count} NICs per node on {link.name}",
            place="cluster.nics_per_node",
            hint="rates over time, access links and shared media have one",
        )
    return bundle(link, count)


def _prices(section: ClusterSection, collectives: Collectives) -> tuple[Sums, Host | None]:
    """Return the costs of sums and calls: stated, or the transport's."""
    sums, host = defaults(collectives)
    if section.sums is not None:
        sums = Sums() if isinstance(section.sums, str) else section.sums.value(Sums, sums)
    if isinstance(section.host, str):
        host = on_machines(section.host, host)
    elif section.host is not None:
        few = few_cores(collectives.transport) if section.host.cores < MANY else None
        host = section.host.value(Host, few or host or Host())
    return sums, host


def _collectives(section: Spelled) -> Collectives:
    network, servers = section.server_network, section.servers
    tuned = (section.transport, section.all_reduce) == ("nccl", "auto")
    tuned |= section.all_reduce == "nccl"
    grouped, grouped_range = GROUPED.get(section.transport, (Fraction(1), None))
    usual = Collectives(
        transport=section.transport,
        servers=None if servers is None else servers.number,
        server_hosts="dedicated" if servers is not None and servers.dedicated else "nodes",
        server_network=None if network is None else build_link(network, section.transport),
        ring_over_tree_range=_NEAR if tuned else None,
        grouped=grouped,
        grouped_range=grouped_range,
    )
    return section.value(Collectives, usual)


def group_key(number: int, key: str) -> Keys:
    """Return the key path of a group's setting; the first group's settings are the cluster's."""
    return ("cluster", "groups", number, key) if number else ("cluster", key)


def links_of(cluster: Cluster) -> dict[Keys, Link]:
    """Return the links in use by setting, in file order."""
    found: dict[Keys, Link] = {("cluster", "network"): cluster.network}
    node = 0
    for number, group in enumerate(cluster.groups):
        for key, links in (("network", cluster.nics), ("intra_node", cluster.buses)):
            if node in links:
                found["cluster", "groups", number, key] = links[node]
        node += group.nodes
    for node, nic in () if cluster.groups else sorted(cluster.nics.items()):
        found["cluster", "nics", str(node)] = nic
    if cluster.racks is not None:
        found["cluster", "racks", "uplink"] = cluster.racks.uplink
        if cluster.racks.pod_uplink is not None:
            found["cluster", "racks", "pod_uplink"] = cluster.racks.pod_uplink
    found["cluster", "intra_node"] = cluster.intra_node
    servers = cluster.collectives
    if servers.server_network is not None and servers.server_hosts == "dedicated":
        found["cluster", "collectives", "server_network"] = servers.server_network
    return found


def random_settings(cluster: Cluster, training: Training) -> list[Keys]:
    """Return the settings with random numbers, in file order."""
    found = [key_path for key_path, link in links_of(cluster).items() if link.random]
    noise = training.noise
    drawn = noise is not None and (noise.variation > 0 or noise.slow_probability > 0)
    return found + ([("training", "noise")] if drawn else [])


def timed_settings(cluster: Cluster) -> list[Keys]:
    """Return the settings of links whose rate or grants change over time."""
    return [key_path for key_path, link in links_of(cluster).items() if link.timed]


def matters(noise: Noise | None) -> bool:
    """Whether noise has any effect."""
    return noise is not None and (noise.variation > 0 or noise.skew > 0 or slows(noise))


def slows(noise: Noise) -> bool:
    """Whether workers are sometimes slow."""
    return noise.slow_probability > 0 and noise.slow_factor != 1
