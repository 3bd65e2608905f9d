"""Random draws on kernels: the same positions, probabilities and weights afterwards."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.selecting import sampling, scales, subsets
from gcsim.compressors.coding.selecting.groups import deal, turn
from gcsim.compressors.segments import Segments
from tests.compressors.gpu.conftest import ON_HOST, demand_same, equal, host_copies, kernels
from tests.compressors.gpu.examples import EXACT, KEYS, SEEDS, few, vector


@few
@given(share=st.sampled_from((0.0, 0.01, 0.5, 0.9, 1.0)), seed=SEEDS)
def test_random_subsets_of_a_bucket(share: float, seed: int) -> None:
    segments = Segments.behind([1, 0, 8, 1000, 4100])
    k = np.rint(share * segments.length).astype(np.int64)
    found = demand_same(
        lambda like: subsets.draw_subset(
            like, segments, k, [(seed, 0, t, "test") for t in range(5)]
        ),
        torch.zeros(0),
    )
    assert found.numel() == k.sum()


def test_a_subset_of_several_segments() -> None:
    n = 2 * subsets.SEGMENT + 77
    demand_same(
        lambda like: subsets.draw_subset(
            like, Segments.alone(n), np.array([50]), [(1, 0, 0, "test")]
        ),
        torch.zeros(0),
    )


def drawn(
    values: Tensor, lengths: list[int], scale: float, key: np.uint64, factor: float, chances: bool
) -> tuple[object, ...]:
    """Of tensors of these lengths: sums, moments, scales, draws, and what they leave."""
    weights = sampling.Weights.of(values.clone(), Segments.behind(lengths))
    given = weights.values, weights.sums, weights.segments
    sums, prior = weights.sums.clone(), torch.linspace(0.5, 1, values.numel())
    number = np.arange(len(lengths))
    each = torch.from_numpy(scale * (1.0 + number))
    moments = scales.saturation(*given, each.numpy()).tolist()
    reached = scales.scales_for_count(*given, 0.1 * weights.segments.length.astype(np.float64), 3)
    keys = key + number.astype(np.uint64)
    apart = sampling.draw_poisson(*given, each, keys, expected=number, apart=True)
    found = sampling.draw_poisson(
        *given, each, keys, expected=number, factor=factor,
        prior=prior if factor < 1.0 else None, chances=chances,
    )[:2], apart  # fmt: skip
    lowered = weights.values.clone(), weights.sums.clone()
    sampling.lift(*given, each, 0.3, 1.0)
    exact = scales.exact_scales(torch.cat((each, each * 1e-39, each * 1e300)))
    return sums, (moments, exact), reached, found, lowered, weights.values, weights.sums, prior


@few
@given(
    values=EXACT, other=EXACT, key=KEYS, scale=st.sampled_from((0.0, 0.01, 0.2, 2.0)),
    factor=st.sampled_from((0.9, 1.0)), chances=st.booleans(),
)  # fmt: skip
def test_independent_draws(
    values: Tensor, other: Tensor, key: np.uint64, scale: float, factor: float, chances: bool
) -> None:
    """Of whole numbers, whose sums are exact in any order."""
    lengths = [values.numel(), 0, other.numel()]
    given = torch.cat((values, other)), lengths, scale, key, factor, chances
    expected = drawn(*given)
    with kernels(), host_copies() as seen:
        found = drawn(*given)
    # lowered weights are not whole numbers: sums of them hang on the order
    assert equal(found[:6], expected[:6]) or factor < 1.0
    assert equal(found[:4], expected[:4])
    torch.testing.assert_close(found[4:], expected[4:], rtol=1e-12, atol=0)
    assert max(seen) <= ON_HOST


def test_draws_of_other_weights_do_not_hang_on_the_order_of_sums() -> None:
    """A sum of 16 only bounds what is looked at: 2^-40 of it is more than its rounding."""
    given = vector(5000, "normal", 3).abs_(), [2000, 3000], 0.03, np.uint64(7), 1.0, True
    expected = drawn(*given)
    with kernels():
        assert equal(drawn(*given)[3], expected[3])


@few
@given(
    groups=st.sampled_from((2, 9, 100)), key=KEYS, share=st.sampled_from((0.0, 0.3, 0.9)),
    seed=SEEDS,
)  # fmt: skip
def test_groups_in_turn(groups: int, key: np.uint64, share: float, seed: int) -> None:
    segments = Segments.behind([0, 1, 8, 1000, 4100])
    chosen = np.random.default_rng(seed).random(int(segments.length.sum())) < share
    parts = [np.flatnonzero(own) for own in np.split(chosen, segments.begin[1:])]
    always, count = torch.from_numpy(np.concatenate(parts)), np.array([each.size for each in parts])
    keys = key + np.arange(len(parts), dtype=np.uint64)
    dealt = demand_same(deal, always, segments.length - count, groups, keys)
    for group in (0, groups - 1):
        demand_same(turn, always, dealt, segments, count, group)


def test_more_groups_than_an_int16_counts() -> None:
    dealt = torch.tensor([[1, 40_000, 0]], dtype=torch.uint16).expand(1, 3)
    dealt = torch.cat((dealt, dealt), 1).view(1, 6)
    demand_same(turn, torch.tensor([1, 5]), dealt, Segments.alone(8), np.array([2]), 1)
