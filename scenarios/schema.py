"""What may stand in a scenario file? Its sections, keys, defaults and limits.

These classes exist only while a file is read: `gcsim.scenarios.load` builds the simulator's own
values from them. `schema_json` gives editors the same rules.
"""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from gcsim.errors import InputError, did_you_mean
from gcsim.scenarios import catalog
from gcsim.scenarios.checking import (
    NAMED,
    SPELLED_OUT,
    Bandwidth,
    Duration,
    PositiveDuration,
    Section,
    Share,
    Size,
    by_shape,
    refuse,
)
from gcsim.simulator.cluster import AllGatherAlgorithm, AllReduceAlgorithm, TransportName

LARGEST_CLUSTER = 100_000
"""Machines: beyond it the engine's memory is the limit, not its model."""

PER_NODE = "per_node"

_Count = Annotated[int, Field(ge=1)]
_FILE_NAME = re.compile(r"\w[\w.-]*")
_BUILDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def _builder(name: str) -> str:
    if not _BUILDER.fullmatch(name):
        raise refuse(f"{name!r} does not name a function", "write package.module:build")
    return name


def _file_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise refuse(
            f"{name!r} cannot name the folder of the results",
            "use letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


def _model_name(name: str) -> str:
    if ":" in name:
        return _builder(name)
    from gcsim.traces.models import MODELS

    if name not in MODELS:
        hint = f"{did_you_mean(name, MODELS)} Your own model is written package.module:build"
        raise refuse(f"unknown model {name!r}", hint)
    return name


def _in_catalogue(look_up: Any) -> AfterValidator:
    def known(name: str) -> str:
        try:
            look_up(name)
        except InputError as error:
            raise refuse(error.problems[0].message, error.problems[0].hint) from error
        return name

    return AfterValidator(known)


def _ascending(nodes: list[int]) -> list[int]:
    for smaller, larger in itertools.pairwise(nodes):
        if larger <= smaller:
            raise refuse(f"{larger} stands after {smaller}; cluster sizes must ascend")
    return nodes


class OwnModel(Section):
    """A model that the user's code builds."""

    build: Annotated[str, AfterValidator(_builder)]
    input_shape: Annotated[list[_Count], Field(min_length=1)] = [3, 224, 224]  # noqa: RUF012
    classes: _Count = 1000


class Gradients(Section):
    """Where the gradients come from."""

    source: Literal["live", "recorded"] = "live"
    workers: _Count | None = None
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    iterations: _Count = 4
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    device: Literal["auto", "cpu", "cuda"] = "auto"
    trace: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _belongs_together(self) -> Gradients:
        if self.source == "recorded" and self.trace is None:
            raise refuse("a recorded source needs `trace: PATH`", "record one with: gcsim record")
        only_recorded = {"trace"}
        only_live = {"warmup_steps", "iterations", "learning_rate", "momentum", "device"}
        idle = self.model_fields_set & (only_live if self.source == "recorded" else only_recorded)
        if idle:
            names = ", ".join(repr(name) for name in sorted(idle))
            raise refuse(f"{names} would have no effect with source {self.source!r}", "remove it")
        return self


class LinkSection(Section):
    """A link, in full or as changes to one of the catalogue."""

    like: Annotated[str, _in_catalogue(catalog.link)] | None = None
    name: Annotated[str, Field(min_length=1)] | None = None
    bandwidth: Bandwidth | None = None
    latency: Duration | None = None
    efficiency: Share | None = None
    source: str | None = None
    estimate: bool | None = None

    @model_validator(mode="after")
    def _complete(self) -> LinkSection:
        if self.like is None:
            for key in ("bandwidth", "latency"):
                if getattr(self, key) is None:
                    hint = "write it, or `like:` with a link of the catalogue"
                    raise refuse(f"key {key!r} is missing", hint)
        return self


class DeviceSection(Section):
    """A device of the catalogue as it was when a scenario was resolved."""

    name: Annotated[str, _in_catalogue(catalog.device)]
    fingerprint: str

    @model_validator(mode="after")
    def _unchanged(self) -> DeviceSection:
        if catalog.fingerprint(catalog.device(self.name)) != self.fingerprint:
            raise refuse(
                f"the catalogue's {self.name} is not what it was when this scenario was resolved",
                f"write `device: {self.name}` to use what it is now",
            )
        return self


class CollectivesSection(Section):
    """Which algorithm carries out each kind of request; by default what the transport chooses."""

    transport: TransportName = "textbook"
    all_reduce: AllReduceAlgorithm = "auto"
    all_gather: AllGatherAlgorithm = "auto"
    pipeline_block: Size = 32 * 1024
    servers: Annotated[
        Annotated[Literal["per_node"], Tag(NAMED)] | Annotated[_Count, Tag(SPELLED_OUT)],
        Discriminator(lambda value: NAMED if isinstance(value, str) else SPELLED_OUT),
    ] = 1


_Link = Annotated[
    Annotated[str, _in_catalogue(catalog.link), Tag(NAMED)]
    | Annotated[LinkSection, Tag(SPELLED_OUT)],
    Discriminator(by_shape),
]
_Nodes = Annotated[int, Field(ge=1, le=LARGEST_CLUSTER)]


class ClusterSection(Section):
    """Machines, devices and links."""

    nodes: Annotated[
        Annotated[_Nodes, Tag(NAMED)]
        | Annotated[
            list[_Nodes], Field(min_length=1), AfterValidator(_ascending), Tag(SPELLED_OUT)
        ],
        Discriminator(lambda value: SPELLED_OUT if isinstance(value, list) else NAMED),
    ]
    devices_per_node: _Count = 1
    device: Annotated[
        Annotated[str, _in_catalogue(catalog.device), Tag(NAMED)]
        | Annotated[DeviceSection, Tag(SPELLED_OUT)],
        Discriminator(by_shape),
    ]
    network: _Link
    intra_node: _Link = "pcie3_x16"
    collectives: CollectivesSection = CollectivesSection()


class DdpSection(Section):
    """PyTorch DDP's bucket limits."""

    first_bucket: Size = 1 << 20
    bucket: Size = 25 << 20


class ComputeSection(Section):
    """The user's own measurement of one iteration on one device."""

    forward: PositiveDuration
    backward: PositiveDuration


class CompressorSection(Section):
    """One row of the comparison; its parameters stand beside these keys."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, Field(min_length=1)]
    label: Annotated[str, Field(min_length=1)] | None = None


class ScenarioFile(Section):
    """The whole file."""

    name: Annotated[str, AfterValidator(_file_name)] | None = None
    description: str = ""
    model: Annotated[
        Annotated[str, AfterValidator(_model_name), Tag(NAMED)]
        | Annotated[OwnModel, Tag(SPELLED_OUT)],
        Discriminator(by_shape),
    ]
    batch_size: _Count
    gradients: Gradients = Gradients()
    cluster: ClusterSection
    ddp: DdpSection = DdpSection()
    compute: ComputeSection | None = None
    compressors: Annotated[
        list[
            Annotated[
                Annotated[str, Tag(NAMED)] | Annotated[CompressorSection, Tag(SPELLED_OUT)],
                Discriminator(by_shape),
            ]
        ],
        Field(min_length=1),
    ]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


def schema_json() -> dict[str, Any]:
    """JSON schema of a scenario file, for editors."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **ScenarioFile.model_json_schema()}
