"""TernGrad sends ternary digits of one shared scalar, unbiased for the clipped gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frame import HEADER_BYTES
from gcsim.compressors.quantization.terngrad import (
    TernGrad,
    TernGradParameters,
    add_decoded,
    bound_and_scalar,
    magnitude_and_spread,
)
from gcsim.compressors.requests import AllGather, AllReduce
from gcsim.errors import InputError

BucketOf = Callable[..., Bucket]
Exchange = Callable[..., list[torch.Tensor]]
Draw = Callable[..., torch.Tensor]
Update = Callable[..., torch.Tensor]


def workers(count: int, **parameters: Any) -> list[TernGrad]:
    chosen = TernGradParameters(**parameters)
    return [TernGrad(Worker(rank=rank, count=count, seed=7), chosen) for rank in range(count)]


@pytest.fixture
def alone(bucket_of: BucketOf, exchange: Exchange) -> Update:
    """The update of a single worker: its own decoded message."""

    def update(values: torch.Tensor, step: int = 0, **parameters: Any) -> torch.Tensor:
        return exchange(workers(1, **parameters), [bucket_of(values)], step)[0]

    return update


def clipped(values: torch.Tensor, clip: float) -> torch.Tensor:
    bound = clip * float(values.double().std(correction=0))
    return values.clamp(-bound, bound)


@pytest.mark.parametrize("packing", ["base3", "two_bit"])
@pytest.mark.parametrize("clip", [2.5, None])
def test_an_element_is_the_scalar_its_negative_or_zero(
    packing: str, clip: float | None, alone: Update, normal: Draw
) -> None:
    values = normal(1001)
    update = alone(values, clip=clip, packing=packing)
    scalar = float((values if clip is None else clipped(values, clip)).abs().max())
    assert set(np.round(update.numpy() / scalar, 5).tolist()) == {-1.0, 0.0, 1.0}
    assert bool((update * values >= 0).all())


@pytest.mark.parametrize("clip", [2.5, None])
def test_the_mean_is_the_clipped_vector_and_the_variance_is_the_formula(
    clip: float | None, alone: Update, normal: Draw
) -> None:
    values, draws = normal(1500, seed=2), 400
    target = (values if clip is None else clipped(values, clip)).double()
    updates = torch.stack([alone(values, step, clip=clip) for step in range(draws)]).double()
    scalar = target.abs().max()
    variance = float((target.abs() * (scalar - target.abs())).sum())  # sum |v| (s - |v|)
    error = updates - target
    # A sum of 1500 nearly independent terms, each with a relative deviation of about sqrt(2):
    # its own is 3.7 %; a bias would add its square.
    assert float(error.mean(0).square().sum()) == pytest.approx(variance / draws, rel=0.2)
    assert float(error.square().sum(1).mean()) == pytest.approx(variance, rel=0.02)


def test_the_error_of_gaussian_gradients_is_known(alone: Update, normal: Draw) -> None:
    # c = 2.5: 1.01 |g|^2 (clipping bias included); unclipped: (s E|v| - E v^2) / E v^2, 2.76 when
    # the largest of 10^6 values is 4.71, its most likely value being sqrt(2 ln(2 n)) ~ 4.9.
    values = normal(1_000_000, seed=1)
    energy = float(values.double().square().sum())
    error = float((alone(values) - values).double().square().sum()) / energy
    assert error == pytest.approx(1.01, abs=0.01)
    error = float((alone(values, clip=None) - values).double().square().sum()) / energy
    largest = float(values.abs().max())
    assert error == pytest.approx(largest * math.sqrt(2 / math.pi) - 1, rel=0.01)
    assert error == pytest.approx(2.76, abs=0.35)


def test_the_scalar_is_the_largest_over_workers_of_each_tensor(
    bucket_of: BucketOf, exchange: Exchange
) -> None:
    group = workers(2, clip=None)
    first = bucket_of(torch.tensor([1.0, -3.0]), torch.tensor([0.5]))
    second = bucket_of(torch.tensor([2.0, -1.0]), torch.tensor([4.0]))
    generator = group[0].exchange(first, 0)
    request = next(generator)
    assert isinstance(request, AllReduce)
    assert (request.op, request.tensor.tolist()) == ("max", [3.0, 0.5])
    assert isinstance(generator.send(torch.tensor([3.0, 4.0])), AllGather)
    updates = exchange(workers(2, clip=None), (first, second), 1)
    assert torch.equal(updates[0], updates[1])
    # The element that is the scalar is certain; with two workers, digits count half of it.
    assert updates[0][1] in (-1.5, -3.0)
    assert updates[0][2] in (2.0, 4.0)


@pytest.mark.parametrize("n", [1, 4, 5, 6, 1001])
def test_the_message_has_the_length_of_the_formula(
    n: int, normal: Draw, bucket_of: BucketOf
) -> None:
    for packing, packed in (("base3", math.ceil(n / 5)), ("two_bit", math.ceil(n / 4))):
        (worker,) = workers(1, packing=packing)
        exchange = worker.exchange(bucket_of(normal(n), normal(n)), 0)
        scalars = next(exchange)
        assert isinstance(scalars, AllReduce)
        assert scalars.tensor.nbytes == 2 * 4
        request = exchange.send(scalars.tensor)
        assert isinstance(request, AllGather)
        assert request.payload.numel() == 2 * (HEADER_BYTES + 4 + packed)


def test_clipping_bounds_the_scalar_by_c_population_deviations() -> None:
    values = torch.tensor([0.0] * 99 + [10.0])  # by hand: variance 100 / 100 - 0.1^2 = .99
    bound = pytest.approx(2.5 * math.sqrt(0.99), rel=1e-6)
    assert bound_and_scalar(values, 2.5) == (bound, bound)
    assert bound_and_scalar(values, 20.0) == (pytest.approx(20 * math.sqrt(0.99)), 10.0)
    assert bound_and_scalar(values, None) == (math.inf, 10.0)


@pytest.mark.parametrize("values", [[-0.3], [2.0, 2.0, 2.0], [1e-30, -1e-30]])
def test_a_tensor_without_spread_is_not_clipped_away(values: list[float], alone: Update) -> None:
    vector = torch.tensor(values)
    torch.testing.assert_close(alone(vector), vector, rtol=1e-6, atol=0)


def test_zero_stays_zero_and_extremes_stay_finite(alone: Update) -> None:
    assert not alone(torch.zeros(11)).any()
    assert torch.isfinite(alone(torch.tensor([1e30, 1.0, -2.0]))).all()
    assert torch.isfinite(alone(torch.tensor([1e-45, 0.0, -3e-45]))).all()


def test_all_replicas_are_equal_and_repeatable(
    normal: Draw, bucket_of: BucketOf, exchange: Exchange
) -> None:
    buckets = [bucket_of(normal(333, seed), normal(8, seed + 9)) for seed in range(3)]

    def run(step: int) -> list[torch.Tensor]:
        return exchange(workers(3), buckets, step)

    updates = run(0)
    assert torch.equal(updates[0], updates[1])
    assert torch.equal(updates[0], updates[2])
    assert torch.equal(updates[0], run(0)[0])
    assert not torch.equal(updates[0], run(1)[0])


def test_damage_is_refused(normal: Draw, bucket_of: BucketOf) -> None:
    bucket = bucket_of(normal(10))
    exchange = workers(1, packing="two_bit")[0].exchange(bucket, 0)
    scalars = next(exchange)
    assert isinstance(scalars, AllReduce)
    request = exchange.send(scalars.tensor)
    assert isinstance(request, AllGather)
    for position, value in ((1, 9), (4, 11), (20, 0xFF)):  # packing, length, a code of 3
        damaged = request.payload.clone()
        damaged[position] = value
        with pytest.raises(InputError):
            add_decoded(damaged, bucket.layout, torch.zeros(10), 1.0)


def test_each_worker_clips_to_its_own_bound_even_under_a_larger_shared_scalar(
    bucket_of: BucketOf, exchange: Exchange
) -> None:
    # By hand: the outlier 10 among 99 zeros is clipped to 2.5 sqrt(.99) = 2.487, so under a shared
    # scalar of 10 it is sent with probability .2487; unclipped it would be sent at every step.
    first = bucket_of(torch.tensor([0.0] * 99 + [10.0]))
    second = bucket_of(torch.tensor([10.0, -10.0] * 50))
    sent = 0
    for step in range(200):
        updates = exchange(workers(2), (first, second), step)
        sent += int(updates[0][99]) == 0  # (10 - 10) / 2 when sent, else -5
    assert sent == pytest.approx(200 * 0.2487, abs=5 * math.sqrt(200 * 0.2487 * 0.7513))
