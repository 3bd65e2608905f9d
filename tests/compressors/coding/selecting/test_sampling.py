"""Random draws: exact probabilities, independent of threads, and cheap."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.selecting.sampling import BLOCK, Weights, block_sums, draw_poisson
from gcsim.compressors.coding.selecting.scales import saturation
from gcsim.compressors.meter import segment
from gcsim.compressors.random import random_key
from gcsim.compressors.segments import Segments
from tests.compressors.shared import normal


def alone(values: Tensor) -> Weights:
    return Weights.of(values, Segments.alone(values.numel()))


def draw(weights: Weights, scale: float, key: np.uint64, **options: Any) -> tuple[Tensor, Tensor]:
    scales = torch.tensor([scale], dtype=torch.float64)
    given = weights.values, weights.sums, weights.segments, scales
    return draw_poisson(*given, np.array([key]), **{"expected": np.array([1]), **options})[:2]


def drawn(weights: Tensor, scale: float, seed: int) -> Tensor:
    return draw(alone(weights), scale, random_key(seed, 0, 0, "test"))[0]


def frequencies(weights: Tensor, scale: float, draws: int) -> Tensor:
    counts = torch.zeros(weights.numel(), dtype=torch.float64)
    for seed in range(draws):
        counts[drawn(weights, scale, seed)] += 1
    return counts


# --- independent draws ------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("density", [0.01, 0.3, 0.9])
def test_each_element_is_drawn_with_its_probability(spread: float, density: float) -> None:
    # Light and heavy blocks, certain elements, a short last block. Each count is binomial(T, p);
    # the standardised squares add up to about n (chi-square): beyond 5 sd once in 3 million.
    n, draws = 500, 800
    weights = (spread * normal(n, 3)).exp()
    scale = density * n / float(weights.double().sum())
    p = (weights.double() * scale).clamp(max=1.0)
    counts = frequencies(weights, scale, draws)
    assert bool((counts[p == 1.0] == draws).all())
    variance = draws * p * (1 - p)
    several = variance > 5  # where a binomial is near a Gaussian
    squares = ((counts - draws * p).square() / variance)[several]
    freedom = int(several.sum())
    if freedom:
        assert float(squares.sum()) == pytest.approx(freedom, abs=5 * (2.5 * freedom) ** 0.5)
    total = float(counts.sum())
    assert total == pytest.approx(draws * float(p.sum()), abs=5 * float(variance.sum()) ** 0.5)


def test_draws_of_one_block_are_independent() -> None:
    # All 2^4 outcomes of p = (.5, .2, .7, .4) against the products; chi-square with 15 degrees of
    # freedom exceeds 44.3 with probability 1e-4.
    p = torch.tensor([0.5, 0.2, 0.7, 0.4])
    draws = 10_000
    seen = Counter(tuple(drawn(p, 1.0, seed).tolist()) for seed in range(draws))
    statistic = 0.0
    for chosen in itertools.product([0, 1], repeat=4):
        expected = draws * float(torch.where(torch.tensor(chosen) == 1, p, 1 - p).prod())
        found = seen[tuple(i for i in range(4) if chosen[i])]
        statistic += (found - expected) ** 2 / expected
    assert statistic < 44.3


def test_light_blocks_are_independent_of_each_other_and_within() -> None:
    # Pairs of p = .05 in the same block and in neighbouring blocks: both with probability .0025.
    n, draws = 32, 10_000
    together = torch.zeros(n, n, dtype=torch.float64)
    for seed in range(draws):
        hit = torch.zeros(n, dtype=torch.float64)
        hit[drawn(torch.ones(n), 0.05, seed)] = 1.0
        together += hit[:, None] * hit
    pairs = together[torch.triu(torch.ones(n, n), 1) == 1]
    variance = draws * 0.0025 * (1 - 0.0025)
    assert float((pairs - draws * 0.0025).abs().max()) < 5.2 * variance**0.5  # 496 pairs: 1e-4
    assert float(pairs.mean()) == pytest.approx(draws * 0.0025, rel=0.05)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 65_535, 65_536, 65_537])
def test_certain_elements_are_always_drawn_and_zeros_never(n: int) -> None:
    weights = torch.zeros(n)
    weights[::3] = 7.0
    assert drawn(weights, 1.0, 0).tolist() == list(range(0, n, 3))
    assert drawn(weights, 0.0, 0).numel() == 0
    assert drawn(-weights, 1e300, 1).tolist() == list(range(0, n, 3))


def test_drawn_elements_and_their_blocks_are_lowered() -> None:
    values = normal(5000, 2).square()
    weights, prior = alone(values.clone()), torch.full((5000,), 2.0)
    positions, chances = draw(
        weights, 0.2, random_key(1, 1, 1, "x"), factor=0.25, prior=prior, chances=True
    )
    factor = torch.ones(5000)
    factor[positions] = 0.25
    assert torch.equal(weights.values, values * factor)
    assert torch.equal(prior, 2 * factor)
    torch.testing.assert_close(
        weights.sums, block_sums(weights.values, weights.segments)[1], rtol=1e-14, atol=0
    )
    torch.testing.assert_close(chances, (values[positions] * 0.2).clamp(max=1.0))


def test_what_would_fall_below_the_least_float_stays() -> None:
    weights, prior = alone(torch.full((3,), 1.5e-30)), torch.full((3,), 1.0)
    draw(weights, 1e30, random_key(0, 0, 0, "x"), factor=0.5, prior=prior)
    assert weights.values.tolist() == pytest.approx([1.5e-30] * 3)
    assert prior.tolist() == [0.5] * 3


@given(st.integers(0, 100), st.floats(0.01, 100))
def test_block_sums_and_saturation_are_those_of_a_naive_loop(n: int, scale: float) -> None:
    values = torch.linspace(-1.0, 0.5, n)
    sizes = values.double().abs()
    sums = [float(sizes[at : at + BLOCK].sum()) for at in range(0, n, BLOCK)]
    weights = alone(values)
    assert weights.sums.tolist() == pytest.approx(sums)
    over = sizes * scale >= 1.0
    expected = (int(over.sum()), float(sizes[~over].sum()), float(sizes[over].square().sum()))
    given = weights.values, weights.sums, weights.segments
    assert saturation(*given, np.array([scale]))[:, 0].tolist() == pytest.approx(expected)


def test_a_draw_costs_a_sixteenth_of_the_elements_in_random_numbers() -> None:
    n = 160_000
    weights = alone(normal(n).abs())
    with segment() as recorder:
        positions, _ = draw(weights, 0.01, random_key(0, 0, 0, "x"), expected=np.array([1000]))
    drew = [cost for cost in recorder.costs() if cost.kind == "random"]
    read = 8 * n // 16 + 4 * 16 * 1000  # block sums and the blocks of elements drawn
    written = 8 * positions.numel()
    assert sum(cost.nbytes for cost in drew) == read + written + 8 * (n // 16 + positions.numel())
