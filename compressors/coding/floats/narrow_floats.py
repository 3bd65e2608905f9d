"""How does a float32 become a floating-point number of 8 or 16 bits, rounded as hardware does?

A format is its numbers of bits: sign, biased exponent, mantissa. In its normal range a float32 is
rounded by adding half a unit of the last bit that is kept to its pattern (a little less when that
bit is even, so that ties go to even) and cutting off the rest; a carry raises the exponent, as it
must. Below, the processor's own addition rounds: x + 2^23 u has the unit u, the format's smallest
step. Both are computed for every element and one is chosen: a loop without a branch. What is too
large becomes infinity, or the largest number where a cast saturates, as casts to FP8 do.

Numbers of 8 bits are decoded by a table of 256 entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow:
    """A binary floating-point format: sign, biased exponent, `mantissa` bits, subnormals."""

    bits: int
    mantissa: int
    """Bits behind the point."""
    bias: int
    """Of the exponent: the least normal number is 2^(1 - bias)."""
    largest: float
    """The largest finite number."""
    overflow: int
    """The code, without sign, of what is larger: infinity, or `largest` where a cast saturates."""
    nan: int
    """The code of NaN."""

    @property
    def rounding(self) -> float:
        """Most relative error of a number in the normal range.

        Half a unit u = 2^-(mantissa + 1) of a power of two, over the number: u / (1 + u).
        """
        return 1 / (2.0 ** (self.mantissa + 1) + 1)

    @property
    def smallest_step(self) -> float:
        """Distance of subnormal numbers."""
        return 2.0 ** (1 - self.bias - self.mantissa)

    def error_bound(self, values: Tensor, scale: float = 1.0) -> float:
        """The most that the sum of squared errors can be when `scale * values` is rounded.

        Half a unit in the last place of each element, as a fraction in the normal range and as
        a constant below; never more than the element. Infinite when an element overflows.
        """
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


@kernel("streaming")
@on_device("floats.narrow")
def narrow(values: Tensor, form: Narrow, factor: float) -> Tensor:
    """Codes of `factor * values`, rounded to nearest, ties to even.

    `values` is float32 `[n]`; returns int16 or uint8 `[n]`, the bit patterns of `form`.
    """
    numbers = array(values)
    codes = np.empty(numbers.size, dtype=np.uint8 if form.bits == 8 else np.uint16)
    in_parallel(
        _narrow, numbers.size, numbers, codes, np.float32(factor), np.uint32(form.mantissa),
        np.uint32(form.bias), np.uint32(form.bits), np.uint32(form.overflow), np.uint32(form.nan),
        np.float32(2.0**23 * form.smallest_step),
    )  # fmt: skip
    return tensor(codes if form.bits == 8 else codes.view(np.int16), values)


def decoding_table(form: Narrow, weight: float) -> NDArray[np.float32]:
    """weight * the value of each of the 256 codes of an 8-bit format: float32 `[256]`."""
    codes = np.arange(256)
    exponents = (codes & 0x7F) >> form.mantissa
    fractions = (codes & ((1 << form.mantissa) - 1)) / 2.0**form.mantissa + (exponents > 0)
    values = np.ldexp(fractions, np.maximum(exponents, 1) - form.bias)
    values[values > form.largest] = np.nan  # E5M2 has infinity too, which is never written
    signed: NDArray[np.float32] = (np.where(codes >= 128, -values, values) * weight).astype("f4")
    return signed


@kernel("reduction")
def largest_magnitude(values: Tensor) -> float:
    """max |v| of a float32 `[n]`, zero when it is empty; NaN when there is one."""
    if values.numel() == 0:
        return 0.0
    lowest, highest = torch.aminmax(values)  # one pass; a norm of infinite order takes 80 times it
    return float(torch.maximum(-lowest, highest))


@kernel("streaming", updates=("out",))
@on_device("floats.narrow")
def add_looked_up(out: Tensor, codes: Tensor, table: NDArray[np.float32]) -> None:
    """out[i] += table[codes[i]], in place: float32 `[n]`, uint8 `[n]`, `[256]`."""
    with written_back(out) as target:
        in_parallel(_add_looked_up, target.size, target, array(codes), table)


# --- loops -----------------------------------------------------------------------------------


@loop
def _narrow(
    start: int, stop: int, values: Any, codes: Any, factor: Any, mantissa: Any, bias: Any,
    bits: Any, overflow: Any, nan: Any, magic: Any,
) -> None:  # fmt: skip
    values, codes = values[start:stop], codes[start:stop]
    # masked by 31: 32-bit shifts, known not to reach over the word, vectorise (else 64-bit ones)
    shift = np.uint32((np.uint32(23) - mantissa) & np.uint32(31))
    half = np.uint32((np.uint32(1) << np.uint32(shift - np.uint32(1))) - np.uint32(1))
    least = np.uint32(np.uint32(np.uint32(128) - bias) << np.uint32(23))  # 2^(1 - bias)
    offset = np.uint32(np.uint32(np.uint32(127) - bias) << mantissa)
    origin = np.float32(magic).view(np.uint32)
    sign = np.uint32((np.uint32(32) - bits) & np.uint32(31))
    for i in range(values.size):
        word = np.float32(values[i] * factor).view(np.uint32)
        size = np.uint32(word & np.uint32(0x7FFFFFFF))
        # normal: add half a unit (a little less when the last kept bit is even), cut off
        odd = np.uint32(np.uint32(size >> shift) & np.uint32(1))
        kept = np.uint32(np.uint32(size + np.uint32(half + odd)) >> shift)
        # subnormal: float32's addition rounds when the sum's unit is the format's smallest step
        fixed = np.float32(np.uint32(size).view(np.float32) + magic).view(np.uint32)
        code = np.uint32(kept - offset) if size >= least else np.uint32(fixed - origin)
        code = min(code, overflow)
        code = nan if size > np.uint32(0x7F800000) else code
        codes[i] = np.uint32(code | np.uint32(np.uint32(word & np.uint32(0x80000000)) >> sign))


@loop
def _add_looked_up(start: int, stop: int, out: Any, codes: Any, table: Any) -> None:
    out, codes = out[start:stop], codes[start:stop]
    for i in range(out.size):
        out[i] += table[codes[i]]
