"""Codes for the positions of a bucket's selected elements: k ascending positions of a tensor's n.

| coder   | body                                               | bits an index, k/n = .001/.01/.08 |
|---------|----------------------------------------------------|-----------------------------------|
| raw     | 32 bits an index                                   | 32     32    32                   |
| packed  | ceil(log2 n) bits per index                        | 20     20    20      (n = 1e6)    |
| rice    | gaps: b low bits each, then the high parts in unary| 11.49  8.11  5.05                 |
| bitmap  | 1 bit per element                                  | 1000   100   12.5                 |

A gap is the distance to the previous position (for the first one, to -1), so at least 1. Rice codes
gap - 1 with b = max(0, round(log2(ln 2 * n / k))), which follows from the frame's n and k. Its two
parts are stored one after the other, not interleaved, with the same number of bits. Bits fill each
byte from the lowest; the last byte is padded with zeros.

Random positions have geometric gaps with an entropy of 11.41 / 8.08 / 5.03 bits per index. Bitmap
beats raw above k/n = 1/32 and packed above 1/ceil(log2 n).

Sources: R. Rice, J. Plaunt, "Adaptive variable-length coding for efficient compression of
spacecraft television data", IEEE Trans. Comm. Technology 1971; parameter after Golomb 1966 for
geometric gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.checksum import number_at
from gcsim.compressors.coding.frames import as_bytes
from gcsim.compressors.coding.integers.packing import damaged, get_fields, put_fields
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InternalError

IndexCoding = Literal["raw", "packed", "rice", "bitmap", "auto"]
"""A coder's name; auto: the one that is expected to be shortest for (n, k)."""


class Coder(IntEnum):
    """Number of a coder in the frame's flags."""

    RAW = 0
    PACKED = 1
    RICE = 2
    BITMAP = 3

    @property
    def fixed_length(self) -> bool:
        """Whether the body's length follows from n and k."""
        return self is not Coder.RICE


_RAW, _PACKED, _RICE, _BITMAP = (int(coder) for coder in Coder)


@lru_cache(maxsize=1 << 12)
def choose_coder(coding: IndexCoding, n: int, k: int) -> Coder:
    """Return the named coder; for auto the shortest for k of n, equal on every worker. In a tie
    fixed length wins, since workers then need not exchange lengths."""
    if coding != "auto":
        return Coder[coding.upper()]
    return min(Coder, key=lambda c: (round(expected_bits(c, n, k)), not c.fixed_length))


def expected_bits(coder: Coder, n: int, k: int) -> float:
    """Return the bits of the body: exact for coders of fixed length, else the mean over random
    positions, with geometric gaps (large n). For k = 0 only bitmap needs any."""
    if coder is Coder.BITMAP:
        return float(n)
    if coder.fixed_length:
        return float(k * (32 if coder is Coder.RAW else index_width(n)))
    if k == 0:
        return 0.0
    b = rice_parameter(n, k)
    survive = (1.0 - k / n) ** (1 << b)  # P(gap - 1 >= 2^b)
    mean_high = n / (1 << b) if survive == 1.0 else survive / (1.0 - survive)
    return k * (b + 1 + mean_high)


def chosen_coders(coding: IndexCoding, segments: Segments, k: Column) -> Column:
    """Do `choose_coder` for each tensor."""
    if coding != "auto":
        return segments.column(int(Coder[coding.upper()]))
    pairs = zip(segments.length.tolist(), k.tolist(), strict=True)
    return np.array([choose_coder(coding, n, many) for n, many in pairs], dtype=np.int64)


def fixed_length(coders: Column) -> bool:
    """Whether n and k determine the bytes of all tensors."""
    return not np.count_nonzero(coders == _RICE)


def _launches(
    coded: tuple[Tensor, Column], indices: object, segments: object, k: Column, coders: Column
) -> Iterator[KernelCost]:
    for coder in np.unique(coders):
        own = coders == coder
        name = f"index_coding.encode_indices:{Coder(coder).name.lower()}"
        yield launch("streaming", name, k[own], 8 * k[own], coded[1][own])


def coded_positions(
    indices: Tensor, segments: Segments, k: Column, coders: Column
) -> tuple[Tensor, Column]:
    """Encode positions: (consecutive codes of the tensors, uint8; bytes of each). `indices` are
    within their tensor, int64 `[sum of k]`, ascending; `coders` are `Coder` numbers. Raises
    `InternalError` if they do not ascend (not checked by raw, packed and kernels)."""
    coded, sizes = words_of_positions(indices, segments, k, coders)
    return as_bytes(coded), sizes


@counted_as(_launches)
@primitive
def words_of_positions(
    indices: Tensor, segments: Segments, k: Column, coders: Column
) -> tuple[Tensor, Column]:
    """Do `coded_positions`, but return int32 of any stride if all are raw."""
    positions = np.ascontiguousarray(array(indices))
    if not np.count_nonzero(coders):  # raw
        return tensor(positions.astype("<i4"), indices), 4 * k
    n, (_, room) = segments.length, rooms(segments.length, k, coders)
    at, out, sizes = starts(room), np.zeros(int(room.sum()), dtype=np.uint8), np.empty_like(k)
    in_tiles(_put, _whole(k), n, coders, starts(k), at, room, positions, out, sizes)
    # a Rice body may be shorter than its room: close the gaps; -1 marks a fault
    if np.count_nonzero(sizes < room):
        if (wrong := np.flatnonzero(sizes < 0)).size:
            raise InternalError(f"positions to be coded do not ascend below {n[wrong[0]]}")
        pairs = zip(at.tolist(), sizes.tolist(), strict=True)
        out = np.concatenate([out[first : first + size] for first, size in pairs])
    return tensor(out, indices), sizes


def _reading(
    found: Tensor, coded: object, segments: object, sizes: Column, k: Column, coders: Column
) -> Iterator[KernelCost]:
    for coder in np.unique(coders):
        own = coders == coder
        name = f"index_coding.decode_indices:coder_{coder}"
        yield launch("streaming", name, np.maximum(k, sizes)[own], sizes[own], 8 * k[own])


@counted_as(_reading)
@primitive
def decoded_positions(
    coded: Tensor, segments: Segments, sizes: Column, k: Column, coders: Column
) -> Tensor:
    """Undo `coded_positions`: int64 `[sum of k]`, ascending below each tensor's length. Raises
    `InputError` if the bodies of `sizes` bytes are not such codes."""
    return tensor(positions_in(array(coded), segments, sizes, k, coders), coded)


def demand_ascending(wrong: int | np.bool_) -> None:
    """Raise `InputError` if positions do not ascend or cannot be read."""
    if wrong:
        raise damaged("positions do not ascend below the tensor's length")


def positions_in(
    coded: NDArray[np.uint8], segments: Segments, sizes: Column, k: Column, coders: Column
) -> NDArray[np.int64]:
    """Do `decoded_positions` for an array."""
    positions, faults = np.empty(int(k.sum()), dtype=np.int64), np.empty_like(k)
    rows = segments.length, coders, starts(k), starts(sizes), sizes
    in_tiles(_get, _whole(k), *rows, np.ascontiguousarray(coded), positions, faults)
    if np.count_nonzero(faults):
        t = int(np.flatnonzero(faults)[0])
        n, coder, many, size = (int(each[t]) for each in (segments.length, coders, k, sizes))
        name = Coder(coder).name.lower() if coder in set(Coder) else f"coder {coder}"
        what = FAULTS[faults[t]]
        raise damaged(f"{size} bytes are not {many} positions below {n} by {name}: {what}")
    return positions


# --- code of a single tensor, also for loops ----------------------------------------------------


@loop
def index_width(n) -> int:
    """Return ceil(log2 n), the bits that distinguish n positions."""
    width = 0
    while (n - 1) >> width > 0:
        width += 1
    return width


@loop
def rice_parameter(n, k) -> int:
    """Return b, the number of low bits of each gap."""
    return max(0, round(math.log2(math.log(2) * n / k))) if k > 0 else 0


@loop
def field_bits(coder, n, k) -> int:
    """Return the bits of each position's field: the position, or the low part of a Rice code."""
    if coder == _RAW:
        return 32
    if coder == _PACKED:
        return index_width(n)
    return rice_parameter(n, k) if coder == _RICE else 0


@loop
def rooms(lengths, counts, coders):
    """Return (`field_bits` of each tensor; bytes of its body, at most if the length varies)."""
    widths, most = np.empty_like(counts), np.empty_like(counts)
    for t in range(counts.size):
        n, k, coder = lengths[t], counts[t], coders[t]
        widths[t] = width = field_bits(coder, n, k)
        # Rice: k ones, and at most n >> b zeros, as sum(gap >> b) <= sum(gap) >> b <= n >> b
        bits = n if coder == _BITMAP else k + (n >> width) if coder == _RICE else 0
        most[t] = (k * width + 7) // 8 + (bits + 7) // 8
    return widths, most


LENGTH, STRAY, UNKNOWN, UNORDERED = 1, 2, 3, 4
FAULTS = {
    LENGTH: "their bytes are not so many",
    STRAY: "bits are set behind the last code",
    UNKNOWN: "no such coder",
    UNORDERED: "they do not ascend",
}

_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # all its 64 windows of 6 bits differ
_PLACE = np.zeros(64, dtype=np.int64)
"""Place of a word's only set bit, by window."""
for _place in range(64):
    _PLACE[(int(_DE_BRUIJN) << _place) % (1 << 64) >> 58] = _place


@loop
def ascends_below(positions, n) -> bool:
    """Whether -1 < p_0 < p_1 < … < n."""
    faults = 0
    before = np.int64(-1)
    for i in range(positions.size):
        faults += positions[i] <= before
        before = positions[i]
    return faults == 0 and bool(before < n)


@loop
def set_bits(positions, bits):
    """Set the bits at the positions in a bitmap, in place; bit 0 is the lowest of byte 0."""
    for position in positions:
        bits[position >> 3] |= np.uint8(1 << (position & 7))


@loop
def put_positions(positions, n, coder, body) -> int:
    """Encode positions below n into a zeroed body; return the bytes used, -1 if positions do not
    ascend below n (packed: exceed their bits)."""
    used: int = body.size
    width = field_bits(coder, n, positions.size)
    if coder <= _PACKED:
        # the union of all positions must fit the field; a negative one sets all bits
        if put_fields(positions, width, body) >> width:
            return -1
    elif not ascends_below(positions, n):
        return -1
    elif coder == _BITMAP:
        set_bits(positions, body)
    else:
        used = _put_rice(positions, width, body)
    return used


@loop
def get_positions(body, n, coder, positions) -> int:
    """Undo `put_positions`; return 0, or the body's fault (`FAULTS`)."""
    fault, k = 0, positions.size
    width = field_bits(coder, n, k)
    # check the length first: the loops that read a body have no bounds checks
    if coder <= _PACKED:
        fault = _end_fault(body, k * width)
        if fault == 0:
            get_fields(body, width, positions)
    elif coder == _BITMAP:
        fault = _end_fault(body, n)
        if fault == 0 and find_bits(body, positions) != k:
            fault = LENGTH
    elif coder == _RICE:
        fault = _get_rice(body, width, positions)
    else:
        fault = UNKNOWN
    # a body of the right length may hold any order, and callers write to these positions
    if fault == 0 and not ascends_below(positions, n):
        fault = UNORDERED
    return fault


@loop
def _end_fault(body, end) -> int:
    """Return the fault of a body whose last code ends before bit `end`; 0 for none."""
    if body.size != (end + 7) // 8:
        return LENGTH
    if end % 8 > 0 and body[-1] >> np.uint8(end % 8) > 0:
        return STRAY
    return 0


@loop
def find_bits(bits, places) -> int:
    """Write the places of the first set bits, up to the size of `places`; count them all."""
    found = 0
    for at in range(0, bits.size, 8):
        left = bits.size - at
        word = number_at(bits, at, 8) if left >= 8 else number_at(bits, at, left)
        while word != np.uint64(0):
            lowest = word & (~word + np.uint64(1))  # isolates the lowest set bit
            word ^= lowest
            # the product is the constant shifted left by the place, which its top 6 bits identify
            if found < places.size:
                places[found] = 8 * at + _PLACE[(lowest * _DE_BRUIJN) >> np.uint64(58)]
            found += 1
    return found


@loop
def _put_rice(positions, b, body):
    low = np.empty(positions.size, dtype=np.int64)
    mask = (np.int64(1) << b) - 1
    cut = (positions.size * b + 7) // 8
    before = np.int64(-1)
    end = 8 * cut
    for i in range(positions.size):
        gap = positions[i] - before - 1  # the coded number: gap - 1 in the module's docstring
        before = positions[i]
        low[i] = gap & mask
        end += gap >> b  # a high part is that many zeros, already there, and a one
        body[end >> 3] |= np.uint8(1 << (end & 7))
        end += 1
    put_fields(low, b, body)
    return (end + 7) // 8


@loop
def _get_rice(body, b, positions) -> int:
    cut = (positions.size * b + 7) // 8
    if body.size < cut:
        return LENGTH
    low, high = body[:cut], body[cut:]
    fault = _end_fault(low, positions.size * b)
    get_fields(low, b, positions)
    ends = np.empty(positions.size, dtype=np.int64)
    if find_bits(high, ends) != ends.size:
        return LENGTH
    before = np.int64(-1)
    end = np.int64(-1)
    for i in range(positions.size):
        # the zeros since the last one are the high part; positions[i] still holds the low part
        before += 1 + ((ends[i] - end - 1) << b) + positions[i]
        end = ends[i]
        positions[i] = before
    return fault if fault else _end_fault(high, end + 1)


# --- all tensors ----------------------------------------------------------------------------------


def _whole(k: Column) -> NDArray[np.int64]:
    # a code begins where the last one ends, so a tensor is processed by one thread
    return np.stack((np.arange(k.size), np.zeros_like(k), k), axis=1)


@loop
def _put(start, stop, tensors, n, coders, firsts, at, room, positions, out, sizes):
    for t in range(start, stop):
        own = positions[firsts[t] : firsts[t] + tensors[t, 2]]
        body = out[at[t] : at[t] + room[t]]
        sizes[t] = put_positions(own, n[t], coders[t], body)


@loop
def _get(start, stop, tensors, n, coders, firsts, at, sizes, coded, positions, faults):
    for t in range(start, stop):
        own = positions[firsts[t] : firsts[t] + tensors[t, 2]]
        body = coded[at[t] : at[t] + sizes[t]]
        faults[t] = get_positions(body, n[t], coders[t], own)
