"""BinGrad-pb's two levels solve the paper's equation, and all between them stays unbiased."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.coding.one_bit.binary import optimal_bounds
from gcsim.compressors.quantization.one_bit.bingrad_pb import BinGradPb, BinGradPbParameters
from gcsim.compressors.random import random_key
from tests.compressors.shared import Draw, cells_of, packed_by

WIDE = 65535


def cut(values: Tensor, size: int) -> list[Tensor]:
    """The buckets of a vector."""
    return [values[at : at + size] for at in range(0, values.numel(), size)]


def bounds_of(values: Tensor, size: int) -> Tensor:
    return optimal_bounds(values, cells_of(values, size))


def naive_bound(values: Tensor) -> float:
    """Where b D crosses the sum of |v| >= b: by sorting, in float64."""
    magnitudes: list[float] = values.double().abs().sort(descending=True).values.tolist()
    count, total = len(magnitudes), 0.0
    for k, largest in enumerate(magnitudes):
        # b in (magnitude k, magnitude k - 1]: k elements reach it, their sum is `total`
        if total / count > largest:
            return min(total / count, magnitudes[k - 1])
        total += largest
    return min(total / count, magnitudes[-1])


@pytest.mark.parametrize("size", [1, 2, 10, 1000, 10_000])
def test_the_bound_is_the_one_of_the_naive_search(size: int, normal: Draw) -> None:
    for seed in range(5):
        values = normal(size, seed) * normal(size, 99 + seed).exp()
        (found,) = bounds_of(values, size).tolist()
        assert found == pytest.approx(naive_bound(values), rel=2e-6)


def test_bounds_by_hand() -> None:
    # Three of 1 and one of 5: b = 1 is where 4 b meets 8 above (b <= 1) and 5 beyond.
    # At b = 1 the sum is 8 > 4, just beyond it 5 > 4 b until b = 1.25.
    assert bounds_of(torch.tensor([1.0, -1, 1, 5]), 4).tolist() == pytest.approx([1.25])
    # Equal magnitudes: the sum jumps from 4 b to 0 at b.
    assert bounds_of(torch.tensor([2.0, -2, 2, -2]), 4).tolist() == pytest.approx([2.0])
    assert bounds_of(torch.zeros(5), 5).tolist() == [0.0]


@pytest.mark.parametrize(
    ("name", "expected"), [("normal", 0.64714), ("laplace", 0.80647), ("uniform", 0.41421)]
)
def test_the_bound_of_known_distributions(name: str, expected: float) -> None:
    # Roots of b F(0) = E[v; v >= b]: phi(b) = b / 2 for N(0, 1), exp(-b) (1 + b) = b for
    # Laplace(1), sqrt(2) - 1 for U(-1, 1). 16 buckets of 65535: standard error below .001.
    n, generator = 16 * WIDE, torch.Generator().manual_seed(0)
    values = {
        "normal": torch.randn(n, generator=generator),
        "laplace": torch.empty(n).exponential_(generator=generator),
        "uniform": torch.rand(n, generator=generator) * 2 - 1,
    }[name]
    assert float(bounds_of(values, WIDE).mean()) == pytest.approx(expected, abs=0.003)


def test_the_error_on_gaussian_elements(normal: Draw) -> None:
    # .4542 of the energy at b = .64714, by integration of the paper's cost.
    values = normal(8 * WIDE)
    bound = BinGradPb.properties(BinGradPbParameters(bucket=WIDE, clip=None)).error_bound
    assert bound is not None
    energy = float(values.double().square().sum())
    assert bound(values) / energy == pytest.approx(0.4542, abs=0.002)


def test_no_other_bound_costs_less(normal: Draw) -> None:
    values = normal(5000) * normal(5000, 1).exp()
    (best,) = bounds_of(values, 5000).tolist()

    def cost(b: float) -> float:
        inside = values.abs() <= b
        square = values.double().square()
        return float(torch.where(inside, b * b - square, (values.abs() - b).double() ** 2).sum())

    assert all(cost(best) <= cost(best * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_updates_follow_the_definition_over_steps_and_workers(team: Any, normal: Draw) -> None:
    # Bounds by the naive search, bits by `put_bits` (tested on its own).
    sizes, size, seed = (70, 9, 1), 32, 7
    crew = team("bingrad_pb", [(n,) for n in sizes], workers=2, bucket=size, seed=seed)
    for step in range(3):
        gradients = [normal(80, 10 * step + rank) for rank in range(2)]
        expected = torch.zeros(80)
        for rank, gradient in enumerate(gradients):
            at = 0
            for tensor, n in enumerate(sizes):
                values = gradient[at : at + n]
                bounds = torch.tensor([naive_bound(bucket) for bucket in cut(values, size)])
                keys = np.array([random_key(seed, step, tensor, "bingrad_pb rounding", rank)])
                packed = packed_by(values, size, bounds_of(values, size), keys=keys)
                for i in range(n):
                    sign = 1 if int(packed[i // 8]) >> i % 8 & 1 else -1
                    expected[at + i] += sign * bounds[i // size] / 2
                at += n
        updates = crew.step(gradients, step)
        assert torch.equal(updates[0], updates[1])
        torch.testing.assert_close(updates[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.8])
def test_elements_inside_are_unbiased_and_outside_saturate(
    clip: float | None, team: Any, normal: Draw
) -> None:
    # 1500 steps: means within five standard errors, mean square error within 3 %.
    values, draws = normal(150), 1500
    crew = team("bingrad_pb", [(150,)], workers=1, bucket=64, clip=clip)
    updates = torch.stack([crew.step([values], t)[0] for t in range(draws)]).double()
    given = values
    if clip:  # to standard deviations of the bucket, by torch
        limits = [clip * float(bucket.double().std(correction=0)) for bucket in cut(values, 64)]
        limit = torch.tensor(limits)[torch.arange(150) // 64]
        given = values.maximum(-limit).minimum(limit)
    bounds = bounds_of(given, 64)[torch.arange(150) // 64]
    wanted = given.maximum(-bounds).minimum(bounds)
    assert float((updates.mean(0) - wanted).abs().max()) < 5 * float(bounds.max()) / draws**0.5
    torch.testing.assert_close(updates[0].float().abs(), bounds)
    bound = BinGradPb.properties(BinGradPbParameters(bucket=64, clip=clip)).error_bound
    assert bound is not None
    error = float((updates - values).square().sum(1).mean())
    assert error == pytest.approx(bound(values), rel=0.03)


@pytest.mark.parametrize(("n", "size"), [(0, 8), (1, 8), (9, 8), (5000, 2048)])
def test_a_message_has_one_bit_an_element_and_a_level_a_bucket(
    n: int, size: int, team: Any, normal: Draw
) -> None:
    crew = team("bingrad_pb", [(n,)], workers=1, bucket=size)
    crew.step([normal(n)])
    assert crew.sent == [(HEADER_BYTES + 4 * -(-n // size) + -(-n // 8),)]
