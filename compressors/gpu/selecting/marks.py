"""Marking and collecting on a GPU: the kernels of `coding/selecting/marks.py`. Marked elements are
counted per block; a second pass writes each block's after those of earlier blocks. The host waits
once, for the totals, which determine the message's length."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import marks as loops
from gcsim.compressors.coding.selecting.marks import BLOCK, LOWER, ROUNDS, Marks, demand_numbers
from gcsim.compressors.gpu.parts import launch_parts, own_block, own_row, parts_in_blocks
from gcsim.compressors.gpu.selecting.selection import listed
from gcsim.compressors.gpu.words import float64, float64_bits, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.fill_marks)
def fill_marks(
    values: Tensor, segments: Segments, marks: Marks, added: Tensor | None, sides: bool = False
) -> None:
    """Mark the elements, with a block per program."""
    more = values if added is None else added.contiguous()
    parts = parts_in_blocks(values, segments.length, segments.begin)
    launch_parts(
        _mark, parts, values, more, limits_there(values, marks), marks.counts, marks.totals,
        ADD=added is not None, SIDES=sides, BLOCK=BLOCK,
    )  # fmt: skip


@kernel_of(loops.adjust)
def adjust(values: Tensor, segments: Segments, marks: Marks, k: Column, *, raised: bool) -> int:
    """Adjust limits: one pass counts the elements above all limits that lowering may reach. The
    host waits once; if limits are raised, once per round."""
    if raised:
        marks.up = marks.up if isinstance(marks.up, np.ndarray) else marks.up.numpy(force=True)

        def again(_: NDArray[np.bool_]) -> None:
            marks.totals.zero_()
            del marks.host
            fill_marks(values, segments, marks, None)

        return loops.by_rounds(marks, k, raised, again)
    enough = np.ceil(LOWER * k).astype(np.int64)
    launch_parts(
        _lower, parts_in_blocks(values, segments.length, segments.begin, enough), values,
        limits_there(values, marks), marks.totals, float64_bits(LOWER), ROUNDS=ROUNDS, BLOCK=BLOCK,
    )  # fmt: skip
    passed, below = marks.host[0], iter(marks.host[5:])
    marks.up = (marks.host[4] + 1).view(np.float32)

    def lowered(rows: NDArray[np.bool_]) -> None:
        # a row that is short now was so in all earlier rounds, and took as many steps
        passed[rows] = next(below)[rows]

    return loops.by_rounds(marks, k, raised, lowered)


@kernel_of(loops.take)
def take(
    values: Tensor, segments: Segments, marks: Marks, *, clear: bool = False
) -> tuple[Tensor, Tensor]:
    """Collect in one launch."""
    demand_numbers(marks.host[1].any())
    given = values, segments, marks.passed, marks.totals[4:], marks.counts[None]
    return listed(*given, cleared=[values] * clear)[:2]


@kernel_of(loops.at_least)
def at_least(values: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Select the elements; the host waits for their number."""
    return loops.passing(values, Segments.alone(values.numel()), threshold)[:2]


def limits_there(values: Tensor, marks: Marks) -> Tensor:
    """Return the limits on the device."""
    return marks.up if isinstance(marks.up, torch.Tensor) else there(marks.up, values.device)


@triton.jit
def note_marked(v, here, number, limit, row, rows, counts, totals):
    """Mark and count the values of a block that reach its row's limit; NaN does."""
    if number == 0:  # larger bits are marked
        tl.store(totals + 4 * rows + row, limit.to(tl.int32, bitcast=True) - 1)
    marked = here & ((tl.abs(v) < limit) == 0)
    hits = tl.sum(marked.to(tl.int32), axis=0)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    strange = tl.sum((here & (size > 0x7F800000)).to(tl.int32), axis=0)
    tl.store(counts + tl.program_id(0), hits)
    # integers, so the order of programs does not matter
    tl.atomic_add(totals + row, hits, mask=hits > 0)
    tl.atomic_add(totals + rows + row, strange, mask=strange > 0)


@triton.jit
def _mark(
    values, added, limits, counts, totals, table, parts, ADD: tl.constexpr, SIDES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = own_row(table, parts, tl.program_id(0))
    column, number, at, here = own_block(table, parts, BLOCK)
    at += tl.load(column + 2 * parts)
    v = tl.load(values + at, mask=here, other=0.0)
    if ADD:
        v = v + tl.load(added + at, mask=here, other=0.0)
        tl.store(values + at, v, mask=here)
    note_marked(v, here, number, tl.load(limits + row), row, parts, counts, totals)
    if SIDES:  # missing elements are 0
        tl.atomic_add(totals + 2 * parts + row, tl.sum((v > 0).to(tl.int32), axis=0))
        tl.atomic_add(totals + 3 * parts + row, tl.sum((v < 0).to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["factor"])
def _lower(
    values, limits, totals, factor: tl.uint64, table, parts, ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the elements that pass the limit lowered once, twice, …, if too few pass."""
    row = own_row(table, parts, tl.program_id(0))
    column, _part, at, here = own_block(table, parts, BLOCK)
    limit = tl.load(limits + row)
    own = totals + 4 * parts + row
    few = tl.load(totals + row) < tl.load(column + 3 * parts)
    if few & (limit > 0) & (limit < float("inf")):
        v = tl.load(values + tl.load(column + 2 * parts) + at, mask=here, other=0.0)
        # float64, as in `by_rounds`: the same limits bit for bit
        lowered = limit.to(tl.float64)
        for _ in tl.static_range(ROUNDS):
            lowered = lowered * float64(factor)
            # row 4, the limit's bits, is followed by a count per correction
            own += parts
            marked = here & ((tl.abs(v) < lowered.to(tl.float32)) == 0)
            tl.atomic_add(own, tl.sum(marked.to(tl.int32), axis=0))
