"""How trainings that come with gcsim ended, for every method that has one."""

import pytest

from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.trained.make_shipped import SCENARIOS, wanted
from gcsim.scenarios.trained.shipped_tasks import TASKS, on_shipped_tasks
from gcsim.traces.training import shipped

SEEDS = {
    "digits_8": 3, "textures_long": 5, "textures_long_sgd": 3, "characters_8": 3,
    "characters_adamw": 3, "characters_sgd": 3, "characters_long": 5,
}  # fmt: skip
"""As the scenarios say in their first lines."""
TRAINED = sorted({path.name.rpartition("-")[0] for path in shipped.FOLDER.glob("*.json.xz")})


def test_every_shipped_method_has_its_end_and_its_horizon() -> None:
    for kind in TRAINED:
        found = on_shipped_tasks(kind, {})
        assert {one.task for one in found} <= set(TASKS)
        for one in found:
            assert 0 <= one.reached <= one.seeds == SEEDS[one.task]
            # half of the seeds or more did not reach it: no steps
            assert (one.steps_vs_dense is None) == (2 * one.reached <= one.seeds)
            assert one.reached == 0 or not one.too_short
    assert all(
        one.steps_vs_dense == 1 and not one.too_short for one in on_shipped_tasks("none", {})
    )
    # ten delays or more; of a thousandth, one in 1,000 steps
    for kind, short in (("topk", []), ("dgc", ["digits_8", "characters_8"])):
        assert [one.task for one in on_shipped_tasks(kind, {}) if one.too_short] == short


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenarios_own_parameters_are_told_from_others(name: str) -> None:
    for choice in wanted(load_scenario(name))[:12]:
        found = {one.task: one for one in on_shipped_tasks(choice.kind, choice.parameters)}
        assert found[name].same


def test_other_parameters_are_said_to_be_others_and_unknown_methods_have_none() -> None:
    found = on_shipped_tasks("topk", {"ratio": 0.37})
    assert found
    assert not any(one.same for one in found)
    assert {"topk", "fp16"} <= set(TRAINED) & set(REGISTRY)
    assert on_shipped_tasks("my_module:Mine", {}) == ()
