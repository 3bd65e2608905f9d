"""Scans of whole vectors agree with float64 arithmetic, on any number of threads."""

from typing import Any

import pytest
import torch

from gcsim.compressors.coding.scans import all_finite, squared_lengths
from tests.compressors.shared import normal


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 4097, 400_000])
def test_squared_lengths_are_those_of_float64(n: int) -> None:
    one, other = 1e-25 * normal(2 * n).view(2, n)  # the squares vanish in float32
    expected = [float(each.double().square().sum()) for each in (one, other, one - other)]
    assert squared_lengths(one, other) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("n", [1, 5000, 400_000])
def test_one_value_that_is_not_finite_is_found_anywhere(n: int, bad: float) -> None:
    for place in {0, n // 2, n - 1}:
        values = normal(n)
        assert all_finite(values)
        values[place] = bad
        assert not all_finite(values)
    assert all_finite(torch.full((n,), 3.4e38))  # whose sum is not


def test_results_do_not_depend_on_the_threads(same_on_any_threads: Any) -> None:
    one, other = normal(1_000_000).view(2, -1)
    same_on_any_threads(lambda: squared_lengths(one, other))
