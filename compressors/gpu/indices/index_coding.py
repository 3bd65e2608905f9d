"""Codes for positions on a GPU: the kernels of `coding/indices/index_coding.py`, for all coders.

A code has a part whose length follows from n and k (a field per position) and a part of variable
length. Kernels take the coder as a column, so that tensors with different coders share a launch.
Readers mark the bits at which codes end, list the marks, and add up the gaps.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.indices import index_coding as loops
from gcsim.compressors.coding.indices.index_coding import Coder
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.demands import entered, when_known
from gcsim.compressors.gpu.integers.packing import get_field, put_field, room, stray
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import by_loop, kernel_of
from gcsim.compressors.segments import Column, Segments, starts

PACKED, RICE, BITMAP = (tl.constexpr(int(c)) for c in (Coder.PACKED, Coder.RICE, Coder.BITMAP))
_LONGEST = (1 << 31) - 1
"""Most bits of bodies that kernels can read in one call."""


@kernel_of(loops.words_of_positions)
def words_of_positions(
    indices: Tensor, segments: Segments, k: Column, coders: Column
) -> tuple[Tensor, Column]:
    """Encode positions; the host waits once unless n and k determine the lengths."""
    if (coders == Coder.RAW).all():
        return indices.view(torch.int32)[::2], 4 * k  # a view of the low 32 bits
    (widths, sizes), first = loops.rooms(segments.length, k, coders), starts(k)
    before, moved = indices, np.zeros_like(k)
    if not loops.fixed_length(coders):
        before = indices.new_zeros(len(indices) + 1)
        parts = parts_in_blocks(indices, k, first, coders, widths)
        launch_parts(_measure, parts, indices, before, BLOCK=BLOCK)
        # lengths are stored one place later, so that sums give the bits before each position
        before = before.cumsum(0)
        ends = np.array(before[there(np.append(first, len(indices)), before.device)].tolist())
        cuts, bits = packed_bytes(k * widths, 1), np.diff(ends)
        sizes = np.where(coders == Coder.RICE, cuts + packed_bytes(bits, 1), sizes)
        # bits are counted over all tensors: this shifts them to a tensor's own high parts
        moved = 8 * (starts(sizes) + cuts) - ends[:-1]
    out = room(indices, int(sizes.sum()))
    parts = parts_in_blocks(indices, k, first, coders, widths, 8 * starts(sizes), moved)
    launch_parts(_write, parts, indices, before, out, BLOCK=BLOCK)
    return out.view(torch.uint8)[: int(sizes.sum())], sizes


@kernel_of(loops.decoded_positions)
def decoded_positions(
    coded: Tensor, segments: Segments, sizes: Column, k: Column, coders: Column
) -> Tensor:
    """Decode positions; the loop reads bodies that are too long for kernels, and reports damage."""
    found = read_positions(coded, segments, sizes, k, coders)
    if found is None or (entered() is None and bool(found[1])):
        return by_loop(loops.decoded_positions, coded, segments, sizes, k, coders)
    if entered() is not None:
        when_known(found[1], loops.demand_ascending)
    return found[0]


def read_positions(
    coded: Tensor, segments: Segments, sizes: Column, k: Column, coders: Column
) -> tuple[Tensor, Tensor] | None:
    """Return (int64 `[sum of k]`; an int32, nonzero for invalid bodies); None: use the loop."""
    kinds, (widths, most) = set(coders.tolist()), loops.rooms(segments.length, k, coders)
    cuts = packed_bytes(k * widths, 1)
    least = np.where(coders == Coder.BITMAP, most, cuts)
    # the loop reports sizes that no sender makes
    fit = (sizes >= least) & (sizes <= most) & ((k > 0) | (sizes == least))
    if 8 * coded.numel() > _LONGEST or not fit.all() or not kinds <= set(Coder):
        return None
    wrong, gaps = (
        coded.new_zeros((), dtype=torch.int32),
        coded.new_empty(int(k.sum()), dtype=torch.int64),
    )
    first, at = starts(k), starts(sizes)
    parts = parts_in_blocks(coded, k, first, segments.length, coders, widths, at, sizes)
    if max(kinds, default=0) <= Coder.PACKED:
        launch_parts(_fields, parts, coded, gaps, wrong, BLOCK=BLOCK)
        return gaps, wrong
    places = _marked(coded, first, k, coders, cuts, at, sizes, wrong)
    launch_parts(_gaps, parts, coded, places, gaps, wrong, BLOCK=BLOCK)
    positions = torch.empty_like(gaps)
    launch_parts(_sums, parts, gaps.cumsum(0), positions, wrong, BLOCK=BLOCK)
    return positions, wrong


def _marked(
    coded: Tensor, first: Column, k: Column, coders: Column, cuts: Column, at: Column,
    sizes: Column, wrong: Tensor,
) -> Tensor:  # fmt: skip
    """Return the bit within its body at which each code of variable length ends."""
    marks = coded.new_zeros(8 * coded.numel())
    parts = parts_in_blocks(coded, 8 * sizes, coders, cuts, at, first, k)
    launch_parts(_mark, parts, coded, marks, BLOCK=BLOCK)
    places = coded.new_zeros(int(k.sum()), dtype=torch.int64)
    upto = marks.cumsum(0, dtype=torch.int32)
    launch_parts(_list, parts, marks, upto, places, wrong, BLOCK=BLOCK)
    return places


@triton.jit
def _gap_of(indices, column, parts, i, k):
    """Return (positions; their gaps, 1 past the last)."""
    place = indices + tl.load(column + 2 * parts) + i
    position = tl.load(place, mask=i < k, other=0)
    before = tl.load(place - 1, mask=(i > 0) & (i < k), other=-1)
    return position, tl.where(i < k, position - before, 1)


@triton.jit
def _measure(indices, lengths, table, parts, BLOCK: tl.constexpr):
    """Write the bits of the variable part of each gap's code."""
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    _, gap = _gap_of(indices, column, parts, i, k)
    coder, width = tl.load(column + 3 * parts), tl.load(column + 4 * parts)
    length = tl.where(coder == RICE, ((gap - 1) >> width) + 1, 0)
    tl.store(lengths + tl.load(column + 2 * parts) + i + 1, length, mask=i < k)


@triton.jit
def _write(indices, before, out, table, parts, BLOCK: tl.constexpr):
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    position, gap = _gap_of(indices, column, parts, i, k)
    coder, width = tl.load(column + 3 * parts), tl.load(column + 4 * parts)
    at = tl.load(column + 5 * parts)
    number_of = tl.where(coder <= PACKED, position, gap - 1)
    # a bitmap's width is 0: its mask clears the number, and no field is put
    mask = (tl.cast(1, tl.int64) << width) - 1
    put_field(out, at + i * width, number_of & mask, i < k)
    if coder > PACKED:
        begin = at + position
        if coder == RICE:  # after that many zeros
            own = tl.load(before + tl.load(column + 2 * parts) + i, mask=i < k, other=0)
            begin = tl.load(column + 6 * parts) + own + ((gap - 1) >> width)
        put_field(out, begin, gap * 0 + 1, i < k)  # one bit each, of the type of gaps


@triton.jit
def _mark(coded, marks, table, parts, BLOCK: tl.constexpr):
    """Mark the ends of codes: the set bits after the low parts."""
    column, number, n = own_part(table, parts)
    bit = number * BLOCK + tl.arange(0, BLOCK)
    coder, cut = tl.load(column + 2 * parts), tl.load(column + 3 * parts) * 8
    at = tl.load(column + 4 * parts)
    byte = tl.load(coded + at + (bit >> 3), mask=bit < n, other=0).to(tl.int64)
    ends = ((byte >> (bit & 7)) & 1 != 0) & (bit >= cut)
    tl.store(marks + 8 * at + bit, ends.to(tl.uint8), mask=(bit < n) & (coder > PACKED))


@triton.jit
def _list(marks, upto, places, wrong, table, parts, BLOCK: tl.constexpr):
    column, number, n = own_part(table, parts)
    bit = number * BLOCK + tl.arange(0, BLOCK)
    at, k = 8 * tl.load(column + 4 * parts), tl.load(column + 6 * parts)
    base = tl.load(upto + at - 1, mask=at > 0, other=0)
    rank = tl.load(upto + at + bit, mask=bit < n, other=0) - base
    ends = tl.load(marks + at + bit, mask=bit < n, other=0) != 0
    place = places + tl.load(column + 5 * parts) + rank - 1
    tl.store(place, bit, mask=ends & (rank <= k))  # a damaged body may have more marks
    miscounted = (bit == n - 1) & (rank != k) & (tl.load(column + 2 * parts) > PACKED)
    tl.atomic_or(wrong, tl.max(miscounted.to(tl.int32), axis=0), sem="relaxed")


@triton.jit
def _gaps(coded, places, gaps, wrong, table, parts, BLOCK: tl.constexpr):
    """Write the gap of each position, and check whether a sender would write this body."""
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    here, last = i < k, i == k - 1
    coder, width = tl.load(column + 4 * parts), tl.load(column + 5 * parts)
    at, size = tl.load(column + 6 * parts), tl.load(column + 7 * parts)
    low = get_field(coded, 8 * at + i * width, width, here)
    bad = stray(coded, 8 * at + (i + 1) * width, last)
    if coder <= PACKED:
        before = get_field(coded, 8 * at + (i - 1) * width, width, here & (i > 0))
        gap = low - tl.where(i > 0, before, -1)
    else:
        own = places + tl.load(column + 2 * parts) + i
        end = tl.load(own, mask=here, other=0)
        # a bitmap reads as a Rice code of width 0: the zeros are gap - 1, a one ends it
        cut = (k * width + 7) // 8 * 8
        before = tl.where(i > 0, tl.load(own - 1, mask=here & (i > 0), other=0), cut - 1)
        gap = ((end - before - 1) << width) + low + 1
        if coder != BITMAP:
            bad = bad | (last & ((end >> 3) != size - 1))
    tl.store(gaps + tl.load(column + 2 * parts) + i, gap, mask=here)
    tl.atomic_or(wrong, tl.max(bad.to(tl.int32), axis=0), sem="relaxed")


@triton.jit
def _fields(coded, positions, wrong, table, parts, BLOCK: tl.constexpr):
    """Read fixed-width positions, which must ascend below the tensor's length."""
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    here = i < k
    width, at = tl.load(column + 5 * parts), 8 * tl.load(column + 6 * parts)
    position = get_field(coded, at + i * width, width, here)
    before = get_field(coded, at + (i - 1) * width, width, here & (i > 0))
    bad = (position <= tl.where(i > 0, before, -1)) | (position >= tl.load(column + 3 * parts))
    bad = (here & bad) | stray(coded, at + (i + 1) * width, i == k - 1)
    tl.store(positions + tl.load(column + 2 * parts) + i, position, mask=here)
    tl.atomic_or(wrong, tl.max(bad.to(tl.int32), axis=0), sem="relaxed")


@triton.jit
def _sums(upto, positions, wrong, table, parts, BLOCK: tl.constexpr):
    """Sum gaps to positions, from -1 in each tensor; they must ascend below its length."""
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(column + 2 * parts)
    base = tl.load(upto + first - 1, mask=first > 0, other=0)
    position = tl.load(upto + first + i, mask=i < k, other=0) - base - 1
    before = tl.load(upto + first + i - 1, mask=(i < k) & (i > 0), other=0) - base - 1
    bad = (i < k) & (
        (position <= tl.where(i > 0, before, -1)) | (position >= tl.load(column + 3 * parts))
    )
    tl.store(positions + first + i, position, mask=i < k)
    tl.atomic_or(wrong, tl.max(bad.to(tl.int32), axis=0), sem="relaxed")
