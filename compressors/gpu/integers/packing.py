"""Bit fields on a GPU, for kernels: words of up to 64 bits at any bit of a buffer. Neighbours share
32-bit words, which atomic operations combine."""

from __future__ import annotations

import triton
import triton.language as tl

from gcsim.compressors.lazy_torch import Tensor, torch


def room(like: Tensor, size: int) -> Tensor:
    """Allocate zeros for fields: int32 `[size / 4, rounded up]`."""
    return like.new_zeros(-(-size // 4), dtype=torch.int32)


@triton.jit
def put_field(out, begin, word, here):
    """Set the bits of words from bit `begin` of `out` on, which is int32 and zero there."""
    shift = (begin & 31).to(tl.uint64)
    low = word.to(tl.uint64) << shift
    # two shifts, since a single one by 64 (for shift = 0) is undefined
    third = ((word.to(tl.uint64) >> 1) >> (63 - shift)).to(tl.int32)
    first, second = low.to(tl.int32), (low >> 32).to(tl.int32)
    place = out + (begin >> 5)
    # zeros need no atomic operation, and their words may lie past the end of `out`
    tl.atomic_or(place, first, mask=here & (first != 0), sem="relaxed")
    tl.atomic_or(place + 1, second, mask=here & (second != 0), sem="relaxed")
    tl.atomic_or(place + 2, third, mask=here & (third != 0), sem="relaxed")


@triton.jit
def get_field(packed, begin, width, here):
    """Return the numbers of up to 32 bits from bit `begin` on: int64."""
    byte = begin >> 3
    last = (begin + width - 1) >> 3
    word = begin * 0
    for j in tl.static_range(5):  # 32 bits from bit 7 of a byte end in the fifth
        inside = here & (byte + j <= last)
        word |= tl.load(packed + byte + j, mask=inside, other=0).to(tl.int64) << (8 * j)
    return (word >> (begin & 7)) & ((tl.cast(1, tl.int64) << width) - 1)


@triton.jit
def stray(packed, end, here):
    """Whether bits are set from bit `end` on in its byte."""
    byte = tl.load(packed + (end >> 3), mask=here & ((end & 7) > 0), other=0).to(tl.int64)
    return (byte >> (end & 7)) != 0
