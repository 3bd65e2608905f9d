"""What may a scenario file say under `cluster`? Machines, devices, links, topology, collectives."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.checking import (
    NAMED,
    SPELLED_OUT,
    Bandwidth,
    Duration,
    Section,
    Size,
    by_shape,
    refuse,
)
from gcsim.scenarios.link_section import LinkSection
from gcsim.scenarios.named_files import device_in
from gcsim.scenarios.schema_types import LARGEST_CLUSTER, Count, NodeNumber, in_catalogue
from gcsim.simulator.cluster import (
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    Sharing,
    TransportName,
)
from gcsim.simulator.devices.device import Device

PER_NODE = "per_node"


AnyLink = Annotated[
    Annotated[str, in_catalogue(catalog.link), Tag(NAMED)]
    | Annotated[LinkSection, Tag(SPELLED_OUT)],
    Discriminator(by_shape),
]
"""A link of the catalogue by its name, or spelled out."""


class DeviceSection(Section):
    """A device of the catalogue, or of a file, as it was when a scenario was resolved."""

    file: Annotated[str, Field(min_length=1)] | None = None
    name: str
    fingerprint: str

    @field_validator("name")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        file = info.data.get("file")
        try:
            catalog.device(name) if file is None else device_in(file, name)
        except InputError as error:
            raise refuse(error.problems[0].message, error.problems[0].hint) from error
        return name

    @model_validator(mode="after")
    def _unchanged(self) -> DeviceSection:
        if catalog.fingerprint(self.device) != self.fingerprint:
            owner = "the catalogue" if self.file is None else self.file
            written = self.name if self.file is None else f"{self.file}:{self.name}"
            raise refuse(
                f"{owner}'s {self.name} is not what it was when this scenario was resolved",
                f"write `device: {written}` to use what it is now",
            )
        return self

    @property
    def device(self) -> Device:
        """The device itself."""
        return catalog.device(self.name) if self.file is None else device_in(self.file, self.name)


class CollectivesSection(Section):
    """Which algorithm carries out each kind of request; by default what the transport chooses."""

    transport: TransportName = "textbook"
    all_reduce: AllReduceAlgorithm = "auto"
    all_gather: AllGatherAlgorithm = "auto"
    pipeline_block: Size = 32 * 1024
    servers: Annotated[
        Annotated[Literal["per_node"], Tag(NAMED)] | Annotated[Count, Tag(SPELLED_OUT)],
        Discriminator(lambda value: NAMED if isinstance(value, str) else SPELLED_OUT),
    ] = 1
    server_hosts: Literal["nodes", "dedicated"] = "nodes"
    server_network: AnyLink | None = None
    host_staging: bool | None = None
    sharing: Sharing = "counted"


class RacksSection(Section):
    """Nodes under switches with uplinks of their own."""

    nodes: Count
    uplink: AnyLink


class HostSection(Section):
    """What the processors of a machine spend on the messages of its ranks."""

    cores: Annotated[Count, Field(le=4096)]
    per_message: Duration
    per_byte: Duration = Fraction(0)
    per_call: Duration = Fraction(0)
    per_copied_byte: Duration = Fraction(0)
    in_flight: Annotated[Count, Field(le=64)] = 2
    ranks: Literal["node", "all"] = "node"


_Nodes = Annotated[int, Field(ge=1, le=LARGEST_CLUSTER)]


def _ascending(nodes: list[int]) -> list[int]:
    for smaller, larger in itertools.pairwise(nodes):
        if larger <= smaller:
            message = f"{larger} stands after {smaller}; cluster sizes must ascend"
            raise refuse(message, f"write {sorted(set(nodes))}")
    return nodes


class ClusterSection(Section):
    """Machines, devices and links."""

    nodes: Annotated[
        Annotated[_Nodes, Tag(NAMED)]
        | Annotated[
            list[_Nodes], Field(min_length=1), AfterValidator(_ascending), Tag(SPELLED_OUT)
        ],
        Discriminator(lambda value: SPELLED_OUT if isinstance(value, list) else NAMED),
    ]
    devices_per_node: Count = 1
    device: Annotated[
        Annotated[str, in_catalogue(catalog.device), Tag(NAMED)]
        | Annotated[DeviceSection, Tag(SPELLED_OUT)],
        Discriminator(by_shape),
    ]
    network: AnyLink
    cards: dict[NodeNumber, AnyLink] = {}  # noqa: RUF012
    racks: RacksSection | None = None
    intra_node: AnyLink = "pcie3_x16"
    shared_bus: bool = False
    collectives: CollectivesSection = CollectivesSection()
    host: HostSection | None = None
    reduction: Bandwidth | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of nodes, ascending."""
        return tuple(self.nodes) if isinstance(self.nodes, list) else (self.nodes,)
