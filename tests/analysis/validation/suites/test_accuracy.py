"""Do published accuracies stand beside the right trainings, and are they counted as they say?"""

import csv
import math
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from gcsim.analysis.validation import data_files
from gcsim.analysis.validation.judge import judge
from gcsim.analysis.validation.registry import chosen
from gcsim.analysis.validation.report.table import (
    agreement_rows,
    alarm_lines,
    bound_cells,
    separated_rows,
)
from gcsim.analysis.validation.report.write import pairs_csv, write
from gcsim.analysis.validation.suite import IN_ALL, Agreement, Bound, Findings, Pair, Suite, Verdict
from gcsim.analysis.validation.suites.accuracy import suite
from gcsim.analysis.validation.suites.accuracy.suite import Outcome, Published, Task
from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.scenarios.trained import make_shipped
from gcsim.scenarios.trained.evidence import evidence, published
from gcsim.scenarios.trained.runs import plan_of
from gcsim.scenarios.trained.shipped_tasks import Field
from gcsim.traces.training.plan import Optimizer

TASK = Task(name="t, 9 steps", field="images", optimizer="plain SGD")


def said(
    method: str, figure: float | None, setting: str = "a", *, field: str = "images",
    optimizer: str = "plain SGD", **parameters: str,
) -> Published:  # fmt: skip
    return Published(
        setting=setting, source="s", field=field, optimizer=optimizer, mirror="", method=method,
        kind=method, parameters=parameters, figure=figure,
    )  # fmt: skip


def trained(kind: str, *scores: float, reached: bool = True, too_short: bool = False,
            **parameters: object) -> Outcome:  # fmt: skip
    return Outcome(
        kind=kind, label=kind, parameters=parameters, too_short=too_short, reached=reached,
        scores=scores,
    )  # fmt: skip


# --- the data ------------------------------------------------------------------------------------


def test_there_are_forty_settings_with_a_source_and_their_dense_training() -> None:
    rows = suite.read()
    settings = {row.setting for row in rows}
    assert len(settings) >= 40
    dense = Counter(row.setting for row in rows if row.kind == "none")
    assert dense == dict.fromkeys(settings, 1)
    cited = {row["key"] for row in data_files.read(suite._HERE / "sources.csv")}
    assert {row.source for row in rows} == cited
    assert len([*suite._citations()]) == len(cited)


def test_published_methods_and_their_parameters_are_those_of_compressors() -> None:
    for row in suite.read():
        assert row.kind in REGISTRY
        assert {*row.parameters} <= {*compressor_class(row.kind).Parameters.model_fields}


def test_figures_are_over_dense_training_and_more_is_better() -> None:
    """PowerSGD of rank 1: perplexity 102 for 91, accuracy 93.6 for 94.3 (its table of ranks)."""
    found = {
        row.setting: row.figure
        for row in suite.read()
        if row.source == "powersgd" and row.method == "rank 1"
    }
    assert found == pytest.approx({"powersgd text": 91 / 102, "powersgd images": 93.6 / 94.3})


def test_onebit_adams_figures_are_means_of_the_eight_scores_of_glue() -> None:
    """RTE, MRPC, CoLA, SST-2, QNLI, QQP, MNLI matched and mismatched, as the table prints them."""
    printed = {
        ("onebit adam base", "none"): (68.2, 84.8, 56.8, 91.8, 90.9, 90.9, 83.6, 83.5),
        ("onebit adam base", "onebit_adam"): (69.0, 84.8, 55.6, 91.6, 90.8, 90.9, 83.6, 83.9),
        ("onebit adam large", "none"): (70.3, 86.0, 60.3, 93.1, 92.2, 91.4, 86.1, 86.2),
        ("onebit adam large", "onebit_adam"): (70.4, 86.1, 62.0, 93.8, 91.9, 91.5, 85.7, 85.4),
    }
    rows = {
        (row["setting"], row["kind"]): float(row["value"])
        for row in data_files.read(suite._HERE / "published.csv")
        if row["setting"].startswith("onebit adam")
    }
    assert rows == pytest.approx({key: np.mean(scores) for key, scores in printed.items()})


def test_optimizers_are_those_of_the_released_code() -> None:
    """epfml/error-feedback-SGD, utils/hyperparameters.py: momentum 0.9 for `sgdm` and `signum`, 0
    for `ssgdf` (EF-signSGD) and `sssgd` (scaled sign). sands-lab/grace, CIFAR10-dawndist/dawn.py
    (ResNet-9): momentum 0.9. CE-SGD, Figure 3: "In all experiments, we use Adam optimizer"."""
    found = {(row.setting.split()[0], row.kind): row.optimizer for row in suite.read()}
    for kind, expected in (
        ("none", "momentum SGD"), ("signum", "momentum SGD"),
        ("ef_signsgd", "plain SGD"), ("scaled_sign", "plain SGD"),
    ):  # fmt: skip
        assert found["ef", kind] == expected
    assert found["ce-sgd", "ce_sgd"] == "Adam"
    assert {r.optimizer for r in suite.read() if r.setting == "grace ResNet-9"} == {"momentum SGD"}


# --- counting ------------------------------------------------------------------------------------


def test_a_row_stands_beside_the_nearest_parameters_within_a_factor_of_two() -> None:
    rows = [said("topk", 1, ratio="0.01"), said("topk", 0.9, ratio="0.1"), said("cser", 1)]
    near, far = trained("topk", 0.0, ratio=0.012), trained("topk", 0.0, ratio=0.019)
    other = trained("randomk", 0.0)
    assert suite.matched(rows, [far, other, near]) == [(rows[0], near)]
    assert suite.matched([said("topk", 1, error_feedback="true")],
                         [trained("topk", 0.0, error_feedback=False)]) == []  # fmt: skip


def test_pairs_are_told_apart_by_a_paired_test_with_holms_correction() -> None:
    """Figures within 1 % of each other are no pair. Of four pairs that are tested, p-values by
    scipy's paired t-test, in ascending order, stay below 0.1 / 4, 0.1 / 3, and so on."""
    scores = {
        "none": (0.0, 0.01, 0.0), "topk": (-1.0, -1.1, -1.2), "qsgd": (-3.0, -3.1, 1.0),
        "cser": (1.0, 1.1, 0.9), "dgc": (-9.0, -9.0, -9.0),
    }  # fmt: skip
    figures = {"none": 1.0, "topk": 0.995, "qsgd": 0.9, "cser": 0.8, "dgc": 0.5}
    pairs = [
        (said(name, figures[name]), trained(name, *scores[name], too_short=name == "dgc"))
        for name in figures
    ]
    expected = {(one, "dgc"): "too short" for one in figures if one != "dgc"}
    tested = [("none", "qsgd"), ("topk", "qsgd"), ("none", "cser"), ("topk", "cser"),
              ("qsgd", "cser")]  # fmt: skip
    tests = {pair: stats.ttest_rel(*(scores[name] for name in pair)) for pair in tested}
    ranked = sorted(tested, key=lambda pair: float(tests[pair].pvalue))
    told = [
        pair
        for place, pair in enumerate(ranked)
        if all(tests[one].pvalue <= 0.1 / (5 - at) for at, one in enumerate(ranked[: place + 1]))
    ]
    assert told == [("topk", "cser"), ("none", "cser")]
    expected |= {pair: "reversed" if pair in told else "alike" for pair in tested}
    for rows in (pairs, pairs[::-1]):
        found = [*suite.compared(rows)]
        assert {(pair.better, pair.worse): pair.verdict for pair in found} == expected
        for pair in found:
            assert pair.published == (figures[pair.better], figures[pair.worse])
            means = [np.mean(scores[name]) for name in (pair.better, pair.worse)]
            assert pair.here == pytest.approx(means)


def test_one_seed_tells_nothing_apart() -> None:
    pairs = [(said("none", 1.0), trained("none", 0.0)), (said("topk", 0.9), trained("topk", -1.0))]
    assert [pair.verdict for pair in suite.compared(pairs)] == ["alike"]


def test_a_setting_shows_its_own_noise_in_methods_that_lose_nothing() -> None:
    """Two standard deviations of a difference: 2 sqrt(2) of a figure's; at least 1 %."""
    noisy = [said("none", 1.0), said("dynamic_8bit", 1.02), said("topk", 0.98, ratio="0.25"),
             said("topk", 0.5, ratio="0.01"), said("qsgd", 0.2)]  # fmt: skip
    assert suite.least_difference(noisy) == pytest.approx(2 * 2**0.5 * 0.02)
    assert suite.least_difference(noisy[:2]) == suite.least_difference(noisy[3:]) == suite.APART
    worse = [(said("none", 1.0), trained("none", 0.0, 0.0)),
             (said("qsgd", 0.95), trained("qsgd", -1.0, -1.0))]  # fmt: skip
    assert not [*suite.compared(worse, 0.06)]
    (pair,) = suite.compared(worse, 0.04)
    assert (pair.verdict, pair.better, pair.worse) == ("right", "none", "qsgd")


def test_an_order_needs_six_methods_apart_in_print_and_seeds_that_agree() -> None:
    names = ["none", "qsgd", "topk", "cser", "dgc", "signsgd"]
    rows = [said(name, 1 - 0.1 * place) for place, name in enumerate(names)]
    clear = [trained(name, *(-place + 1e-4 * seed * place for seed in range(3)))
             for place, name in enumerate(names)]  # fmt: skip
    loud = [trained(name, *(-place - 9.0 * (seed == place % 3) for seed in range(3)))
            for place, name in enumerate(names)]  # fmt: skip

    def orders(rows: list[Published], outcomes: list[Outcome]) -> tuple[int, tuple[float, ...]]:
        own, _ = suite.agreements(TASK, outcomes, rows)
        return own.spanning, own.ranks

    spanning, ranks = orders(rows, clear)
    assert spanning == 1
    assert ranks == pytest.approx((1.0,))
    assert orders(rows, loud) == (1, ())
    assert stats.friedmanchisquare(*(one.scores for one in loud)).pvalue > 0.1
    assert orders(rows, [trained(name, 0.0, 0.0) for name in names]) == (1, ())
    assert orders(rows, [trained(name, 0.1 * at) for at, name in enumerate(names)]) == (1, ())
    assert orders(rows[:5], clear) == (0, ())
    assert orders([said(row.method, 1.0) for row in rows], clear) == (0, ())


@pytest.mark.parametrize("seed", range(5))
def test_spearman_correlates_mean_ranks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 5, 9).tolist(), rng.normal(size=9).tolist()
    found = suite.spearman(first, second)
    ranks = [stats.rankdata(each) for each in (first, second)]
    assert found == pytest.approx(float(np.corrcoef(*ranks)[0, 1]))


def test_false_alarms_are_methods_reported_dense_that_miss_and_are_trained_long_enough() -> None:
    rows = [
        row
        for setting in "abc"
        for row in (said("none", 1.0, setting), said("topk", 0.995, setting),
                    said("dgc", None, setting), said("cser", 0.95, setting))
    ]  # fmt: skip
    outcomes = [
        trained("none", 0.0),
        trained("topk", -1.0, reached=False),
        trained("dgc", -1.0, reached=False, too_short=True),
        trained("cser", -1.0, reached=False),
    ]
    own, every = suite.agreements(TASK, outcomes, rows)
    assert (own.reported, own.alarms, own.reported_short) == (1, ("topk",), 1)
    assert (own.compared, every.compared) == ("images, plain SGD", IN_ALL)


def test_other_fields_and_optimizers_do_not_outvote_a_methods_own_findings() -> None:
    """Two settings of other optimizers call both methods dense, the task's own says of one that it
    is not; of the other it says nothing."""
    rows = [said("none", 1.0, "own"), said("topk", 0.9, "own")]
    for setting in ("b", "c"):
        for kind in ("none", "topk", "dgc"):
            rows.append(said(kind, 1.0, setting, optimizer="Adam"))
    outcomes = [trained(kind, 0.0, reached=False) for kind in ("none", "topk", "dgc")]
    own, every = suite.agreements(TASK, outcomes, rows)
    assert (own.reported, every.reported, every.alarms) == (0, 1, ("dgc",))


@pytest.mark.parametrize(
    ("kind", "named", "expected"),
    [
        ("topk", "adamw", "Adam"),
        ("topk", "sgd", "momentum SGD"),
        ("cser", "adamw", "momentum SGD"),
        ("onebit_adam", "sgd", "Adam"),
    ],
)
def test_a_method_with_its_own_optimizer_has_it_in_every_task(
    kind: str, named: Literal["sgd", "adamw"], expected: str
) -> None:
    plan = replace(plan_of(load_scenario("digits_8")), optimizer=Optimizer(name=named))
    choice = CompressorChoice(kind=kind, label=kind, parameters={})
    assert suite.optimizer_of(choice, plan) == expected


def test_tasks_are_compared_with_methods_that_train_with_their_optimizer() -> None:
    """CSER has a momentum of its own; plain SGD's task has trained it as the one with momentum."""
    found = {task.name: {one.kind for one in outcomes} for task, outcomes in suite.trainings()}
    assert "cser" in {choice.kind for choice in load_scenario("characters_sgd").compressors}
    with_cser = {name for name, kinds in found.items() if "cser" in kinds}
    assert with_cser <= {name for name in found if "(momentum SGD" in name}
    assert any(name.startswith("characters_widths") for name in with_cser)


def test_a_task_is_compared_with_settings_of_its_field_and_optimizer() -> None:
    """A setting with several optimizers, or that states none, counts for each."""
    shown = {
        "own": said("none", 1.0, "own"),
        "other field": said("none", 1.0, "other field", field="text"),
        "other optimizer": said("none", 1.0, "other optimizer", optimizer="Adam"),
        "unknown": said("none", 1.0, "unknown", optimizer=""),
    }
    rows = [
        row
        for one in shown.values()
        for row in (one, replace(one, method="qsgd", kind="qsgd", figure=0.5))
    ]
    outcomes = [trained("none", 0.0, 0.0), trained("qsgd", -1.0, -1.1)]
    own, every = suite.agreements(TASK, outcomes, rows)
    assert {pair.setting for pair in own.pairs} == {"own", "unknown"}
    assert {pair.setting for pair in every.pairs} == {*shown}


def test_optimizers_of_settings_are_those_of_tasks_or_unlike_all() -> None:
    trained_with = {task.optimizer for task, _ in suite.trainings()}
    stated = {row.optimizer for row in suite.read()}
    assert trained_with <= stated
    assert stated == {"", "plain SGD", "momentum SGD", "Adam", "RMSprop"}
    assert {row.optimizer for row in published()} <= stated


# --- judging -------------------------------------------------------------------------------------


def agreement(compared: str, right: int, other: int, *ranks: float) -> Agreement:
    counts: dict[Verdict, int] = {
        "right": right, "reversed": other, "alike": 9, "too short": 1,
    }  # fmt: skip
    pairs = tuple(
        Pair(
            setting="a", field="images", source="S", better=verdict[0], worse=f"y{number}",
            published=(1.0, 0.5), here=(0.25, -0.5), verdict=verdict,
        )
        for verdict, many in counts.items()
        for number in range(many)
    )  # fmt: skip
    return Agreement(
        task="t, 9 steps", compared=compared, reported=4, alarms=("topk",), reported_short=2,
        pairs=pairs, spanning=3, ranks=ranks,
    )  # fmt: skip


def test_bounds_are_of_the_tasks_own_settings_or_of_all() -> None:
    found = (agreement("images, plain SGD", 3, 1, 0.2, 0.6), agreement(IN_ALL, 0, 9, -1.0))
    bounds = (
        Bound("few alarms", statistic="alarms", limit=0.2, target=0.1),
        Bound("pairs", statistic="pairs", limit=0.75),
        Bound("all pairs", (IN_ALL,), statistic="pairs", limit=0.75),
    )
    made = Suite(name="x", title="", about="", fitted_on="", bounds=bounds, find=Findings)
    report = judge(made, Findings(agreements=found))
    reached = [(kept.reached, kept.points, kept.kept) for kept in report.bounds]
    assert reached == [(0.25, 4, False), (0.75, 4, True), (0.0, 9, False)]
    required = "at most 20 %; target of 10 % missed"
    assert bound_cells(report.bounds[0]) == (
        "few alarms", "25.0 % of 4 methods", required, "BROKEN",
    )  # fmt: skip
    assert [*agreement_rows(found)][1] == (
        "- images, plain SGD",
        "4",
        "1",
        "2",
        "3 / 1 / 9",
        "1",
        "0.40 (2 of 3)",
    )
    nothing = replace(found[0], reported=0, reported_short=0, pairs=())
    assert [row[0] for row in agreement_rows((nothing, found[1]))] == ["t, 9 steps", "- in all"]
    assert [*alarm_lines(found)] == [
        "False alarms of t, 9 steps (images, plain SGD): topk",
        "False alarms of t, 9 steps (in all): topk",
    ]
    # three right and one reversed of setting a; neither the nine alike nor the short one
    assert [*separated_rows(found[0])] == [("a", "r > y0, y1, y2", "r > y0")]
    # of all fields there are 9 reversed, 9 alike and one short; a task's pairs are listed once
    rows = list(csv.DictReader(pairs_csv([report]).splitlines()))
    assert Counter(row["verdict"] for row in rows) == {"reversed": 9, "alike": 9, "too short": 1}
    assert (rows[0]["better_published"], rows[0]["worse_here"]) == ("1.0", "-0.5")


def test_a_suite_without_points_writes_no_empty_table(tmp_path: Path) -> None:
    made = Suite(name="x", title="", about="", fitted_on="", bounds=(), find=Findings)
    report = judge(made, Findings(agreements=(agreement("images, plain SGD", 3, 1),)))
    write([report], tmp_path)
    written = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert written.keys() == {"validation.md", "validation.json", "pairs.csv"}
    assert all(written.values())


def test_without_a_training_nothing_is_kept() -> None:
    bounds = tuple(Bound("x", statistic=one) for one in ("alarms", "pairs"))
    made = Suite(name="x", title="", about="", fitted_on="", bounds=bounds, find=Findings)
    assert not any(kept.kept for kept in judge(made, Findings()).bounds)


@pytest.mark.long
def test_the_shipped_tasks_are_compared() -> None:
    (found,) = chosen(["accuracy"])
    tasks = {one.task.partition(" ")[0] for one in found.find().agreements}
    assert {"digits_8", "characters_8", *make_shipped.PAPERS} <= tasks
    widths = {one.task for one in found.find().agreements if "widths" in one.task}
    names = ("characters_widths", "characters_widths x2", "characters_widths x4")
    assert widths == {f"{name} (momentum SGD, 3,000 steps)" for name in names}


def test_no_shipped_training_outweighs_published_losses() -> None:
    """Most figures of a field and optimizer say so. GRACE's QSGD has another norm than gcsim's."""
    outweighing = set()
    for task, outcomes in suite.trainings():
        rows = [row for row in suite.read() if task.of(row)]
        for one in outcomes:
            if suite.reported_dense(rows, (), one) is False:
                field: Field = "text" if task.field == "text" else "images"
                found = evidence(one.kind, one.parameters, field, task.optimizer)
                known = found is not None and math.isfinite(found.steps_vs_dense)
                if found is not None and known and found.source.startswith("gcsim train"):
                    outweighing.add((one.kind, task.field, task.optimizer))
    assert outweighing == {("qsgd", "text", "plain SGD")}


def test_mirrored_settings_have_the_methods_of_their_scenario() -> None:
    mirrored = {row.mirror for row in suite.read()} - {""}
    assert mirrored == {*make_shipped.PAPERS}
    for name in mirrored:
        own = {row.kind for row in suite.read() if row.mirror == name}
        shown = {choice.kind for choice in make_shipped.of_paper(name).compressors}
        assert len(own & shown) >= 0.7 * len(own)


def test_published_settings_agree_with_each_other_as_the_page_says() -> None:
    """Pairs of methods, and orders of six, in two settings of one field, apart in both."""
    settings: dict[str, dict[tuple[object, ...], Published]] = {}
    for row in suite.read():
        if row.figure is not None:
            key = row.kind, *sorted(row.parameters.items())
            settings.setdefault(row.setting, {})[key] = row
    same, ranks = [], []
    for first, second in combinations(settings.values(), 2):
        one, other = next(iter(first.values())), next(iter(second.values()))
        both = [key for key in first if key in second]
        if one.field != other.field or len(both) < 2:
            continue
        figures = [[side[key].figure or 0.0 for key in both] for side in (first, second)]
        least = [suite.least_difference([*side.values()]) for side in (first, second)]
        differ = [
            [
                a if abs(a) > limit * max(values[i], values[j]) else 0.0
                for i, j in combinations(range(len(both)), 2)
                for a in [values[i] - values[j]]
            ]
            for values, limit in zip(figures, least, strict=True)
        ]
        same += [a * b > 0 for a, b in zip(*differ, strict=True) if a * b]
        told = [sum(map(bool, side)) > len(side) / 2 for side in differ]
        if len(both) >= suite.SPANNING and all(told):
            steps = [[round(v / limit) for v in values]
                     for values, limit in zip(figures, least, strict=True)]  # fmt: skip
            ranks.append(suite.spearman(*steps))
    page = " ".join((Path(suite.__file__).parent / "page.md").read_text(encoding="utf-8").split())
    assert f"in the same order in {np.mean(same):.0%} of {len(same)} cases" in page
    assert f"correlation of two settings is {np.median(ranks):.2f} ({len(ranks)}" in page
