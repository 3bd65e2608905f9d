"""List of the trainings that come with gcsim.

`python -m tests.benchmarks.shipped_trajectories` makes them, in a checkout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.trained.runs import plan_of

SCENARIOS = ("digits_8", "characters_8")
PAPERS = ("orq_train", "variance_train", "variance_resnet")
"""Scenarios of tables of accuracies of six methods and more, in `scenarios/papers/scenarios`."""
ALIKE = ("sampling_share",)
"""Further scenarios there, of a paper's methods with another share."""
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
    """Return a scenario of `PAPERS` or `ALIKE`."""
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
