"""Random rounding to even levels is right on average, and packed codes are what they stand for."""

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.integers.packing import pack_bits, packed_bytes
from gcsim.compressors.coding.rounding.levels import CHUNK, round_evenly
from gcsim.compressors.coding.rounding.norms import Norm
from gcsim.compressors.meter import segment
from gcsim.compressors.random import random_key
from gcsim.errors import InputError
from tests.compressors.shared import (
    add_packed_levels,
    bucket_norms,
    encode_levels,
    normal,
    random16,
)

KEY = random_key(1, 2, 3, "test", 4)
LENGTHS = [0, 1, 7, 8, 9, 511, 513, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]


def rounded(
    values: torch.Tensor, norms: list[float], random16: torch.Tensor, *, size: int, steps: int
) -> torch.Tensor:
    """The loop's codes for given random bits, bucket by bucket."""
    codes = np.empty(values.numel(), dtype=np.uint8)
    fractions = random16.numpy().astype(np.uint16)
    for bucket, norm in enumerate(norms):
        part = slice(bucket * size, (bucket + 1) * size)
        drawn, out = fractions[part], codes[part]
        limit, scale = np.float32(np.inf), np.float32(norm)
        round_evenly(values.numpy()[part], scale, drawn, np.float32(steps), limit, out)
    return torch.from_numpy(codes)


def naive_norms(values: torch.Tensor, size: int, norm: str) -> list[float]:
    found = []
    for start in range(0, values.numel(), size):
        part = values[start : start + size].double()
        found.append(float(part.abs().max() if norm == "max" else part.square().sum().sqrt()))
    return found


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("size", [1, 3, 512, 5000, 300_000])
def test_norms_are_those_of_a_loop_over_buckets(norm: Norm, size: int) -> None:
    values = normal(10_001 if size < 1000 else 700_001)
    norms = bucket_norms(values, size, norm)
    assert norms.tolist() == pytest.approx(naive_norms(values, size, norm), rel=2e-7)


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_norms_neither_overflow_nor_vanish_and_show_what_is_not_a_number(norm: Norm) -> None:
    values = torch.tensor([3e38, 3e38, 1e-44, 0.0, 0.0, 0.0, 1.0, float("nan"), -float("inf"), 1.0])
    norms = bucket_norms(values, 2, norm).tolist()
    # by hand: 3e38 sqrt(2) is more than float32 holds, which ends at 3.4028e38
    assert norms[0] == pytest.approx(3e38 if norm == "max" else 3.4028235e38)
    assert norms[1] == pytest.approx(1e-44, rel=0.1)
    assert norms[2] == 0
    assert np.isnan(norms[3])
    assert norms[4] == float("inf")


@pytest.mark.parametrize("steps", [1, 3, 7, 15, 31, 63, 127])  # all widths from 2 bits on
@pytest.mark.parametrize("n", LENGTHS)
def test_one_pass_gives_the_codes_of_the_formula(n: int, steps: int) -> None:
    # floor(s v / norm + (r + 1/2) / 65536), in float32 numpy, packed by `packing.py`
    size, bits = 100, (2 * steps).bit_length()
    values = normal(n, seed=n)
    norms = bucket_norms(values, size, "max")
    divisors = np.repeat(norms.numpy(), size)[:n]
    u = random16(int(KEY), n).astype(np.float32) * np.float32(2**-16) + np.float32(2**-17)
    levels = np.floor(values.numpy() / divisors * np.float32(steps) + u)
    expected = torch.from_numpy((levels + steps).astype(np.uint8))
    packed = encode_levels(values, norms, KEY, size=size, steps=steps, bits=bits)
    assert packed.numel() == packed_bytes(n, bits)
    assert torch.equal(packed, pack_bits(expected, bits))
    out = torch.full((n,), 0.5)
    add_packed_levels(out, packed, norms, size=size, steps=steps, bits=bits, weight=0.25)
    wanted = 0.5 + 0.25 * levels.astype(np.float64) * divisors / steps
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-6, atol=1e-7)


def test_sixteen_bits_bias_the_rounding_by_at_most_2_to_the_minus_17() -> None:
    # Exhaustive: every one of the 65536 random numbers, for fractions on and off the grid. The
    # mean code must be s v / norm within 2^-17, plus the float32 rounding of the quotient.
    steps = 7
    every = torch.arange(65536, dtype=torch.int32)
    fractions = [0.0, 2.0**-18, 2.0**-17, 1e-4, 1 / 3, 0.5, 0.7, 1 - 2.0**-18, 1.0]
    for value in [
        sign * (whole + f) / steps for sign in (1, -1) for whole in (0, 6) for f in fractions
    ]:
        values = torch.full((65536,), value)
        codes = rounded(values, [1.0], every, size=65536, steps=steps)
        mean = float(codes.double().mean()) - steps
        exact = float(values[0].double()) * steps
        assert abs(mean - exact) <= 2.0**-17 + steps * 2.0**-23, value
        assert abs(codes.double() - steps - exact).max() < 1.0 + 2.0**-17


@pytest.mark.parametrize("steps", [1, 7, 127])
def test_whole_levels_and_zero_are_never_moved(steps: int) -> None:
    levels = torch.arange(-steps, steps + 1, dtype=torch.float32)
    for bits in (0, 65535):
        random = torch.full((levels.numel(),), bits, dtype=torch.int32)
        norms = bucket_norms(levels, levels.numel(), "max").tolist()
        codes = rounded(levels, norms, random, size=levels.numel(), steps=steps)
        assert (codes.float() - steps).tolist() == levels.tolist()


def test_elements_above_the_norm_saturate_and_a_zero_norm_gives_the_code_of_zero() -> None:
    values = torch.tensor([3.0, -3.0, 1.0, 0.0, 0.0])
    random = torch.full((5,), 65535, dtype=torch.int32)
    codes = rounded(values, [1.0, 0.0], random, size=3, steps=7)
    assert codes.tolist() == [14, 0, 14, 7, 7]
    packed = encode_levels(values, torch.tensor([1.0, 0.0]), KEY, size=3, steps=7, bits=8)
    assert packed.tolist() == [14, 0, 14, 7, 7]


def test_a_bound_clips_before_rounding() -> None:
    values, norms = normal(5000), torch.tensor([4.0])
    one = encode_levels(values, norms, KEY, size=5000, steps=3, bits=8, bound=0.5)
    other = encode_levels(values.clamp(-0.5, 0.5), norms, KEY, size=5000, steps=3, bits=8)
    assert torch.equal(one, other)


def test_damaged_codes_are_refused() -> None:
    norms, out = torch.ones(1), torch.zeros(5)
    for packed in (
        torch.tensor([0x77, 0x77, 0x17], dtype=torch.uint8),  # bits behind the fifth code
        torch.tensor([0x77, 0xF7, 0x07], dtype=torch.uint8),  # 15: levels end at 14
    ):
        with pytest.raises(InputError, match="damaged"):
            add_packed_levels(out, packed, norms, size=5, steps=7, bits=4, weight=1.0)


def test_the_meter_counts_one_pass_and_its_random_bits() -> None:
    values, norms = normal(1000), torch.ones(2)
    with segment() as recorder:
        packed = encode_levels(values, norms, KEY, size=512, steps=7, bits=4)
    costs = {cost.kind: cost for cost in recorder.costs()}
    assert costs["streaming"].launches == 1
    assert costs["streaming"].nbytes == 4 * 1000 + 4 * 2 + packed.numel()
    assert (costs["random"].elements, costs["random"].nbytes) == (1000, 2000)
