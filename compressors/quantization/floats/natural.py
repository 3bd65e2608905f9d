"""Natural compression: random rounding to powers of two.

An element v lies between two powers of two, lo <= |v| <= hi = 2 lo; it becomes sign(v) hi with
probability (|v| - lo) / lo, which is the mantissa as a fraction, else sign(v) lo: a random number
is added to the mantissa's bits, and an overflow increments the exponent. Sign and exponent are
sent; workers all-gather and average the decoded values. No state. Unbiased, and E|Q(v) - v|^2 = sum
(|v| - lo) (hi - |v|) <= |v|^2 / 8; on Gaussian gradients .0817 |v|^2.

| bits | what travels                                                                       |
|------|------------------------------------------------------------------------------------|
| 9    | float32's exponent, a byte per element, then the signs, a bit per element          |
| 8    | sign (bit 7) and exponent + 109, 1 … 127, for 2^-108 … 2^18; 0 stands for zero:    |
|      | what rounds to less becomes zero, what rounds to more 2^18                         |

Random numbers have 16 bits, so the probability is accurate to 2^-17. Below float32's normal range,
2^-126, lo is zero. With 9 bits finite numbers stay finite, at most 2^127; infinity is kept, NaN
becomes infinity.

The 9 bits are sent as two planes, exponents and then signs; together they are still 9 n bits.

Source: S. Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022,
arXiv:1905.10988; the 8-bit range is that of the code in sands-lab/grace.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.floats.powers import LOWEST
from gcsim.compressors.coding.frames import Codec, frames, read, seal
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.rounding.levels import (
    EXPONENTS,
    POWERS,
    Levels,
    add_rounded,
    round_levels,
)
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Column, Segments, keys_of

_LEAST, _MOST = 2.0 ** (LOWEST + 1 - 127), 2.0 ** (LOWEST + 127 - 127)


class NaturalParameters(CompressorParameters):
    bits: Literal[8, 9] = Field(
        9, description="bits per element: sign and 8 exponent bits, or 7 (0, 2^-108 … 2^18)"
    )


class Natural(Compressor[NaturalParameters]):
    about = About(
        title="Natural compression",
        family="quantization",
        collective="all-gather",
        bits="bits",
        unbiased=True,
        paper="Horvath et al., MSML 2022, arXiv:1905.10988",
    )

    @classmethod
    def properties(cls, parameters: NaturalParameters) -> Properties:
        """Return the properties; 8 bits are biased, since they lose what is out of range."""
        bits = parameters.bits
        return Properties(
            unbiased=bits == 9,
            error_bound=lambda values: rounding_error(values, bits),
            error_is_exact=True,
        )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=self.encode(bucket, step))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """Encode a bucket's gradient: uint8, one frame per tensor."""
        me, layout, bits = self.worker, bucket.layout, self.parameters.bits
        keys = keys_of(layout, me.seed, step, "natural rounding", me.rank)
        segments = Segments.of(layout)
        levels, sizes = powers(segments, bits)
        message, at = frames(
            bucket.gradient, Codec.NATURAL, segments, sizes, flags=bits, fixed=True
        )
        round_levels(bucket.gradient, levels, keys, message, at, fixed(8))
        return seal(message, at, sizes)


def powers(segments: Segments, bits: int) -> tuple[Levels, Column]:
    """Return the levels for 8 or 9 bits, and the bytes of each body (9: exponents, then signs)."""
    length = segments.length
    sizes = length + packed_bytes(length, 1) if bits == 9 else length
    return Levels(kind=EXPONENTS if bits == 9 else POWERS, cells=segments.whole), sizes


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * power of two to `out` in place; `InputError` if damaged or foreign."""
    segments, found = Segments.of(layout), read(message, layout, Codec.NATURAL)
    bits = found.alike("flags")
    if bits not in (8, 9):
        raise damaged(f"powers of two in {bits} bits")
    levels, sizes = powers(segments, bits)
    found.demand_sizes(sizes)
    add_rounded(out, levels, message, found.at, fixed(8), weight)


def rounding_error(values: Tensor, bits: int = 9) -> float:
    """Return E|Q(v) - v|^2 of float32 `[n]`, elements below 2^127: with 9 bits sum (|v| - lo) (hi -
    |v|); with 8 bits lo or hi is chosen first, then clipped to the range of the codes."""
    magnitudes = np.abs(array(values)).astype(np.float64)
    _, exponents = np.frexp(magnitudes)
    low = np.where(magnitudes < 2.0**-126, 0.0, np.ldexp(1.0, exponents - 1))
    high = np.where(low == 0, 2.0**-126, 2 * low)
    up = (magnitudes - low) / (high - low)
    if bits == 8:
        low, high = (np.where(x < _LEAST, 0.0, np.minimum(x, _MOST)) for x in (low, high))
    return float((up * (high - magnitudes) ** 2 + (1 - up) * (magnitudes - low) ** 2).sum())
