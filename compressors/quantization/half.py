"""What does a cast to 16 bits cost and save? A dense all-reduce in float16 or bfloat16.

Each worker divides its gradient by the number of workers in float32 and rounds the quotient to
nearest even, in one pass; the sum runs in 16 bits. The relative error is 2^-11 (float16) or 2^-8
(bfloat16), once for the cast and once more for each addition, deterministic and biased. float16
reaches from 2^-25 to 65504, bfloat16 as far as float32.

Divided before the cast, in contrast to PyTorch's hooks (`torch_fp16`, `torch_bf16`): an element is
rounded once instead of twice when the number of workers is no power of two, may be above 65504
as long as the mean is not, and it is the same one pass. What underflows is the same in both orders,
since float16 must hold the quotient: below 2^-25 N nothing is left. What overflows becomes the
infinity that training would meet.

`Narrow` describes a floating-point format by its numbers of bits, and `narrow` rounds float32 to
any of them; `fp8` uses it too.

Source: the formats of IEEE 754-2019 (binary16) and of D. Kalamkar et al., "A Study of BFLOAT16
for Deep Learning Training", 2019, arXiv:1905.12322; the use for gradients is that of PyTorch's
fp16_compress_hook and bf16_compress_hook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.laws import Laws
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.requests import AllReduce, Exchange

if TYPE_CHECKING:
    from torch import Tensor


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


class HalfPrecision(Compressor):
    """The mean gradient with the relative error 2^-11 of float16, once more for each addition."""

    form: ClassVar[Narrow] = FLOAT16
    about = About(
        title="Half-precision (fp16) all-reduce",
        family="quantization",
        collective="all-reduce",
        bits="16",
        unbiased=False,
        state="none",
        paper="Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740",
    )

    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        """See `Compressor.laws`."""
        return Laws(error_bound=cls.form.error_bound)

    @classmethod
    def dtype(cls) -> torch.dtype:
        """The type that travels."""
        return torch.float16

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """The sum, in 16 bits, of the workers' gradients over their number; float32 `[n]`."""
        codes = narrow(bucket.gradient, self.form, 1.0 / self.worker.count)
        mean: Tensor = yield AllReduce(tensor=codes.view(self.dtype()))
        return mean.float()


class BrainFloat(HalfPrecision):
    """The mean gradient with the relative error 2^-8 of bfloat16 and the range of float32."""

    form = BFLOAT16
    about = About(
        title="bfloat16 (bf16) all-reduce",
        family="quantization",
        collective="all-reduce",
        bits="16",
        unbiased=False,
        state="none",
        paper="Kalamkar et al., A Study of BFLOAT16, 2019, arXiv:1905.12322",
    )

    @classmethod
    def dtype(cls) -> torch.dtype:
        """See `HalfPrecision.dtype`."""
        return torch.bfloat16


@kernel("streaming")
def narrow(values: Tensor, form: Narrow, factor: float) -> Tensor:
    """Codes of `factor * values`, rounded to nearest, ties to even.

    `values` is float32 `[n]`; returns int16 or uint8 `[n]`, the bit patterns of `form`.
    """
    numbers = array(values)
    codes = np.empty(numbers.size, dtype=np.uint8 if form.bits == 8 else np.uint16)
    in_parallel(
        _narrow,
        numbers.size,
        numbers,
        codes,
        np.float32(factor),
        np.uint32(form.mantissa),
        np.uint32(form.bias),
        np.uint32(form.bits),
        np.uint32(form.overflow),
        np.uint32(form.nan),
        np.float32(2.0**23 * form.smallest_step),
    )
    return tensor(codes if form.bits == 8 else codes.view(np.int16), values)


@loop
def _narrow(
    start: int,
    stop: int,
    values: Any,
    codes: Any,
    factor: Any,
    mantissa: Any,
    bias: Any,
    bits: Any,
    overflow: Any,
    nan: Any,
    magic: Any,
) -> None:
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
