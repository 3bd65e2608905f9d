"""The k largest are exactly the k largest, whichever way they are found."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.selecting.largest import largest, largest_of
from gcsim.compressors.coding.selecting.marks import BLOCK, at_least, mark, passing, take
from gcsim.compressors.coding.selecting.selection import count_kept, kth_magnitude
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError, InternalError
from tests.compressors.shared import normal


def alone(values: Tensor) -> Segments:
    """The table of one tensor."""
    return Segments.alone(values.numel())


def add_and_take(memory: Tensor, gradient: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """memory += gradient, of which the k largest are taken out."""
    return largest(gradient, alone(memory), np.array([k]), memory=memory)


def kth(values: Tensor, k: int) -> float:
    """The k-th largest magnitude of one tensor."""
    return float(kth_magnitude(values, alone(values), np.array([k]))[0])


def by_sorting(values: list[float], k: int) -> list[int]:
    """The definition: by falling magnitude, then by rising index."""
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    return sorted(order[:k])


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 1e-42, -3e38, float("-inf")])), st.data()
)
def test_ties_go_to_the_lowest_index(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values)))
    single = torch.tensor(values, dtype=torch.float32)
    assert largest_of(single, k).tolist() == by_sorting(single.tolist(), k)


def test_an_impossible_k_is_our_bug() -> None:
    for select in (largest_of, kth):
        with pytest.raises(InternalError, match="cannot select"):
            select(torch.ones(3), 4)


@given(st.lists(st.floats(-4, 4, width=32)), st.floats(0, 4, width=32))
def test_threshold_selection_is_the_definition(values: list[float], threshold: float) -> None:
    expected = [i for i, value in enumerate(values) if abs(value) >= threshold]
    assert at_least(torch.tensor(values), threshold)[0].tolist() == expected


def test_k_is_at_least_one_and_rounds() -> None:
    assert [count_kept(n, 0.01) for n in (0, 1, 49, 151, 1000)] == [0, 1, 1, 2, 10]
    assert count_kept(3, 1.0) == 3


# --- marks: one pass, then what was found -----------------------------------------------------

LENGTHS = [0, 1, 7, 8, 9, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 150_000]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("up", [0.0, 0.3, 1.2, 2.5, 4.0, float("inf")])
def test_what_is_marked_is_what_reaches_the_limit(n: int, up: float) -> None:
    # the densities run from all over one in eight (a block's notes overflow) to none
    values = normal(n, n)
    outside: Tensor = (values.abs() >= up).nonzero().view(-1)
    marks = mark(values, alone(values), up)
    assert marks.passed.tolist() == [outside.numel()]
    indices, found = take(values, alone(values), marks)
    assert torch.equal(indices, outside)
    assert torch.equal(found, values[outside])
    memory, rest = 0.5 * values, 0.5 * values  # marked while they are added up, and taken out
    indices, found, _ = passing(rest, alone(memory), up, memory=memory)
    assert torch.equal(indices, outside)
    assert torch.equal(found, values[outside])
    assert torch.equal(memory, torch.where(values.abs() >= up, 0.0, values))


def test_a_full_block_between_empty_ones_is_found() -> None:
    values = torch.zeros(5 * BLOCK + 3)
    values[2 * BLOCK : 3 * BLOCK] = -1.0
    values[-1] = 1.0
    indices, _, _ = passing(values, alone(values), 0.5)
    assert indices.tolist() == [*range(2 * BLOCK, 3 * BLOCK), 5 * BLOCK + 2]


# --- the k largest in every corner ------------------------------------------------------------


def ranked(values: Tensor, k: int) -> Tensor:
    """Indices by a stable sort: ties to the lowest index."""
    order = np.argsort(-np.abs(values.numpy()), kind="stable")[:k]
    return torch.from_numpy(np.sort(order))


@pytest.mark.parametrize("k", [1, 20, 777, 40_000, 70_000, 139_999, 140_000])
@pytest.mark.parametrize("kind", ["normal", "equal", "two", "zeros", "spikes", "sorted"])
def test_the_k_largest_for_any_share_and_any_ties(kind: str, k: int) -> None:
    n = 140_000
    z = normal(n, 5)
    values = {
        "normal": z,
        "equal": torch.full((n,), -2.0),
        "two": torch.where(z > 0, 1.0, -2.0),
        "zeros": torch.where(z > 2, z, 0.0),
        "spikes": torch.where(torch.arange(n) % 255 == 0, 100.0, 1.0),  # only these are sampled
        "sorted": torch.arange(n) * 1e-3,
    }[kind]
    expected = ranked(values, k)
    assert torch.equal(largest_of(values, k), expected)
    half, rest = values * 0.5, values * 0.5
    indices, taken = add_and_take(half, rest, k)
    assert torch.equal(indices, expected)
    assert torch.equal(taken, values[expected])
    left = values.clone()
    left[expected] = 0
    assert torch.equal(half, left)
    assert kth(values, k) == float(values[expected].abs().min())


def test_marks_that_hold_too_few_are_not_believed() -> None:
    values = normal(50_000, 6)
    expected = ranked(values, 500)
    for up in (10.0, 3.0, 0.0):  # none, too few, far too many
        indices, taken = largest(
            values, alone(values), np.array([500]), marks=mark(values, alone(values), up)
        )
        assert torch.equal(indices, expected)
        assert torch.equal(taken, values[expected])


@pytest.mark.parametrize("n", [3, 100_000])
def test_not_a_number_is_refused_wherever_it_is_taken(n: int) -> None:
    values = torch.linspace(1, 2, n)
    values[n // 2] = float("nan")
    for select in (
        lambda: passing(values, alone(values), 5.0),
        lambda: largest_of(values, n // 3),
        lambda: add_and_take(values.clone(), torch.zeros(n), n),
        lambda: at_least(values, 1.5),
    ):
        with pytest.raises(InputError, match="not a number"):
            select()
