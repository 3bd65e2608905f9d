"""Marks of a bucket and what they mark: the kernels of `coding/selecting/marks.py`.

Marked elements are counted block by block, the counts are added up, and a second pass writes each
block's behind those of the blocks before: no atomic operation, so the order is the elements' own.
The host waits once for the number of marked elements, which is the length of the message.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.selecting import marks as loops
from gcsim.compressors.coding.selecting.marks import BLOCK, Marks
from gcsim.compressors.gpu.parts import Parts, by_part, by_program, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import blocks, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments
from gcsim.errors import InputError


@kernel_of(loops.fill_marks)
def fill_marks(
    values: Tensor, segments: Segments, marks: Marks, added: Tensor | None,
    sides: Column | None = None,
) -> None:  # fmt: skip
    """Each program counts a block; the counts come to the host as sums."""
    parts = limited_parts(values, segments, marks)
    counts = values.new_empty((1 if sides is None else 3, parts.firsts[-1]), dtype=torch.int64)
    more = values if added is None else added.contiguous()
    launch_parts(
        _mark, parts, values, more, counts, parts.firsts[-1], ADD=added is not None,
        SIDES=sides is not None, BLOCK=BLOCK,
    )  # fmt: skip
    put_counts(marks, counts[0], parts)
    if sides is not None:
        sides[:] = by_part(counts[1:].T, parts).T.tolist()


@kernel_of(loops.take)
def take(
    values: Tensor, segments: Segments, marks: Marks, *, clear: bool = False
) -> tuple[Tensor, Tensor]:
    """A program writes what its block has marked."""
    total = int(marks.passed.sum())
    indices = values.new_empty(total, dtype=torch.int64)
    taken = values.new_empty(total)
    parts = limited_parts(values, segments, marks)
    counts = marks.counts[_blocks_of(marks, parts)]
    offsets = counts.cumsum(0) - counts
    launch_parts(_take, parts, values, offsets, indices, taken, CLEAR=clear, BLOCK=BLOCK)
    if bool(taken.isnan().any()):
        raise InputError(loops.NO_NUMBER)
    return indices, taken


def limited_parts(values: Tensor, segments: Segments, marks: Marks) -> Parts:
    """Tensors of which is marked what is outside (down, up)."""
    elements, limits = segments.length.tolist(), (marks.up, marks.down)
    columns = [segments.begin.tolist(), *(each.view(np.uint32).tolist() for each in limits)]
    return parts_of(values, elements, [blocks(n) for n in elements], *columns)


def put_counts(marks: Marks, counts: Tensor, parts: Parts) -> None:
    """Note how many elements each program has marked; the host waits for each tensor's."""
    marks.counts[_blocks_of(marks, parts)] = counts
    marks.passed[:] = by_part(counts, parts).tolist()


def _blocks_of(marks: Marks, parts: Parts) -> slice | Tensor:
    """The blocks of the parts among those that are marked."""
    if parts.firsts[-1] == len(marks.counts):
        return slice(None)
    firsts = there(marks.first - np.array(parts.firsts[:-1], dtype=np.int64), marks.counts.device)
    return by_program(firsts, parts) + torch.arange(parts.firsts[-1], device=firsts.device)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def inside(v, column, parts):
    """Whether values are between the limits of their part; NaN is not."""
    up = tl.load(column + 3 * parts).to(tl.int32).to(tl.float32, bitcast=True)
    down = tl.load(column + 4 * parts).to(tl.int32).to(tl.float32, bitcast=True)
    return (v < up) & (v > down)


@triton.jit
def _mark(
    values, added, counts, programs, table, parts, ADD: tl.constexpr, SIDES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    at = number * BLOCK + tl.arange(0, BLOCK)
    source = values + tl.load(column + 2 * parts) + at
    v = tl.load(source, mask=at < n, other=0.0)
    if ADD:
        v = v + tl.load(added + tl.load(column + 2 * parts) + at, mask=at < n, other=0.0)
        tl.store(source, v, mask=at < n)
    within = inside(v, column, parts)
    hits = tl.where((at < n) & (within == 0), 1, 0)
    own = counts + tl.program_id(0)
    tl.store(own, tl.sum(hits, axis=0).to(tl.int64))
    if SIDES:  # what is not there is 0
        tl.store(own + programs, tl.sum((v > 0).to(tl.int32), axis=0).to(tl.int64))
        tl.store(own + 2 * programs, tl.sum((v < 0).to(tl.int32), axis=0).to(tl.int64))


@triton.jit
def _take(
    values, offsets, indices, taken, table, parts, CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    at = number * BLOCK + tl.arange(0, BLOCK)
    source = values + tl.load(column + 2 * parts) + at
    v = tl.load(source, mask=at < n, other=0.0)
    within = inside(v, column, parts)
    hit = (at < n) & (within == 0)
    place = tl.load(offsets + tl.program_id(0)) + tl.cumsum(hit.to(tl.int32), axis=0) - 1
    tl.store(indices + place, at, mask=hit)
    tl.store(taken + place, v, mask=hit)
    if CLEAR:
        tl.store(source, tl.zeros([BLOCK], dtype=tl.float32), mask=hit)
