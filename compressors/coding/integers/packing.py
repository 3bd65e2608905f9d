"""Bit packing of small integers: codes of equal width, and single bits.

Packed buffers are little endian and padded with zeros to a whole byte; a buffer of wrong length or
padding raises `InputError`. Codes pass through a 64-bit word, of which 32 bits at a time are
written. Single bits stay bytes of 0 and 1 as long as possible, for vector instructions; one
multiplication folds eight into a byte (`fold_bits`, `unfold_bits`). Other bases are in `digits.py`.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.checksum import number_at
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, inlined, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.errors import InputError, Problem

Count = TypeVar("Count", int, NDArray[np.int64])
"""A number, or a column of a bucket's table."""
MAX_BITS = 16
_GRAIN = 1 << 16
_NO_ROOM = np.zeros(0, dtype=np.int64)


def packed_bytes(count: Count, bits: int) -> Count:
    """Return the whole bytes of `count` codes of `bits` bits; for a column, of each."""
    return (count * bits + 7) >> 3


@kernel("streaming")
def pack_bits(values: Tensor, bits: int) -> Tensor:
    """Pack codes of `bits` (1 to 16) bits, the first in the lowest bits of the first byte: an
    integer tensor `[n]` in [0, 2^bits), fastest as uint8, to uint8 `[ceil(n bits / 8)]` on its
    device. Raises `InputError` if a value does not fit or `bits` is out of range."""
    check_bits(bits)
    codes = np.ascontiguousarray(array(values))
    out = np.empty(packed_bytes(codes.size, bits), dtype=np.uint8)
    seen = np.zeros(-(-codes.size // _GRAIN), dtype=np.int64)
    in_parallel(_pack, codes.size, codes, out, bits, seen, grain=_GRAIN)
    demand_fit(not (seen >> bits).any(), bits)
    return tensor(out, values)


@kernel("streaming")
def unpack_bits(buffer: Tensor, count: int, bits: int) -> Tensor:
    """Undo `pack_bits`: `[count]`, uint8 up to 8 bits, else int32. Raises `InputError` unless the
    buffer has the length of `count` codes and zero padding."""
    check_bits(bits)
    data = np.ascontiguousarray(array(buffer))
    check_packed(data, count, bits)
    out = np.empty(count, dtype=np.uint8 if bits <= 8 else np.int32)
    in_parallel(_unpack, count, data, out, bits, grain=_GRAIN)
    return tensor(out, buffer)


def check_packed(packed: NDArray[np.uint8] | Tensor, count: int, bits: int) -> None:
    """Raise `InputError` unless the buffer has the length of `count` codes and zero padding."""
    expected = packed_bytes(count, bits)
    if len(packed) != expected:
        raise damaged(f"{len(packed)} bytes for {count} codes of {bits} bits, not {expected}")
    used = count * bits % 8
    if used and int(packed[-1]) >> used:
        raise stray_bits()


def demand_no_stray(
    data: NDArray[np.uint8], at: NDArray[np.int64], counts: NDArray[np.int64], bits: int
) -> None:
    """Raise `InputError` if bits are set after the last of the `counts` codes at byte `at`."""
    if has_stray(data, at, counts, bits, _NO_ROOM):
        raise stray_bits()


def stray_bits() -> InputError:
    """Return the error for nonzero padding."""
    return damaged("padding after the last code is not zero")


def damaged(what: str) -> InputError:
    """Return the error for a buffer that cannot have been packed."""
    return InputError(
        Problem(message=f"damaged payload: {what}", hint="it was cut, edited or misread")
    )


# --- for loops, here and in other files ---------------------------------------------------------


@loop
def has_stray(data, at, counts, bits, rooms) -> bool:
    """Whether `demand_no_stray` would fail, or a byte is set after the codes in their room."""
    stray = False
    for t in range(counts.size):
        used = counts[t] * bits
        if used % 8 > 0:
            stray |= data[at[t] + used // 8] >> np.uint8(used % 8) > 0
        if rooms.size:
            for i in range(at[t] + (used + 7) // 8, at[t] + rooms[t]):
                stray |= data[i] > 0
    return stray


@inlined
def fold_bits(words, out):
    """Put the lowest bits of eight bytes of `words` (uint64) into each byte of `out`: for bytes b_k
    in {0, 1}, bit 8k becomes bit 56 + k of the product, without carries."""
    for k in range(out.size):
        out[k] = np.uint8((words[k] * np.uint64(0x0102040810204080)) >> np.uint64(56))


@inlined
def unfold_bits(packed, words):
    """Spread the bits of each byte of `packed` over the eight bytes of a word: 0 or nonzero."""
    for k in range(packed.size):
        repeated = np.uint64(packed[k]) * np.uint64(0x0101010101010101)
        words[k] = repeated & np.uint64(0x8040201008040201)


@loop
def put_signs(values, words, out):
    """Write a bit per element, 1 = negative, to `out`; `words` (uint64) is scratch, a byte each."""
    flags = words.view(np.uint8)
    for i in range(values.size):
        flags[i] = values[i] < 0
    for i in range(values.size, 8 * out.size):
        flags[i] = 0
    fold_bits(words, out)


@loop
def put_fields(codes, bits, out):
    """Pack codes of 0 to 32 bits each; return the union of their set bits (-1: negative)."""
    every = np.int64(0)
    groups = codes.size // 8 if bits <= 8 else 0  # eight codes fill `bits` bytes
    for group in range(groups):
        word = np.uint64(0)
        for j in range(8):
            code = np.int64(codes[8 * group + j])
            every |= code
            word |= np.uint64(code) << np.uint64(j * bits)
        for j in range(bits):
            out[group * bits + j] = np.uint8((word >> np.uint64(8 * j)) & np.uint64(255))
    at = groups * bits
    filled = 0
    word = np.uint64(0)
    for i in range(8 * groups, codes.size):
        code = np.int64(codes[i])
        every |= code
        word |= np.uint64(code) << np.uint64(filled)
        filled += bits
        if filled >= 32:  # a word has room for 32 more bits, so none is lost
            for j in range(4):
                out[at + j] = np.uint8((word >> np.uint64(8 * j)) & np.uint64(255))
            at += 4
            word >>= np.uint64(32)
            filled -= 32
    while filled > 0:
        out[at] = np.uint8(word & np.uint64(255))
        at += 1
        word >>= np.uint64(8)
        filled -= 8
    return every


@loop
def get_fields(packed, bits, out):
    """Undo `put_fields`: fills `out`."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    groups = out.size // 8 if bits <= 8 else 0
    for group in range(groups):
        word = np.uint64(0)
        for j in range(bits):
            word |= np.uint64(packed[group * bits + j]) << np.uint64(8 * j)
        for j in range(8):
            out[8 * group + j] = np.int64((word >> np.uint64(j * bits)) & mask)
    for i in range(8 * groups, out.size):
        begin = i * bits
        # 32 bits from bit 7 of a byte end in the fifth byte, so eight bytes hold any field
        at, left = begin >> 3, packed.size - (begin >> 3)
        word = number_at(packed, at, 8) if left >= 8 else number_at(packed, at, left)
        out[i] = np.int64((word >> np.uint64(begin & 7)) & mask)


@loop
def _pack(start, stop, codes, out, bits, seen):
    for first in range(start, stop, _GRAIN):
        # a multiple of eight codes, so each grain begins at a whole byte
        part = codes[first : min(first + _GRAIN, stop)]
        seen[first // _GRAIN] = put_fields(part, bits, out[first // 8 * bits :])


@loop
def _unpack(start, stop, packed, out, bits):
    get_fields(packed[start // 8 * bits : (stop + 7) // 8 * bits], bits, out[start:stop])


def check_bits(bits: int) -> None:
    """Raise `InputError` unless codes can have this many bits."""
    if not 1 <= bits <= MAX_BITS:
        raise InputError(f"cannot pack codes of {bits} bits: 1 to {MAX_BITS} are possible")


def demand_fit(fit: bool, bits: int) -> None:
    """Raise `InputError` unless all codes fit."""
    if not fit:
        raise InputError(f"cannot pack a value outside [0, {1 << bits}) in {bits} bits")
