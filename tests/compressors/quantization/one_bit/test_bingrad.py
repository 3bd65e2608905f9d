"""BinGrad-b's levels are class means, which keep every bucket's mean and err least for its bits;
BinGrad-pb's two levels solve the paper's equation, and all between them stays unbiased."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.coding.one_bit.binary import optimal_bounds
from gcsim.compressors.quantization.one_bit.bingrad import BinGradB, BinGradParameters, BinGradPb
from gcsim.compressors.random import random_key
from tests.compressors.shared import Team, cells_of, normal, packed_by

WIDE = 65535


def cut(values: Tensor, size: int) -> list[Tensor]:
    """The buckets of a vector."""
    return [values[at : at + size] for at in range(0, values.numel(), size)]


def error_of(values: Tensor, method: type[BinGradB] = BinGradB, **parameters: Any) -> float:
    """The error that the laws state."""
    bound = method.properties(BinGradParameters(**parameters)).error_bound
    assert bound is not None
    return bound(values)


def means(part: np.ndarray[Any, Any], threshold: float) -> tuple[float, float]:
    """Class means; an empty class's is the threshold."""
    low, high = part[part < threshold], part[part >= threshold]
    return (
        float(low.mean()) if low.size else threshold,
        float(high.mean()) if high.size else threshold,
    )


def decoded(values: Tensor, size: int) -> Tensor:
    """The naive coder, bucket by bucket in float64, the threshold rounded to float32."""
    parts = []
    for bucket in cut(values.double(), size):
        threshold = float(np.float32(bucket.numpy().mean()))
        low, high = means(bucket.numpy(), threshold)
        parts.append(low + (high - low) * (bucket >= threshold).double())
    return torch.cat(parts)


def heavy_tailed(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(n, generator=generator).exp_()
    return torch.randn(n, generator=generator).mul_(spread)


def test_updates_follow_the_definition_over_steps_and_workers() -> None:
    crew = Team("bingrad_b", [(100,), (33,), (1,)], workers=3, bucket=40)
    for step in range(3):
        gradients = [normal(134, 10 * step + rank) for rank in range(3)]
        expected = torch.zeros(134).double()
        for gradient in gradients:
            parts = gradient[:100], gradient[100:133], gradient[133:]
            expected += torch.cat([decoded(part, 40) for part in parts])
        updates = crew.step(gradients, step)
        assert torch.equal(updates[0], updates[2])
        torch.testing.assert_close(updates[0].double(), expected / 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("method", "expected"), [(BinGradB, 1 - 2 / math.pi), (BinGradPb, 0.4542)])
def test_the_error_on_gaussian_elements(method: type[BinGradB], expected: float) -> None:
    # BinGrad-b: half-normal means. BinGrad-pb: at b = .64714, by integration of the paper's cost.
    # A million elements: standard error below .001.
    values = normal(1 << 20)
    energy = float(values.double().square().sum())
    assert error_of(values, method, bucket=WIDE) / energy == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize("parameters", [{}, {"clip": 1.7}])
def test_the_error_is_what_the_laws_say(parameters: dict[str, Any]) -> None:
    values = heavy_tailed(1000)
    crew = Team("bingrad_b", [(1000,)], workers=1, bucket=128, **parameters)
    error = float((crew.step([values])[0] - values).double().square().sum())
    assert error == pytest.approx(error_of(values, bucket=128, **parameters), rel=1e-5)
    assert error <= float((values - values.mean()).double().square().sum())  # the variance


def test_clipping_comes_before_everything_else() -> None:
    # Clipped by numpy, bucket by bucket, the same gradients give the same update without `clip`.
    gradients = [heavy_tailed(100, rank) for rank in range(2)]
    cuts = []
    for gradient in gradients:
        parts = [bucket.double().numpy() for bucket in cut(gradient, 40)]
        bounds = [float(np.float32(2.5 * part.std())) for part in parts]
        clipped = [part.clip(-b, b) for part, b in zip(parts, bounds, strict=True)]
        cuts.append(torch.from_numpy(np.concatenate(clipped)).float())
    assert not torch.equal(cuts[0], gradients[0])
    found = Team("bingrad_b", [(100,)], clip=2.5, bucket=40).step(gradients)[0]
    expected = Team("bingrad_b", [(100,)], bucket=40).step(cuts)[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("name", "levels"), [("bingrad_b", 2), ("bingrad_pb", 1)])
@pytest.mark.parametrize(("n", "size"), [(0, 8), (1, 8), (8, 8), (9, 8), (1000, 512), (5000, 2048)])
def test_a_message_has_one_bit_an_element_and_levels_a_bucket(
    n: int, size: int, name: str, levels: int
) -> None:
    crew = Team(name, [(n,), (3,)], workers=1, bucket=size)
    crew.step([normal(n + 3)])
    sizes = [HEADER_BYTES + 4 * levels * -(-m // size) + -(-m // 8) for m in (n, 3)]
    assert crew.sent == [(sum(sizes),)]


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
def test_the_bound_is_the_one_of_the_naive_search(size: int) -> None:
    for seed in range(5):
        values = normal(size, seed) * normal(size, 99 + seed).exp()
        (found,) = bounds_of(values, size).tolist()
        assert found == pytest.approx(naive_bound(values), rel=2e-6)


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


def test_no_other_bound_costs_less() -> None:
    values = normal(5000) * normal(5000, 1).exp()
    (best,) = bounds_of(values, 5000).tolist()

    def cost(b: float) -> float:
        inside = values.abs() <= b
        square = values.double().square()
        return float(torch.where(inside, b * b - square, (values.abs() - b).double() ** 2).sum())

    assert all(cost(best) <= cost(best * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_updates_of_bounds_follow_the_definition_over_steps_and_workers() -> None:
    # Bounds by the naive search, bits by `put_bits` (tested on its own).
    sizes, size, seed = (70, 9, 1), 32, 7
    crew = Team("bingrad_pb", [(n,) for n in sizes], workers=2, bucket=size, seed=seed)
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
def test_elements_inside_are_unbiased_and_outside_saturate(clip: float | None) -> None:
    # 1500 steps: means within five standard errors, mean square error within 3 %.
    values, draws = normal(150), 1500
    crew = Team("bingrad_pb", [(150,)], workers=1, bucket=64, clip=clip)
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
    error = float((updates - values).square().sum(1).mean())
    assert error == pytest.approx(error_of(values, BinGradPb, bucket=64, clip=clip), rel=0.03)
