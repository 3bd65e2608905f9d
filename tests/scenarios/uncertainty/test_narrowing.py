"""What narrows an uncertain input exists: a command of gcsim, or keys that a scenario takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcsim.cli.app import _command
from gcsim.scenarios.advice.changes import candidates
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.load import load_scenario, shipped_scenarios
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.uncertainty.figures import Input, uncertain_inputs
from gcsim.simulator.devices.training_time import ComputeTimes
from tests.scenarios.sections.test_one_figure import CASES, TEXT, flat

PASSES = {
    name: ComputeTimes(forward=forward, backward=1, parts=(1,), provenance="")
    for name, forward in (("stated", 2), ("fastest", 1), ("slowest", 3))
}
EXAMPLES = {
    "compute.forward": "10 ms",
    "compute.backward": "20 ms",
    "training.overlap": "ddp",
    "cluster.collectives.all_reduce": "nccl_ring_simple",
    "cluster.collectives.push_pull": "all_gather",
}
"""Values of keys that stand in no resolved scenario, or as auto."""


def inputs(scenario: Scenario) -> dict[str, Input]:
    found = uncertain_inputs(scenario.cluster, scenario.training, PASSES)
    return {one.name: one for one in found}


def check(scenario: Scenario, path: Path, settings: tuple[str, ...]) -> None:
    known = {".".join(map(str, keys)): value for keys, value in flat(scenario.resolved).items()}
    for one in inputs(scenario).values():
        if one.measure.startswith("gcsim "):
            assert exists(one.measure), one
            continue
        keys = one.measure.split(" and ")
        stated = [f"{key}={EXAMPLES.get(key, known.get(key))}" for key in keys]
        then = load_scenario(path, (*settings, *stated))
        if not {*keys} & {*EXAMPLES}:
            assert one.name not in inputs(then), one


def exists(command: str) -> bool:
    found = _command()
    for word in command.split()[1:]:
        found = found.commands.get(word)
    return found is not None


@pytest.mark.parametrize(
    "name", ["alexnet_32node_nccl_servers", "alexnet_5g", "digits_8", "gpt2_a100"]
)
def test_inputs_of_shipped_scenarios_can_be_narrowed(name: str) -> None:
    path = shipped_scenarios()[name]
    scenario = load_scenario(path)
    check(scenario, path, ())
    for _, settings, _ in candidates(ask(str(path), Words())):  # what advice changes in their place
        load_scenario(path, settings)


@pytest.mark.parametrize("case", CASES)
def test_inputs_of_every_transport_and_link_can_be_narrowed(tmp_path: Path, case: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(TEXT, encoding="utf-8")
    check(load_scenario(path, CASES[case]), path, CASES[case])
