"""Radix selection on a GPU, with all tensors of a bucket in each launch, and samples.

Three passes count magnitudes by eleven, ten and ten bits for each row of a table; a program finds
its row's digit in the counts of the previous pass. The next pass counts each block's elements above
and equal to the k-th magnitude; the last writes the selected ones after those of earlier blocks. Of
equal ones it takes the first, as many as needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.selecting import selection as loops
from gcsim.compressors.coding.selecting.selection import check_k
from gcsim.compressors.gpu.parts import (
    launch_parts,
    own_block,
    own_part,
    own_row,
    parts_in_blocks,
    sum_before,
)
from gcsim.compressors.gpu.words import BLOCK, blocks, float64, float64_bits, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments, starts

_MOST_BLOCKS = 16
"""Most blocks that one program counts in its histogram; a power of two."""
RANKED = 0
"""A limit that means the row's k-th magnitude."""


@kernel_of(loops.sampled)
def sampled(
    memory: Tensor, added: Tensor, segments: Segments, start: Column, stride: Column,
    counts: Column, *, momentum: Tensor | None = None, m: float = 0.0, nesterov: bool = False,
) -> Tensor:  # fmt: skip
    """Sample with a block of samples per program."""
    out = memory.new_empty(int(counts.sum()))
    parts = parts_in_blocks(memory, counts, segments.begin + start, stride, starts(counts))
    terms = memory, added.contiguous(), added if momentum is None else momentum
    form = 0 if momentum is None else 1 + nesterov
    launch_parts(_sample, parts, *terms, out, float(np.float32(m)), FORM=form, BLOCK=BLOCK)
    return out


@kernel_of(loops.kth_magnitude)
def kth_magnitude(values: Tensor, segments: Segments, k: Column) -> Tensor:
    """Find the magnitudes without waiting."""
    check_k(segments.length, k)
    counts, state = count_digits(values.contiguous(), segments.length, segments.begin, k)
    found = values.new_empty(len(k))
    launch(_settle, len(k), counts, state, there(k, values.device), found, BINS=1024)
    return found


@kernel_of(loops.deliver)
def deliver(
    update: Tensor, residual: Tensor, segments: Segments, own: loops.Elements,
    kept: loops.Elements, weight: float,
) -> None:  # fmt: skip
    """Deliver, finding each own element among the tensor's kept ones by bisection."""
    columns = segments.begin, starts(own[2]), own[2], starts(kept[2]), kept[2]
    parts = parts_in_blocks(update, np.maximum(own[2], kept[2]), *columns)
    launch_parts(
        _deliver, parts, *own[:2], *kept[:2], update, residual, float64_bits(weight),
        int(kept[2].max(initial=0)).bit_length(), BLOCK=BLOCK,
    )  # fmt: skip


def select(
    values: Tensor, segments: Segments, k: Column, *, added: Tensor | None = None, sides: int = 1,
    limits: Column | None = None, cleared: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Select the k largest |values| of each tensor, or of each of its signs: (indices within the
    tensor, values, magnitudes sign by sign (for 2), int32 `[1]`: whether one is NaN).

    Parameters
    ----------
    added : as `values`; first added to them, in place
    sides : 2: the k of the positive elements of all tensors, then those of the negative ones
    limits : `RANKED`, or 1 + the bits of a magnitude: the first k elements not below it
    cleared : at most two vectors, in which selected elements become zero
    """
    length, begin = (np.tile(each, sides) for each in (segments.length, segments.begin))
    limit = np.full(len(k), RANKED) if limits is None else limits
    side = np.repeat(np.arange(sides), len(segments.table)) + (sides > 1)
    ranked = np.where(limit == RANKED, length, 0)
    counts, state = count_digits(values, ranked, begin, k, side, added)
    settled = torch.empty_like(state)
    parts = parts_in_blocks(values, length, begin, side, limit)
    found = values.new_empty((2, parts.firsts[-1]), dtype=torch.int32)
    strange = counts[-1:]
    launch_parts(
        _count, parts, values, counts, state, settled, found, parts.firsts[-1], strange, BINS=1024,
        BLOCK=BLOCK,
    )  # fmt: skip
    return *listed(values, segments, k, settled, found, sides=sides, cleared=cleared), strange


def listed(
    values: Tensor, segments: Segments, k: Column, settled: Tensor, found: Tensor, *,
    sides: int = 1, cleared: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Do `select` with known thresholds. `settled`: bits above which all are taken, and number of
    equal ones, int32 `[2, rows]`; `found`: a block's elements above (and equal): int32 `[2,
    programs]`."""
    total, many, first = int(k.sum()), k.reshape(sides, -1).sum(0), starts(k).reshape(sides, -1)
    indices = values.new_empty(total, dtype=torch.int64)
    taken, sizes = values.new_empty(total), values.new_empty(total if sides > 1 else 0)
    columns = segments.begin, starts(many), many, first[0], first[-1]
    launch_parts(
        _take, parts_in_blocks(values, segments.length, *columns), values, settled, len(k), found,
        found[:-1].numel(), indices, taken, sizes, *(*cleared, values, values)[:2], SIDES=sides,
        CLEARS=len(cleared), BLOCK=BLOCK,
    )  # fmt: skip
    return indices, taken, sizes


def count_digits(
    values: Tensor, length: Column, begin: Column, k: Column, side: Any = 0,
    added: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (counts of the last digit `[rows, 1024]` and a further 0; (leading digits before it,
    rank among elements with them): int32 `[2, rows]`)."""
    most, rows = max(1, blocks(int(length.max(initial=0)))), len(k)
    together = min(_MOST_BLOCKS, 1 << (most - 1).bit_length())
    columns = begin, np.broadcast_to(side, rows)
    parts = parts_in_blocks(values, length, *columns, size=BLOCK * together)
    counts = values.new_zeros(4096 * rows + 1, dtype=torch.int32)
    states = values.new_empty((2, 2, rows), dtype=torch.int32)
    before = there(np.stack((np.zeros(rows), k)), values.device, np.int32)
    at, earlier, bins = 0, 0, 1
    # the first pass has no digit to record, so its `after` is not written
    for after, above, shift in ((before, 31, 20), (states[0], 20, 10), (states[1], 10, 0)):
        own, bins_before = counts[at:], bins
        bins = 2048 if shift == 20 else 1024
        launch_parts(
            _histogram, parts, values, values if added is None else added, counts[earlier:], own,
            before, after, ADD=added is not None, BEFORE=bins_before, ABOVE=above, SHIFT=shift,
            BINS=bins, BLOCKS=together, BLOCK=BLOCK,
        )  # fmt: skip
        before, added, earlier, at = after, None, at, at + bins * rows
    return counts[earlier:], before


@triton.jit
def _sample(
    memory, added, momentum, out, m, table, parts, FORM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    column, _, i, here = own_block(table, parts, BLOCK)
    at = tl.load(column + 2 * parts) + i * tl.load(column + 3 * parts)
    more = tl.load(added + at, mask=here, other=0.0)
    if FORM == 1:
        more = tl.load(momentum + at, mask=here, other=0.0) * m + more
    elif FORM == 2:
        more = (tl.load(momentum + at, mask=here, other=0.0) + more) * m + more
    total = tl.load(memory + at, mask=here, other=0.0) + more
    tl.store(out + tl.load(column + 4 * parts) + i, total, mask=here)


@triton.jit(do_not_specialize=["weight"])
def _deliver(
    own, values, kept, sums, update, residual, weight: tl.uint64, steps, table, parts,
    BLOCK: tl.constexpr,
):  # fmt: skip
    column, _, i, _ = own_block(table, parts, BLOCK)
    begin = tl.load(column + 2 * parts)
    count, low = tl.load(column + 6 * parts), tl.zeros([BLOCK], dtype=tl.int64)
    first = tl.load(column + 5 * parts)
    # places within a tensor differ, so no two lanes add to the same element
    target = update + begin + tl.load(kept + first + i, mask=i < count, other=0)
    added = tl.load(sums + first + i, mask=i < count, other=0.0).to(tl.float64)
    added = (float64(weight) * added).to(tl.float32)
    tl.store(target, tl.load(target, mask=i < count, other=0.0) + added, mask=i < count)
    here = i < tl.load(column + 4 * parts)
    place = tl.load(column + 3 * parts) + i
    at = tl.load(own + place, mask=here, other=0)
    high = low + count
    for _ in range(steps):
        middle = (low + high) // 2
        open = here & (low < high)
        below = open & (tl.load(kept + first + middle, mask=open, other=0) < at)
        low = tl.where(below, middle + 1, low)
        high = tl.where(open & (below == 0), middle, high)
    found = here & (low < count)
    gone = found & (tl.load(kept + first + low, mask=found, other=-1) == at)
    value = tl.load(values + place, mask=here, other=0.0)
    tl.store(residual + begin + at, tl.where(gone, 0.0, value), mask=here)


@triton.jit
def _digit(counts, state, row, rows, BINS: tl.constexpr):
    """Return (leading digits of the k-th magnitude with one more, its rank among those)."""
    rank = tl.load(state + rows + row)
    lane = tl.arange(0, BINS)
    each = tl.load(counts + row.to(tl.int64) * BINS + lane)
    from_here = tl.sum(each, axis=0) - tl.cumsum(each, axis=0) + each  # this digit or higher
    # `from_here` falls from lane to lane: take the last that reaches the rank
    digit = tl.max(tl.where(from_here >= rank, lane, 0), axis=0)
    higher = tl.sum(tl.where(lane > digit, each, 0), axis=0)
    return tl.load(state + row) * BINS + digit, rank - higher


@triton.jit
def _of_side(v, side):
    """Whether values belong to a row: all, the positive, or the negative ones."""
    return (side == 0) | ((side == 1) & (v > 0)) | ((side == 2) & (v < 0))


@triton.jit
def _histogram(
    values, added, earlier, counts, before, after, table, parts, ADD: tl.constexpr,
    BEFORE: tl.constexpr, ABOVE: tl.constexpr, SHIFT: tl.constexpr, BINS: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the magnitudes that share the k-th's leading digits, by their next digit."""
    row = own_row(table, parts, tl.program_id(0))
    column, number, n = own_part(table, parts)
    begun = tl.cast(0, tl.int32)
    if BEFORE > 1:
        begun, rank = _digit(earlier, before, row, parts, BEFORE)
        if number == 0:
            tl.store(after + row, begun)
            tl.store(after + parts + row, rank)
    begin = tl.load(column + 2 * parts)
    side = tl.load(column + 3 * parts)
    source = values + begin
    total = tl.zeros([BINS], dtype=tl.int32)
    for block in range(BLOCKS):
        at = (number * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(source + at, mask=at < n, other=0.0)
        if ADD:
            v = v + tl.load(added + begin + at, mask=at < n, other=0.0)
            tl.store(source + at, v, mask=at < n)
        size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        here = (at < n) & ((size >> ABOVE) == begun) & _of_side(v, side)
        total += tl.histogram((size >> SHIFT) & (BINS - 1), BINS, mask=here)
    lane = tl.arange(0, BINS)
    tl.atomic_add(counts + row.to(tl.int64) * BINS + lane, total, mask=total > 0)


@triton.jit
def _settle(counts, state, k, found, BINS: tl.constexpr):
    """Write a row's k-th magnitude; infinity if k is 0."""
    row = tl.program_id(0)
    bits = tl.cast(0x7F800000, tl.int32)
    if tl.load(k + row) > 0:
        bits, _ = _digit(counts, state, row, tl.num_programs(0), BINS)
    tl.store(found + row, bits.to(tl.float32, bitcast=True))


@triton.jit
def _count(
    values, counts, state, settled, found, programs, strange, table, parts, BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = own_row(table, parts, program)
    column, number, at, here = own_block(table, parts, BLOCK)
    limit = tl.load(column + 4 * parts)
    least = limit.to(tl.int32) - 2  # larger bits are taken
    left = tl.cast(0, tl.int32)
    if limit == 0:
        least, left = _digit(counts, state, row, parts, BINS)
    if number == 0:
        tl.store(settled + row, least)
        tl.store(settled + parts + row, left)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=here, other=0.0)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    here = here & _of_side(v, tl.load(column + 3 * parts))
    tl.store(found + program, tl.sum((here & (size > least)).to(tl.int32), axis=0))
    tl.store(found + programs + program, tl.sum((here & (size == least)).to(tl.int32), axis=0))
    if tl.max(size, axis=0) > 0x7F800000:
        tl.store(strange, 1)


@triton.jit
def _take(
    values, settled, rows, found, programs, indices, taken, sizes, first, second, table, parts,
    SIDES: tl.constexpr, CLEARS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = own_row(table, parts, tl.program_id(0))
    column, _, at, there = own_block(table, parts, BLOCK)
    begin = tl.load(column + 2 * parts)
    v = tl.load(values + begin + at, mask=there, other=0.0)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    chosen = at < 0
    before = tl.cast(0, tl.int64)
    for side in tl.static_range(SIDES):
        # `_count` had the programs of the first side, then the same number for the second
        program = tl.program_id(0) + side * tl.num_programs(0)
        start = tl.load(column) + side * tl.num_programs(0)  # the row's first program
        least = tl.load(settled + row + side * parts)
        left = tl.load(settled + rows + row + side * parts)
        above = sum_before(found, start, program, BLOCK)
        ties = sum_before(found + programs, start, program, BLOCK)
        here = there & _of_side(v, side + SIDES - 1 if SIDES > 1 else 0)
        tie = here & (size == least)
        rank = ties + tl.cumsum(tie.to(tl.int32), axis=0)  # from 1
        own = (here & (size > least)) | (tie & (rank <= left))
        # `found` may lack a row of equal ones; then none are left to take
        passed = above + tl.where(left > 0, tl.minimum(ties, left), 0)
        if SIDES > 1:
            place = tl.load(column + (5 + side) * parts) + passed
            place += tl.cumsum(own.to(tl.int32), axis=0) - 1
            tl.store(sizes + place, tl.abs(v), mask=own)
        chosen = chosen | own
        before += passed
    place = before + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    # more than k may reach a limit: take the first k
    chosen = chosen & (place < tl.load(column + 4 * parts))
    place += tl.load(column + 3 * parts)
    tl.store(indices + place, at, mask=chosen)
    tl.store(taken + place, v, mask=chosen)
    if CLEARS > 0:
        tl.store(first + begin + at, tl.zeros([BLOCK], dtype=tl.float32), mask=chosen)
    if CLEARS > 1:
        tl.store(second + begin + at, tl.zeros([BLOCK], dtype=tl.float32), mask=chosen)
