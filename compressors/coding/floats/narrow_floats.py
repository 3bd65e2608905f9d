"""Casts of float32 to floating-point numbers of 8 or 16 bits, rounded as hardware does.

In the format's normal range, half a unit of the last kept bit (less one if that bit is even: ties
to even) is added to float32's bit pattern, which is then truncated; a carry correctly raises the
exponent. Below that range the processor's addition rounds: x + 2^23 u has the unit u, the smallest
step. Both are computed for every element and one is selected, without a branch. Overflow gives
infinity, or the largest number if the cast saturates (FP8). 8-bit numbers are decoded by table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.floats.powers import tree
from gcsim.compressors.coding.rounding.levels import TREE, Levels
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, launch, unpriced
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import ZERO, Column, Segments


@dataclass(frozen=True, kw_only=True)
class Narrow:
    """A binary floating-point format: sign, biased exponent, `mantissa` bits, subnormals."""

    bits: int
    mantissa: int
    bias: int
    """Exponent bias; the smallest normal number is 2^(1 - bias)."""
    largest: float
    overflow: int
    """Code, without sign, for larger magnitudes: infinity, or `largest` if the cast saturates."""
    nan: int

    @property
    def rounding(self) -> float:
        """Largest relative rounding error of normal numbers: u / (1 + u), u = 2^-(mantissa + 1)."""
        return 1 / (2.0 ** (self.mantissa + 1) + 1)

    @property
    def smallest_step(self) -> float:
        return 2.0 ** (1 - self.bias - self.mantissa)

    @cached_property
    def patterns(self) -> tuple[NDArray[np.uint32], np.float32]:
        """Parameters of the loop, and the float32 whose unit is the format's smallest step."""
        numbers = self.mantissa, self.bias, self.bits, self.overflow, self.nan
        return np.array(numbers, dtype=np.uint32), np.float32(2.0**23 * self.smallest_step)

    @property
    def fitting(self) -> tuple[int, int]:
        """Constants of `power_of_two_scales`: the sum of the exponent fields of a largest magnitude
        and its scale; an addend that raises the exponent of a fraction above the largest's."""
        fraction, exponent = math.frexp(self.largest)
        return exponent + 253, (1 << 24) - 1 - int(fraction * 2**24)

    def error_bound(self, values: Tensor, scale: float = 1.0) -> float:
        """Return a bound on the sum of squared errors of rounding `scale * values`: half a unit in
        the last place of each element, at most the element; infinite if one overflows."""
        scaled = values.double().abs() * scale
        if float(scaled.max() if scaled.numel() else 0.0) > self.largest * (
            1 + 0.5 ** (self.mantissa + 2)
        ):
            return float("inf")
        least = scaled.clamp(max=self.smallest_step / 2)
        return float(torch.maximum(scaled * self.rounding, least).square().sum()) / scale**2


FLOAT16 = Narrow(bits=16, mantissa=10, bias=15, largest=65504.0, overflow=0x7C00, nan=0x7E00)
BFLOAT16 = Narrow(
    bits=16, mantissa=7, bias=127, largest=255 * 2.0**120, overflow=0x7F80, nan=0x7FC0
)
E4M3 = Narrow(bits=8, mantissa=3, bias=7, largest=448.0, overflow=0x7E, nan=0x7F)
E5M2 = Narrow(bits=8, mantissa=2, bias=15, largest=57344.0, overflow=0x7B, nan=0x7F)


def narrow(values: Tensor, form: Narrow, factor: float) -> Tensor:
    """Cast `factor * values`, float32 `[n]`, to int16 or uint8 `[n]`."""
    n = values.numel()
    codes = values.new_empty(n, dtype=torch.uint8 if form.bits == 8 else torch.int16)
    cast(values, Segments.alone(n), form, _factor(factor, values.device), codes, ZERO)
    return codes


@lru_cache(maxsize=1 << 6)
@unpriced
def _factor(value: float, device: torch.device) -> Tensor:
    return torch.full((1,), value, device=device)


def decoding_table(form: Narrow | None) -> NDArray[np.float64]:
    """Return the value of each code of an 8-bit format, or of the tree (`powers.py`): `[256]`."""
    if form is None:
        return np.concatenate((tree(), -tree()))
    codes = np.arange(256)
    exponents = (codes & 0x7F) >> form.mantissa
    # subnormal numbers have no leading 1, and the exponent of the smallest normal number
    fractions = (codes & ((1 << form.mantissa) - 1)) / 2.0**form.mantissa + (exponents > 0)
    values = np.ldexp(fractions, np.maximum(exponents, 1) - form.bias)
    values[values > form.largest] = np.nan  # E5M2 also has infinity, which is never written
    signed: NDArray[np.float64] = np.where(codes >= 128, -values, values)
    return signed


@counted_as(
    lambda _, values, segments: [
        launch("reduction", "narrow_floats.largest_magnitude", segments.length, values.nbytes)
    ]
)
def largest_magnitudes(values: Tensor, segments: Segments) -> Tensor:
    """Return max |v| of each tensor, 0 if empty, NaN if it contains one: float32 `[tensors]`."""
    return cell_norms(values, segments.whole, "max")


def power_of_two_scales(largest: NDArray[np.float32], form: Narrow) -> NDArray[np.float32]:
    """Return the largest powers of two (up to 2^126) with `largest * scale <= form.largest`; 1 for
    zero; infinity and NaN count as 2^128."""
    top, carry = form.fitting
    fields = (np.minimum(largest.view(np.int32), 0x7F800000) + carry) >> 23
    scales = (np.minimum(top - fields, 253) << 23).astype(np.int32).view(np.float32)
    return np.where(largest == 0, np.float32(1), scales)


@counted_as(lambda *_: ())  # only one table per tensor
def scaled_tables(
    segments: Segments, form: Narrow | None, numbers: Tensor, weight: float
) -> Levels:
    """Return the levels of each tensor's codes: weight times value, divided by the scale of an
    8-bit format or multiplied by the tree's largest magnitude (`numbers`, `[tensors]`)."""
    if form is None:
        tables = numbers.double().mul_(weight)[:, None] * _values(None, 1.0, numbers.device)
    else:
        tables = _values(form, weight, numbers.device) / numbers[:, None]
    return Levels(kind=TREE, cells=segments.whole, numbers=tables.float(), width=256)


@lru_cache(maxsize=1 << 6)
@unpriced
def _values(form: Narrow | None, weight: float, device: torch.device) -> Tensor:
    return torch.from_numpy(weight * decoding_table(form)).to(device)


@counted_as(
    lambda _, values, segments, form, *__, **___: [
        launch(
            "streaming", "narrow_floats.narrow", segments.length,
            (4 + form.bits // 8) * segments.length,
        )
    ]
)  # fmt: skip
@primitive
def cast(
    values: Tensor, segments: Segments, form: Narrow, factors: Tensor, out: Tensor, at: Column, *,
    fit: bool = False,
) -> Tensor:  # fmt: skip
    """Write the codes of `factor * values`, rounded to nearest, ties to even; return the factors.

    `values` is a flat float32 with a factor for each tensor (float32 `[tensors]`), whose codes
    begin at `out[at]` (uint8 or int16, the bit patterns of `form`). With `fit`, `factors` are
    largest magnitudes, and their `power_of_two_scales` are used.
    """
    scales = power_of_two_scales(array(factors), form) if fit else array(factors)
    with written_back(out) as codes:
        in_tiles(
            _cast, segments.tiles, array(values), segments.table, scales,
            codes if form.bits == 8 else codes.view(np.uint16), at, *form.patterns,
        )  # fmt: skip
    return tensor(scales, factors) if fit else factors


@loop
def _cast(start, stop, tiles, values, table, factors, codes, at, numbers, magic):
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin = table[t, 0]
        own = codes[at[t] + first : at[t] + last]
        _narrow(values[begin + first : begin + last], own, factors[t], numbers, magic)


@loop
def _narrow(values, codes, factor, numbers, magic):
    mantissa, bias, bits, overflow, nan = numbers
    # the mask by 31 proves that 32-bit shifts are in range, so that they vectorise
    shift = np.uint32((np.uint32(23) - mantissa) & np.uint32(31))
    half = np.uint32((np.uint32(1) << np.uint32(shift - np.uint32(1))) - np.uint32(1))
    least = np.uint32(np.uint32(np.uint32(128) - bias) << np.uint32(23))  # 2^(1 - bias)
    offset = np.uint32(np.uint32(np.uint32(127) - bias) << mantissa)
    origin = np.float32(magic).view(np.uint32)
    sign = np.uint32((np.uint32(32) - bits) & np.uint32(31))
    for i in range(values.size):
        word = np.float32(values[i] * factor).view(np.uint32)
        size = np.uint32(word & np.uint32(0x7FFFFFFF))
        # normal: add half a unit (slightly less if the last kept bit is even) and truncate
        odd = np.uint32(np.uint32(size >> shift) & np.uint32(1))
        kept = np.uint32(np.uint32(size + np.uint32(half + odd)) >> shift)
        # subnormal: float32's addition rounds, as the sum's unit is the format's smallest step
        fixed = np.float32(np.uint32(size).view(np.float32) + magic).view(np.uint32)
        # the difference of patterns counts smallest steps: the code of a subnormal number
        code = np.uint32(kept - offset) if size >= least else np.uint32(fixed - origin)
        # codes ascend with magnitudes: this caps infinity and whatever rounds to too much
        code = min(code, overflow)
        code = nan if size > np.uint32(0x7F800000) else code
        codes[i] = np.uint32(code | np.uint32(np.uint32(word & np.uint32(0x80000000)) >> sign))
