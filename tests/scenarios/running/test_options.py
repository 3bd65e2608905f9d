"""Options of a scenario's entry: the same bytes in stage 1 and in training, and said in words."""

from pathlib import Path
from typing import Any

import pytest

from gcsim.analysis.report.answer import answer
from gcsim.compressors.options.method import code_of
from gcsim.compressors.registry import REGISTRY
from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.run import measured, run
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.runs import Run
from gcsim.traces.profile import TrafficProfile
from gcsim.traces.training.trajectory import Trajectory

TEXT = """
model: {build: "tests.traces.training.world:small", input_shape: [64], classes: 10}
batch_size: 8
gradients: {source: synthetic, workers: 2, iterations: 1}
cluster: {nodes: [2], devices_per_node: 1, device: v100, network: 1gbe}
ddp: {bucket: 2 kB}
compressors: [none]
uncertainty: {draws: 0}
train: {task: digits, workers: 2, steps: 20, evaluate_every: 10, learning_rate: 0.05}
"""
SMALL = 10 + 16
"""Elements of the two biases; the matrices have 1,024 and 160."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))


def loaded(folder: Path, entries: str, *changes: str) -> Scenario:
    (folder / "small.yaml").write_text(TEXT.replace("[none]", entries))
    return load_scenario(folder / "small.yaml", changes)


def profiles(scenario: Scenario) -> list[TrafficProfile]:
    return measured(scenario, scenario.compressors, SilentProgress())


def sent(profile: TrafficProfile) -> list[Any]:
    """Of each exchange that was run: its collectives."""
    return [
        exchange.collectives
        for phase in profile.phases
        for step in phase.steps
        for exchange in step.exchanges
    ]


def test_a_prediction_is_of_the_steps_after_the_dense_ones(tmp_path: Path) -> None:
    """Of methods with sums, payloads, a server, momentum, and replicas that differ."""
    kinds = ("powersgd", "topk", "thc", "dgc", "csea")
    options = ("", ", dense_steps: 3", ", dense_steps: 10 %")
    entries = [
        f"{{kind: {kind}, label: {kind} {number}{dense}}}"
        for kind in kinds
        for number, dense in enumerate(options)
    ]
    found = profiles(loaded(tmp_path, f"[{', '.join(entries)}]"))
    for number, kind in enumerate(kinds):
        alone, counted, share = found[3 * number : 3 * number + 3]
        assert sent(alone) == sent(counted) == sent(share), kind
        assert alone.quality == counted.quality == share.quality, kind


def test_stage_1_and_training_send_the_same_and_dense_steps_come_first(tmp_path: Path) -> None:
    kept = "dense_tensors: {below: 20}"
    entries = f"""[none, {{kind: powersgd, rank: 1}},
      {{kind: powersgd, rank: 1, label: half, payload: fp16}},
      {{kind: powersgd, rank: 1, label: kept, {kept}}},
      {{kind: powersgd, rank: 1, label: all, payload: fp16, dense_steps: 30 %, {kept}}}]"""
    scenario = loaded(tmp_path, entries)
    dense, alone, half, beside, whole = (one.wire_bytes(2) for one in profiles(scenario))
    # PowerSGD sends biases as they are, so what stays dense is sent alike, in float32
    assert half == alone / 2
    assert beside == alone
    assert whole == half + 2 * SMALL
    for choice, each in zip(scenario.compressors, (dense, alone, half, beside, whole), strict=True):
        run_of = Run(scenario=scenario, choice=choice, rate=0.05, seed=0, until=20)
        found = run_of.perform(SilentProgress())
        assert isinstance(found, Trajectory)
        sizes = by_step(found)
        first = 6 if choice.label == "all" else 0  # 30 % of 20 steps
        assert sizes[:first] == ["dense"] * first
        assert "dense" not in sizes[first:]
        late = [
            phase for window in found.windows for phase in window.phases if phase.name != "dense"
        ]
        for phase in late:
            for step in phase.steps:
                collectives = [c for exchange in step.exchanges for c in exchange.collectives]
                assert sum(c.sent[0] for c in collectives) == each, choice.label
        assert Run(scenario=scenario, choice=choice, rate=0.05, seed=0, until=20).known is not None


def by_step(found: Trajectory) -> list[str]:
    """The kind of each step."""
    return [window.phases[number].name for window in found.windows for number in window.order]


def test_dense_steps_are_said_and_the_resolved_file_reads_back(tmp_path: Path) -> None:
    scenario = loaded(
        tmp_path,
        "[none, {kind: topk, label: late, dense_steps: 10 %}, "
        "{kind: powersgd, label: later, dense_steps: 7, dense_tensors: {names: ['*.bias']}}]",
    )
    result = run(scenario)
    said = "Predicted for the steps after the dense ones: late (0.1 of all steps) and later (7"
    assert said in " ".join(answer(result))
    assert {row.label: row.compressor for row in result.rows}["later"] == "powersgd"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{kind: topk, payload: fp16}", r"small.yaml:7:\d+: error: topk adds up no float32"),
        ("{kind: topk, dense_steps: 0}", r"small.yaml:7:\d+: error: topk.dense_steps = 0: write"),
        (
            "{kind: topk, dense_tensors: {below: -1}}",
            r"small.yaml:7:\d+: error: topk.dense_tensors",
        ),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, entry: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        loaded(tmp_path, f"[none, {entry}]")


def test_a_pattern_that_names_nothing_is_refused(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, "[none, {kind: topk, dense_tensors: {names: ['*.scale']}}]")
    with pytest.raises(InputError, match=r"'\*\.scale' matches no tensor of the model"):
        run(scenario)


def test_an_entry_with_options_depends_on_their_code_and_no_other_does(tmp_path: Path) -> None:
    assert code_of("topk", {"ratio": 0.1}) == REGISTRY["topk"]
    assert code_of("topk", {"ratio": 0.1, "dense_steps": 3}) == "options.optioned:Optioned"
    scenario = loaded(tmp_path, "[topk, {kind: topk, label: late, dense_steps: 3}]")
    assert len({profile_key(scenario, choice) for choice in scenario.compressors}) == 2
