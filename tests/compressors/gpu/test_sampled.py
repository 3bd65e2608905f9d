"""What random draws take, on kernels: the same positions, probabilities and weights afterwards."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.selecting import sampling, subsets
from gcsim.compressors.random import stream
from gcsim.compressors.sparsification.by_chance import tk_ccd, variance_bounded
from tests.compressors.gpu.conftest import demand_same, equal, kernels
from tests.compressors.gpu.examples import EXACT, KEYS, SEEDS, few, vector


@few
@given(
    n=st.sampled_from((1, 8, 1000, 4100)), share=st.sampled_from((0.0, 0.01, 0.5, 0.9, 1.0)),
    seed=SEEDS,
)  # fmt: skip
def test_a_random_subset(n: int, share: float, seed: int) -> None:
    k = round(share * n)
    found = demand_same(
        lambda like: subsets.distinct_positions(like, stream(seed, 0, 0, "test"), n, k),
        torch.zeros(0),
    )
    assert found.numel() == k


def test_a_subset_of_several_segments() -> None:
    n = 2 * subsets.SEGMENT + 77
    demand_same(
        lambda like: subsets.distinct_positions(like, stream(1, 0, 0, "test"), n, 50),
        torch.zeros(0),
    )


def drawn(
    values: Tensor, scale: float, key: np.uint64, factor: float, chances: bool
) -> tuple[object, ...]:
    weights = sampling.Weights(values.clone())
    sums, prior = weights.sums.clone(), torch.linspace(0.5, 1, values.numel())
    saturated = sampling.saturation(weights, scale)
    found = sampling.draw(
        weights, scale, key, expected=5, factor=factor, prior=prior, chances=chances
    )
    return sums, saturated, found, weights.values, weights.sums, prior


@few
@given(
    values=EXACT, key=KEYS, scale=st.sampled_from((0.0, 0.01, 0.2, 2.0)),
    factor=st.sampled_from((0.9, 1.0)), chances=st.booleans(),
)  # fmt: skip
def test_independent_draws(
    values: Tensor, key: np.uint64, scale: float, factor: float, chances: bool
) -> None:
    """Of whole numbers, whose sums are exact in any order."""
    expected = drawn(values, scale, key, factor, chances)
    with kernels():
        assert equal(drawn(values, scale, key, factor, chances), expected)


def test_draws_of_other_weights_do_not_hang_on_the_order_of_sums() -> None:
    """A sum of 16 only bounds what is looked at: 2^-40 of it is more than its rounding."""
    values = vector(5000, "normal", 3).abs_()
    expected = drawn(values, 0.03, np.uint64(7), 1.0, True)
    with kernels():
        assert equal(drawn(values, 0.03, np.uint64(7), 1.0, True)[2], expected[2])


def test_certain_elements_are_split_off() -> None:
    values = vector(300, "normal", 4)
    demand_same(variance_bounded.split_certain, values, torch.arange(0, 300, 3), 0.8)


@few
@given(
    n=st.sampled_from((0, 1, 8, 1000, 4100)), groups=st.sampled_from((2, 9, 100)), key=KEYS,
    share=st.sampled_from((0.0, 0.3, 0.9)), seed=SEEDS,
)  # fmt: skip
def test_groups_in_turn(n: int, groups: int, key: np.uint64, share: float, seed: int) -> None:
    always = torch.from_numpy(np.flatnonzero(np.random.default_rng(seed).random(n) < share))
    dealt = demand_same(tk_ccd.deal, always, n - len(always), groups, key)
    for group in (0, groups - 1):
        demand_same(tk_ccd.group_positions, dealt, always, group)


def test_more_groups_than_an_int16_counts() -> None:
    dealt = torch.tensor([[1, 40_000, 0]], dtype=torch.uint16).expand(1, 3)
    dealt = torch.cat((dealt, dealt), 1).view(1, 6)
    demand_same(tk_ccd.group_positions, dealt, torch.tensor([1, 5]), 1)
