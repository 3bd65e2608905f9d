"""Counting of one-bit votes on a GPU: the kernels of `coding/one_bit/votes.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit import votes as loops
from gcsim.compressors.gpu.one_bit.bits import noting
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments, starts


@kernel_of(loops.add_votes)
def add_votes(
    counts: Tensor, message: Tensor, at: Column, segments: Segments, *, first: bool = False
) -> None:
    """Count in one launch; padding is checked `when_known`."""
    with noting(counts) as faults:
        launch_parts(
            _vote, _by_block(counts, at, segments), counts, message.contiguous(), faults,
            counts.shape[1], FIRST=first, PLANES=counts.shape[0], BLOCK=BLOCK,
        )  # fmt: skip


@kernel_of(loops.put_more_than)
def put_more_than(
    counts: Tensor, threshold: int, segments: Segments, bits: Tensor, at: Column
) -> None:
    """Compare in one launch, with a block of bytes per program."""
    launch_parts(
        _compare, _by_block(counts, at, segments), counts, bits, counts.shape[1], threshold,
        PLANES=counts.shape[0], BLOCK=BLOCK,
    )  # fmt: skip


def _by_block(like: Tensor, at: Column, segments: Segments) -> Parts:
    sizes = packed_bytes(segments.length, 1)
    return parts_in_blocks(like, sizes, at, starts(sizes), segments.length)


@triton.jit
def _vote(
    counts, message, faults, size, table, parts, FIRST: tl.constexpr, PLANES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    within = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = within < n
    carry = tl.load(message + tl.load(column + 2 * parts) + within, mask=here, other=0)
    elements = tl.load(column + 4 * parts)
    behind = tl.where(within == elements // 8, carry.to(tl.int32) >> (elements % 8), 0)
    if tl.max(behind, axis=0) != 0:
        tl.atomic_or(faults, 1)
    at = tl.load(column + 3 * parts) + within
    for k in tl.static_range(PLANES):  # plane k holds bit k of every count
        place = counts + tl.cast(size, tl.int64) * k + at
        if FIRST:
            tl.store(place, carry, mask=here)
            carry = tl.zeros([BLOCK], dtype=tl.uint8)
        else:
            plane = tl.load(place, mask=here, other=0)
            tl.store(place, plane ^ carry, mask=here)
            carry = carry & plane


@triton.jit
def _compare(
    counts, bits, size, threshold, table, parts, PLANES: tl.constexpr, BLOCK: tl.constexpr
):
    column, number, n = own_part(table, parts)
    within = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(column + 3 * parts) + within
    possible = tl.where(threshold >> PLANES == 0, 255, 0)  # is the threshold a possible count
    equal = (tl.zeros([BLOCK], dtype=tl.int32) + possible).to(tl.uint8)
    more = tl.zeros([BLOCK], dtype=tl.uint8)
    for j in tl.static_range(PLANES):  # from the highest bit: the first that differs
        k = PLANES - 1 - j
        plane = tl.load(counts + tl.cast(size, tl.int64) * k + at, mask=within < n, other=0)
        wanted = (threshold >> k) & 1
        more = tl.where(wanted != 0, more, more | (equal & plane))
        equal = tl.where(wanted != 0, equal & plane, equal & (plane ^ 255))
    tl.store(bits + tl.load(column + 2 * parts) + within, more, mask=within < n)
