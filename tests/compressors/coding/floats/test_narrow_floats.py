"""Casts to 16 and 8 bits: equal to torch's bit for bit, at every result and at every tie."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.floats import narrow_floats

FORMATS = {
    torch.float16: narrow_floats.FLOAT16,
    torch.bfloat16: narrow_floats.BFLOAT16,
    torch.float8_e4m3fn: narrow_floats.E4M3,
    torch.float8_e5m2: narrow_floats.E5M2,
}
SATURATING = (torch.float8_e4m3fn, torch.float8_e5m2)


def codes_of(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of torch's cast; what overflows saturates where our casts do."""
    if dtype in SATURATING:
        largest = FORMATS[dtype].largest
        values = torch.where(values.isnan(), values, values.clamp(-largest, largest))
    return values.to(dtype).view(torch.uint8 if FORMATS[dtype].bits == 8 else torch.int16)


def every_result(form: narrow_floats.Narrow, dtype: torch.dtype) -> Tensor:
    """All finite numbers of a format from 0 on, float32, ascending."""
    codes = torch.arange(1 << (form.bits - 1))
    codes = codes.to(torch.uint8 if form.bits == 8 else torch.int16)
    values = codes.view(dtype).float()
    return values[values.isfinite()]


def float32_patterns() -> Iterator[Tensor]:
    """Each sign, exponent and leading mantissa bits, with trailing bits at and around ties."""
    high = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    for low in (0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001):
        yield torch.from_numpy((high | np.uint32(low)).view(np.float32))


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_result_and_every_tie_is_torchs(dtype: torch.dtype) -> None:
    form = FORMATS[dtype]
    exact = every_result(form, dtype)
    assert exact.numel() > 100
    middle = ((exact[1:].double() + exact[:-1].double()) / 2).float()  # exact in float32
    infinity = torch.tensor(float("inf"))
    for values in (
        exact,
        middle,
        torch.nextafter(middle, infinity),
        torch.nextafter(middle, -infinity),
    ):
        for signed in (values, -values):
            assert torch.equal(narrow_floats.narrow(signed, form, 1.0), codes_of(signed, dtype))


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_float32_pattern_of_sixteen_leading_bits_is_torchs(dtype: torch.dtype) -> None:
    # denormals, infinities and NaN (whose code is ours) among them
    form = FORMATS[dtype]
    for values in float32_patterns():
        found, expected = narrow_floats.narrow(values, form, 1.0), codes_of(values, dtype)
        number = ~values.isnan()
        assert torch.equal(found[number], expected[number])
        assert bool(found[~number].view(dtype).float().isnan().all())
