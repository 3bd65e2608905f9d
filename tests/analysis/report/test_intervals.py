"""The inputs that a width comes from are named in order, with their shares; chance is not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from gcsim.analysis.report.answer import answer
from gcsim.analysis.report.intervals import main_sources, shares
from gcsim.analysis.report.selection import largest_verdict
from gcsim.scenarios.result import Result, UncertainInput
from gcsim.scenarios.uncertainty.worlds import FACTORS
from tests.analysis.drawn import drawn, open_result

WORLDS = 64


def an_input(name: str, draws: np.ndarray, measure: str = "x") -> UncertainInput:
    return UncertainInput(
        name=name, unit="s", stated=0.5, low=0.0, high=1.0, draws=tuple(draws.tolist()),
        measure=measure,
    )  # fmt: skip


def example(result: Result, **weights: float) -> Result:
    """Dense 1 s; Top-k 0.3 s, times e to the weighted sum of inputs that are even in 0 to 1."""
    generator = np.random.default_rng(1)
    draws = {
        name: (generator.permutation(WORLDS) + 0.5) / WORLDS for name in [*weights, "idle", "fixed"]
    }
    draws["fixed"][:] = 0.5
    total = sum((weight * draws[name] for name, weight in weights.items()), np.zeros(WORLDS))
    shown = open_result(result, none=[1.0] * WORLDS, topk=(0.3 * np.exp(total)).tolist())
    measures = {"latency": "gcsim calibrate link", "sums": "gcsim calibrate link"}
    inputs = tuple(an_input(name, own, measures.get(name, "x")) for name, own in draws.items())
    return replace(shown, inputs=inputs)


def of_topk(shown: Result) -> dict[str, float]:
    found = largest_verdict(shown)
    assert found.best is not None
    return {one.input.name: one.share for one in shares(shown, found.best, found.dense)}


def test_shares_are_squared_rank_correlations(result: Result) -> None:
    shown = example(result, latency=1.0, sums=0.7)
    found = of_topk(shown)
    ratios = [1 / x for x in shown.rows[1].iteration_draws_s]
    assert list(found) == ["latency", "sums"]
    for name, share in found.items():
        draws = next(one.draws for one in shown.inputs if one.name == name)
        assert share == pytest.approx(float(spearmanr(draws, ratios).statistic) ** 2)
    assert 0.85 < sum(found.values()) < 1.1


def test_ties_have_their_mean_rank(result: Result) -> None:
    shown = example(result, latency=1.0)
    steps = np.round(np.array(shown.inputs[0].draws) * 3)
    shown = replace(shown, inputs=(an_input("latency", steps),))
    ratios = [1 / x for x in shown.rows[1].iteration_draws_s]
    assert of_topk(shown)["latency"] == pytest.approx(
        float(spearmanr(steps, ratios).statistic) ** 2
    )


def test_an_input_that_acts_steeply_counts_as_one_that_acts_in_a_line(result: Result) -> None:
    assert of_topk(example(result, latency=20.0))["latency"] == pytest.approx(1)


def test_the_fewest_that_make_half_are_named(result: Result) -> None:
    shown = example(result, latency=1.0, sums=1.0, cores=1.0, bus=1.0)
    found = largest_verdict(shown)
    assert found.best is not None
    named = main_sources(shown, found.best, found.dense)
    assert 2 <= len(named) <= 3
    assert sum(one.share for one in named[:-1]) < 0.5 <= sum(one.share for one in named)


def test_the_answer_says_what_to_measure(result: Result) -> None:
    said = " ".join(answer(example(result, latency=1.0)))
    assert (
        "The largest uncertainty for Top-k 1% is latency "
        "(100\N{NO-BREAK SPACE}% of the variance). To reduce it, run gcsim calibrate link." in said
    )
    both = " ".join(answer(example(result, latency=1.0, sums=1.0, bus=0.6)))
    assert "To reduce them, run gcsim calibrate link." in both  # once, for two inputs


def test_a_ratio_to_measurements_is_named_by_its_difference(result: Result) -> None:
    shown = example(result, latency=1.0)
    inputs = tuple(
        replace(one, name=FACTORS[1], measure="time one step on your machine")
        for one in shown.inputs
    )
    said = " ".join(answer(replace(shown, inputs=inputs[:1])))
    assert "is the error of predicted speedups (100" in said
    assert "To reduce it, time one step on your machine." in said


def test_nothing_is_said_where_nothing_was_drawn(result: Result) -> None:
    shown = example(result, latency=1.0)
    assert "To reduce" not in " ".join(answer(replace(shown, inputs=())))
    assert "To reduce" not in " ".join(answer(replace(result, inputs=shown.inputs)))
    same = replace(shown, rows=drawn(shown.rows, {"dense": [1.0] * 64, "Top-k 1%": [0.3] * 64}))
    assert of_topk(same) == {}
