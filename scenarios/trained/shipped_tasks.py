"""Outcomes of the shipped tasks' trainings with a method, without training.

They are used if a scenario does not say how to train: results on small tasks, with their length in
delays (`horizon.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from gcsim.compressors.options.method import method_of
from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.files import cache_folder
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.running import result_cache
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.traces.training import shipped
from gcsim.traces.training.plan import Optimizer

TASKS = (
    "digits_8", "textures_long", "textures_long_sgd", "characters_8", "characters_adamw",
    "characters_sgd", "characters_long",
)  # fmt: skip
"""Scenarios whose trainings come with gcsim."""

Field = Literal["images", "text"]

if TYPE_CHECKING:
    from gcsim.scenarios.trained.search import MethodTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """Outcome of one task with a method."""

    task: str
    field: Field | None
    optimizer: str
    """Kind of optimizer (`kind_of`)."""
    target: str
    same: bool  # whether the parameters are the requested ones
    seeds: int
    reached: int  # seeds that reached the target
    steps_vs_dense: float | None
    """Steps to the target over dense training's; None where half or more seeds miss it, or the
    training is too short to tell."""
    too_short: str  # reason if it is inconclusive, with the steps needed


def on_shipped_tasks(kind: str, given: Mapping[str, Any]) -> tuple[TaskOutcome, ...]:
    """Return the outcomes of the shipped tasks; cached while the trajectories stay the same."""
    if kind not in REGISTRY:
        return ()
    folders = shipped.FOLDER, cache_folder() / "trajectories"
    files = [(path, path.stat().st_mtime_ns) for folder in folders for path in folder.glob("*")]
    name = result_cache.key_of(kind=kind, given=given, trajectories=sorted(files))
    return result_cache.cached(
        name, TypeAdapter(tuple[TaskOutcome, ...]), lambda: _on_all(kind, given)
    )


def _on_all(kind: str, given: Mapping[str, Any]) -> tuple[TaskOutcome, ...]:
    parameters = method_of(kind, given).parameters.model_dump()
    usual = check_parameters(kind, {}).model_dump()
    found = []
    for name in TASKS:
        listed = [one.parameters for one in _task(name)[0].compressors if one.kind == kind]
        found.append(on_shipped_task(name, kind, [parameters, usual, *listed]))
    return tuple(one for one in found if one is not None)


def on_shipped_task(
    name: str, kind: str, parameters: Sequence[Mapping[str, Any]]
) -> TaskOutcome | None:
    """Return the outcome of a task with the first of these parameters that was trained."""
    from gcsim.scenarios.trained.runs import plan_of
    from gcsim.scenarios.trained.search import known_of
    from gcsim.scenarios.trained.study import dense_level, described, ends_of, steps_ratio

    scenario, dense = _task(name)
    tries = (known_of(scenario, CompressorChoice(kind=kind, label=kind, parameters=dict(one)))
             for one in parameters)  # fmt: skip
    tried = next((one for one in tries if one is not None), None)
    if tried is None or dense is None:
        return None
    plan, level = plan_of(scenario), dense_level(dense)
    ends, base = (ends_of(plan, one, level) for one in (tried, dense))
    return TaskOutcome(
        task=name,
        field=field_of(scenario),
        optimizer=kind_of(plan.optimizer),
        target=described(plan.target, level),
        same=tried.choice.parameters == parameters[0],
        seeds=len(ends),
        reached=sum(one is not None for one in ends),
        steps_vs_dense=steps_ratio(ends, base),
        too_short=tried.too_short,
    )


def field_of(scenario: Scenario) -> Field | None:
    """Return the field of a scenario's model by a sample's shape; None for other fields."""
    if scenario.model.input == "tokens":
        return "text"
    return "images" if len(scenario.model.input_shape) == len("CHW") else None


def kind_of(optimizer: Optimizer) -> str:
    """ "plain SGD", "momentum SGD" or "Adam"."""
    if optimizer.name != "sgd":
        return "Adam"
    return "momentum SGD" if optimizer.momentum else "plain SGD"


@lru_cache
def _task(name: str) -> tuple[Scenario, MethodTraining | None]:
    from gcsim.scenarios.trained.search import known_of

    scenario = load_scenario(name)
    assert scenario.dense is not None  # noqa: S101
    return scenario, known_of(scenario, scenario.compressors[scenario.dense])
