"""Small integers as bytes on a GPU: twins of `coding/integers/packing.py`.

Up to 8 bits a group of eight codes is one word. Wider codes are gathered byte by byte: a byte holds
bits of two codes at most, and a code of up to 32 bits lies in five bytes at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import (
    check_bits,
    check_packed,
    packed_bytes,
)
from gcsim.compressors.gpu.words import (
    BLOCK,
    GROUPS,
    blocks,
    index_type,
    launch,
    load_codes,
    places,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError


def pack_bits(values: Tensor, bits: int) -> Tensor:
    """See `packing.pack_bits`."""
    check_bits(bits)
    packed, fits = packed_codes(values, bits)
    if not fits:
        raise InputError(f"cannot pack a value outside [0, {1 << bits}) in {bits} bits")
    return packed


def unpack_bits(buffer: Tensor, count: int, bits: int) -> Tensor:
    """See `packing.unpack_bits`."""
    check_bits(bits)
    check_packed(buffer, count, bits)
    return unpacked(buffer, count, bits, torch.uint8 if bits <= 8 else torch.int32)


def pack_signs(values: Tensor) -> Tensor:
    """See `packing.pack_signs`."""
    n = values.numel()
    out = values.new_empty(packed_bytes(n, 1), dtype=torch.uint8)
    launch(
        _pack_signs, tiles(n), values.contiguous(), out, n, out.numel(),
        GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    return out


def unpack_signs(buffer: Tensor, count: int) -> Tensor:
    """See `packing.unpack_signs`."""
    check_packed(buffer, count, 1)
    return 1 - 2 * unpacked(buffer, count, 1, torch.float32)


def packed_codes(codes: Tensor, bits: int) -> tuple[Tensor, bool]:
    """(codes of 0 to 32 bits, packed; whether all of them fit)."""
    n = codes.numel()
    out = codes.new_empty(packed_bytes(n, bits), dtype=torch.uint8)
    programs = tiles(n) if bits <= 8 else blocks(out.numel())
    if bits == 0 or not programs:
        return out, not bool(codes.any())
    wrong = codes.new_empty(programs, dtype=torch.int32)
    data = codes.contiguous()
    if bits <= 8:
        launch(
            _pack_narrow, programs, data, out, wrong, n, out.numel(),
            BITS=bits, GROUPS=GROUPS, INDEX=index_type(n),
        )  # fmt: skip
    else:
        launch(_pack_wide, programs, data, out, wrong, n, out.numel(), BITS=bits, BLOCK=BLOCK)
    return out, not bool(wrong.any())


def unpacked(buffer: Tensor, count: int, bits: int, dtype: torch.dtype) -> Tensor:
    """Codes of 0 to 32 bits out of a buffer that was checked: `[count]` of `dtype`."""
    out = buffer.new_empty(count, dtype=dtype)
    if bits == 0:
        return out.zero_()
    data = buffer.contiguous()
    if bits <= 8:
        launch(
            _unpack_narrow, tiles(count), data, out, count, data.numel(),
            BITS=bits, GROUPS=GROUPS, INDEX=index_type(count),
        )  # fmt: skip
    else:
        launch(_unpack_wide, blocks(count), data, out, count, data.numel(), BITS=bits, BLOCK=BLOCK)
    return out


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _pack_signs(values, out, n, nbytes, GROUPS: tl.constexpr, INDEX: tl.constexpr):
    group, at = places(GROUPS, INDEX)
    negative = tl.load(values + at, mask=at < n, other=0) < 0
    store_codes(out, group, negative, nbytes, 1)


@triton.jit
def _pack_narrow(
    codes, out, wrong, n, nbytes,
    BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    code = tl.load(codes + at, mask=at < n, other=0).to(tl.int64)
    beyond = ((code >> BITS) != 0).to(tl.int32)  # -1 where negative
    tl.store(wrong + tl.program_id(0), tl.max(tl.max(beyond, axis=1), axis=0))
    store_codes(out, group, code, nbytes, BITS)


@triton.jit
def _unpack_narrow(
    packed, out, n, nbytes,
    BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    code = load_codes(packed, group, nbytes, BITS)
    tl.store(out + at, code.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def _pack_wide(
    codes, out, wrong, n, nbytes,
    BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = byte * 8 // BITS  # the code in which the byte begins
    begin = byte * 8 - first * BITS
    low = tl.load(codes + first, mask=first < n, other=0).to(tl.int64)
    high = tl.load(codes + first + 1, mask=first + 1 < n, other=0).to(tl.int64)
    tl.store(wrong + tl.program_id(0), tl.max(((low >> BITS) != 0).to(tl.int32), axis=0))
    both = (low >> begin) | (high << (BITS - begin))
    tl.store(out + byte, (both & 255).to(tl.uint8), mask=byte < nbytes)


@triton.jit
def _unpack_wide(packed, out, n, nbytes, BITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin = at * BITS // 8
    word = tl.zeros([BLOCK], dtype=tl.int64)
    for j in tl.static_range(5):
        byte = tl.load(packed + begin + j, mask=begin + j < nbytes, other=0).to(tl.int64)
        word |= byte << (8 * j)
    code = (word >> (at * BITS - begin * 8)) & ((1 << BITS) - 1)
    tl.store(out + at, code.to(out.dtype.element_ty), mask=at < n)
