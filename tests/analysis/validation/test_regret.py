"""Regret of following advice: cost of the chosen method against the fastest measured one."""

import math
from collections.abc import Callable

import pytest

from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.suite import IN_ALL, Point
from gcsim.analysis.validation.suites.regret.suite import RULES, USE, costs_of


def _point(name: str, measured: float, predicted: float) -> Point:
    return Point(
        name=name, series="x", unit="s", measured=measured, predicted=predicted,
        unfitted=predicted, source="made up", workers=8,
    )  # fmt: skip


def test_each_rule_costs_what_its_method_took_over_the_fastest() -> None:
    """Random-k is the fastest, and nobody knows that it trains; PowerSGD is known to; it is
    predicted to be slower than half precision."""
    costs = costs_of(
        [
            (_point("dense", 4.0, 4.0), "none", 1.0),
            (_point("half", 3.0, 2.0), "fp16", 1.0),
            (_point("power", 2.0, 2.5), "powersgd", 1.0),
            (_point("random", 1.0, 1.0), "randomk", None),
        ]
    )
    assert costs == pytest.approx(
        {
            "Use": 2.0,
            "Safe": 2.0,
            "Try, else Use": 0.0,
            "Try, warned of or not": 0.0,
            "always dense": 3.0,
            "always half precision": 2.0,
            "always PowerSGD": 1.0,
        }
    )


def test_more_steps_to_the_goal_are_paid_for() -> None:
    """Top-k's iteration is half of dense training's, of which it needs 2.33 times as many."""
    dense, topk = _point("dense", 2.0, 2.0), _point("topk", 1.0, 1.0)
    assert costs_of([(dense, "none", 1.0), (topk, "topk", 1.0)])[USE] == 0.0
    assert costs_of([(dense, "none", 1.0), (topk, "topk", 7 / 3)])[USE] == 1.0


def test_a_method_that_missed_its_target_is_not_followed() -> None:
    """Random-k is predicted to be the fastest and has missed; then an unknown method is tried, and
    without one Use."""
    dense = _point("dense", 4.0, 4.0), "none", 1.0
    missed = _point("random", 1.0, 1.0), "randomk", math.inf
    unknown = _point("topk", 2.0, 2.0), "topk", None
    assert costs_of([dense, missed, unknown])["Try, else Use"] == 1.0
    assert costs_of([dense, missed])["Try, else Use"] == costs_of([dense, missed])[USE] == 3.0


@pytest.mark.long
def test_advice_costs_less_than_always_the_same_method(report_of: Callable[[str], Report]) -> None:
    regrets = report_of("regret").findings.regrets
    found = {one.rule: one for one in regrets if one.source == IN_ALL}
    assert list(found) == list(RULES)
    assert all(one.mean >= 0 for one in found.values())
    always = [one for rule, one in found.items() if rule.startswith("always")]
    assert all(one.use <= one.mean for one in always)
