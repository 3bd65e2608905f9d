"""The choice among hand-made points of the front, its probabilities, and what would change it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcsim.scenarios.planning.choice import DrawnPoint, Plan
from gcsim.scenarios.planning.search import Job, Point
from gcsim.scenarios.result import UncertainInput

WORLDS = 100
EVEN = np.arange(WORLDS) / (WORLDS - 1)
"""From 0 to 1."""


def point(
    hours: Sequence[float] | Any, price: float, draws: Any = None, link: str = "ten",
    sure: bool = True,
) -> DrawnPoint:  # fmt: skip
    """Hours by world of machines at a price an hour; `draws` of their network's rate."""
    cluster = SimpleNamespace(network=SimpleNamespace(name=link), device=SimpleNamespace(name="t4"))
    site: Any = SimpleNamespace(price=price, scenario=SimpleNamespace(cluster=cluster))
    work: Any = SimpleNamespace(site=site, sure=sure)
    values = np.array(hours, dtype=float)
    middle = float(np.median(values))
    nothing: Any = None
    given = UncertainInput(
        name="the network's rate", unit="", stated=1.0, low=0.0, high=1.0,
        draws=() if draws is None else tuple(draws), measure="gcsim calibrate link",
    )  # fmt: skip
    return DrawnPoint(
        point=Point(work=work, choice=nothing, row=nothing, hours=middle, money=middle * price),
        hours=values, inputs=() if draws is None else (given,),
    )  # fmt: skip


def plan(*front: DrawnPoint, deadline: float | None = None, budget: float | None = None) -> Plan:
    return Plan(
        job=Job(model="lenet", amount=1.0, batch=1.0), a_sample=1, deadline=deadline,
        budget=budget, front=front, unfit=(), left_out=(), settings=1, simulated=1,
    )  # fmt: skip


FAST, MIDDLE, CHEAP = point([1, 2], 50), point([3, 5], 15), point([8, 12], 5)
"""Money of 50 and 100, 45 and 75, 40 and 60."""


@pytest.mark.parametrize(
    ("deadline", "budget", "expected"),
    [
        (None, None, CHEAP),
        (20, None, CHEAP),
        (8, None, MIDDLE),  # the cheap one meets it in half of the worlds
        (4, None, FAST),
        (1.5, None, FAST),  # nothing is sure: the one that does so in half
        (None, 1000, FAST),
        (None, 80, MIDDLE),
        (None, 65, CHEAP),
        (6, 80, MIDDLE),
        (13, 80, CHEAP),  # both, of which the money counts
    ],
)
def test_the_choice_follows_deadline_and_budget(
    deadline: float | None, budget: float | None, expected: DrawnPoint
) -> None:
    found = plan(FAST, MIDDLE, CHEAP, deadline=deadline, budget=budget)
    assert found.choice is expected
    assert found.choice is plan(CHEAP, MIDDLE, FAST, deadline=deadline, budget=budget).choice


def test_eight_worlds_of_ten_are_enough_and_seven_are_not() -> None:
    sure, other = point([5] * 8 + [9] * 2, 1), point([4] * 10, 3)
    assert plan(other, sure, deadline=6).choice is sure
    unsure = point([5] * 7 + [9] * 3, 1)
    assert plan(other, unsure, deadline=6).choice is other


def test_what_surely_fits_is_chosen_before_what_may_not() -> None:
    doubtful, sure = point([8, 12], 5, sure=False), point([3, 5], 15)
    assert plan(sure, doubtful).choice is sure
    assert plan(sure, doubtful, deadline=20).choice is sure
    assert plan(sure, doubtful, budget=65).choice is doubtful  # what alone meets it
    assert plan(doubtful).choice is doubtful


def test_probabilities_are_shares_of_worlds_and_never_certain() -> None:
    found = plan(FAST, MIDDLE, CHEAP, deadline=10, budget=50)
    assert found.probabilities(CHEAP) == (0.5, 0.5)
    assert found.probabilities(FAST) == (0.99, 0.5)
    assert plan(FAST).probabilities(FAST) == (None, None)
    assert plan(FAST, deadline=0.5).probabilities(FAST) == (0.01, None)
    assert CHEAP.hours_range == pytest.approx((8.4, 11.6))


def test_nothing_is_chosen_where_nothing_fits() -> None:
    assert plan(deadline=3).choice is None
    assert plan(deadline=3).measure is None


def test_the_measurement_is_that_of_the_input_whose_third_has_another_choice() -> None:
    cheap = point(11 - 6 * EVEN, 1, EVEN)  # 5 to 11 hours: in time at a rate above 0.17
    other = point(np.full(WORLDS, 8.0), 1.3, EVEN[::-1], "hundred")
    found = plan(other, cheap, deadline=10)
    assert found.choice is cheap
    measure = found.measure
    assert measure is not None
    assert measure.instead is other
    assert measure.below
    assert measure.name == "the network's rate (ten)"
    assert measure.end == pytest.approx(1 / 3)
    assert measure.command == "gcsim calibrate link"


def test_an_input_that_moves_no_time_is_not_to_be_measured() -> None:
    random = np.random.default_rng(0).permutation(EVEN)
    cheap, other = point(11 - 6 * EVEN, 1, random), point(np.full(WORLDS, 8.0), 2)
    assert plan(other, cheap, deadline=10).measure is None
    assert plan(other, point(11 - 6 * EVEN, 1, EVEN), deadline=20).measure is None
    assert plan(cheap, deadline=10).measure is None
