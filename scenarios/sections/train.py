"""What may a scenario file say under `train`? How the model is trained to an end, by `gcsim train`.

The keys are the fields of `gcsim.traces.training.plan.Plan`; one learning rate may be a number, and
data that are alike on all workers are called iid.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from gcsim.errors import did_you_mean
from gcsim.scenarios.reading.checking import NAMED, SPELLED_OUT, by_shape, invalid
from gcsim.scenarios.reading.values import As, Spelled, text_of
from gcsim.traces.tasks.folder import PREFIX
from gcsim.traces.tasks.registry import TASKS
from gcsim.traces.training.plan import LearningRates, Partition, Plan

_RATES, _PARTITION = As(LearningRates), As(Partition)
IID = "iid"


def task_name(name: str) -> str:
    """The name of a task; raises pydantic's error for another."""
    if name not in TASKS:
        raise invalid(f"unknown task {name!r}", did_you_mean(name, TASKS))
    return name


TaskName = Annotated[str, AfterValidator(task_name)]
_BUILDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def builder(name: str) -> str:
    """`package.module:function`; raises pydantic's error for what is none."""
    if not _BUILDER.fullmatch(name):
        raise invalid(f"{name!r} does not name a function", "write package.module:build")
    return name


def _learned(name: str) -> str:
    if name.startswith(PREFIX):
        return name
    return builder(name) if ":" in name else task_name(name)


_LearnedTask = Annotated[str, AfterValidator(_learned)]
_OneRate = Annotated[float, Field(gt=0)]
TRAIN = As(
    Plan,
    title="Train",
    task=(_LearnedTask | None, None),
    loss=(Annotated[str, AfterValidator(builder)] | None, None),
    learning_rate=(
        Annotated[
            Annotated[_OneRate, Tag(NAMED)]
            | Annotated[Annotated[Spelled, _RATES], Tag(SPELLED_OUT)],
            Discriminator(by_shape),
        ],
        Plan().learning_rate.values[0],
    ),
    partition=(
        Annotated[
            Annotated[Literal["iid"], Tag(NAMED)]
            | Annotated[Annotated[Spelled, _PARTITION], Tag(SPELLED_OUT)],
            Discriminator(by_shape),
        ],
        IID,
    ),
)


def build_plan(section: Spelled) -> Plan:
    """How the model is trained."""
    rate, partition = section.learning_rate, section.partition
    if isinstance(rate, Spelled):
        rates = rate.value(LearningRates)
    else:
        rates = LearningRates(values=(float(rate),))
    return section.value(
        Plan,
        learning_rate=rates,
        partition=partition.value(Partition) if isinstance(partition, Spelled) else None,
    )


def plan_text(plan: Plan, task: str, loss: str) -> dict[str, Any]:
    """The section that reads back to a plan."""
    rates = plan.learning_rate.values
    alike = IID if plan.partition is None else text_of(plan.partition)
    written: Any = {"values": list(rates)} if len(rates) > 1 else rates[0]
    own = {"loss": loss} if loss else {}
    return {"task": task, **own, **text_of(plan, learning_rate=written, partition=alike)}
