"""Digits of a base that is no power of two, as bytes on the wire.

| base  | digits in a group | bits of a group | bits a digit (log2 base) |
|-------|-------------------|-----------------|--------------------------|
| 3     | 5                 | 8               | 1.6    (1.585)           |
| 5     | 3                 | 7               | 2.333  (2.322)           |
| 9     | 5                 | 16              | 3.2    (3.170)           |
| other | 1                 | ceil(log2 base) | ceil(log2 base)          |

A group is the number sum_j digit_j base^j. The layout is planar: digit j of group i is element
i + j * ceil(n / digits in a group), so that whole planes are added, as the strided layout of
TernGrad's published code does for 2-bit codes (Wen et al. 2017, arXiv:1705.07878). Groups are
packed bit after bit (`packing.py`). Digits after the last are 0; what a buffer cannot have been
packed from (wrong length, padding that is not zero, a digit or group that is too large) raises
`InputError`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import (
    Count,
    damaged,
    demand_no_stray,
    packed_bytes,
)
from gcsim.compressors.coding.rounding.levels import CHUNK, get_chunk, put_chunk
from gcsim.compressors.loops import in_tiles, loop
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError

_GROUPS = {3: (5, 8), 5: (3, 7), 9: (5, 16)}
"""By base: digits in a group, and the group's bits."""


def group_of(base: int) -> tuple[int, int]:
    """(digits in a group, bits of a group) for digits 0 … base - 1, base 2 to 256."""
    if not 2 <= base <= 256:
        raise InputError(f"cannot pack digits of base {base}: 2 to 256 are possible")
    return _GROUPS.get(base, (1, (base - 1).bit_length()))


def digit_bytes(count: Count, base: int) -> Count:
    """Bytes that `count` digits take: whole groups, rounded up to whole bytes; or those of each."""
    size, bits = group_of(base)
    return packed_bytes(-(-count // size), bits)


def packed_digits(
    digits: NDArray[np.uint8], segments: Segments, base: int
) -> tuple[NDArray[np.uint8], Column]:
    """(bodies of a bucket's digits, one behind the other; bytes of each).

    `digits` lie one tensor's behind the other's. Raises `InputError` unless they are below `base`.
    """
    size, bits = group_of(base)
    length, planes = segments.length, -(-segments.length // size)
    sizes, tiles = packed_bytes(planes, bits), segments.tiles_of(planes)
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    highest = np.zeros(len(tiles), dtype=np.int64)
    given = digits, starts(length), length, base, size, bits, out, starts(sizes), highest
    in_tiles(_pack, tiles, *given)
    if (digit := int(highest.max(initial=0))) >= base:
        raise InputError(f"cannot pack a digit above {base - 1} in base {base}: {digit}")
    return out, sizes


def unpacked_digits(
    body: NDArray[np.uint8], sizes: Column, segments: Segments, base: int
) -> NDArray[np.uint8]:
    """Undo `packed_digits`.

    Raises `InputError` when a body's length is not that of its digits, a group is not made of
    digits, or a digit after the last is not 0.
    """
    size, bits = group_of(base)
    length, planes = segments.length, -(-segments.length // size)
    for n, found, asked in zip(length, sizes, packed_bytes(planes, bits), strict=True):
        if found != asked:
            raise damaged(f"{found} bytes for {n} base-{base} digits, not {asked}")
    at, tiles = starts(sizes), segments.tiles_of(planes)
    demand_no_stray(body, at, planes, bits)
    out = np.empty(int(length.sum()), dtype=np.uint8)
    highest = np.zeros((2, len(tiles)), dtype=np.int64)
    in_tiles(_unpack, tiles, body, at, starts(length), length, base, size, bits, out, highest)
    demand_digits(*highest.max(axis=1, initial=0).tolist(), base=base)
    return out


def demand_digits(largest: int, stray: int, base: int) -> None:
    """`InputError` for a group that is not made of digits, or a digit after the last."""
    size, bits = group_of(base)
    if largest >= base**size:
        what = "byte" if bits == 8 else f"group of {bits} bits"
        raise damaged(f"{what} {largest} is not {size} base-{base} digits")
    if stray:
        raise damaged(f"padding after the last base-{base} digit is not zero")


# --- loops ----------------------------------------------------------------------------------------


@loop
def _pack(
    start: int, stop: int, tiles: Any, digits: Any, begins: Any, lengths: Any, base: int, size: int,
    bits: int, out: Any, at: Any, highest: Any,
) -> None:  # fmt: skip
    # digit j of group g is element j * plane + g: neighbours are combined in one vector operation
    groups = np.empty(CHUNK, dtype=np.uint16)
    codes = np.empty(CHUNK, dtype=np.uint8)
    factor = np.uint16(base)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        own = digits[begins[t] : begins[t] + lengths[t]]
        plane = (own.size + size - 1) // size
        body = out[at[t] : at[t] + (plane * bits + 7) // 8]
        most = np.uint8(0)
        for first in range(start_of, stop_of, CHUNK):
            block = groups[: min(CHUNK, stop_of - first)]
            block[:] = 0
            for j in range(size - 1, -1, -1):  # Horner's rule, highest digit first
                begin = min(j * plane + first, own.size)
                part = own[begin : min(begin + block.size, (j + 1) * plane)]
                for i in range(block.size):
                    block[i] *= factor
                for i in range(part.size):
                    block[i] += part[i]
                    most = max(most, part[i])
            if bits == 16:
                wide = body[2 * first : 2 * (first + block.size)]
                for i in range(block.size):
                    wide[2 * i] = np.uint8(block[i] & np.uint16(255))
                    wide[2 * i + 1] = np.uint8(block[i] >> np.uint16(8))
            else:
                for i in range(block.size):
                    codes[i] = np.uint8(block[i])
                put_chunk(codes, block.size, bits, first, body)
        highest[tile] = most


@loop
def _unpack(
    start: int, stop: int, tiles: Any, data: Any, at: Any, begins: Any, lengths: Any, base: int,
    size: int, bits: int, out: Any, highest: Any,
) -> None:  # fmt: skip
    inverse = np.float32(1) / np.float32(base)
    divisor = np.int32(base)
    rest = np.empty(CHUNK, dtype=np.int32)
    codes = np.empty(CHUNK, dtype=np.uint8)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        own = out[begins[t] : begins[t] + lengths[t]]
        plane = (own.size + size - 1) // size
        body = data[at[t] : at[t] + (plane * bits + 7) // 8]
        most, stray = np.int32(0), np.int32(0)
        for first in range(start_of, stop_of, CHUNK):
            length = min(CHUNK, stop_of - first)
            if bits == 16:
                wide = body[2 * first : 2 * (first + length)]
                for i in range(length):
                    rest[i] = np.int32(wide[2 * i]) | (np.int32(wide[2 * i + 1]) << np.int32(8))
            else:
                get_chunk(body, first, length, bits, codes)
                for i in range(length):
                    rest[i] = codes[i]
            for i in range(length):
                most = max(most, rest[i])
            for j in range(size):
                begin = min(j * plane + first, own.size)
                part = own[begin : min(begin + length, (j + 1) * plane)]
                for i in range(part.size):
                    # Exact: (x + 1/2) / base is 1 / (2 base) away from the next whole number, and
                    # float32 is right to 2^-10 for x < 2^16.
                    quotient = np.int32((np.float32(rest[i]) + np.float32(0.5)) * inverse)
                    part[i] = rest[i] - quotient * divisor
                    rest[i] = quotient
                for i in range(part.size, length):
                    quotient = np.int32((np.float32(rest[i]) + np.float32(0.5)) * inverse)
                    stray |= rest[i] - quotient * divisor
                    rest[i] = quotient
        highest[0, tile], highest[1, tile] = most, stray
