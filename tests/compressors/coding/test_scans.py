"""Scans of whole vectors agree with float64 arithmetic, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.scans import all_finite, squared_length


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 4097, 400_000])
def test_the_squared_length_is_that_of_float64(normal: Callable[..., Tensor], n: int) -> None:
    values = 1e-25 * normal(n)  # the squares vanish in float32
    expected = float(values.double().square().sum())
    assert squared_length(values) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("n", [1, 5000, 400_000])
def test_one_value_that_is_not_finite_is_found_anywhere(
    normal: Callable[..., Tensor], n: int, bad: float
) -> None:
    for place in {0, n // 2, n - 1}:
        values = normal(n)
        assert all_finite(values)
        values[place] = bad
        assert not all_finite(values)
    assert all_finite(torch.full((n,), 3.4e38))  # whose sum is not


def test_results_do_not_depend_on_the_threads(normal: Callable[..., Tensor]) -> None:
    values, before = normal(500_000), torch.get_num_threads()
    try:
        found = set()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.add(squared_length(values))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1
