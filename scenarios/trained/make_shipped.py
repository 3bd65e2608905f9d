"""List of the trainings that come with gcsim, and of their stale files.

`python -m tests.benchmarks.shipped_trajectories` makes them, in a checkout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.trained.runs import Run, plan_of
from gcsim.traces.training import shipped

SCENARIOS = ("digits_8", "characters_8")
PAPERS = ("orq_train", "variance_train", "variance_resnet")
"""Scenarios of tables of accuracies of six methods and more, in `scenarios/papers/scenarios`."""
_TINY = "gcsim.traces.networks.gpt2:transformer_tiny"
LONG: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("characters_sgd", ()),
    ("characters_adamw", ()),
    ("characters_long", ("train.seeds=5",)),
    ("characters_long_sgd", ("train.seeds=3",)),
    ("textures_long", ("train.seeds=5",)),
    ("textures_long_sgd", ()),
    *(
        ("characters_widths", ("train.seeds=3", f"model.build={_TINY}{width}"))
        for width in ("", "_x2", "_x4")
    ),
)
"""Scenarios of long trajectories and their changes: all seeds to train (a scenario states those
that most of its methods have), and text at three widths."""
WARM_UP = {"onebit_adam": "freeze_step", "torch_powersgd": "start", "torch_post_local_sgd": "start"}
"""Parameter that counts the steps before a method compresses."""


def of_paper(name: str) -> Scenario:
    """Return a scenario of `PAPERS`."""
    return load_scenario(Path(__file__).parents[1] / "papers" / "scenarios" / f"{name}.yaml")


def wanted(scenario: Scenario) -> list[CompressorChoice]:
    """Return the scenario's methods, then all others with their defaults."""
    warm_up, others = plan_of(scenario).steps // 10, []
    for choice in with_defaults(scenario.compressors):
        given = {WARM_UP[choice.kind]: warm_up} if choice.kind in WARM_UP else {}
        parameters = check_parameters(choice.kind, given).model_dump()
        others.append(replace(choice, parameters=parameters))
    return [*scenario.compressors, *others]


def with_defaults(known: Iterable[CompressorChoice]) -> Iterator[CompressorChoice]:
    """Yield all methods that are not among these, with their defaults."""
    there = [(choice.kind, choice.parameters) for choice in known]
    for kind in REGISTRY:
        parameters = check_parameters(kind, {}).model_dump()
        if (kind, parameters) not in there:
            yield CompressorChoice(kind=kind, label=kind, parameters=parameters)


def files(folder: Path = shipped.FOLDER) -> Iterator[tuple[Path, str, Scenario]]:
    """Files to make, with code and a scenario of the method."""
    for name in (*SCENARIOS, *PAPERS):
        scenario = load_scenario(name) if name in SCENARIOS else of_paper(name)
        for choice in wanted(scenario) if name in SCENARIOS else scenario.compressors:
            alone = replace(scenario, compressors=(choice,))
            run = first_run(alone)
            yield shipped.path_of(run.facts, folder), run.code, alone


def first_run(alone: Scenario) -> Run:
    """Return the training of a scenario with one method, without a learning rate."""
    return Run(scenario=alone, choice=alone.compressors[0], rate=0, seed=0, until=0)


def long_trainings(names: Collection[str] = ()) -> Iterator[Scenario]:
    """Yield scenarios of one method each: all with the first seed, then with two, and so on;
    `names`: of some scenarios, by default all."""
    every = [load_scenario(*one) for one in LONG]
    loaded = [one for one in every if not names or one.name in names]
    if unknown := {*names} - {one.name for one in every}:
        raise InputError(f"no long training {min(unknown)!r}")
    plans = [plan_of(scenario) for scenario in loaded]
    for seeds in range(1, 1 + max((plan.seeds for plan in plans), default=0)):
        for scenario, plan in zip(loaded, plans, strict=True):
            for choice in scenario.compressors if seeds <= plan.seeds else ():
                yield replace(scenario, compressors=(choice,), train=replace(plan, seeds=seeds))


def stale(folder: Path = shipped.FOLDER) -> list[Path]:
    """Return damaged, outdated or unused files, except outdated long trainings."""
    asked = {path: code for path, code, _ in files(folder)}
    long = {shipped.path_of(first_run(one).facts, folder) for one in long_trainings()}
    found = {path: shipped.read(path) for path in folder.glob("*.json.xz")}
    return sorted(
        path
        for path, one in found.items()
        if not one or (path not in long and one.code != asked.get(path))
    )
