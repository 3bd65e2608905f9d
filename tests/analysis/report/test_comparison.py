"""Two methods are compared world by world, and beyond luck."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.report.comparison import probability_faster, ratio
from gcsim.scenarios.result import Row
from tests.analysis.report.test_selection import a_row

ONE, OTHER = (replace(a_row(n, "risky"), iteration_s=seconds) for n, seconds in ((1, 0.5), (2, 1)))


def test_without_draws_the_interval_is_a_point() -> None:
    found = ratio(ONE, OTHER)
    assert (found.low, found.median, found.high) == (2, 2, 2)
    assert (probability_faster(ONE, OTHER), probability_faster(OTHER, ONE)) == (1, 0)


def test_what_is_slow_for_both_cancels() -> None:
    slow = (1.0, 2.0, 5.0)
    one, other = (replace(row, iteration_draws_s=tuple(row.iteration_s * s for s in slow))
                  for row in (ONE, OTHER))  # fmt: skip
    found = ratio(one, other)
    assert (found.low, found.high) == pytest.approx((2, 2))


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_the_error_of_a_difference_is_that_of_the_batches_differences(
    seed: int, together: float
) -> None:
    generator = np.random.default_rng(seed)
    shared = generator.normal(size=10)
    batches = [
        tuple((row.iteration_s + 0.1 * (together * shared + generator.normal(size=10))).tolist())
        for row in (ONE, OTHER)
    ]
    one, other = (replace(row, iterations=100, iteration_batches_s=own)
                  for row, own in zip((ONE, OTHER), batches, strict=True))  # fmt: skip
    differences = [b - a for a, b in zip(*batches, strict=True)]
    expected = statistics.stdev(differences) / math.sqrt(10)
    # each end is two of them further away, in units of the faster one's iteration
    plain, wide = ratio(one, other, luck=False), ratio(one, other)
    assert plain.low - wide.low == pytest.approx(2 * expected / 0.5)
    assert wide.high - plain.high == pytest.approx(2 * expected / 0.5)


def noisy(row: Row, error: float) -> Row:
    return replace(row, iteration_error_s=error)


def test_without_common_batches_the_errors_are_independent() -> None:
    # 2 sqrt(0.03^2 + 0.04^2) = 0.1 s of 0.5 s
    found = ratio(noisy(ONE, 0.03), noisy(OTHER, 0.04))
    assert (found.low, found.high) == pytest.approx((1.8, 2.2))


@pytest.mark.parametrize(("errors", "below"), [(1.0, 0.8413), (2.0, 0.9772), (0.0, 0.5)])
def test_the_probability_that_luck_does_not_decide_is_normal(errors: float, below: float) -> None:
    """The normal distribution's table: 84.13 % below one standard deviation, 97.72 % below two."""
    other = noisy(replace(OTHER, iteration_s=ONE.iteration_s + 0.01 * errors), 0.01)
    assert probability_faster(ONE, other) == pytest.approx(below, abs=1e-4)
