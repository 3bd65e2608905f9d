"""Time to a target: steps from real training, seconds from the simulated cluster."""

import csv
import io
import json
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import gcsim
from gcsim.analysis.report.answer import plain
from gcsim.analysis.report.selection import verdict
from gcsim.analysis.trained.table import parts
from gcsim.analysis.trained.write import FIGURES, RESULTS, curves_csv, draw_training, write_training
from gcsim.analysis.write import REPORT
from gcsim.cli.terminal import note_trained_before
from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.run import run
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult
from gcsim.scenarios.trained.search import train_all
from gcsim.scenarios.trained.study import train
from gcsim.traces.training.trajectory import steps_to
from tests.command import advise_nothing

TEXT = """
model: {build: "tests.traces.training.world:small", input_shape: [64], classes: 10}
batch_size: 8
cluster: {nodes: [2, 4], devices_per_node: 1, device: v100, network: 1gbe}
compressors:
  - none
  - fp16
  - {kind: qsgd, label: eight bits, steps: 127}
  - {kind: "tests.traces.training.world:Nothing", label: nothing}
uncertainty: {draws: 8}
train:
  task: digits
  workers: 2
  steps: 80
  evaluate_every: 10
  target: {accuracy: 0.6}
  learning_rate: 0.05
  seeds: 2
"""


@pytest.fixture(autouse=True)
def _kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(cache))
    advise_nothing(monkeypatch)


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return loaded(tmp_path)


def loaded(folder: Path, *changes: str) -> Scenario:
    (folder / "small.yaml").write_text(TEXT)
    return load_scenario(folder / "small.yaml", changes)


def row(result: TrainingResult, label: str, nodes: int = 4) -> TrainedRow:
    return next(r for r in result.rows if (r.label, r.nodes) == (label, nodes))


def test_steps_are_those_of_the_trajectories_and_seconds_those_of_a_run(scenario: Scenario) -> None:
    """Half precision always sends the same: seconds to the target are steps times the seconds an
    iteration of `gcsim run`, whose gradients are others but whose bytes are these."""
    result = train(scenario)
    predicted = run(replace(scenario, train=None), cache=False)
    tried = train_all(scenario, progress=SilentProgress())
    for label in ("dense", "fp16"):
        one = next(t for t in tried if t.choice.label == label)
        wanted = [
            steps_to(scenario.train.target, found, 2)  # type: ignore[union-attr]
            for found in one.trajectories
        ]
        for nodes in (2, 4):
            found = row(result, label, nodes)
            each = next(
                r.iteration_s for r in predicted.rows if (r.label, r.nodes) == (label, nodes)
            )
            assert found.steps_to_target == tuple(wanted)
            assert found.iteration_s == pytest.approx(each, rel=1e-9)
            seconds = [steps * each for steps in wanted if steps is not None]
            assert found.seconds_to_target == pytest.approx(seconds, rel=1e-9)


def test_steps_do_not_repeat_the_making_of_a_methods_state(tmp_path: Path) -> None:
    """A run averages local SGD's first five steps, the first of which makes its vectors; over a
    training that is one step of forty, so its steps are shorter."""
    local = "compressors=[none, {kind: local_sgd, interval: 5, momentum: 0, label: local}]"
    changes = local, "train.steps=40", "train.target={loss: 9}", "uncertainty.draws=0"
    scenario = loaded(tmp_path, *changes)
    predicted = run(replace(scenario, train=None), cache=False).rows[-1]
    found = row(train(scenario), "local").iteration_s
    assert predicted.label == "local"
    assert 0.95 * predicted.iteration_s < (found or 0.0) < predicted.iteration_s


def test_the_code_of_another_library_has_its_own_seconds(tmp_path: Path) -> None:
    """Two codes of one method take the same steps, each with the iteration of `gcsim run`."""
    two = "compressors=[none, fp16, {kind: fp16, implementation: horovod, label: horovod}]"
    scenario = loaded(tmp_path, two, "uncertainty.draws=0")
    result, predicted = train(scenario), run(replace(scenario, train=None), cache=False)
    for one in predicted.rows:
        found = row(result, one.label, one.nodes)
        assert found.iteration_s == pytest.approx(one.iteration_s, rel=1e-9)
    own, other = row(result, "fp16"), row(result, "horovod")
    assert own.steps_to_target == other.steps_to_target
    assert other.iteration_s != own.iteration_s


def test_speedups_compare_seed_with_seed(scenario: Scenario) -> None:
    result = train(replace(scenario, draws=0))  # a median of ratios is none of medians
    dense, half = row(result, "dense"), row(result, "fp16")
    gains = [
        before / after
        for before, after in zip(dense.seconds_to_target, half.seconds_to_target, strict=True)
        if before is not None and after is not None
    ]
    assert half.speedup_to_target == pytest.approx(median(gains))
    assert half.speedup_to_target_vs_half == 1
    assert dense.speedup_to_target == dense.speedup_to_target_low == 1
    half = row(train(scenario), "fp16")
    ends = half.speedup_to_target_low, half.speedup_to_target, half.speedup_to_target_high
    assert list(ends) == sorted(end or 0.0 for end in ends)


def test_nearly_exact_methods_need_the_steps_of_dense_and_one_without_memory_gets_nowhere(
    scenario: Scenario,
) -> None:
    """As the literature has it: half precision and eight bits cost no steps (within an evaluation
    of dense), a thousandth of the elements at random and the rest lost do not train."""
    result = train(scenario)
    for label in ("fp16", "eight bits"):
        found, dense = row(result, label), row(result, "dense")
        assert found.reached == 2
        for own, other in zip(found.steps_to_target, dense.steps_to_target, strict=True):
            assert own is not None
            assert other is not None
            assert abs(own - other) <= 10
    nothing = row(result, "nothing")
    assert nothing.reached == 0
    assert nothing.speedup_to_target is None
    assert nothing.speedup_to_target_low == 0
    assert set(nothing.ended) <= {"hopeless", "finished"}


def test_what_half_of_the_seeds_reach_is_not_reached(tmp_path: Path) -> None:
    """A method that diverges with every second seed has neither speedup nor steps at two seeds;
    its range reaches from 0 to what the one seed has."""
    odd = "compressors=[none, {kind: 'tests.traces.training.world:WildAtOddSeeds', label: odd}]"
    found = row(train(loaded(tmp_path, odd)), "odd")
    assert found.ended == ("finished", "diverged")
    assert [steps is None for steps in found.steps_to_target] == [False, True]
    assert found.speedup_to_target is found.steps_against_dense is None
    assert found.speedup_to_target_low == 0
    assert found.speedup_to_target_high is not None
    assert 0.5 < found.speedup_to_target_high < 1.5  # dense, behind a hook, with its factor
    three = row(train(loaded(tmp_path, odd, "train.seeds=3")), "odd")
    assert three.steps_against_dense == 1  # median of 1, never, 1
    assert three.speedup_to_target == pytest.approx(three.speedup_per_iteration, rel=1e-3)


def test_another_cluster_trains_nothing_again(
    scenario: Scenario, tmp_path: Path, work: list[Any]
) -> None:
    first = train(scenario)
    del work[:]
    train(loaded(tmp_path, "train.target={accuracy: 0.5}", "train.patience=1"))
    assert not work
    slow = "cluster.network={bandwidth: 100 Mbit/s, latency: 1 ms}"
    other = train(loaded(tmp_path, slow, "cluster.nodes=[2, 9]"))
    assert not work
    assert [r.steps_to_target for r in other.rows][::2] == [r.steps_to_target for r in first.rows][
        ::2
    ]
    seconds = [row(result, "dense", 2).iteration_s or 0.0 for result in (other, first)]
    assert seconds[0] > seconds[1]


def test_what_changes_the_mathematics_is_trained_again(tmp_path: Path, work: list[Any]) -> None:
    scenario = loaded(tmp_path)
    train(scenario)
    for change in ("train.workers=3", "batch_size=4", "train.optimizer.momentum=0", "seed=7"):
        del work[:]
        train_all(loaded(tmp_path, change, "compressors=[none]"), progress=SilentProgress())
        assert {one.seed for one in work} == ({7, 8} if change == "seed=7" else {0, 1}), change


def test_a_result_is_the_same_bytes_again(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = replace(train(scenario), wall={}, from_cache=())
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "empty"))
    again = replace(train(scenario), wall={})
    assert first.to_json() == again.to_json()
    json.loads(first.to_json(), parse_constant=pytest.fail)  # neither NaN nor infinity


def test_methods_whose_trajectories_are_there_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = train(loaded(tmp_path, "seed=9", "compressors=[none, fp16]"))
    note_trained_before(known)
    assert (known.from_cache, capsys.readouterr().err) == ((), "")
    more = train(loaded(tmp_path, "seed=9"))
    assert more.from_cache == ("dense", "fp16")
    note_trained_before(more)
    said = capsys.readouterr().err.split("\n", 1)[1]
    assert said == "From the cache: trajectories of dense, fp16, trained before.\n"
    assert train(loaded(tmp_path, "seed=9", "train.seeds=3")).from_cache == ()


def test_the_best_rate_is_found_by_halving(tmp_path: Path, work: list[Any]) -> None:
    """Of four rates all are trained for a quarter of the steps (one seed first for a twentieth, in
    whole windows, to see whether it learns), two for a half, one to its end; it is the one that is
    best when all are trained to the end."""
    rates = (1e-5, 0.002, 0.1, 30.0)
    scenario = loaded(tmp_path, f"train.learning_rate={{values: {list(rates)}}}",
                      "compressors=[none]", "train.stop.hopeless=false")  # fmt: skip
    (found,) = train_all(scenario, progress=SilentProgress())
    asked = [(task.rate, task.until) for task in work]
    assert sorted(asked[:4]) == [(rate, 10) for rate in rates]
    assert sorted(asked[4:12]) == [(rate, 20) for rate in rates for _ in range(2)]  # two seeds
    assert [until for _, until in asked[12:]] == [40, 40, 40, 40, 80, 80]
    losses = {}
    for rate in rates:
        (alone,) = train_all(
            loaded(tmp_path, f"train.learning_rate={rate}", "compressors=[none]", "train.seeds=1",
                   "train.stop.hopeless=false"),
            progress=SilentProgress(),
        )  # fmt: skip
        last = alone.trajectories[0]
        losses[rate] = float("inf") if last.ended == "diverged" else last.evaluations[-1].loss
    assert found.rate == min(losses, key=losses.__getitem__)
    assert len(found.trajectories) == 2
    alone_losses = [t.evaluations[-1].loss for t in found.trajectories if t.seed == 0]
    assert alone_losses == [losses[found.rate]]  # pausing changes no bit
    (again,) = train_all(scenario, progress=SilentProgress())  # all rates are known to the end
    assert (again.rate, again.trajectories) == (found.rate, found.trajectories)


def test_a_method_that_diverges_ends_early_and_its_row_says_why(tmp_path: Path) -> None:
    """Before 15 % of its steps; the others are trained, and no number of the result is none."""
    wild = "compressors=[none, {kind: 'tests.traces.training.world:Wild', label: wild}]"
    result = train(loaded(tmp_path, wild, "train.steps=200"))
    found = row(result, "wild")
    assert found.ended == ("diverged", "diverged")
    assert all("the loss is" in why for why in found.why)
    assert found.speedup_to_target is None
    curves = [curve for curve in result.curves if curve.label == "wild"]
    assert all(curve.steps[-1] <= 30 for curve in curves)
    assert row(result, "dense").reached == 2
    json.loads(result.to_json(), parse_constant=pytest.fail)
    shown = plain(parts(result, 80), 80)
    assert "wild: 2 of 2 runs stopped early, diverged: step" in shown.replace("\n", " ")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(scenario: Scenario, width: int) -> None:
    shown = plain(parts(train(scenario), width), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown  # what the terminal's table cuts
    assert "time to accuracy 0.6, 4 nodes, 4 workers" in shown
    assert "nothing" in shown


def test_figures_are_drawn_and_equal_bytes_again(scenario: Scenario, tmp_path: Path) -> None:
    result = train(scenario)
    for folder in ("one", "other"):
        assert {path.name for path in write_training(result, tmp_path / folder)} == set(RESULTS)
        drawn = {path.name for path in draw_training(result, tmp_path / folder)}
        assert drawn == {REPORT, *FIGURES}
    for name in (REPORT, *RESULTS, *FIGURES):
        one, other = ((tmp_path / folder / name).read_bytes() for folder in ("one", "other"))
        assert one == other
    again = load_scenario(tmp_path / "one/scenario.yaml")
    assert again.train == scenario.train


def own_data(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    (folder / "my_data.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "my_data", raising=False)
    changes = ("train.task=my_data:splits", "compressors=[none]", "train.seeds=1")
    return loaded(folder, *changes)


def test_ones_own_data_are_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: list[Any]
) -> None:
    page = Path(__file__).parents[3] / "docs/training.md"
    code, _ = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    result = train(own_data(tmp_path, code, monkeypatch))
    assert result.data == "my_data:splits (800 samples)"
    assert row(result, "dense").final("accuracy")[0] > 95
    del work[:]
    train(own_data(tmp_path, code, monkeypatch))
    assert not work
    train(own_data(tmp_path, code.replace("manual_seed(0)", "manual_seed(1)"), monkeypatch))
    assert {one.seed for one in work} == {0}  # other data are another trajectory


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def other(): ...", "AttributeError: module 'my_data' has no attribute 'splits'"),
        ("def splits():\n    raise OSError('no disk')", r"my_data.py:2: .*OSError: no disk"),
        ("def splits(): return 3", r"my_data.py:1: .*it returned int, not two datasets"),
        ("def splits(): return [], []", "learned: it has no samples"),
        ("def splits(): return [1], [2]", "learned: TypeError"),
        (
            "import torch\nrow = (torch.zeros(3), 1)\ndef splits(): return [row], [row]",
            r"a sample is \[3\], the model takes \[64\]",
        ),
        (
            "import torch\nrow = (torch.zeros(64).long(), 1)\ndef splits(): return [row], [row]",
            "a sample is int64, the model takes float32",
        ),
        (
            "import torch\nrow = (torch.zeros(64), 10)\ndef splits(): return [row], [row]",
            "labels are 10 and 10, the model has 10 classes",
        ),
    ],
)
def test_data_that_do_not_fit_say_why(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=said):
        train(own_data(tmp_path, code, monkeypatch))


# --- what a run says of it ------------------------------------------------------------------------


def test_a_run_tells_what_training_came_to(scenario: Scenario) -> None:
    """Its rows have the steps of `train`, at their own time an iteration: of methods that always
    send alike, `train`'s speedup too."""
    trained = train(scenario)
    found = gcsim.run(scenario)
    for one in found.rows:
        wanted = row(trained, one.label, one.nodes)
        assert (one.seeds_trained, one.seeds_at_target) == (2, wanted.reached)
        assert one.steps_to_target_vs_dense == wanted.steps_against_dense
        if one.label in ("dense", "fp16"):
            # both median over two seeds: of ratios here, of their inverses there; one's worlds
            # have factors on whole steps
            assert one.speedup_to_target == pytest.approx(wanted.speedup_to_target, rel=0.08)
    assert found.provenance["training"] == {
        "target": "accuracy 0.6",
        "workers": 2,
        "seeds": 2,
        "too_short": {},
        "trained_on": {r.label: "here" for r in found.rows},
    }
    said = found.summary().replace("\n", " ")
    assert "! not counted: nothing: trained, 0 of 2 seeds reached the target" in said
    assert re.search(r"(In training, .* reached|No trained method reaches) accuracy 0.6", said)
    assert "to target" in said


def test_of_one_seed_a_run_tells_what_it_came_to_and_compares_iterations(tmp_path: Path) -> None:
    """Drawn clusters alone would tell methods apart in the time to the target."""
    scenario = loaded(tmp_path, "train.seeds=1")
    trained, found = train(scenario), gcsim.run(scenario)
    for one in found.rows:
        wanted = row(trained, one.label, one.nodes)
        assert (one.seeds_trained, one.seeds_at_target) == (1, wanted.reached)
        assert one.steps_to_target_vs_dense == wanted.steps_against_dense
        assert one.speedup_to_target is None
    said = found.summary().replace("\n", " ")
    assert "One training seed cannot separate the methods" in said
    assert "! not counted: nothing: trained, 0 of 1 seeds reached the target" in said
    assert "to target" not in said


def test_of_a_method_that_sends_less_and_less_a_run_tells_what_its_training_sent(
    tmp_path: Path,
) -> None:
    """It has the speedup to the target of `train`, whose windows are priced one by one."""
    scenario = loaded(
        tmp_path, "compressors=[none, {kind: variance, label: adaptive}]",
        "cluster.network={bandwidth: 10 Mbit/s, latency: 50 us}",
    )  # fmt: skip
    trained, found = train(scenario), gcsim.run(scenario)
    for one in found.rows:
        wanted = row(trained, one.label, one.nodes)
        if one.label == "dense":
            assert one.wire_bytes_over_training is None
            continue
        sent = one.wire_bytes_over_training or 0.0
        assert sent == pytest.approx(wanted.wire_bytes_per_worker)
        assert abs(sent / one.wire_bytes_per_worker - 1) > 0.1
        assert one.speedup_to_target == pytest.approx(
            wanted.speedup_to_target, rel=0.08
        )  # of medians, not the median
        assert one.speedup_to_target != pytest.approx(
            (one.speedup_vs_dense or 0.0) / (one.steps_to_target_vs_dense or 1.0), rel=0.02
        )
    # its curve has the seconds of `train`, which prices it so too; dense steps take a row's time
    known = found.trained
    assert known is not None
    for curve, other in zip(known.curves, trained.curves, strict=True):
        assert replace(curve, seconds=()) == replace(other, seconds=())
        assert curve.seconds == pytest.approx(other.seconds, rel=0.01)
    assert "Over the whole training adaptive sends" in found.summary(full=True).replace("\n", " ")


def test_a_training_gathers_the_weights_of_a_sharded_optimizer(tmp_path: Path) -> None:
    whole, sharded = (
        train(loaded(tmp_path, f"training.strategy={one}")).rows for one in ("ddp", "zero1")
    )
    for one, other in zip(whole, sharded, strict=True):
        assert (other.iteration_s or 0) > (one.iteration_s or 0)
        assert other.wire_bytes_per_worker == one.wire_bytes_per_worker


def test_a_method_that_does_not_get_there_is_not_recommended(tmp_path: Path) -> None:
    """On a slow network it has the fastest iteration, and single updates speak for it."""
    scenario = loaded(tmp_path, "cluster.network={bandwidth: 10 Mbit/s, latency: 50 us}")
    train(scenario)
    unknown, known = (
        verdict([replace(r, cosine_similarity=0.9, nmse=0.2) for r in found.rows[1::2]])
        for found in (run(scenario), gcsim.run(scenario))
    )
    assert unknown.to_try is not None
    assert unknown.to_try.label == "nothing"
    assert known.to_try is not None
    assert known.to_try.label != "nothing"
    assert [r.label for r, _ in known.left_out] == ["nothing"]


def test_of_what_is_not_trained_a_run_says_nothing(scenario: Scenario, tmp_path: Path) -> None:
    """Another batch is another training; without a dense one there is nothing to compare with."""
    for change in ("batch_size=6", "compressors=[fp16]"):
        other = gcsim.run(loaded(tmp_path, change, "cluster.nodes=2"))
        assert all(one.seeds_trained is None for one in other.rows)
        assert "training" not in other.provenance
        assert other.trained is None
        assert "to target" not in other.summary()
    train(scenario)
    more = gcsim.run(loaded(tmp_path, "compressors=[none, fp16, bf16]", "cluster.nodes=2"))
    assert [one.seeds_trained for one in more.rows] == [2, 2, None]


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["compressors=[fp16]"], "nothing to compare with.*add - none"),
        (
            ["train.target={accuracy: 0.999}", "train.steps=20"],
            r"dense training reached 0\.\d+ in 20 steps, not an accuracy of 0.999 for good; "
            "lower the target, or raise train.steps",
        ),
        (["train.learning_rate=500"], "dense training diverged at a learning rate of 500"),
        (["train.workers=1000"], "fewer than the 8 of a batch"),
        (["train.task=characters"], "takes samples, the task 'characters' has tokens"),
        (["train.partition={dirichlet: 1}", "train.workers=500"], "fewer than the 8 of a batch"),
    ],
)
def test_mistakes_say_what_to_write(tmp_path: Path, changes: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        train(loaded(tmp_path, *changes))


def test_train_makes_no_difference_to_a_run(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        with_it = run(scenario, cache=False)
        without = run(replace(scenario, train=None), cache=False)
    assert with_it.rows == without.rows


def test_curves_as_lines_hold_every_value_of_the_result_once(scenario: Scenario) -> None:
    """Put together by run, metric and step they are the curves; empty ones are left out, and a
    training that ended before its first evaluation has no bytes."""
    result = train(scenario)
    ended = replace(
        result.curves[0], seed=9, steps=(0,), seconds=(0.0,), accuracy=(None,), loss=(2.0,),
        wire_bytes_per_worker=(), nmse=(),
    )  # fmt: skip
    shown = replace(result, curves=(*result.curves, ended))
    lines = list(csv.DictReader(io.StringIO(curves_csv(shown))))
    found = {(one["run"], one["metric"], int(one["step"])): one for one in lines}
    assert len(found) == len(lines)
    count = 0
    for curve in shown.curves:
        after = curve.steps[len(curve.steps) - len(curve.nmse) :]
        for metric, steps, values in (
            ("held_out/accuracy", curve.steps, curve.accuracy),
            ("held_out/loss", curve.steps, curve.loss),
            ("sent/bytes_per_worker_and_step", after, curve.wire_bytes_per_worker),
            ("update/nmse", after, curve.nmse),
        ):
            for step, value in zip(steps, values, strict=True):
                if value is None:
                    continue
                line = found[f"{curve.label}, seed {curve.seed}", metric, step]
                seconds = curve.seconds[curve.steps.index(step)]
                assert float(line["value"]) == value
                assert float(line["seconds"]) == seconds
                assert (line["method"], int(line["seed"])) == (curve.label, curve.seed)
                assert float(line["learning_rate"]) == curve.learning_rate
                count += 1
    assert count == len(lines) > 50
