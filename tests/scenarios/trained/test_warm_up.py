"""A method whose warm-up outlasts the training is not trained; shipped studies shorten it."""

from dataclasses import replace
from pathlib import Path

import pytest

from gcsim.analysis.report.answer import plain
from gcsim.analysis.trained.curves import curves_figure
from gcsim.analysis.trained.intervals import gains_figure
from gcsim.analysis.trained.table import parts
from gcsim.analysis.trained.write import training_page
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.run import run
from gcsim.scenarios.trained import make_shipped
from gcsim.scenarios.trained.known import with_training_results
from gcsim.scenarios.trained.runs import plan_of
from gcsim.scenarios.trained.search import COMPRESSED
from gcsim.scenarios.trained.study import train
from gcsim.traces.training.loop import Rules, advance
from gcsim.traces.training.plan import Schedule, Stop, Target
from gcsim.traces.training.trajectory import Trajectory
from tests.traces.training.world import fresh, method, team

TEXT = """
model: {build: "tests.traces.training.world:small", input_shape: [64], classes: 10}
batch_size: 8
gradients: {workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
uncertainty: {draws: 0}
compressors:
  - none
  - {kind: onebit_adam, label: never, freeze_step: 1000}
  - {kind: torch_powersgd, label: late, start: 37}
  - {kind: torch_powersgd, label: in time, start: 36}
  - {kind: "tests.traces.training.world:Wild", label: own dense}
  - {kind: "tests.traces.training.world:Undeclared", label: undeclared}
train: {task: digits, workers: 2, steps: 40, evaluate_every: 10, target: {accuracy: 0.3}, seeds: 1}
"""
LATE = {"never": 1000, "late": 37, "undeclared": 38}
"""By label: the step at which compression begins, of methods that compress in less than 4 steps."""
STEPS = 4


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))


def trained(kind: str, folder: Path, **parameters: int) -> Trajectory:
    chosen = method(kind, **parameters)
    of = team(chosen)
    rules = Rules(
        evaluate_every=STEPS,
        schedule=Schedule(),
        target=Target(of_dense=0.9),
        stop=Stop(diverged=False),
    )
    return advance(of, fresh(chosen, of, STEPS, rate=1e-4), rules, folder / kind)


@pytest.mark.parametrize("kind", REGISTRY)
def test_every_method_sends_otherwise_than_dense_but_in_its_warm_up(
    kind: str, tmp_path: Path
) -> None:
    """As the method declares it (`warmup_steps`), the traffic is: no step of the warm-up is its
    own, all steps are where there is no warm-up; dense training has none of its own."""
    found = trained(kind, tmp_path).own_steps
    if kind == "none":
        assert found == ()
    elif kind in make_shipped.WARM_UP:
        assert found == ()
        begin = trained(kind, tmp_path / "begin", **{make_shipped.WARM_UP[kind]: 1}).own_steps
        # PyTorch's local SGD averages in its first step
        assert begin == ((2, 3) if kind == "torch_post_local_sgd" else (1, 2, 3))
    elif kind == "local_sgd":  # it sums up distances as dense training does gradients
        assert found == (0, 1, 2)
    else:
        assert found == tuple(range(STEPS))


@pytest.mark.parametrize("name", make_shipped.SCENARIOS)
def test_no_method_of_a_shipped_study_is_in_its_warm_up_to_the_end(name: str) -> None:
    scenario = load_scenario(name)
    steps = plan_of(scenario).steps
    wanted = make_shipped.wanted(scenario)
    assert {choice.kind for choice in wanted} == {*REGISTRY}
    for choice in wanted:
        parameters = check_parameters(choice.kind, choice.parameters)
        assert compressor_class(choice.kind).warmup_steps(parameters) <= steps // 10 + 1


def test_a_method_that_hardly_compresses_has_no_steps_no_speedup_and_no_verdict(
    tmp_path: Path,
) -> None:
    (tmp_path / "small.yaml").write_text(TEXT)
    scenario = load_scenario(tmp_path / "small.yaml")
    result = train(scenario)
    rows = {row.label: row for row in result.rows}
    text = " ".join(plain(parts(result, 200), 200).split())
    for label, begin in LATE.items():
        row = rows[label]
        assert row.untrained == f"compression begins at step {begin}"
        known = (row.iteration_s, row.steps_against_dense, row.speedup_to_target, row.reached)
        assert known == (None, None, None, 0)
        assert f"{label}: not trained: {row.untrained}." in text
        assert f"{label} - - - - - -" in text
    # dense until step 36 of 40: the second half sends less
    assert "in time sends " in text
    assert "dense sends " not in text
    assert not any(rows[label].untrained for label in ("dense", "in time", "own dense"))
    assert not {curve.label for curve in result.curves} & {*LATE}
    for figure in (curves_figure, gains_figure):
        shown = figure(result).axes[0].get_legend_handles_labels()[1]
        assert not {*shown} & {*LATE}
    assert "not trained: compression begins at step 1000" in str(training_page(result, "train"))
    predicted = with_training_results(scenario, run(replace(scenario, train=None), cache=False))
    assert {row.label for row in predicted.rows if row.seeds_trained} == {*rows} - {*LATE}


def test_the_least_share_is_a_tenth() -> None:
    assert COMPRESSED == 0.1
