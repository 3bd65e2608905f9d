"""A training of fewer than ten delays of a method says so, and no verdict uses it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcsim.analysis.report.answer import parts as answer_of
from gcsim.analysis.report.answer import plain
from gcsim.analysis.trained.table import parts
from gcsim.analysis.trained.write import training_page
from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.run import run
from gcsim.scenarios.trained.horizon import (
    DELAY,
    Delays,
    foreseen,
    stated_delays,
    stated_share,
    telling,
    too_short,
)
from gcsim.scenarios.trained.known import with_training_results
from gcsim.scenarios.trained.study import train

TEXT = """
model: {build: "tests.traces.training.world:small", input_shape: [64], classes: 10}
batch_size: 8
gradients: {workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
uncertainty: {draws: 0}
compressors:
  - {kind: none, label: dense}
  - {kind: topk, label: short, ratio: 0.2}
  - {kind: topk, label: long, ratio: 0.25}
  - {kind: threshold, label: nothing, threshold: 100.0}
  - ef_signsgd
train: {task: digits, workers: 2, steps: 40, evaluate_every: 10, target: {accuracy: 0.3}, seeds: 1}
"""
WHY = "40 steps span only 8 delays; 10 (50 steps) are needed"


@pytest.mark.parametrize(
    ("kind", "given", "share"),
    [
        ("topk", {"ratio": 0.02}, 0.02),
        ("gradient_dropping", {"drop_rate": 0.75}, 0.25),
        ("dryden", {"proportion": 0.05}, 0.05),
        ("gradient_sampling", {"ratio": 0.01, "tau": 100}, 0.02),
        ("cser", {}, 1 / 192 + 1 / (8 * 24)),  # R_C = 96 (its paper's configuration)
        ("cser_pl", {}, 1 / 96),
        ("qsparse_local_sgd", {"ratio": 0.3, "interval": 3}, 0.1),
        ("torch_post_local_sgd", {"interval": 4}, 0.25),
        ("threshold", {}, None),
        *((kind, {}, 1.0) for kind in ("none", "fp16", "signsgd", "powersgd", "onebit_adam")),
    ],
)
def test_the_share_follows_from_the_parameters(
    kind: str, given: dict[str, Any], share: float | None
) -> None:
    assert stated_share(kind, given) == (None if share is None else pytest.approx(share))


def test_every_methods_share_is_one() -> None:
    shares = [stated_share(kind, {}) for kind in REGISTRY]
    assert all(share is None or 0 < share <= 1 for share in shares)


def test_ten_delays_tell() -> None:
    assert too_short(None, 10) == too_short(Delays(10.0, 0.01), 1000) == ""
    told = "300 steps span only 3 delays; 10 (1,000 steps) are needed"
    assert too_short(Delays(3.0, 0.01), 300) == told
    assert too_short(Delays(0.0, 0.0), 300) == "300 steps span only 0 delays; 10 are needed"


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("topk", {"ratio": 0.001}),
        ("gradient_dropping", {"drop_rate": 0.999}),
        ("dryden", {"proportion": 0.001}),
    ],
)
def test_a_warm_up_sends_its_own_shares(kind: str, given: dict[str, Any]) -> None:
    """A share that falls from f to s in w steps sends about w (f - s) / ln(f / s) whole gradients
    (the integral; the sum is at most f more), the 800 steps behind it 800 s."""
    sent = 200 * (0.25 - 0.001) / math.log(0.25 / 0.001)
    warm = {**given, "warm_up": {"steps": 200, "from": 0.25}}
    found = stated_delays(kind, warm, 1000)
    assert found is not None
    assert sent <= found.number - 0.8 <= sent + 0.25
    assert found.further == pytest.approx(0.001)
    needed = math.ceil(round(1000 + (10 - found.number) / 0.001, 6))
    assert f"10 ({needed:,} steps) are needed" in too_short(found, 1000)
    # a warm-up of a fifth of the training grows with it
    part = stated_delays(kind, {**given, "warm_up": {"steps": 0.2, "from": 0.25}}, 1000)
    assert part is not None
    assert part.number == pytest.approx(found.number)
    assert part.further == pytest.approx(found.number / 1000)
    ended = stated_delays(kind, warm, 100)  # in the warm-up, whose first half has larger shares
    assert ended is not None
    assert sent / 2 < ended.number < found.number


@pytest.mark.parametrize(
    ("kind", "given", "least"),
    [
        ("topk", {}, 10),
        ("topk", {"error_feedback": False}, 100),
        ("randomk", {"scaled": True}, 10),
        ("gradient_sampling", {}, 100),
        ("gradient_sampling", {"residual": True}, 10),
        ("gradient_sampling", {"unbiased": True}, 10),
        ("cser", {}, 10),
    ],
)
def test_what_is_lost_takes_a_hundred_whole_gradients(
    kind: str, given: dict[str, Any], least: int
) -> None:
    """`gcsim train digits_8`: 5,000 steps of gradient sampling reach 97 % with two of three seeds,
    1,000 with one."""
    assert telling(kind, given) == least
    assert (too_short(Delays(20.0, 0.02), 1000, least) == "") == (least == 10)
    said = "1,000 steps span only 20 delays; 100 (5,000 steps) are needed"
    assert too_short(Delays(20.0, 0.02), 1000, 100) == said


def test_a_short_training_has_a_row_and_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))
    (tmp_path / "small.yaml").write_text(TEXT)
    scenario = load_scenario(tmp_path / "small.yaml")
    assert foreseen(scenario, 40) == [("short", WHY)]
    assert not foreseen(scenario, 50)
    result = train(scenario)
    rows = {row.label: row for row in result.rows}
    delays = {label: row.delays for label, row in rows.items() if row.delays is not None}
    assert delays == {"short": 8.0, "long": 10.0, "nothing": pytest.approx(0.5, abs=0.5)}
    assert {label for label, row in rows.items() if row.too_short} == {"short", "nothing"}
    short = rows["short"]
    known = (short.steps_against_dense, short.speedup_to_target, short.reached, short.leads)
    assert known == (None, None, 0, False)
    assert short.final_accuracy[0]
    text = " ".join(plain(parts(result, 200), 200).split())
    assert f"short: inconclusive: {WHY}." in text
    assert text.count(DELAY) == 1
    assert "short - too short" in text
    assert max(map(len, plain(parts(result, 80), 80).splitlines())) <= 80
    for width, shown in ((60, False), (200, True)):
        table, *below = plain(parts(result, width), width).split("──", 1)
        assert ("delays" in table) is shown
        meanings, _, rest = " ".join(below[0].split()).partition(" No room for ")
        assert "delays: whole gradients" in meanings
        assert ("delays" in rest.partition(";")[0]) is not shown  # else it is named as left out
    page = str(training_page(result, "train"))
    assert WHY in page
    for heading in ("delays", "iteration [ms]", "sent [MB]", "learning rate"):
        assert f">{heading}</th>" in page
    predicted = with_training_results(scenario, run(replace(scenario, train=None), cache=False))
    trained = {row.label for row in predicted.rows if row.seeds_trained}
    assert trained == {"dense", "long", "ef_signsgd"}
    said = " ".join(plain(answer_of(predicted, 200, full=True), 200).split())
    assert f"short: inconclusive: {WHY}." in said
    assert said.count(DELAY) == 1
    assert "Not trained" not in said
