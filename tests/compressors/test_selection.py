"""The k largest are exactly the k largest, whichever way they are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.selection import (
    _largest_on_device,
    at_least,
    count_kept,
    largest,
    scatter_add,
)
from gcsim.errors import InputError, InternalError


def by_sorting(values: list[float], k: int) -> list[int]:
    """The definition: by falling magnitude, then by rising index."""
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    return sorted(order[:k])


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 1e-42, -3e38])), st.data())
def test_ties_go_to_the_lowest_index(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values)))
    single = torch.tensor(values, dtype=torch.float32)
    assert largest(single, k).tolist() == by_sorting(single.tolist(), k)
    if k:  # what runs on an accelerator
        assert _largest_on_device(single, k).tolist() == by_sorting(single.tolist(), k)


def test_the_sampled_shortcut_selects_what_a_full_sort_selects(
    normal: Callable[..., Tensor],
) -> None:
    values = normal((1 << 20) + 3, 1)
    k = 12_345
    order = np.argsort(-np.abs(values.numpy()), kind="stable")[:k]
    assert np.array_equal(largest(values, k).numpy(), np.sort(order))


def test_a_sample_that_misleads_costs_time_but_not_exactness() -> None:
    # Every 255th element is huge, and they are the sample: its threshold passes too few.
    values = torch.linspace(1.0, 2.0, (1 << 20) + 255)
    values[::255] = 100.0
    k = 50_000
    order = np.argsort(-values.numpy(), kind="stable")[:k]
    assert np.array_equal(largest(values, k).numpy(), np.sort(order))


def test_equal_magnitudes_everywhere_select_the_first_k() -> None:
    values = torch.ones((1 << 20) + 7)
    assert largest(values, 10_000).tolist() == list(range(10_000))


def test_not_a_number_is_named_instead_of_selected() -> None:
    with pytest.raises(InputError, match="not a number"):
        largest(torch.tensor([1.0, float("nan"), 2.0]), 1)


def test_an_impossible_k_is_our_bug() -> None:
    with pytest.raises(InternalError, match="4 of 3"):
        largest(torch.ones(3), 4)


@given(st.lists(st.floats(-4, 4, width=32)), st.floats(0, 4, width=32))
def test_threshold_selection_is_the_definition(values: list[float], threshold: float) -> None:
    expected = [i for i, value in enumerate(values) if abs(value) >= threshold]
    assert at_least(torch.tensor(values), threshold).tolist() == expected


def test_k_is_at_least_one_and_rounds() -> None:
    assert [count_kept(n, 0.01) for n in (0, 1, 49, 151, 1000)] == [0, 1, 1, 2, 10]
    assert count_kept(3, 1.0) == 3


def test_scatter_add_adds_where_it_is_told() -> None:
    update = torch.ones(4)
    scatter_add(update, torch.tensor([0, 3]), torch.tensor([0.5, -1.0]))
    assert update.tolist() == [1.5, 1.0, 1.0, 0.0]
