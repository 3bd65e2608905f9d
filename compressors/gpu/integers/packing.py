"""Codes of equal width, fields of bits and digits on a GPU: the kernels of `packing.py`.

A field is a word of up to 64 bits at any bit of a buffer. Neighbours share words of 32 bits, which
are put together by atomic operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl

from gcsim.compressors.coding.integers import packing as loops
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of, starts
from gcsim.compressors.gpu.words import BLOCK, blocks
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of


@kernel_of(loops.pack_bits)
def pack_bits(values: Tensor, bits: int) -> Tensor:
    """The host waits for whether all codes fit."""
    loops.check_bits(bits)
    codes = values.long()
    loops.demand_fit(not bool((codes >> bits).any()), bits)
    return fixed_codes(codes, [values.numel()], [bits])[0]


@kernel_of(loops.unpack_bits)
def unpack_bits(buffer: Tensor, count: int, bits: int) -> Tensor:
    """One launch, and a wait for the last byte."""
    loops.check_bits(bits)
    loops.check_packed(buffer, count, bits)
    codes, _ = fields(buffer, [buffer.numel()], [count], [bits])
    return codes.to(torch.uint8 if bits <= 8 else torch.int32)


def room(like: Tensor, size: int) -> Tensor:
    """Zeros that fields are put into: int32 `[size / 4, rounded up]`."""
    return like.new_zeros(-(-size // 4), dtype=torch.int32)


def fixed_codes(
    values: Tensor, sent: Sequence[int], widths: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """(int64 values of so many bits, each tensor's from a whole byte on; bytes of each)."""
    sizes = [packed_bytes(k, width) for k, width in zip(sent, widths, strict=True)]
    out = room(values, sum(sizes))
    begins = [8 * size for size in starts(sizes)]
    parts = parts_of(values, sent, [blocks(k) for k in sent], starts(sent), begins, widths)
    launch_parts(_put, parts, values, out, BLOCK=BLOCK)
    return out.view(torch.uint8)[: sum(sizes)], sizes


def fields(
    body: Tensor, sizes: Sequence[int], sent: Sequence[int], widths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Undo `fixed_codes`: (int64 values; whether zeros follow the last ones, bool)."""
    values, wrong = body.new_empty(sum(sent), dtype=torch.int64), body.new_zeros(1).int()
    begins = [8 * size for size in starts(sizes)]
    parts = parts_of(body, sent, [blocks(k) for k in sent], starts(sent), begins, widths)
    launch_parts(_get, parts, body, values, wrong, BLOCK=BLOCK)
    return values, wrong == 0


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def put_field(out, begin, word, here):
    """Set the bits of words, from bit `begin` of `out` on: int32, zero there."""
    shift = (begin & 31).to(tl.uint64)
    low = word.to(tl.uint64) << shift
    third = ((word.to(tl.uint64) >> 1) >> (63 - shift)).to(tl.int32)
    first, second = low.to(tl.int32), (low >> 32).to(tl.int32)
    place = out + (begin >> 5)
    tl.atomic_or(place, first, mask=here & (first != 0), sem="relaxed")
    tl.atomic_or(place + 1, second, mask=here & (second != 0), sem="relaxed")
    tl.atomic_or(place + 2, third, mask=here & (third != 0), sem="relaxed")


@triton.jit
def get_field(packed, begin, width, here):
    """The numbers of up to 32 bits from bit `begin` on: int64."""
    byte = begin >> 3
    last = (begin + width - 1) >> 3
    word = begin * 0
    for j in tl.static_range(5):
        inside = here & (byte + j <= last)
        word |= tl.load(packed + byte + j, mask=inside, other=0).to(tl.int64) << (8 * j)
    return (word >> (begin & 7)) & ((tl.cast(1, tl.int64) << width) - 1)


@triton.jit
def stray(packed, end, here):
    """Whether bits are set from bit `end` on in its byte."""
    byte = tl.load(packed + (end >> 3), mask=here & ((end & 7) > 0), other=0).to(tl.int64)
    return (byte >> (end & 7)) != 0


@triton.jit
def _put(values, out, table, parts, BLOCK: tl.constexpr):
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(values + tl.load(column + 2 * parts) + i, mask=i < k, other=0)
    begin = tl.load(column + 3 * parts) + i * tl.load(column + 4 * parts)
    put_field(out, begin, code, i < k)


@triton.jit
def _get(packed, values, wrong, table, parts, BLOCK: tl.constexpr):
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    width = tl.load(column + 4 * parts)
    begin = tl.load(column + 3 * parts) + i * width
    code = get_field(packed, begin, width, i < k)
    tl.store(values + tl.load(column + 2 * parts) + i, code, mask=i < k)
    bad = stray(packed, begin + width, i == k - 1)
    tl.atomic_or(wrong, tl.max(bad.to(tl.int32), axis=0), sem="relaxed")
