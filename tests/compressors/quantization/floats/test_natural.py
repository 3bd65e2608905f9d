"""Natural compression rounds to powers of two, unbiased, in nine bits or eight."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import CHUNK, add_rounded
from gcsim.compressors.quantization.floats.natural import (
    Natural,
    add_decoded,
    powers,
    rounding_error,
)
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather
from gcsim.compressors.segments import ZERO, Segments
from gcsim.errors import InputError
from tests.compressors import shared
from tests.compressors.shared import bucket_of, exchange, members, normal, uniform

KEY = random_key(1, 2, 3, "test", 4)


workers = partial(members, Natural)


def rounded(values: torch.Tensor, bits: int = 9, key: np.uint64 = KEY) -> torch.Tensor:
    (levels, _), out = powers(Segments.alone(values.numel()), bits), torch.zeros_like(values)
    body = shared.rounded(values, levels, key, fixed(8))
    add_rounded(out, levels, body, ZERO, fixed(8), 1.0)
    return out


def naive_natural(values: torch.Tensor, key: int) -> np.ndarray[Any, Any]:
    """Element by element: hi where (|v| - lo) / lo + u >= 1, u = (16 random bits + 1/2) / 65536."""
    out = np.zeros(values.numel())
    for i, v in enumerate(values.tolist()):
        if v == 0:
            continue
        u = uniform(key, i)
        low = 2.0 ** math.floor(math.log2(abs(v)))
        out[i] = math.copysign(low * (2 if abs(v) / low - 1 + u >= 1 else 1), v)
    return out


@pytest.mark.parametrize("bits", [8, 9])
def test_updates_are_those_of_the_published_algorithm(bits: int) -> None:
    group = workers(3, bits=bits)
    for step in range(2):
        given = [
            bucket_of(normal(151, 10 * step + r), torch.zeros(4), 1e-5 * normal(9, 90 + r))
            for r in range(3)
        ]
        expected = np.zeros(164)
        for rank, bucket in enumerate(given):
            for piece, values in bucket.layout.views(bucket.gradient):
                key = int(random_key(7, step, piece.index, "natural rounding", rank))
                expected[piece.offset : piece.offset + piece.numel] += naive_natural(values, key)
        for update in exchange(group, given, step):
            np.testing.assert_allclose(update.numpy(), expected / 3, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, CHUNK - 1, CHUNK, CHUNK + 1])
def test_the_message_has_eight_or_nine_bits_an_element(n: int) -> None:
    for bits, packed in ((8, n), (9, n + math.ceil(n / 8))):
        request = next(workers(1, bits=bits)[0].exchange(bucket_of(normal(n), normal(3)), 0))
        assert isinstance(request, AllGather)
        short = 3 + (bits == 9)
        assert request.payload.numel() == 2 * HEADER_BYTES + packed + short


@pytest.mark.parametrize("bits", [8, 9])
def test_powers_of_two_and_zero_stay_what_they_are(bits: int) -> None:
    powers = [2.0**e for e in range(-108, 19)]
    values = torch.tensor([*powers, *(-p for p in powers), 0.0, -0.0])
    for key in (KEY, random_key(9, 9, 9, "test", 9)):
        assert torch.equal(rounded(values, bits, key), values)


def test_the_probability_of_the_upper_power_is_the_mantissa_to_2_to_the_minus_17() -> None:
    # All 65536 random numbers lie 2^-16 apart and half a step from the ends. The frequency over
    # 2^18 draws is within five standard errors of the fraction.
    for fraction in (0.0, 2.0**-18, 0.1, 1 / 3, 0.5, 0.999, 1 - 2.0**-23):
        values = torch.full((1 << 18,), 1 + fraction)
        up = float((rounded(values) == 2).double().mean())
        exact = float(values[0].double()) - 1
        spread = math.sqrt(max(exact * (1 - exact), 2.0**-17) / values.numel())
        assert abs(up - exact) <= 5 * spread + 2.0**-17


def test_eight_bits_have_the_error_of_their_range() -> None:
    # From the smallest kept power, 2^-108, on down to nothing, and beyond the largest, 2^18. By
    # hand: 1.5 * 2^-109 is 2^-108 or zero, one half each; 3 * 2^18 is always 2^18.
    one = rounding_error(torch.tensor([1.5 * 2.0**-109]), 8)
    assert one == pytest.approx((0.25**2 + 0.75**2) / 2 * 2.0**-216)
    assert rounding_error(torch.tensor([3 * 2.0**18]), 8) == 2.0**38
    values = 2.0 ** torch.tensor([-110.3, -108.7, -107.5, 0.4, 17.7, 18.2, 30.0]).repeat(50)
    for part in values.view(50, 7).unbind(1):  # one magnitude at a time
        draws = [rounded(part, 8, random_key(5, t, 0, "test", 0)) for t in range(100)]
        errors = [float((draw.double() - part.double()).square().sum()) for draw in draws]
        assert np.mean(errors) == pytest.approx(rounding_error(part, 8), rel=0.1)


def test_the_error_is_at_most_an_eighth_and_known_for_gaussians() -> None:
    # (x - 1) (2 - x) / x^2 is at most 1/8, at x = 4/3 (Horvath et al.: omega = 1/8);
    # on N(0, 1) an independent script measured .0817.
    assert rounding_error(torch.tensor([4 / 3])) == pytest.approx(16 / 9 / 8)
    for x in np.linspace(1, 2, 101):
        assert rounding_error(torch.tensor([x], dtype=torch.float32)) <= x**2 / 8 + 1e-9
    values = normal(1_000_000, seed=1)
    energy = float(values.double().square().sum())
    assert rounding_error(values) / energy == pytest.approx(0.0817, rel=0.01)
    error = float((rounded(values) - values).double().square().sum())
    assert error / energy == pytest.approx(0.0817, rel=0.01)


def test_nine_bits_hold_all_of_float32() -> None:
    big = torch.tensor([3.4e38, -3.4e38, 2.0**127, math.inf, -math.inf])
    assert rounded(big).tolist() == [2.0**127, -(2.0**127), 2.0**127, math.inf, -math.inf]
    assert math.isinf(float(rounded(torch.tensor([math.nan]))))
    # Below 2^-126 an element is 0 or 2^-126: 2^-127 half of the time, five standard errors.
    tiny = rounded(torch.full((4000,), 2.0**-127))
    assert set(tiny.tolist()) == {0.0, 2.0**-126}
    assert float((tiny > 0).double().mean()) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(4000))
    assert rounding_error(torch.full((2,), 2.0**-127)) == pytest.approx(2 * 2.0**-254, rel=1e-9)


def test_eight_bits_flush_and_saturate() -> None:
    # Exponent fields 18 … 145: the first stands for zero, 2^(145 - 127) is the largest.
    values = torch.tensor([2.0**-109, 2.0**-120, 1e-44, 2.0**-108, 2.0**18, 2.0**20, -3e38])
    expected = [0.0, 0.0, 0.0, 2.0**-108, 2.0**18, 2.0**18, -(2.0**18)]
    assert rounded(values, 8).tolist() == expected


def test_damaged_payloads_are_refused() -> None:
    bucket = bucket_of(normal(10))
    out = torch.zeros(10)
    for bits, size in ((8, 9), (8, 11), (9, 11), (9, 13), (7, 10)):
        body = torch.zeros(size, dtype=torch.uint8)
        message = pack_frame(Codec.NATURAL, body, numel=10, nonzero=10, flags=bits)
        with pytest.raises(InputError, match="damaged"):
            add_decoded(message, bucket.layout, out, 1.0)
    body = torch.zeros(12, dtype=torch.uint8)
    body[11] = 4  # a sign of an eleventh element
    message = pack_frame(Codec.NATURAL, body, numel=10, nonzero=10, flags=9)
    with pytest.raises(InputError, match="padding"):
        add_decoded(message, bucket.layout, out, 1.0)
