"""Scaled sign has exactly the error of its formula; EF-signSGD makes up for what it loses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.base import CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.meter import Meter
from gcsim.compressors.quantization.one_bit.scaled_sign import (
    EfSignSgd,
    ScaledSign,
    add_decoded,
    encode,
    sign_error,
)
from tests.compressors.shared import Draw, LayoutOf

Exchange = Callable[..., list[torch.Tensor]]
SIZES = (37, 0, 5, 1)
N = sum(SIZES)
BLOCKS = [slice(0, 37), slice(37, 42), slice(42, 43)]


def workers(cls: type[ScaledSign], count: int) -> list[ScaledSign]:
    chosen = CompressorParameters()
    return [cls(Worker(rank=rank, count=count, seed=7), chosen) for rank in range(count)]


def coded(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Mean magnitude times sign (of zero: +), tensor by tensor."""
    out = np.empty_like(vector)
    for block in BLOCKS:
        out[block] = np.abs(vector[block]).mean() * np.where(vector[block] < 0, -1.0, 1.0)
    return out


def owing(worker: ScaledSign, bucket: Bucket) -> torch.Tensor:
    residual_of = worker.residual_of(bucket)
    assert residual_of is not None
    return residual_of


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("cls", [ScaledSign, EfSignSgd])
def test_updates_follow_the_algorithm_step_by_step(
    cls: type[ScaledSign], count: int, normal: Draw, layout_of: LayoutOf, step_of: Exchange
) -> None:
    # Independent float64 loop: p = g + e, e = p - Q(p).
    layout, group = layout_of(*SIZES), workers(cls, count)
    remember = cls is EfSignSgd
    errors = np.zeros((count, N))
    for step in range(5):
        gradients = [normal(N, 10 * step + rank) for rank in range(count)]
        mean = np.zeros(N)
        for rank, gradient in enumerate(gradients):
            p = gradient.double().numpy() + errors[rank]
            mean += coded(p) / count
            errors[rank] = (p - coded(p)) * remember
        updates = step_of(group, layout, gradients, step)
        np.testing.assert_allclose(updates[0].numpy(), mean, rtol=2e-4, atol=1e-5)
        assert all(torch.equal(update, updates[0]) for update in updates)


@pytest.mark.parametrize(
    ("sigma", "expected"),
    [
        # z exp(sigma w), z and w N(0, 1): 1 - (E|v|)^2 / E v^2 = 1 - 2 / pi exp(-sigma^2).
        (0.0, 1 - 2 / math.pi),  # .3634
        (0.8, 1 - 2 / math.pi * math.exp(-0.64)),  # .6643
    ],
)
def test_known_distributions_lose_known_parts(sigma: float, expected: float, normal: Draw) -> None:
    values = normal(1_000_000, 1) * (sigma * normal(1_000_000, 2)).exp()
    part = sign_error(values, None) / float(values.double().square().sum())
    assert part == pytest.approx(expected, abs=0.003)


def test_a_worker_that_has_not_begun_owes_nothing(layout_of: LayoutOf) -> None:
    bucket = Bucket(layout=layout_of(*SIZES), gradient=torch.ones(N))
    assert torch.equal(owing(workers(EfSignSgd, 2)[0], bucket), torch.zeros(N))
    assert workers(ScaledSign, 2)[0].residual_of(bucket) is None


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000, 1001])
@pytest.mark.parametrize("cls", [ScaledSign, EfSignSgd])
def test_a_tensor_takes_one_scale_and_one_bit_an_element(
    cls: type[ScaledSign], n: int, normal: Draw, layout_of: LayoutOf, exchange: Exchange
) -> None:
    bucket = Bucket(layout=layout_of(n, 3), gradient=normal(n + 3))
    expected = HEADER_BYTES + (4 if n else 0) + math.ceil(n / 8) + HEADER_BYTES + 4 + 1
    meter = Meter(1)
    exchange(workers(cls, 1), [bucket], 0, meter)
    assert meter.collectives == [CollectiveRecord(kind="all_gather", sent=(expected,))]


def test_decoding_gives_scale_times_sign_exactly(layout_of: LayoutOf) -> None:
    # By hand: (1 + 3 + 0 + 4) / 4 = 2, and zero of either sign is positive.
    values = torch.tensor([1.0, -3.0, -0.0, 4.0])
    out = torch.full((4,), torch.nan)
    add_decoded(encode(values, layout_of(4)), layout_of(4), out, 1.0, overwrite=True)
    assert out.tolist() == [2.0, -2.0, 2.0, 2.0]


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 3e4, 1e30])
@pytest.mark.parametrize("cls", [ScaledSign, EfSignSgd])
def test_extremes_stay_finite(
    cls: type[ScaledSign], scale: float, normal: Draw, layout_of: LayoutOf, step_of: Exchange
) -> None:
    group, layout = workers(cls, 3), layout_of(64)
    for step in range(4):
        gradients = [normal(64, rank) * scale for rank in range(3)]
        assert step_of(group, layout, gradients, step)[0].isfinite().all()
