"""Natural compression: what if only the sign and the exponent of a float travel?

An element v lies between two powers of two, lo <= |v| <= hi = 2 lo; it becomes sign(v) hi with
probability (|v| - lo) / lo, which is the mantissa read as a fraction, else sign(v) lo. Nothing is
computed: a random number is added to the mantissa's bits and what overflows raises the exponent.
Workers all-gather and average what they decode. No state. Unbiased, and
E|Q(v) - v|^2 = sum (|v| - lo) (hi - |v|) <= |v|^2 / 8; on Gaussian gradients .0817 |v|^2.

| bits | what travels                                                                       |
|------|------------------------------------------------------------------------------------|
| 9    | float32's exponent, a byte an element, then the signs, a bit an element            |
| 8    | sign (bit 7) and exponent + 109, 1 … 127, for 2^-108 … 2^18; 0 stands for zero:    |
|      | what rounds to less becomes zero, what rounds to more 2^18                         |

A random number has 16 bits, so that the probability is right to 2^-17. Below float32's normal
range, 2^-126, lo is zero. With 9 bits nothing becomes infinite that was not: above 2^127 all
becomes 2^127; infinity stays and NaN becomes infinity.

Assumes that the two planes of 9 bits may follow each other; they are 9 n bits all the same.

Source: S. Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022,
arXiv:1905.10988; the 8-bit range is that of the code in sands-lab/grace.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, Frame, of_bucket, pack_frame
from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.coding.messages import decoder
from gcsim.compressors.coding.rounding.levels import (
    CHUNK,
    get_codes,
    put_chunk,
    random_fractions,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import batched, count_random, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather, Exchange

_LOWEST = 18
"""The exponent field of float32 that 8 bits code as 0."""
_LEAST, _MOST = 2.0 ** (_LOWEST + 1 - 127), 2.0 ** (_LOWEST + 127 - 127)
"""The range of 8 bits."""


class NaturalParameters(CompressorParameters):
    bits: Literal[8, 9] = Field(
        9, description="sign and 8 bits of exponent, or sign and 7 bits (2^-108 … 2^18 and zero)"
    )


class Natural(Compressor[NaturalParameters]):
    """Stochastic rounding to powers of two."""

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
        """Unbiased with 9 bits; 8 bits lose what is outside of their range."""
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
        """The message of a bucket's gradient: uint8, one frame a tensor."""
        me = self.worker
        keys = [
            random_key(me.seed, step, piece.index, "natural rounding", me.rank)
            for piece in bucket.layout.slices
        ]
        return encoded(bucket.gradient, bucket.layout, keys, self.parameters.bits)


@of_bucket("natural")
def encoded(gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], bits: int) -> Tensor:
    """The message of a gradient, float32 `[layout.numel]`, with a key for each tensor."""
    frames = []
    for (piece, values), key in zip(batched(layout.views(gradient)), keys, strict=True):
        body = to_powers(values, key, bits=bits)
        frames.append(pack_frame(Codec.NATURAL, body, numel=piece.numel, flags=bits))
    return torch.cat(frames)


def rounding_error(values: Tensor, bits: int = 9) -> float:
    """E|Q(v) - v|^2 of float32 `[n]`, elements below 2^127: with 9 bits sum (|v| - lo) (hi - |v|).

    With 8 bits lo and hi are first chosen between, then moved into the range of the codes.
    """
    magnitudes = np.abs(array(values)).astype(np.float64)
    _, exponents = np.frexp(magnitudes)
    low = np.where(magnitudes < 2.0**-126, 0.0, np.ldexp(1.0, exponents - 1))
    high = np.where(low == 0, 2.0**-126, 2 * low)
    up = (magnitudes - low) / (high - low)
    if bits == 8:
        low, high = (np.where(x < _LEAST, 0.0, np.minimum(x, _MOST)) for x in (low, high))
    return float((up * (high - magnitudes) ** 2 + (1 - up) * (magnitudes - low) ** 2).sum())


@of_bucket("add_natural")
@decoder(Codec.NATURAL)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add the powers of two of a frame."""
    if frame.flags not in (8, 9):
        raise damaged(f"powers of two in {frame.flags} bits")
    add_powers(part, frame.body, bits=frame.flags, weight=weight)


@kernel("streaming")
@on_device("floats.narrow")
def to_powers(values: Tensor, key: np.uint64, *, bits: int) -> Tensor:
    """Exponents and signs of float32 `[n]`, rounded with the random bits of `key`.

    uint8 `[n]` when `bits` is 8, else `[n + ceil(n / 8)]`; see the table above.
    """
    data = np.ascontiguousarray(array(values))
    n = data.size
    out = np.empty(n + (packed_bytes(n, 1) if bits == 9 else 0), dtype=np.uint8)
    count_random(n, 16)
    in_parallel(_encode, n, data.view(np.uint32), key, bits, out[:n], out[n:])
    return tensor(out, values)


@kernel("streaming", updates=("out",))
@on_device("floats.narrow")
def add_powers(out: Tensor, body: Tensor, *, bits: int, weight: float) -> None:
    """out += weight * decoded `body` of `to_powers`, in place; `out` is float32 `[n]`.

    Raises `InputError` for a body of another length or with stray bits.
    """
    n = out.numel()
    data = np.ascontiguousarray(array(body))
    if data.size < n or (bits == 8 and data.size > n):
        raise damaged(f"{data.size} bytes for {n} exponents")
    signs = data[n:]
    if bits == 9:
        check_packed(signs, n, 1)
    with written_back(out) as target:
        in_parallel(_add, n, data[:n], signs, bits, np.float32(weight), target)


@loop
def _encode(
    start: int, stop: int, values: Any, key: np.uint64, bits: int, exponents: Any, signs: Any
) -> None:
    words = np.empty(CHUNK // 4, dtype=np.uint64)
    fractions = words.view(np.uint16)
    negative = np.empty(CHUNK, dtype=np.uint8)
    infinite = np.uint32(0x7F800000)
    for first in range(start, stop, CHUNK):
        part = values[first : min(first + CHUNK, stop)]
        out = exponents[first : first + part.size]
        length = part.size
        random_fractions(key, first, words[: (length + 3) // 4])
        for i in range(length):
            magnitude = part[i] & np.uint32(0x7FFFFFFF)
            # 16 of the mantissa's 23 bits are random, and half a unit of the last of them
            raised = magnitude + ((np.uint32(fractions[i]) << np.uint32(7)) | np.uint32(64))
            exponent = min(raised >> np.uint32(23), np.uint32(254))
            if magnitude >= infinite:
                exponent = np.uint32(255)
            if bits == 8:
                exponent = min(max(exponent, np.uint32(_LOWEST)), np.uint32(_LOWEST + 127))
                exponent -= np.uint32(_LOWEST)
                exponent |= (part[i] >> np.uint32(31)) << np.uint32(7)
            out[i] = np.uint8(exponent)
        if bits == 9:
            for i in range(length):
                negative[i] = np.uint8(part[i] >> np.uint32(31))
            put_chunk(negative, length, 1, first, signs)


@loop
def _add(
    start: int, stop: int, exponents: Any, signs: Any, bits: int, weight: np.float32, out: Any
) -> None:
    negative = np.empty(CHUNK, dtype=np.uint8)
    pattern = np.empty(CHUNK, dtype=np.uint32)
    powers = pattern.view(np.float32)
    for first in range(start, stop, CHUNK):
        target = out[first : min(first + CHUNK, stop)]
        codes = exponents[first : first + target.size]
        if bits == 9:
            padded = (target.size + 7) // 8 * 8
            get_codes(signs[first // 8 : first // 8 + padded // 8], 1, negative[:padded])
            for i in range(target.size):
                pattern[i] = np.uint32(codes[i]) << np.uint32(23)
                pattern[i] |= np.uint32(negative[i]) << np.uint32(31)
        else:
            for i in range(target.size):
                exponent = np.uint32(codes[i] & np.uint8(127))
                if exponent > 0:
                    exponent += np.uint32(_LOWEST)
                sign = np.uint32(codes[i] >> np.uint8(7)) << np.uint32(31)
                pattern[i] = (exponent << np.uint32(23)) | sign
        for i in range(target.size):
            target[i] += weight * powers[i]
