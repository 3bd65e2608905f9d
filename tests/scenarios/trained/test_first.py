"""Which method is named first: the best learning rate, the target that stays reached, chance."""

import itertools
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from scipy import stats

from gcsim.analysis.report.answer import plain
from gcsim.analysis.report.table import MEDIANS
from gcsim.analysis.trained.intervals import gains_figure
from gcsim.analysis.trained.table import FASTEST, answer, columns_of, legend, parts
from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained import make_shipped, search, study
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult
from gcsim.scenarios.trained.runs import Run
from gcsim.scenarios.trained.search import WIDER, MethodTraining, train_all
from gcsim.scenarios.trained.study import train
from gcsim.traces.training import shipped
from gcsim.traces.training.plan import Plan
from gcsim.traces.training.trajectory import Trajectory, holds, steps_to

TEXT = """
model: {build: "tests.traces.training.world:small", input_shape: [64], classes: 10}
batch_size: 8
cluster: {nodes: 4, devices_per_node: 1, device: v100, network: 1gbe}
compressors: [none, fp16, {kind: topk, ratio: 0.1}, {kind: qsgd}, {kind: randomk, ratio: 0.3}]
uncertainty: {draws: 0}
train:
  {task: digits, workers: 2, steps: 80, evaluate_every: 10, target: {accuracy: 0.6}, seeds: 3,
   learning_rate: 0.05, device: cpu}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("first")
    (path / "small.yaml").write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def _kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(folder))


def loaded(folder: Path, *changes: str) -> Scenario:
    return load_scenario(folder / "small.yaml", changes)


# --- the target stays reached --------------------------------------------------------------------


def test_of_all_shipped_trajectories_what_is_reached_holds_to_the_end() -> None:
    plans = [plan for name in make_shipped.SCENARIOS if (plan := load_scenario(name).train)]
    counted = [{True: 0, False: 0} for _ in plans]
    for path in shipped.FOLDER.iterdir():
        found = shipped.read(path)
        for one, (plan, count) in itertools.product(
            () if found is None else found.trajectories, zip(plans, counted, strict=True)
        ):
            if (one.ended, one.steps) == ("", plan.steps) or one.steps != plan.steps:
                continue  # one of rates that were compared, or of another scenario
            steps = steps_to(plan.target, one, plan.patience)
            last = one.evaluations[-plan.patience :]
            stays = one.ended == "finished" and all(holds(plan.target, each) for each in last)
            assert (steps is not None) == stays
            count[stays] += 1
            for before, each in itertools.pairwise(one.evaluations):
                if steps is not None and each.step >= steps:
                    assert holds(plan.target, each)
                if steps is not None and each.step == steps:
                    assert not holds(plan.target, before)
    assert len(counted) == len(make_shipped.SCENARIOS)
    assert all(min(count.values()) > 20 for count in counted)  # of both kinds


# --- learning rates ------------------------------------------------------------------------------


def rates_tried(folder: Path, values: Sequence[float], *changes: str) -> MethodTraining:
    grid = f"train.learning_rate={{values: {list(values)}}}"
    scenario = loaded(folder, grid, "compressors=[none]", "train.seeds=1", *changes)
    (found,) = train_all(scenario, progress=SilentProgress())
    return found


def early_loss(one: Trajectory) -> float:
    """What rates are compared by after a quarter of 80 steps."""
    return float(np.mean([each.loss for each in one.evaluations if 0 < each.step <= 20]))


@pytest.mark.parametrize("values", [(0.05, 0.1), (0.1, 0.05), (2.0, 8.0), (0.02, 0.1, 0.5)])
def test_the_grid_is_widened_until_the_best_rate_is_inside(
    values: tuple[float, ...], folder: Path
) -> None:
    """By the ratio of the two rates at the edge, as often as it takes; the best is the best of all
    that were tried, and both its neighbours were."""
    found = rates_tried(folder, values)
    tried = sorted(found.rates)
    assert len(tried) <= len(values) + WIDER
    losses = {rate: early_loss(seeds[0]) for rate, seeds in found.rates.items()}
    assert found.rate == min(losses, key=lambda rate: losses[rate])
    assert not found.at_edge
    ratios = [high / low for low, high in itertools.pairwise(tried)]
    stated = [high / low for low, high in itertools.pairwise(sorted(values))]
    assert {round(ratio, 4) for ratio in ratios} == {round(ratio, 4) for ratio in stated}


def test_a_grid_is_widened_a_bounded_number_of_times_and_the_answer_says_the_edge(
    folder: Path,
) -> None:
    found = rates_tried(folder, (1e-6, 2e-6))
    assert sorted(found.rates) == pytest.approx([1e-6 * 2**n for n in range(2 + WIDER)])
    assert found.rate == max(found.rates)
    assert found.at_edge
    grid = "train.learning_rate={values: [1.0e-6, 2.0e-6]}"
    changes = ("compressors=[none]", "train.seeds=1", "train.target={loss: 100}")
    result = train(loaded(folder, grid, *changes))
    assert result.rows[0].rate_at_edge
    assert "Best learning rate at the edge of those tried: all methods." in answer(result)


def test_training_that_does_not_learn_is_told_after_its_first_window(
    folder: Path, work: list[Run]
) -> None:
    """Rates of a millionth leave the loss where it was, ten classes' ln 10 or so; a hundredth does
    not. One rate is told as early as several."""
    told: list[str] = []
    trained: list[set[tuple[float, int]]] = []

    def tell(text: str) -> None:
        told.append(text)
        trained.append({(run.rate, run.until) for run in work})

    grid = "train.learning_rate={values: [1.0e-6, 3.0e-6]}"
    small = ("compressors=[none]", "seed=9")
    train(loaded(folder, grid, *small), tell=tell)
    assert trained == [{(1e-6, 10), (3e-6, 10)}]
    assert {run.seed for run in work[:2]} == {9}
    (text,) = told
    loss, untrained = map(float, re.findall(r"(\d\.\d+) (?:at best|untrained)", text))
    assert loss == pytest.approx(untrained, rel=0.05)
    assert untrained == pytest.approx(np.log(10), rel=0.1)
    assert "set train.learning_rate={values: [9e-06, 3e-05]}" in text
    train(loaded(folder, "train.learning_rate={values: [0.01, 0.05]}", *small), tell=tell)
    assert len(told) == 1
    with pytest.raises(InputError, match=r"reached 0\..*learning_rate={values: \[3e-06, 1e-05\]}"):
        train(loaded(folder, "train.learning_rate=1.0e-6", *small), tell=tell)
    assert "learning rates of 1e-06 its held-out loss is" in told[1]
    assert "after 10 steps" in told[1]


def test_rates_that_diverge_are_told_so_and_smaller_ones_proposed(folder: Path) -> None:
    """A tenth and a third of the smaller rate."""
    told: list[str] = []
    grid = "train.learning_rate={values: [1.0e+5, 1.0e+8]}"
    train(loaded(folder, grid, "compressors=[none]", "train.seeds=1"), tell=told.append)
    (text,) = told
    assert re.search(r"learning rates of 100000, 1e\+08 its held-out loss is \d\S*e\+05 at", text)
    assert "set train.learning_rate={values: [1e+04, 3.3e+04]}" in text


def test_rates_that_all_diverge_are_searched_downwards(folder: Path) -> None:
    found = rates_tried(folder, (1e5, 1e8))
    assert sorted(found.rates) == pytest.approx([1e-4, 1e-1, 1e2, 1e5, 1e8])
    assert found.rate == 0.1
    assert not found.at_edge


def test_the_search_goes_on_where_a_longer_training_moves_the_best_to_the_edge(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a quarter of the steps 0.1 is the best of 0.05, 0.1, 0.2 and 0.4, and 0.05 the second;
    after a half 0.05, of which half is tried as far, and is worse."""
    best = {20: 0.08, 40: 0.045}  # nearest to which is best, by steps

    def loss(seeds: Collection[Trajectory]) -> float:
        (one,) = seeds
        return float(abs(np.log(one.learning_rate / best[len(one.losses)])))

    monkeypatch.setattr(search, "_held_out_loss", loss)
    found = rates_tried(folder, (0.05, 0.1, 0.2, 0.4))
    assert found.rate == 0.05
    assert {rate: len(seeds[0].losses) for rate, seeds in found.rates.items()} == {
        0.025: 40, 0.05: 80, 0.1: 40, 0.2: 20, 0.4: 20
    }  # fmt: skip
    assert not found.at_edge


def test_a_target_that_dense_training_misses_ends_the_others(folder: Path) -> None:
    """The other method's first step would raise another error."""
    changes = (
        "compressors=[{kind: 'tests.traces.training.world:Stops'}, none]", "train.seeds=1",
        "train.target={accuracy: 1.0}", "seed=5",
    )  # fmt: skip
    with pytest.raises(InputError, match="dense training reached"):
        train(loaded(folder, *changes), jobs=1)
    with pytest.raises(InputError, match="it stops"):
        train(loaded(folder, *changes, "train.target={accuracy: 0.1}"), jobs=1)


def test_clipped_workers_wait_for_their_whole_gradient(folder: Path) -> None:
    """The norm is known when the backward pass is over: as without overlap."""
    changes = (
        "compressors=[none]", "train.seeds=1", "train.target={accuracy: 0.1}",
        "compute={forward: 6 ms, backward: 12 ms}", "ddp={first_bucket: 4 KiB, bucket: 4 KiB}",
        "model=cnn_digits", "train.steps=20",
    )  # fmt: skip
    ends = [
        {curve.seconds[-1] for curve in train(loaded(folder, *changes, *more)).curves}
        for more in (("train.clip=1000",), ("training.overlap=none",), ())
    ]
    assert ends[0] == ends[1]
    assert ends[1] != ends[2]


def test_one_rate_is_no_grid(folder: Path) -> None:
    found = rates_tried(folder, (1e-6,))
    assert list(found.rates) == [1e-6]
    assert not found.at_edge


# --- told apart ----------------------------------------------------------------------------------


def p_of(before: Sequence[float | None], after: Sequence[float | None], rough: float) -> float:
    """scipy.stats' paired t-test of the logarithms of seconds, with a least deviation; of three
    seeds the sign test never has less than 0.25."""
    if None in before or None in after:
        return 1.0
    logs = np.log(np.array(before, dtype=float) / np.array(after, dtype=float))
    if float(logs.std(ddof=1)) > rough:
        return float(stats.ttest_1samp(logs, 0.0).pvalue)
    t = abs(float(logs.mean())) / (rough / np.sqrt(len(logs)))
    return 2 * float(stats.t(len(logs) - 1).sf(t))


def apart(reaching: Sequence[TrainedRow], other: TrainedRow) -> dict[str, bool]:
    """Labels told apart from another row, by Holm's definition: the k-th smallest p-value, and all
    before it, are at most 10 % over the comparisons that are left."""
    p_values = {}
    for row in (row for row in reaching if row is not other):
        # the first evaluation that holds is known to ten steps
        each = [median(s or 0 for s in one.steps_to_target) for one in (row, other)]
        rough = np.sqrt(sum((10 / s) ** 2 for s in each) / 12)
        p_values[row.label] = p_of(row.seconds_to_target, other.seconds_to_target, rough)
    rejected, going = {other.label: False}, True
    for done, label in enumerate(sorted(p_values, key=lambda label: p_values[label])):
        going = going and p_values[label] <= 0.1 / (len(p_values) - done)
        rejected[label] = going
    return rejected


def test_methods_lead_that_are_not_told_apart_from_the_first(folder: Path) -> None:
    """Against scipy.stats and Holm's definition; the cluster of this scenario draws no worlds."""
    counted = {True: 0, False: 0}
    for target in (0.5, 0.6, 0.7, 0.75):
        result = train(loaded(folder, f"train.target={{accuracy: {target}}}"))
        reaching = [row for row in result.rows if row.speedup_to_target is not None]
        first = max(reaching, key=lambda row: row.speedup_to_target or 0.0)
        assert first.leads or first.compressor == "none"
        dense = next(row for row in reaching if row.compressor == "none")
        from_first, from_dense = apart(reaching, first), apart(reaching, dense)
        for row in reaching:
            behind = from_first[row.label]
            if row is dense:
                behind |= any(
                    from_dense[one.label] and (one.speedup_to_target or 0.0) > 1 for one in reaching
                )
            assert row.leads == (not behind), (target, row.label)
            counted[row.leads] += 1
        assert not any(row.leads for row in result.rows if row.speedup_to_target is None)
    assert min(counted.values()) > 2  # of both kinds


def shown(**rows: tuple[float, float, float, bool]) -> TrainingResult:
    """A table of methods: speedup, its range, and whether it leads."""
    made = [
        TrainedRow(
            compressor="none" if label == "dense" else label, label=label, nodes=4, workers=4,
            learning_rate=0.1, iteration_s=0.01, speedup_per_iteration=gain,
            wire_bytes_per_worker=1e6, steps_to_target=(10, 20, 20),
            seconds_to_target=(0.1, 0.2, 0.2), steps_against_dense=1.0, speedup_to_target=gain,
            speedup_to_target_low=low, speedup_to_target_high=high, speedup_to_target_vs_half=None,
            final_accuracy=(0.9,) * 3, final_loss=(0.1,) * 3, ended=("finished",) * 3,
            why=("",) * 3, leads=leads, p_as_dense=0.01 if low > 1 or high < 1 else 0.5,
            p_as_first=1.0 if leads else 0.01,
        )
        for label, (gain, low, high, leads) in rows.items()
    ]  # fmt: skip
    return TrainingResult(
        scenario={"name": "mine"}, target="accuracy 0.9", measure="accuracy", trained_workers=4,
        data="", rows=tuple(made), curves=(), wall={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "said", "marked"),
    [
        (
            {"dense": (1, 1, 1, False), "fast": (2, 1.5, 2.5, True)},
            "fast reaches accuracy 0.9 first on 4 nodes: 2.00x as fast",
            ["fast"],
        ),
        (
            {
                "dense": (1, 1, 1, False),
                "fast": (3, 2.5, 3.5, True),
                "a": (1.5, 1.2, 2.5, False),
                "b": (1.2, 0.9, 1.4, False),
                "c": (0.5, 0.4, 0.6, False),
            },
            "fast reaches accuracy 0.9 first on 4 nodes: 3.00x as fast as dense training "
            "(2.50-3.50 over seeds and the uncertain inputs of the cluster). Against dense "
            "training (paired t-test over 3 seeds, Holm's correction for 4 methods, 10 %): "
            "significantly faster: fast, a; no significant difference: b; significantly slower: c.",
            ["fast"],
        ),
        (
            {"dense": (1, 1, 1, True), "slow": (0.5, 0.4, 0.6, False)},
            "Dense training reaches accuracy 0.9 first on 4 nodes: no method here is faster.",
            ["dense"],
        ),
        (
            {
                "dense": (1, 1, 1, True),
                "a": (1.2, 0.9, 1.5, True),
                "b": (0.9, 0.7, 1.1, False),
                "c": (0.5, 0.4, 0.6, False),
            },
            "No significant difference from dense training in the time to accuracy 0.9 on 4 "
            "nodes: a, b (paired t-test over 3 seeds, Holm's correction for 3 methods, 10 %). "
            "Significantly slower: c. More seeds",
            [],
        ),
        (
            {
                "dense": (1, 1, 1, False),
                "a": (1.5, 0.9, 2.5, True),
                "b": (1.3, 1.2, 1.4, True),
                "c": (1.1, 0.9, 1.2, False),
            },
            "a, b reach accuracy 0.9 first on 4 nodes, with no significant difference: 1.30x to "
            "1.50x as fast as dense training (paired t-test over 3 seeds, Holm's",
            [],
        ),
    ],
)
def test_a_winner_is_named_where_it_is_told_apart(
    rows: dict[str, tuple[float, float, float, bool]], said: str, marked: list[str]
) -> None:
    result = shown(**rows)
    assert answer(result)[0].startswith(said)
    lines = plain(parts(result, 100), 100).splitlines()
    assert [line.split()[1] for line in lines if line.startswith(FASTEST)] == marked


@pytest.mark.parametrize(("precision", "named"), [("fp32", "float32"), ("bf16", "bf16")])
def test_the_legend_names_the_precision_of_the_training(precision: str, named: str) -> None:
    scenario = {"training": {"precision": precision}}
    result = replace(shown(dense=(1, 1, 1, True)), scenario=scenario)
    assert legend(result).startswith(f"Compared with dense {named} training.")


def test_one_seed_names_no_winner(folder: Path) -> None:
    """A method alone is told from another by drawn clusters, not by how its seed trained."""
    slow = "cluster.network={like: 1gbe, bandwidth: 2 Mbit/s}"
    result = train(loaded(folder, "train.seeds=1", "uncertainty.draws=8", slow))
    ahead = [row for row in result.rows if (row.speedup_to_target_low or 0) > 1]
    assert ahead  # in all drawn clusters
    assert not any(row.leads for row in result.rows)
    text = plain(parts(result, 100), 100)
    assert not [line for line in text.splitlines() if line.startswith(FASTEST)]
    assert "One seed cannot separate the methods." in text
    assert "another seed" not in text
    assert f"iteration: {MEDIANS}" in " ".join(text.split())


def test_the_cost_to_the_target_is_dense_trainings_over_the_speedup() -> None:
    """Dense training: 4 nodes for 0.2 s at 36,000 an hour each, 8; half as fast, 16, whatever the
    median of that method's own seconds. A method that misses the target has none. Failures that
    leave half of the time for training double it."""
    two = shown(dense=(1, 1, 1, True), slow=(0.5, 0.4, 0.6, False))
    dense, slow = two.rows
    never = replace(slow, label="never", speedup_to_target=None)
    priced = {"cost": {"per_hour": 36_000}}
    result = replace(two, rows=(dense, slow, never), scenario=priced)
    cell = dict(columns_of(result, result.rows))["cost to\ntarget"]
    assert [cell(row) for row in result.rows] == ["8.00", "16.0", "-"]
    failing = [replace(row, goodput=0.5) for row in result.rows]
    assert [cell(row) for row in failing] == ["16.0", "32.0", "-"]
    assert "cost to\ntarget" not in dict(columns_of(shown(dense=(1, 1, 1, True)), result.rows))


def test_where_dense_training_misses_the_target_with_a_seed_a_range_has_no_upper_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a run that never gets there a speedup has no bound: null in JSON, inf in the table."""
    known = study.ends_of

    def missed(plan: Plan, one: MethodTraining, level: float) -> list[int | None]:
        ends = known(plan, one, level)
        return [None, *ends[1:]] if one.choice.kind == "none" else ends

    monkeypatch.setattr(study, "ends_of", missed)
    result = train(loaded(folder, "compressors=[none, fp16]"))
    _, half = json.loads(result.to_json())["rows"]
    assert half["speedup_to_target_low"] <= half["speedup_to_target"]
    assert half["speedup_to_target_high"] is None
    assert "-inf" in plain(parts(result, 80), 80)
    gains_figure(result)
