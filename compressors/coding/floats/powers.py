"""Rounding at random to powers of two: exponents of 7 or 8 bits, and signs.

A random number is added to the mantissa's bits; an overflow raises the exponent. With 9 bits a body
is a byte an element, float32's exponent, and then a bit an element, the signs; with 8 bits it is a
byte of sign and exponent. Source and ranges: `quantization/floats/natural.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import Count, demand_no_stray, packed_bytes
from gcsim.compressors.coding.rounding.levels import CHUNK, get_codes, put_chunk, random_fractions
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments

LOWEST = 18
"""The exponent field of float32 that 8 bits code as 0."""


def power_bytes(count: Count, bits: int) -> Count:
    """Bytes of `count` elements: exponents, and with 9 bits the signs behind them."""
    return count + packed_bytes(count, 1) if bits == 9 else count


def _putting(
    _: object, values: object, segments: Segments, keys: object, out: object, at: object, *,
    bits: int,
) -> Iterator[KernelCost]:  # fmt: skip
    n, size = segments.length, power_bytes(segments.length, bits)
    yield drawn("natural.to_powers", n, 16)
    yield launch("streaming", "natural.to_powers", size, 4 * n, size)


@counted_as(_putting)
@primitive
def put_powers(
    values: Tensor, segments: Segments, keys: NDArray[np.uint64], out: Tensor, at: Column, *,
    bits: int,
) -> None:  # fmt: skip
    """Round the elements of a flat float32 at random; write exponents and signs, in one pass.

    `keys` are those of each tensor's random bits; its body begins at byte `at` of `out` (uint8).
    """
    data = np.ascontiguousarray(array(values)).view(np.uint32)
    with written_back(out) as target:
        in_tiles(_put, segments.tiles, data, segments.table, keys, bits, target, at)


def _adding(
    _: object, out: object, segments: Segments, message: object, at: object, *, bits: int,
    weight: float,
) -> Iterator[KernelCost]:  # fmt: skip
    n, size = segments.length, power_bytes(segments.length, bits)
    yield launch("streaming", "natural.add_powers", size, 8 * n, size)


@counted_as(_adding)
@primitive
def add_powers(
    out: Tensor, segments: Segments, message: Tensor, at: Column, *, bits: int, weight: float
) -> None:
    """out += weight * the powers of two whose bodies begin at byte `at`, in place.

    Raises `InputError` for bits behind a tensor's last sign.
    """
    data, n = np.ascontiguousarray(array(message)), segments.length
    if bits == 9:
        demand_no_stray(data, at + n, n, 1)
    with written_back(out) as target:
        in_tiles(_add, segments.tiles, data, at, segments.table, bits, np.float32(weight), target)


# --- loops ----------------------------------------------------------------------------------------


@loop
def _put(
    start: int, stop: int, tiles: Any, values: Any, table: Any, keys: Any, bits: int, out: Any,
    at: Any,
) -> None:  # fmt: skip
    words = np.empty(CHUNK // 4, dtype=np.uint64)
    fractions = words.view(np.uint16)
    negative = np.empty(CHUNK, dtype=np.uint8)
    infinite = np.uint32(0x7F800000)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        begin, n = table[t]
        exponents = out[at[t] : at[t] + n]
        signs = out[at[t] + n : at[t] + n + (n + 7) // 8]
        for first in range(start_of, stop_of, CHUNK):
            part = values[begin + first : begin + min(first + CHUNK, stop_of)]
            length = part.size
            codes = exponents[first : first + length]
            random_fractions(keys[t], first, words[: (length + 3) // 4])
            for i in range(length):
                magnitude = part[i] & np.uint32(0x7FFFFFFF)
                # 16 of the mantissa's 23 bits are random, and half a unit of the last of them
                raised = magnitude + ((np.uint32(fractions[i]) << np.uint32(7)) | np.uint32(64))
                exponent = min(raised >> np.uint32(23), np.uint32(254))
                if magnitude >= infinite:
                    exponent = np.uint32(255)
                if bits == 8:
                    exponent = min(max(exponent, np.uint32(LOWEST)), np.uint32(LOWEST + 127))
                    exponent -= np.uint32(LOWEST)
                    exponent |= (part[i] >> np.uint32(31)) << np.uint32(7)
                codes[i] = np.uint8(exponent)
            if bits == 9:
                for i in range(length):
                    negative[i] = np.uint8(part[i] >> np.uint32(31))
                put_chunk(negative, length, 1, first, signs)


@loop
def _add(
    start: int, stop: int, tiles: Any, data: Any, at: Any, table: Any, bits: int,
    weight: np.float32, out: Any,
) -> None:  # fmt: skip
    negative = np.empty(CHUNK, dtype=np.uint8)
    pattern = np.empty(CHUNK, dtype=np.uint32)
    powers = pattern.view(np.float32)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        begin, n = table[t]
        signs = data[at[t] + n :]
        for first in range(start_of, stop_of, CHUNK):
            target = out[begin + first : begin + min(first + CHUNK, stop_of)]
            codes = data[at[t] + first : at[t] + first + target.size]
            if bits == 9:
                padded = (target.size + 7) // 8 * 8
                get_codes(signs[first // 8 : (first + padded) // 8], 1, negative[:padded])
                for i in range(target.size):
                    pattern[i] = np.uint32(codes[i]) << np.uint32(23)
                    pattern[i] |= np.uint32(negative[i]) << np.uint32(31)
            else:
                for i in range(target.size):
                    exponent = np.uint32(codes[i] & np.uint8(127))
                    if exponent > 0:
                        exponent += np.uint32(LOWEST)
                    sign = np.uint32(codes[i] >> np.uint8(7)) << np.uint32(31)
                    pattern[i] = (exponent << np.uint32(23)) | sign
            for i in range(target.size):
                target[i] += weight * powers[i]
