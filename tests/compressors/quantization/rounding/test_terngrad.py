"""TernGrad sends ternary digits of one shared scalar, unbiased for the clipped gradient."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.coding.rounding.norms import clipped_magnitudes
from gcsim.compressors.quantization.rounding import terngrad
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather, AllReduce
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.shared import bucket_of, exchange, members, normal, uniform


def parameters_of(**given: Any) -> terngrad.TernGradParameters:
    return terngrad.TernGradParameters(**given)


workers = partial(members, terngrad.TernGrad)


def bound_and_scalar(
    values: torch.Tensor, clip: float | None, scalar: str = "largest"
) -> tuple[float, float]:
    """Where a tensor alone is clipped, and its scalar."""
    alone = Segments.alone(values.numel())
    bound, most = clipped_magnitudes(values, alone, clip, scalar == "clip")
    return float(bound), float(most)


def clipped(values: torch.Tensor, clip: float) -> torch.Tensor:
    bound = clip * float(values.double().std(correction=0))
    return values.clamp(-bound, bound)


@pytest.mark.parametrize("n", [1, 4, 5, 6, 1001])
def test_the_message_has_the_length_of_the_formula(n: int) -> None:
    for packing, packed in (("base3", math.ceil(n / 5)), ("two_bit", math.ceil(n / 4))):
        (worker,) = workers(1, packing=packing)
        exchange = worker.exchange(bucket_of(normal(n), normal(n)), 0)
        scalars = next(exchange)
        assert isinstance(scalars, AllReduce)
        assert scalars.tensor.nbytes == 2 * 4
        request = exchange.send(scalars.tensor)
        assert isinstance(request, AllGather)
        assert request.payload.numel() == 2 * (HEADER_BYTES + 4 + packed)


def naive_ternary(
    values: torch.Tensor, *, bound: float, scalar: float, key: int
) -> np.ndarray[Any, Any]:
    """Digits, element by element: floor(v / s + u), u = (16 random bits + 1/2) / 65536."""
    digits = np.zeros(values.numel())
    for i, v in enumerate(values.tolist()):
        u = uniform(key, i)
        digits[i] = math.floor(min(max(v, -bound), bound) / scalar + u) if scalar else 0
    return digits


@pytest.mark.parametrize("packing", ["base3", "two_bit", "all_reduce"])
@pytest.mark.parametrize("clip", [2.5, 1.0, None])
@pytest.mark.parametrize("scalar", ["largest", "clip"])
@pytest.mark.parametrize("shared", [True, False])
def test_updates_are_those_of_the_published_algorithm(
    packing: str, clip: float | None, scalar: str, shared: bool
) -> None:
    # Wen et al. 2017, Algorithm 1 and section 3.3, in float64: three workers, two steps.
    if packing == "all_reduce" and not shared:
        return
    for step in range(2):
        given = [
            bucket_of(normal(150, 10 * step + r), torch.zeros(4), 9 * normal(9, 90 + r))
            for r in range(3)
        ]
        group = workers(3, packing=packing, clip=clip, scalar=scalar, shared=shared)
        expected = np.zeros(163)
        for piece in given[0].layout.slices:
            where = slice(piece.offset, piece.offset + piece.numel)
            bounds, scalars = [], []
            for one in given:
                v = one.gradient[where].double()
                sigma = float((v - v.mean()).square().mean().sqrt())
                bounds.append(clip * sigma if clip and sigma else math.inf)
                largest = min(float(v.abs().max()), bounds[-1])
                from_clip = scalar == "clip" and bounds[-1] < math.inf
                scalars.append(bounds[-1] if from_clip else largest)
            for rank, one in enumerate(given):
                used = max(scalars) if shared else scalars[rank]
                key = int(random_key(7, step, piece.index, "terngrad rounding", rank))
                expected[where] += used * naive_ternary(
                    one.gradient[where], bound=bounds[rank], scalar=used, key=key
                )
        for update in exchange(group, given, step):
            np.testing.assert_allclose(update.numpy(), expected / 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 9, 1000])
def test_summed_digits_travel_as_one_byte_an_element(n: int) -> None:
    exchange = workers(1, packing="all_reduce")[0].exchange(bucket_of(normal(n), normal(2)), 0)
    scalars = next(exchange)
    assert isinstance(scalars, AllReduce)
    digits = exchange.send(scalars.tensor)
    assert isinstance(digits, AllReduce)
    assert (digits.tensor.dtype, digits.tensor.numel(), digits.op) == (torch.int8, n + 2, "sum")
    assert int(digits.tensor.abs().max()) <= 1


def test_own_scalars_need_no_collective_of_their_own() -> None:
    one, other = bucket_of(torch.tensor([1.0, -1.0])), bucket_of(torch.tensor([10.0, 10.0]))
    assert isinstance(next(workers(1, shared=False)[0].exchange(one, 0)), AllGather)
    # by hand: with its own scalar each is exact, so the update is the mean, at every step
    for step in range(5):
        updates = exchange(workers(2, shared=False, clip=None), [one, other], step)
        assert updates[0].tolist() == pytest.approx([5.5, 4.5], rel=1e-6)


def test_int8_holds_the_sums_of_127_workers() -> None:
    group = workers(127, packing="all_reduce", clip=None)
    updates = exchange(group, [bucket_of(torch.tensor([-2.0, 2.0]))] * 127)
    assert updates[126].tolist() == pytest.approx([-2.0, 2.0], rel=1e-6)
    with pytest.raises(InputError, match="128 workers"):
        workers(128, packing="all_reduce")
    assert len(workers(128)) == 128


def test_a_sum_of_digits_of_own_scalars_is_refused() -> None:
    with pytest.raises(ValidationError, match="shared"):
        parameters_of(packing="all_reduce", shared=False)


def test_the_errors_of_gaussian_and_heavy_tailed_gradients_are_known() -> None:
    # n = 10^6, an independent script: Gaussian 2.76 and 1.01 |g|^2; N(0, 1) exp(.8 N(0, 1)), as
    # gradients are, 23.7 and .86. The unclipped ones follow the largest of 10^6 values, so they
    # are compared with what that says: s E|v| / E v^2 - 1, E|v| = sqrt(2 / pi) e^.32,
    # E v^2 = e^1.28 for the second.
    def relative(values: torch.Tensor, clip: float | None) -> float:
        properties = terngrad.TernGrad.properties(parameters_of(clip=clip))
        assert properties.error_bound is not None
        return properties.error_bound(values) / float(values.double().square().sum())

    gaussian = normal(1_000_000, seed=3)
    heavy = (0.8 * normal(1_000_000, seed=4)).exp() * normal(1_000_000, seed=5)
    assert relative(gaussian, 2.5) == pytest.approx(1.01, abs=0.01)
    assert relative(heavy, 2.5) == pytest.approx(0.86, abs=0.01)
    for values, known, ratio in (
        (gaussian, 2.76, math.sqrt(2 / math.pi)),
        (heavy, 23.7, math.sqrt(2 / math.pi) * math.exp(0.32 - 1.28)),
    ):
        exact = float(values.abs().max()) * ratio - 1
        assert relative(values, None) == pytest.approx(exact, rel=0.03)
        assert relative(values, None) == pytest.approx(known, rel=0.4)


def test_deviation_is_about_the_mean_and_zero_only_without_spread() -> None:
    values = 1e6 + 4 * normal(100_001)  # squares about zero would lose all but four digits
    bound, largest = bound_and_scalar(values, 1.0)
    assert bound == pytest.approx(float(values.double().std(correction=0)), rel=1e-6)
    assert largest == bound
    assert bound_and_scalar(values, None) == (math.inf, float(values.abs().max()))
    assert bound_and_scalar(torch.full((9999,), 0.125), 1.0) == (math.inf, 0.125)
    assert bound_and_scalar(torch.zeros(0), 1.0) == (math.inf, 0.0)
    assert bound_and_scalar(torch.tensor([-3.0]), 1.0) == (math.inf, 3.0)


def test_what_cannot_have_been_sent_is_refused_even_with_a_checksum() -> None:
    bucket = bucket_of(normal(10))
    scalar = [0, 0, 128, 63]  # 1.0
    for flags, digits in (
        (0, [243, 0]),  # 3^5
        (0, [0, 0, 0]),
        (0, [0]),
        (1, [3, 0, 0]),  # a digit of 3
        (1, [0, 0, 16]),  # bits behind the tenth digit
        (1, [0, 0]),
        (2, [0, 0]),
    ):
        body = torch.tensor(scalar + digits, dtype=torch.uint8)
        message = pack_frame(Codec.TERNGRAD, body, numel=10, nonzero=10, flags=flags)
        with pytest.raises(InputError, match="damaged"):
            terngrad.add_decoded(message, bucket.layout, torch.zeros(10), 1.0)
