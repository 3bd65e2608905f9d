"""Forms of codes on the wire: fixed width, or digits of a base that is not a power of two.

| base  | digits in a group | bits of a group | bits a digit (log2 base) |
|-------|-------------------|-----------------|--------------------------|
| 3     | 5                 | 8               | 1.6    (1.585)           |
| 5     | 3                 | 7               | 2.333  (2.322)           |
| 9     | 5                 | 16              | 3.2    (3.170)           |
| other | 1                 | ceil(log2 base) | ceil(log2 base)          |

A group is the number sum_j digit_j base^j, bit-packed (`packing.py`) and padded with zeros. The
layout is planar: digit j of group i is element i + j * ceil(n / digits in a group), so that whole
planes are added, as in TernGrad's published code (Wen et al. 2017, arXiv:1705.07878).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcsim.compressors.coding.integers.packing import Count, packed_bytes
from gcsim.compressors.loops import loop
from gcsim.errors import InputError

_GROUPS = {3: (5, 8), 5: (3, 7), 9: (5, 16)}


class Form(NamedTuple):
    """Form of codes below `base` on the wire: groups of `size` codes take `bits` bits."""

    size: int
    bits: int
    base: int

    def planes(self, count: Count) -> Count:
        """Return the number of groups for `count` codes; for a column, of each."""
        return -(-count // self.size)

    def nbytes(self, count: Count) -> Count:
        """Return the bytes of `count` codes, in whole groups; for a column, of each."""
        return packed_bytes(self.planes(count), self.bits)


def fixed(bits: int) -> Form:
    """Return the form of codes with 1 to 8 bits each."""
    return Form(1, bits, 1 << bits)


def digits(base: int) -> Form:
    """Return the form of digits 0 … base - 1, for a base of 2 to 256."""
    if not 2 <= base <= 256:
        raise InputError(f"cannot pack digits of base {base}: 2 to 256 are possible")
    return Form(*_GROUPS.get(base, (1, (base - 1).bit_length())), base)


# --- for loops: codes of up to 8 bits -----------------------------------------------------------


@loop
def put_codes(codes, bits, out):
    """Pack whole groups of eight codes (uint8 `[8 m]`, overwritten) into `out`; if `out` ends
    inside the last group, the rest is dropped."""
    if bits == 4:
        for i in range(out.size):
            out[i] = codes[2 * i] | (codes[2 * i + 1] << np.uint8(4))
        return
    if bits == 2:
        for i in range(out.size):
            low = codes[4 * i] | (codes[4 * i + 1] << np.uint8(2))
            out[i] = low | (codes[4 * i + 2] << np.uint8(4)) | (codes[4 * i + 3] << np.uint8(6))
        return
    # Eight codes are a word of eight one-byte lanes that use `bits` bits each. Three rounds close
    # the gaps in all words: lanes of 1, 2, 4 bytes merge to twice the size.
    words = codes.view(np.uint64)
    width = np.uint64(bits)
    lane = np.uint64(8)
    for _ in range(3):
        low = _fields(width, lane + lane)
        high = low << width
        shift = lane - width
        for i in range(words.size):
            # move the upper field of each pair of lanes down to the end of the lower one
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
def get_codes(packed, bits, codes):
    """Undo `put_codes`: fill `codes` (uint8 `[8 m]`), with zeros past the end of `packed`."""
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
    # begin with the widest lanes: four codes in each half of a word
    width = np.uint64(4 * bits)
    lane = np.uint64(32)
    for _ in range(3):  # the rounds of `put_codes` in reverse
        low = _fields(width, lane + lane)
        high = low << width
        shift = lane - width
        for i in range(words.size):
            words[i] = (words[i] & low) | ((words[i] & high) << shift)
        width = width >> np.uint64(1)
        lane = lane >> np.uint64(1)


@loop
def _get_even_codes(packed, bits, codes):
    """Undo `put_codes` for codes that do not straddle bytes."""
    # one loop per width, as shifts by constants vectorise
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
def _fields(width, period) -> np.uint64:
    """Return a mask of the `width` low bits in each field of `period` bits."""
    mask = np.uint64(0)
    at = np.uint64(0)
    while at < np.uint64(64):
        mask |= ((np.uint64(1) << width) - np.uint64(1)) << at
        at = at + period
    return mask


@loop
def put_chunk(codes, length, bits, first, out):
    """Pack the first `length` codes, for elements from `first` on, at their place in `out`."""
    padded = (length + 7) // 8 * 8  # whole groups; the end of the last may be cut off
    for i in range(length, padded):
        codes[i] = 0
    # `first` is a multiple of eight, so its code begins at a whole byte
    begin = first // 8 * bits
    put_codes(codes[:padded], bits, out[begin : begin + (length * bits + 7) // 8])


@loop
def get_chunk(packed, first, length, bits, codes):
    """Undo `put_chunk`, into `codes`; return the largest code."""
    begin = first // 8 * bits
    room = codes[: (length + 7) // 8 * 8]
    get_codes(packed[begin : begin + (length * bits + 7) // 8], bits, room)
    most = np.uint8(0)
    for i in range(room.size):
        most = max(most, room[i])
    return most
