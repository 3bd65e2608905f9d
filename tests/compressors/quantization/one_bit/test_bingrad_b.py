"""BinGrad-b's levels are class means: it keeps every bucket's mean, and errs least for its bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.quantization.one_bit.bingrad_b import BinGradB, BinGradBParameters
from gcsim.compressors.quantization.one_bit.bingrad_pb import BinGradPb, BinGradPbParameters
from tests.compressors.shared import Draw


def cut(values: Tensor, size: int) -> list[Tensor]:
    """The buckets of a vector."""
    return [values[at : at + size] for at in range(0, values.numel(), size)]


def error_of(values: Tensor, **parameters: Any) -> float:
    """The error that the laws state."""
    bound = BinGradB.properties(BinGradBParameters(**parameters)).error_bound
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


def test_updates_follow_the_definition_over_steps_and_workers(team: Any, normal: Draw) -> None:
    crew = team("bingrad_b", [(100,), (33,), (1,)], workers=3, bucket=40)
    for step in range(3):
        gradients = [normal(134, 10 * step + rank) for rank in range(3)]
        expected = torch.zeros(134).double()
        for gradient in gradients:
            parts = gradient[:100], gradient[100:133], gradient[133:]
            expected += torch.cat([decoded(part, 40) for part in parts])
        updates = crew.step(gradients, step)
        assert torch.equal(updates[0], updates[2])
        torch.testing.assert_close(updates[0].double(), expected / 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 7, 64, 512])
def test_the_mean_of_every_bucket_is_kept(size: int, team: Any, normal: Draw) -> None:
    crew = team("bingrad_b", [(1000,)], workers=3, bucket=size)
    gradients = [1 + rank + normal(1000, rank) for rank in range(3)]
    update = crew.step(gradients)[0]
    wanted = torch.stack(gradients).mean(0)
    for now, then in zip(cut(update, size), cut(wanted, size), strict=True):
        assert float(now.mean()) == pytest.approx(float(then.mean()), rel=2e-6)


def test_the_error_on_gaussian_elements(normal: Draw) -> None:
    # 1 - 2 / pi of the energy: half-normal means. A million elements: standard error below .001.
    values = normal(1 << 20)
    energy = float(values.double().square().sum())
    assert error_of(values, bucket=65535) / energy == pytest.approx(1 - 2 / math.pi, abs=0.002)


@pytest.mark.parametrize("parameters", [{}, {"clip": 1.7}])
def test_the_error_is_what_the_laws_say(parameters: dict[str, Any], team: Any) -> None:
    values = heavy_tailed(1000)
    crew = team("bingrad_b", [(1000,)], workers=1, bucket=128, **parameters)
    error = float((crew.step([values])[0] - values).double().square().sum())
    properties = BinGradB.properties(BinGradBParameters(bucket=128, **parameters))
    assert properties.error_bound is not None
    assert error == pytest.approx(properties.error_bound(values), rel=1e-5)
    assert error <= float((values - values.mean()).double().square().sum())  # the variance


def test_clipping_comes_before_everything_else(team: Any) -> None:
    # Clipped by numpy, bucket by bucket, the same gradients give the same update without `clip`.
    gradients = [heavy_tailed(100, rank) for rank in range(2)]
    cuts = []
    for gradient in gradients:
        parts = [bucket.double().numpy() for bucket in cut(gradient, 40)]
        bounds = [float(np.float32(2.5 * part.std())) for part in parts]
        clipped = [part.clip(-b, b) for part, b in zip(parts, bounds, strict=True)]
        cuts.append(torch.from_numpy(np.concatenate(clipped)).float())
    assert not torch.equal(cuts[0], gradients[0])
    found = team("bingrad_b", [(100,)], clip=2.5, bucket=40).step(gradients)[0]
    expected = team("bingrad_b", [(100,)], bucket=40).step(cuts)[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [128, 512, 2048, 8192, 32768])
def test_the_error_is_below_bingrad_pbs(size: int) -> None:
    values = heavy_tailed(1 << 16)
    theirs = BinGradPb.properties(BinGradPbParameters(bucket=size, clip=None)).error_bound
    assert theirs is not None
    assert error_of(values, bucket=size) < theirs(values)


@pytest.mark.parametrize(("n", "size"), [(0, 8), (1, 8), (8, 8), (9, 8), (1000, 512), (5000, 2048)])
def test_a_message_has_one_bit_an_element_and_two_levels_a_bucket(
    n: int, size: int, team: Any, normal: Draw
) -> None:
    crew = team("bingrad_b", [(n,), (3,)], workers=1, bucket=size)
    crew.step([normal(n + 3)])
    expected = HEADER_BYTES + 8 * -(-n // size) + -(-n // 8) + HEADER_BYTES + 8 * -(-3 // size) + 1
    assert crew.sent == [(expected,)]


def test_buckets_of_equal_elements_are_exact(team: Any) -> None:
    for value in (0.1, -3e4, 0.0, 1e-44):
        crew = team("bingrad_b", [(100,)], workers=1, bucket=33)
        (update,) = crew.step([torch.full((100,), value)])
        assert torch.equal(update, torch.full((100,), value))
