"""What may stand in a scenario file? Its sections, keys, defaults and limits.

These classes exist only while a file is read: `gcsim.scenarios.load` builds the simulator's own
values from them. `schema_json` gives editors the same rules.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from gcsim.errors import did_you_mean
from gcsim.scenarios.checking import (
    NAMED,
    SPELLED_OUT,
    PositiveDuration,
    Section,
    Size,
    by_shape,
    refuse,
)
from gcsim.scenarios.schema_cluster import ClusterSection
from gcsim.scenarios.schema_training import TrainingSection
from gcsim.scenarios.schema_types import Count

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


class OwnModel(Section):
    """A model that the user's code builds."""

    build: Annotated[str, AfterValidator(_builder)]
    input_shape: Annotated[list[Count], Field(min_length=1)] = [3, 224, 224]  # noqa: RUF012
    classes: Count = 1000


class Gradients(Section):
    """Where the gradients come from."""

    source: Literal["live", "recorded"] = "live"
    workers: Count | None = None
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    iterations: Count = 4
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
    batch_size: Count
    gradients: Gradients = Gradients()
    cluster: ClusterSection
    training: TrainingSection = Field(default_factory=TrainingSection)
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
