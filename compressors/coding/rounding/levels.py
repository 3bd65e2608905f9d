"""How is a vector rounded at random to a few evenly spaced levels, so that it is right on average?

Buckets of `size` consecutive elements (the last one may be shorter) share a norm; an element v
becomes one of the 2s + 1 values norm * q / s, q = -s … s, rounded up or down at random such that
the mean is v (Alistarh et al. 2017, "QSGD", arXiv:1610.02132).

Rounding uses 16 random bits an element: q = floor(s v / norm + (r + 1/2) / 65536), r uniform on
0 … 65535. The probability of the upper neighbour is then the fraction rounded to a multiple of
2^-16, so E[q] is within 2^-17 of s v / norm (plus float32 rounding of the quotient, at most
s 2^-23); with the half, a whole number and zero stay what they are.

A zero norm decodes to zeros. Codes are q + s; eight codes of b bits fill b bytes, as in
`packing.py`. Values, norms and random bits become packed codes in one pass, `CHUNK` elements at a
time: what lies between them never leaves the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.coding.scans import (
    block_magnitudes,
    block_squares,
    greatest_magnitude,
    sum_of_squares,
)
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import (
    FLOAT32_MAX,
    SUM_BLOCK,
    array,
    in_parallel,
    loop,
    partial_sums,
    tensor,
    written_back,
)
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.random import bits64

Norm = Literal["max", "l2"]

MAX_STEPS = 127
"""Codes fit a byte, and quotient plus random fraction fit float32's 24 bits exactly."""

CHUNK = 2048
"""Elements between the random numbers and the packed codes: a multiple of eight."""
SHARED_OUT = 1 << 16
"""Elements of a thread's smallest part: they stay in the processor's cache."""
_LARGE_BUCKET = 1 << 18
"""Buckets from here on are summed up by several threads."""
_NO_BOUND = np.float32(np.inf)
_HALF = np.float32(2.0**-17)
_UNIT = np.float32(2.0**-16)


def bucket_count(n: int, size: int) -> int:
    """Buckets of `size` elements that `n` elements make, the last one possibly shorter."""
    return -(-n // size)


def bucket_grain(size: int) -> int:
    """Elements that threads share out at a time: whole buckets, about `SHARED_OUT` elements."""
    return size * max(1, SHARED_OUT // size)


def bucket_parts(n: int, size: int) -> Iterator[tuple[slice, slice, int]]:
    """(elements, buckets, bucket length): the whole buckets, then the short one."""
    whole = n // size
    if whole:
        yield slice(0, whole * size), slice(0, whole), size
    if n % size:
        yield slice(whole * size, n), slice(whole, whole + 1), n % size


@kernel("reduction")
@on_device("rounding.levels")
def bucket_norms(values: Tensor, size: int, norm: Norm) -> Tensor:
    """Maximum |v| or Euclidean norm of each bucket: float32 `[ceil(n / size)]`.

    The Euclidean norm is summed in float64: squares of float32 neither overflow nor vanish.
    NaN where a bucket holds one.
    """
    data = np.ascontiguousarray(array(values))
    maximum = norm == "max"
    norms = np.empty(bucket_count(data.size, size), dtype=np.float32)
    if size >= _LARGE_BUCKET:
        for bucket in range(norms.size):
            norms[bucket] = _norm_of(data[bucket * size : (bucket + 1) * size], maximum)
    else:
        grain = bucket_grain(size)
        in_parallel(_bucket_norms, data.size, data, size, maximum, norms, grain=grain)
    return tensor(norms, values)


@kernel("streaming")
@on_device("rounding.levels")
def encode_levels(
    values: Tensor,
    norms: Tensor,
    key: np.uint64,
    *,
    size: int,
    steps: int,
    bits: int,
    bound: float = float(_NO_BOUND),
) -> Tensor:
    """Codes q + s of randomly rounded elements, packed; in one pass.

    Parameters
    ----------
    values : float32 `[n]`
    norms : float32 `[ceil(n / size)]`; larger elements saturate at their bucket's norm
    key : of the random bits (`random_key`)
    size : bucket length
    steps : s, 1 to 127
    bits : of a code, 1 to 8; 8 leaves the codes as bytes
    bound : elements are clipped to [-bound, bound] first

    Returns
    -------
    uint8 `[ceil(n bits / 8)]`, laid out as `packing.pack_bits` does
    """
    data = np.ascontiguousarray(array(values))
    out = np.empty(packed_bytes(data.size, bits), dtype=np.uint8)
    count_random(data.size, 16)
    in_parallel(
        _encode, data.size, data, array(norms), key, size, np.float32(steps), np.float32(bound),
        bits, out,
    )  # fmt: skip
    return tensor(out, values)


@kernel("streaming", updates=("out",))
@on_device("rounding.levels")
def add_packed_levels(
    out: Tensor,
    packed: Tensor,
    norms: Tensor,
    *,
    size: int,
    steps: int,
    bits: int,
    weight: float,
) -> None:
    """out += weight * norm * q / s, in place: undoes `encode_levels` in one pass.

    `out` is float32 `[n]`. Raises `InputError` when `packed` has another length, stray bits, or a
    code above 2s; `out` is then worthless.
    """
    data = np.ascontiguousarray(array(packed))
    n = out.numel()
    check_packed(data, n, bits)
    highest = np.zeros(-(-n // CHUNK), dtype=np.uint8)
    with written_back(out) as target:
        in_parallel(
            _add, n, data, bits, array(norms), size, np.float32(steps),
            np.float32(weight / steps), target, highest,
        )  # fmt: skip
    if (most := max(highest.tolist(), default=0)) > 2 * steps:
        raise damaged(f"code {most} where levels end at {2 * steps}")


def add_levels(
    out: Tensor, codes: Tensor, norms: Tensor, *, size: int, steps: int, weight: float
) -> None:
    """out += weight * norm * q / s, with q + s = `codes` (uint8 `[n]`), in place.

    Raises `InputError` for a code above 2s.
    """
    add_packed_levels(out, codes, norms, size=size, steps=steps, bits=8, weight=weight)


# --- for loops, here and in other files ---------------------------------------------------------


@loop
def random_fractions(key: np.uint64, first: int, words: Any) -> None:
    """Random 64-bit words for the elements from `first`, a multiple of four, on: four each.

    Viewed as uint16, they are one number an element.
    """
    base = first // 4
    for i in range(words.size):
        words[i] = bits64(key, base + i)


@loop
def put_codes(codes: Any, bits: int, out: Any) -> None:
    """Pack whole groups of eight codes (uint8 `[8 m]`, which is overwritten) into `out`.

    `out` may end inside of the last group: then the rest is left out.
    """
    if bits == 8:
        for i in range(out.size):
            out[i] = codes[i]
        return
    if bits == 4:
        for i in range(out.size):
            out[i] = codes[2 * i] | (codes[2 * i + 1] << np.uint8(4))
        return
    if bits == 2:
        for i in range(out.size):
            low = codes[4 * i] | (codes[4 * i + 1] << np.uint8(2))
            out[i] = low | (codes[4 * i + 2] << np.uint8(4)) | (codes[4 * i + 3] << np.uint8(6))
        return
    # Eight codes are a word of eight lanes of a byte, each with `bits` bits of use. Three rounds
    # close the gaps of all words: lanes of 1, 2, 4 bytes become one of twice as many.
    words = codes.view(np.uint64)
    width = np.uint64(bits)
    lane = np.uint64(8)
    for _ in range(3):
        low = _fields(width, lane + lane)
        high = low << width
        shift = lane - width
        for i in range(words.size):
            words[i] = (words[i] & low) | ((words[i] >> shift) & high)
        width = width + width
        lane = lane + lane
    for group in range(out.size // bits):  # the first `bits` bytes of a word hold all eight
        for j in range(bits):
            out[group * bits + j] = codes[8 * group + j]
    done = out.size // bits
    for j in range(out.size - done * bits):
        out[done * bits + j] = codes[8 * done + j]


@loop
def get_codes(packed: Any, bits: int, codes: Any) -> None:
    """Undo `put_codes`: fills `codes` (uint8 `[8 m]`); what `packed` leaves out is zero."""
    if bits in (2, 4, 8):
        _get_even_codes(packed, bits, codes)
        return
    words = codes.view(np.uint64)
    for i in range(words.size):
        words[i] = np.uint64(0)
    for group in range(packed.size // bits):
        for j in range(bits):
            codes[8 * group + j] = packed[group * bits + j]
    done = packed.size // bits
    for j in range(packed.size - done * bits):
        codes[8 * done + j] = packed[done * bits + j]
    width = np.uint64(4 * bits)
    lane = np.uint64(32)
    for _ in range(3):  # the rounds of `put_codes`, backwards
        low = _fields(width, lane + lane)
        high = low << width
        shift = lane - width
        for i in range(words.size):
            words[i] = (words[i] & low) | ((words[i] & high) << shift)
        width = width >> np.uint64(1)
        lane = lane >> np.uint64(1)


@loop
def _get_even_codes(packed: Any, bits: int, codes: Any) -> None:
    """`get_codes` of codes that do not straddle bytes."""
    if bits == 8:
        for i in range(packed.size):
            codes[i] = packed[i]
    elif bits == 4:
        for i in range(packed.size):
            codes[2 * i] = packed[i] & np.uint8(15)
            codes[2 * i + 1] = packed[i] >> np.uint8(4)
    else:
        for i in range(packed.size):
            four = packed[i]
            codes[4 * i] = four & np.uint8(3)
            codes[4 * i + 1] = (four >> np.uint8(2)) & np.uint8(3)
            codes[4 * i + 2] = (four >> np.uint8(4)) & np.uint8(3)
            codes[4 * i + 3] = four >> np.uint8(6)
    for i in range(packed.size * 8 // bits, codes.size):
        codes[i] = 0


@loop
def _fields(width: np.uint64, period: np.uint64) -> np.uint64:
    """A mask of the `width` low bits of each field of `period` bits."""
    mask = np.uint64(0)
    at = np.uint64(0)
    while at < np.uint64(64):
        mask |= ((np.uint64(1) << width) - np.uint64(1)) << at
        at = at + period
    return mask


@loop
def put_chunk(codes: Any, length: int, bits: int, first: int, out: Any) -> None:
    """Pack the first `length` codes, those from element `first` on, to their place in `out`."""
    padded = (length + 7) // 8 * 8  # whole groups: the last one may be cut off again
    for i in range(length, padded):
        codes[i] = 0
    begin = first // 8 * bits
    put_codes(codes[:padded], bits, out[begin : begin + (length * bits + 7) // 8])


@loop
def get_chunk(packed: Any, first: int, length: int, bits: int, codes: Any) -> Any:
    """Undo `put_chunk`, into `codes`; the largest of the codes."""
    begin = first // 8 * bits
    room = codes[: (length + 7) // 8 * 8]
    get_codes(packed[begin : begin + (length * bits + 7) // 8], bits, room)
    most = np.uint8(0)
    for i in range(room.size):
        most = max(most, room[i])
    return most


# --- loops ----------------------------------------------------------------------------------------


@loop
def _bucket_norms(start: int, stop: int, values: Any, size: int, maximum: bool, norms: Any) -> None:
    found = np.empty(1, dtype=np.uint32)
    for first in range(start, stop, size):
        part = values[first : min(first + size, stop)]
        if maximum:
            found[0] = greatest_magnitude(part)
            norms[first // size] = found.view(np.float32)[0]
        else:
            total = 0.0
            for at in range(0, part.size, SUM_BLOCK):
                total += sum_of_squares(part[at : at + SUM_BLOCK])
            norms[first // size] = _root(total)


@loop
def _root(total: float) -> np.float32:
    """The square root, at most the largest float32 (infinity and NaN stay)."""
    root = np.sqrt(total)
    if np.isfinite(root):
        root = min(root, FLOAT32_MAX)
    return np.float32(root)


def _norm_of(values: NDArray[np.float32], maximum: bool) -> np.float32:
    """The norm of one long bucket."""
    if maximum:
        found = np.zeros(bucket_count(values.size, SUM_BLOCK), dtype=np.uint32)
        in_parallel(block_magnitudes, values.size, values, found)
        return np.float32(found.max().view(np.float32))
    sums = partial_sums(values.size)
    in_parallel(block_squares, values.size, values, sums)
    return np.float32(_root(float(sums.sum())))


@loop
def round_bucket(
    values: Any, norm: np.float32, fractions: Any, steps: np.float32, bound: np.float32, codes: Any
) -> None:
    """Elements of one bucket to codes q + s, uint8; all arrays of the same length.

    `fractions` are 16 random bits each; elements beyond the bound or the norm saturate there.
    """
    one = np.float32(1)
    if norm == np.float32(0):
        norm = one
    for i in range(values.size):
        share = min(max(values[i], -bound), bound) / norm
        level = min(max(share, -one), one) * steps  # -s … s
        # up with the probability of the rest: the fraction is uniform on 2^-17, 3 2^-17, …
        level = np.floor(level + (np.float32(fractions[i]) * _UNIT + _HALF))
        codes[i] = np.uint8(np.int32(level + steps))


@loop
def _encode(
    start: int, stop: int, values: Any, norms: Any, key: np.uint64, size: int, steps: np.float32,
    bound: np.float32, bits: int, out: Any,
) -> None:  # fmt: skip
    words = np.empty(CHUNK // 4, dtype=np.uint64)
    fractions = words.view(np.uint16)
    codes = np.empty(CHUNK, dtype=np.uint8)
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        length = last - first
        random_fractions(key, first, words[: (length + 3) // 4])
        at = first  # a chunk may hold several buckets, or lie within one
        while at < last:
            bucket = at // size
            end = min((bucket + 1) * size, last)
            here = slice(at - first, end - first)
            round_bucket(values[at:end], norms[bucket], fractions[here], steps, bound, codes[here])
            at = end
        put_chunk(codes, length, bits, first, out)


@loop
def _add(
    start: int, stop: int, packed: Any, bits: int, norms: Any, size: int, steps: np.float32,
    weight: np.float32, out: Any, highest: Any,
) -> None:  # fmt: skip
    codes = np.empty(CHUNK, dtype=np.uint8)
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        highest[first // CHUNK] = get_chunk(packed, first, last - first, bits, codes)
        at = first  # a chunk may hold several buckets, or lie within one
        while at < last:
            bucket = at // size
            end = min((bucket + 1) * size, last)
            _add_scaled(out[at:end], codes[at - first : end - first], steps, weight * norms[bucket])
            at = end


@loop
def _add_scaled(out: Any, codes: Any, steps: np.float32, factor: np.float32) -> None:
    for i in range(out.size):
        out[i] += (np.float32(codes[i]) - steps) * factor
