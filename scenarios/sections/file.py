"""A scenario file: its sections, keys, defaults and limits.

These classes exist only while a file is read; `gcsim.scenarios.load` builds the simulator's values
from them, and `schema_json` gives editors the rules. Keys of `training` are fields of
`gcsim.simulator.training.Training`, except `loop` and `framework` (the catalogue's, or changes to
one); those of `train` are fields of `gcsim.traces.training.plan.Plan`, where a single learning rate
may be a number, and equal data on all workers are called iid.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from gcsim.compressors.registry import REGISTRY
from gcsim.errors import did_you_mean
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import loops
from gcsim.scenarios.catalog.loops import FrameworkSection
from gcsim.scenarios.reading.checking import (
    NAMED,
    SPELLED_OUT,
    TABLED,
    Section,
    by_shape,
    either,
    invalid,
)
from gcsim.scenarios.reading.types import Count, Line, PositiveDuration, Price, asking, in_catalogue
from gcsim.scenarios.reading.values import As, Spelled, text_of
from gcsim.scenarios.scenario import (
    MOST_WORKERS,
    DdpBuckets,
    LiveGradients,
    RecordedGradients,
    SyntheticGradients,
)
from gcsim.scenarios.sections.cluster import ClusterSection
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.steps.step_plan import Kind
from gcsim.simulator.training import Code, SharedNode, Training
from gcsim.traces.models.registry import TableLayer
from gcsim.traces.tasks.folder import PREFIX
from gcsim.traces.tasks.registry import TASKS
from gcsim.traces.training.plan import LearningRates, Partition, Plan

DDP = As(DdpBuckets)
Setting = TypeVar("Setting")
FILE_NAME = re.compile(r"\w[\w.-]*")


RECORDED = "recorded"  # name of the replayed trace's model
_Path = Annotated[str, Field(min_length=1)]


def _file_name(name: str) -> str:
    if not FILE_NAME.fullmatch(name):
        raise invalid(
            f"{name!r} cannot be the name of the results folder",
            "use letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


def _model_name(name: str) -> str:
    if name == RECORDED:
        return name
    if ":" in name:
        return _builder(name)
    return asking(lambda: catalog.model(name)).name


class OwnModel(Section):
    """Model built by the user's code."""

    build: Annotated[str, AfterValidator(_builder)]
    input_shape: Annotated[list[Count], Field(min_length=1)] = [3, 224, 224]  # noqa: RUF012
    classes: Annotated[int, Field(ge=2)] = 1000
    input: Literal["samples", "tokens"] = "samples"
    auxiliary_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


_Rows = Annotated[list[Annotated[Spelled, As(TableLayer)]], Field(min_length=1)]


class ModelTable(Section):
    """Model known by its layers only: no code, no training."""

    layers: Annotated[
        Annotated[_Path, Tag(NAMED)] | Annotated[_Rows, Tag(TABLED)],
        Discriminator(lambda value: TABLED if isinstance(value, list) else NAMED),
    ]
    name: Annotated[str, AfterValidator(_file_name)] | None = None


def _model_form(value: Any) -> str:
    if not isinstance(value, Mapping | Section):
        return NAMED
    tabled = "layers" in value if isinstance(value, Mapping) else isinstance(value, ModelTable)
    return TABLED if tabled else SPELLED_OUT


_SOURCES = {"live": LiveGradients, "recorded": RecordedGradients, "synthetic": SyntheticGradients}


def _belongs_together(section: Spelled) -> None:
    """Raise pydantic's error for a key that does not apply to the gradients' source."""
    if section.source == "recorded" and section.trace is None:
        raise invalid("a recorded source needs `trace: PATH`", "record one with: gcsim record")
    effective = {field.name for field in fields(_SOURCES[section.source])} | {"source"}
    effective |= {"task"} if section.source == "live" else set()
    idle = section.model_fields_set - effective
    if idle:
        names = ", ".join(repr(name) for name in sorted(idle))
        raise invalid(f"{names} would have no effect with source {section.source!r}", "remove it")


_RATES, _PARTITION = As(LearningRates), As(Partition)
_IID = "iid"


def _task_name(name: str) -> str:
    """Task name, or pydantic's error."""
    if name not in TASKS:
        raise invalid(f"unknown task {name!r}", did_you_mean(name, TASKS))
    return name


_TaskName = Annotated[str, AfterValidator(_task_name)]
_BUILDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def _builder(name: str) -> str:
    """Check `package.module:function`; in gcsim's own modules the name must exist."""
    if not _BUILDER.fullmatch(name):
        raise invalid(f"{name!r} does not name a function", "write package.module:build")
    module, _, function = name.partition(":")
    if module.startswith("gcsim.") and function not in (known := _defined(module)):
        if not known:
            raise invalid(f"gcsim has no module {module!r} with functions")
        raise invalid(f"{module} has no {function!r}", did_you_mean(function, known))
    return name


@cache
def _defined(module: str) -> list[str]:
    """Return the names that a module of gcsim defines; it is parsed, since importing it may import
    torch. Empty if it does not exist."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return []
    if spec is None or spec.origin is None:
        return []
    names: list[str] = []
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):  # name = partial(function, ...)
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return names


def _learned(name: str) -> str:
    if name.startswith(PREFIX):
        return name
    return _builder(name) if ":" in name else _task_name(name)


_LearnedTask = Annotated[str, AfterValidator(_learned)]


TRAIN = As(
    Plan,
    title="Train",
    task=(_LearnedTask | None, None),
    loss=(Annotated[str, AfterValidator(_builder)] | None, None),
    learning_rate=(
        either(Annotated[float, Field(gt=0)], Annotated[Spelled, _RATES]),
        Plan().learning_rate.values[0],
    ),
    partition=(either(Literal["iid"], Annotated[Spelled, _PARTITION]), _IID),
)


def build_plan(section: Spelled) -> Plan:
    """Build the training plan of the model."""
    rate, partition = section.learning_rate, section.partition
    if isinstance(rate, Spelled):
        rates = rate.value(LearningRates)
    else:
        rates = LearningRates(values=(float(rate),))
    return section.value(
        Plan,
        learning_rate=rates,
        partition=partition.value(Partition) if isinstance(partition, Spelled) else Partition(),
    )


def plan_text(plan: Plan, task: str, loss: str) -> dict[str, Any]:
    """Return the section that a plan is read from."""
    rates = plan.learning_rate.values
    alike = text_of(plan.partition, brief=True) or _IID
    written: Any = {"values": list(rates)} if len(rates) > 1 else rates[0]
    own = {"loss": loss} if loss else {}
    return {"task": task, **own, **text_of(plan, learning_rate=written, partition=alike)}


GRADIENTS = As(
    LiveGradients,
    title="Gradients",
    rule=_belongs_together,
    source=(Literal["live", "recorded", "synthetic"], "live"),
    workers=(Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None, None),
    task=(_TaskName | None, None),
    trace=(_Path | None, None),
    fit=(_Path | None, None),
)
GRADIENTS.section.__doc__ = "Where the gradients come from."


class ComputeSection(Section):
    """User's measurement of one iteration on one device."""

    forward: PositiveDuration | None = None
    backward: PositiveDuration | None = None
    profile: _Path | None = None
    recorded: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> ComputeSection:
        stated = self.forward is not None or self.backward is not None
        if stated + (self.profile is not None) + self.recorded != 1:
            raise invalid(
                "takes one source: forward and backward, or profile, or recorded: true",
                "keep one of them",
            )
        if stated and (self.forward is None or self.backward is None):
            absent = "forward" if self.forward is None else "backward"
            raise invalid(f"key {absent!r} is missing", "state the times of both passes")
        return self


class CompressorSection(Section):
    """A method of the comparison; its parameters are further keys."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, Field(min_length=1)]
    label: Line | None = None
    implementation: Line | None = None
    """Implementation: gcsim, or one of `catalog/implementations.yaml`."""

    @model_validator(mode="before")
    @classmethod
    def _named_by_a_key(cls, data: Any) -> Any:
        """Refuse `powersgd: {rank: 2}`."""
        if isinstance(data, Mapping) and "kind" not in data:
            for kind in filter(REGISTRY.__contains__, data):
                hint = f"write kind: {kind}, and its parameters next to it"
                raise invalid("key 'kind' is missing", hint)
        return data


_FEWEST_DRAWS = 8


def _enough(draws: int) -> int:
    """Check that a range of these draws contains the estimate."""
    if 0 < draws < _FEWEST_DRAWS:
        raise invalid(
            f"{draws} is too few for a range", f"write {_FEWEST_DRAWS} or more, or 0 for no ranges"
        )
    return draws


class UncertaintySection(Section):
    """Treatment of figures that are known only as ranges."""

    draws: Annotated[int, Field(ge=0, le=4096), AfterValidator(_enough)] = 256
    discrepancy: bool = True
    """Whether steps get random factors for the errors of measured clusters beyond these ranges."""


class CostSection(Section):
    """Cost of the cluster, for `gcsim advise`."""

    per_hour: Price  # of a node whose group has no price of its own


def _entry(look_up: Callable[[str], object], figures: Any) -> Any:
    """Entry of the catalogue by name, or figures instead."""
    return either(Annotated[str, in_catalogue(look_up)], figures)


def _chosen(
    stated: str | Spelled | None, look_up: Callable[[str], Setting], usual: Setting
) -> Setting:
    if stated is None:
        return usual
    return look_up(stated) if isinstance(stated, str) else stated.value(type(usual), usual)


def buckets_of(section: Spelled) -> DdpBuckets:
    """Return the bucket limits; a stated `bucket` also limits the first one, as in PyTorch."""
    limits, stated = section.value(DdpBuckets), section.model_fields_set
    alone = "cap" in stated and "first" not in stated
    return replace(limits, first=limits.cap) if alone else limits


TRAINING = As(
    Training,
    reducer=None,
    hook=None,
    loop=(Annotated[str, in_catalogue(loops.loop_named)], loops.UNKNOWN),
    framework=(_entry(loops.framework, FrameworkSection) | None, None),
    shared_node=(_entry(loops.contention, Annotated[Spelled, As(SharedNode)]) | None, None),
    code=(_entry(loops.code, Annotated[Spelled, As(Code)]) | None, None),
)


def build_training(section: Spelled, cluster: Cluster, *, measured: bool = False) -> Training:
    """Build the training's settings, by default the catalogue's. Ranks on CPUs share cores in all
    computation except `measured` passes. 16-bit gradients imply 16-bit passes if the device has
    them."""
    collectives = cluster.collectives
    transport = collectives.transport
    on_devices = transport == "nccl" or collectives.all_reduce.startswith("nccl")
    loop = loops.loop(section.loop, on_devices=on_devices)
    code = loop.framework if section.framework is None else section.framework
    name = code if isinstance(code, str) else code.like
    around = loops.framework(name)
    if name != "none":
        reducer, hook = (loops.between_nodes(one, transport) for one in around)
        around = reducer, hook
    reducer, hook = around if isinstance(code, str) else code.codes(around)
    if section.overlap is not None:
        loop = loops.Loop(exposed=Fraction(section.overlap == "none"))
    half = section.gradients != "fp32" and not measured and "fp16" in cluster.device.precisions
    usual = Training(
        strategy=section.strategy,
        precision="fp16" if half else "fp32",
        code=Code() if measured else _chosen(section.code, loops.code, loops.code(loops.UNKNOWN)),
        exposed=loop.exposed,
        exposed_range=loop.exposed_range,
        interference=loops.interference(transport),
        shared_node=_chosen(section.shared_node, loops.contention, loops.shared_node(transport)),
        reducer=reducer,
        hook=hook,
        noise=loops.workers(),
    )
    kinds: set[Kind] = {"encode", "decode"}
    kinds |= set() if measured else {"forward", "backward"}
    kinds |= {"optimizer"} if section.optimizer and not measured else set()
    sharing = replace(usual, encode_on=section.encode_on, on_host=frozenset(kinds))
    if cluster.device.processor == "cpu" and sharing.machines(cluster):
        usual = replace(usual, on_host=sharing.on_host)
    return section.value(Training, usual)


class ScenarioFile(Section):
    """The whole file."""

    name: Annotated[str, AfterValidator(_file_name)] | None = None
    description: str = ""
    model: Annotated[
        Annotated[str, AfterValidator(_model_name), Tag(NAMED)]
        | Annotated[OwnModel, Tag(SPELLED_OUT)]
        | Annotated[ModelTable, Tag(TABLED)],
        Discriminator(_model_form),
    ]
    batch_size: Count
    gradients: Annotated[Spelled, GRADIENTS] = Field(default_factory=GRADIENTS.section)
    cluster: ClusterSection
    training: Annotated[Spelled, TRAINING] = Field(default_factory=TRAINING.section)
    ddp: Annotated[Spelled, DDP] = Field(default_factory=DDP.section)
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
    uncertainty: UncertaintySection = UncertaintySection()
    train: Annotated[Spelled, TRAIN] | None = None
    cost: CostSection | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


def schema_json() -> dict[str, Any]:
    """JSON schema of a scenario file, for editors."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **ScenarioFile.model_json_schema()}
