"""Percentiles over draws, against binomial sums term by term; they move less than numpy's."""

from __future__ import annotations

from fractions import Fraction
from math import comb, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.scenarios.uncertainty.ranges import interval

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300).filter(min)
"""Where the least is 0 the ends are draws, as where one is infinite."""


def naive(values: list[float], share: Fraction) -> float:
    """The definition, exactly: the Bernstein polynomial through the order statistics."""
    most = len(values) - 1
    terms = (
        Fraction(value) * comb(most, k) * share**k * (1 - share) ** (most - k)
        for k, value in enumerate(sorted(values))
    )
    return float(sum(terms))


@given(values=VALUES)
def test_ends_are_binomial_sums_of_the_order_statistics(values: list[float]) -> None:
    wanted = [naive(values, Fraction(tenth, 10)) for tenth in (1, 9)]
    assert interval(values) == pytest.approx(wanted, rel=1e-9, abs=1e-6)
    assert min(values) <= interval(values)[0] <= interval(values)[1] <= max(values)


@given(start=st.floats(-10, 10), step=st.floats(0, 10), count=st.integers(1, 2000))
def test_evenly_spaced_draws_have_numpys_percentiles(start: float, step: float, count: int) -> None:
    values = start + step * np.random.default_rng(0).permutation(count)
    wanted = np.percentile(values, (10, 90))
    assert interval(values) == pytest.approx(wanted.tolist(), rel=1e-9, abs=1e-9)


def test_each_line_of_an_array_has_its_own() -> None:
    lines = np.random.default_rng(1).lognormal(size=(3, 2, 50))
    low, high = interval(lines)
    for place in np.ndindex(3, 2):
        assert (low[place], high[place]) == pytest.approx(interval(lines[place]))


def test_of_infinite_draws_an_end_is_the_nearest_draw() -> None:
    """Of 20 in order, the 2nd and the 18th are a tenth from the ends."""
    draws = [*range(1, 18), inf, inf, inf]
    assert interval(draws) == (2, inf)
    assert interval([*range(1, 20), inf]) == (2, 18)


def test_ends_of_another_sample_are_nearer_than_numpys() -> None:
    """Over 2,000 samples of 256 normal draws."""
    samples = np.random.default_rng(2).normal(size=(2000, 256))
    own = np.std(interval(samples), axis=1)
    assert (own < 0.97 * np.std(np.percentile(samples, (10, 90), axis=1), axis=1)).all()
