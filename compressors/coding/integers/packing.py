"""Small integers as bytes on the wire.

Fixed-width codes of 1 to 16 bits and sign bits; digits of other bases are in `digits.py`. Every
packed buffer is little endian and padded with zeros to a whole byte; what a buffer cannot have
been packed from (wrong length, padding that is not zero) raises `InputError`.

Eight codes of b bits fill exactly b bytes: up to 8 bits each group of eight passes through one
64-bit word, wider codes flow through a word that is emptied by 32 bits. Single bits are bytes of 0
and 1 for as long as possible: those are compared and chosen from with vector instructions, and one
multiplication folds eight of them into a byte (`fold_bits`, `unfold_bits`).

Every function is one streaming kernel of an accelerator.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, inlined, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import handled, on_device
from gcsim.errors import InputError, InternalError, Problem

Count = TypeVar("Count", int, NDArray[np.int64])
"""A number, or a column of a bucket's table."""
MAX_BITS = 16
MAX_FIXED = 32
"""Bits of the widest values of `pack_fixed`."""
_GRAIN = 1 << 16
_CHUNK = 4096
"""Elements whose signs are gathered before they are folded; a multiple of 8."""


def packed_bytes(count: Count, bits: int) -> Count:
    """Bytes that `count` codes of `bits` bits take: whole bytes, rounded up; or those of each."""
    return -(-count * bits // 8)


@kernel("streaming")
@on_device("integers.packing")
def pack_bits(values: Tensor, bits: int) -> Tensor:
    """Pack codes of `bits` bits, the first in the lowest bits of the first byte.

    Parameters
    ----------
    values : integer tensor `[n]` (uint8 is fastest), each in [0, 2^bits)
    bits : 1 to 16

    Returns
    -------
    uint8 tensor `[ceil(n bits / 8)]`, on the device of `values`

    Raises
    ------
    InputError
        When a value does not fit, or `bits` is out of range.
    """
    check_bits(bits)
    codes = np.ascontiguousarray(array(values))
    packed, seen = _packed(codes, bits)
    if seen >> bits:
        raise InputError(f"cannot pack a value outside [0, {1 << bits}) in {bits} bits")
    return tensor(packed, values)


@kernel("streaming")
@on_device("integers.packing")
def unpack_bits(buffer: Tensor, count: int, bits: int) -> Tensor:
    """Undo `pack_bits`.

    Returns a tensor `[count]`: uint8 up to 8 bits, else int32. Raises `InputError` when the
    buffer's length is not that of `count` codes, or its padding is not zero.
    """
    check_bits(bits)
    data = np.ascontiguousarray(array(buffer))
    check_packed(data, count, bits)
    out = np.empty(count, dtype=np.uint8 if bits <= 8 else np.int32)
    _unpack(data, out, bits)
    return tensor(out, buffer)


@kernel("streaming")
@on_device("integers.packing")
def pack_signs(values: Tensor) -> Tensor:
    """One bit an element, 1 = negative; zero of either sign counts as positive.

    `values` is a float tensor `[n]`; returns uint8 `[ceil(n / 8)]`.
    """
    data = np.ascontiguousarray(array(values))
    out = np.empty(packed_bytes(data.size, 1), dtype=np.uint8)
    in_parallel(_pack_signs, data.size, data, out, grain=_GRAIN)
    return tensor(out, values)


@kernel("streaming")
@on_device("integers.packing")
def unpack_signs(buffer: Tensor, count: int) -> Tensor:
    """Undo `pack_signs`: float32 `[count]` of +1 and -1. Raises `InputError` as `unpack_bits`."""
    data = np.ascontiguousarray(array(buffer))
    check_packed(data, count, 1)
    out = np.empty(count, dtype=np.float32)
    in_parallel(_unpack_signs, count, data, out, grain=_GRAIN)
    return tensor(out, buffer)


def pack_fixed(values: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Integers in [0, 2^width) at `width` <= 32 bits each: uint8 `[ceil(k * width / 8)]`."""
    if not 0 <= width <= MAX_FIXED:
        raise InternalError(f"cannot pack values of {width} bits")
    packed, seen = _packed(np.ascontiguousarray(values, dtype=np.int64), width)
    if seen >> width:
        raise InternalError(f"cannot pack a value outside [0, {1 << width}) in {width} bits")
    return packed


def unpack_fixed(packed: NDArray[np.uint8], count: int, width: int) -> NDArray[np.int64]:
    """The values that `pack_fixed` packed; `InputError` for another length or stray bits."""
    check_packed(packed, count, width)
    out = np.zeros(count, dtype=np.int64)
    _unpack(np.ascontiguousarray(packed), out, width)
    return out


def check_packed(packed: NDArray[np.uint8] | Tensor, count: int, bits: int) -> None:
    """`InputError` unless the buffer is as long as `count` codes, and padded with zeros."""
    if isinstance(packed, torch.Tensor) and not handled(packed):
        packed = array(packed)
    expected = packed_bytes(count, bits)
    if len(packed) != expected:
        raise damaged(f"{len(packed)} bytes for {count} codes of {bits} bits, not {expected}")
    used = count * bits % 8
    if used and int(packed[-1]) >> used:
        raise stray_bits()


def demand_no_stray(
    data: NDArray[np.uint8], at: NDArray[np.int64], counts: NDArray[np.int64], bits: int
) -> None:
    """`InputError` where bits are set behind the last of `counts` codes that begin at byte `at`."""
    if has_stray(data, at, counts, bits):
        raise stray_bits()


def has_stray(
    data: NDArray[np.uint8], at: NDArray[np.int64], counts: NDArray[np.int64], bits: int
) -> bool:
    """Whether `demand_no_stray` refuses."""
    used = counts * bits % 8
    last = (at + packed_bytes(counts, bits) - 1)[used > 0]
    return bool((data[last] >> used[used > 0]).any())


def stray_bits() -> InputError:
    """Error for padding that is not zero."""
    return damaged("padding after the last code is not zero")


def damaged(what: str) -> InputError:
    """What is raised for a buffer that cannot have been packed."""
    return InputError(
        Problem(message=f"damaged payload: {what}", hint="it was cut, edited or misread")
    )


# --- for loops, here and in other files ---------------------------------------------------------


@inlined
def fold_bits(words: Any, out: Any) -> None:
    """The lowest bits of the bytes of `words` (uint64), eight in each byte of `out`.

    In a word of bytes b_k in {0, 1}, bit 8k becomes bit 56 + k of the product, without carries.
    """
    for k in range(out.size):
        out[k] = np.uint8((words[k] * np.uint64(0x0102040810204080)) >> np.uint64(56))


@inlined
def unfold_bits(packed: Any, words: Any) -> None:
    """The bits of each byte of `packed` as the eight bytes of a word: 0, or something else."""
    for k in range(packed.size):
        repeated = np.uint64(packed[k]) * np.uint64(0x0101010101010101)
        words[k] = repeated & np.uint64(0x8040201008040201)


@loop
def put_signs(values: Any, words: Any, out: Any) -> None:
    """One bit an element, 1 = negative, as `out`; `words` (uint64) has room for a byte each."""
    flags = words.view(np.uint8)
    for i in range(values.size):
        flags[i] = values[i] < 0
    for i in range(values.size, 8 * out.size):
        flags[i] = 0
    fold_bits(words, out)


# --- loops: over groups of eight codes, the last of which may be cut off --------------------------


def _packed(codes: NDArray[Any], bits: int) -> tuple[NDArray[np.uint8], int]:
    """The packed codes, and the bits that are set in any of them (-1: one is negative)."""
    out = np.empty(packed_bytes(codes.size, bits), dtype=np.uint8)
    seen = np.zeros(-(-codes.size // _GRAIN), dtype=np.int64)
    pack = _pack_narrow if bits <= 8 else _pack_wide
    in_parallel(pack, codes.size, codes, out, bits, seen, grain=_GRAIN)
    return out, functools.reduce(operator.or_, seen.tolist(), 0)


def _unpack(data: NDArray[np.uint8], out: NDArray[Any], bits: int) -> None:
    """All codes of `data`, which was checked, into `out`."""
    unpack = unpack_narrow if bits <= 8 else unpack_wide
    in_parallel(unpack, out.size, data, out, bits, grain=_GRAIN)


@loop
def _pack_narrow(start: int, stop: int, codes: Any, out: Any, bits: int, seen: Any) -> None:
    for first in range(start, stop, _GRAIN):
        part = codes[first : min(first + _GRAIN, stop)]
        packed = out[first // 8 * bits :]
        every = np.int64(0)
        width = np.uint64(bits)
        groups = part.size // 8
        for group in range(groups):
            eight = part[8 * group : 8 * group + 8]
            word = np.uint64(0)  # eight codes of up to 8 bits: the next `bits` bytes
            for j in range(8):
                code = np.int64(eight[j])
                every |= code
                word |= np.uint64(code) << (np.uint64(j) * width)
            for j in range(bits):
                packed[group * bits + j] = np.uint8(word & np.uint64(255))
                word >>= np.uint64(8)
        word = np.uint64(0)
        rest, last = part[8 * groups :], packed[groups * bits :]
        for j in range(rest.size):
            every |= np.int64(rest[j])
            word |= np.uint64(rest[j]) << (np.uint64(j) * width)
        for j in range((rest.size * bits + 7) // 8):
            last[j] = np.uint8(word & np.uint64(255))
            word >>= np.uint64(8)
        seen[first // _GRAIN] = every


@loop
def unpack_narrow(start: int, stop: int, data: Any, out: Any, bits: int) -> None:
    """Codes of up to 8 bits."""
    data, out = data[start // 8 * bits :], out[start:stop]
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    width = np.uint64(bits)
    groups = out.size // 8
    for group in range(groups):
        word = np.uint64(0)
        for j in range(bits):
            word |= np.uint64(data[group * bits + j]) << np.uint64(8 * j)
        eight = out[8 * group : 8 * group + 8]
        for j in range(8):
            eight[j] = np.uint8((word >> (np.uint64(j) * width)) & mask)
    word = np.uint64(0)
    rest, last = out[8 * groups :], data[groups * bits :]
    for j in range((rest.size * bits + 7) // 8):
        word |= np.uint64(last[j]) << np.uint64(8 * j)
    for j in range(rest.size):
        rest[j] = np.uint8((word >> (np.uint64(j) * width)) & mask)


@loop
def _pack_wide(start: int, stop: int, codes: Any, out: Any, bits: int, seen: Any) -> None:
    for first in range(start, stop, _GRAIN):
        part = codes[first : min(first + _GRAIN, stop)]
        packed = out[first // 8 * bits :]
        every = np.int64(0)
        at = 0
        filled = 0
        word = np.uint64(0)
        for i in range(part.size):
            code = np.int64(part[i])
            every |= code
            word |= np.uint64(code) << np.uint64(filled)
            filled += bits
            if filled >= 32:  # a word takes 32 bits more: none is lost
                for j in range(4):
                    packed[at + j] = np.uint8((word >> np.uint64(8 * j)) & np.uint64(255))
                at += 4
                word >>= np.uint64(32)
                filled -= 32
        while filled > 0:
            packed[at] = np.uint8(word & np.uint64(255))
            at += 1
            word >>= np.uint64(8)
            filled -= 8
        seen[first // _GRAIN] = every


@loop
def unpack_wide(start: int, stop: int, data: Any, out: Any, bits: int) -> None:
    """Codes of more than 8 bits."""
    data, out = data[start // 8 * bits : (stop + 7) // 8 * bits], out[start:stop]
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    at = 0
    filled = 0
    word = np.uint64(0)
    for i in range(out.size):
        if filled < bits:
            if at + 4 <= data.size:
                for j in range(4):
                    word |= np.uint64(data[at + j]) << np.uint64(filled + 8 * j)
                at += 4
                filled += 32
            else:
                while at < data.size:
                    word |= np.uint64(data[at]) << np.uint64(filled)
                    at += 1
                    filled += 8
        out[i] = np.int64(word & mask)
        word >>= np.uint64(bits)
        filled -= bits


@loop
def _pack_signs(start: int, stop: int, values: Any, out: Any) -> None:
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    for first in range(start, stop, _CHUNK):
        last = min(first + _CHUNK, stop)
        put_signs(values[first:last], words, out[first // 8 : (last + 7) // 8])


@loop
def _unpack_signs(start: int, stop: int, data: Any, out: Any) -> None:
    data, out = data[start // 8 :], out[start:stop]
    for group in range((out.size + 7) // 8):
        byte = np.int32(data[group])
        eight = out[8 * group : 8 * group + 8]  # 1 - 2 bit, without a branch
        for j in range(eight.size):
            eight[j] = np.float32(1 - (((byte >> j) & 1) << 1))


def check_bits(bits: int) -> None:
    """`InputError` unless codes can have so many bits."""
    if not 1 <= bits <= MAX_BITS:
        raise InputError(f"cannot pack codes of {bits} bits: 1 to {MAX_BITS} are possible")
