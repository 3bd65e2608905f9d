"""Levels of matrix columns on a GPU: the kernels of `coding/one_bit/columns.py`. Sums over columns
are float64 in another order."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.one_bit import columns as loops
from gcsim.compressors.coding.one_bit.columns import Matrices
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, starts

_ROWS, _COLUMNS = 32, 64
"""Rows and columns of a matrix that a program sums at a time."""
_TIMES = 8
"""Number of such blocks per program, one below the other."""


@kernel_of(loops.column_levels)
def column_levels(
    values: Tensor, matrices: Matrices, message: Tensor, at: Column, *, added: Tensor | None = None
) -> Tensor:
    """Sum parts of columns, one per program, then join the parts to levels."""
    m, stripes = matrices, matrices.stripes
    pieces, side = -(-m.rows // (_ROWS * _TIMES)), -(-m.columns // _COLUMNS)
    sums = values.new_empty((3, int((pieces * m.columns).sum())), dtype=torch.float64)
    first = starts(pieces * m.columns)  # each piece has a sum per column
    sizes = m.rows * m.columns, pieces * side
    columns = m.offset, m.columns, np.maximum(1, side), first
    parts = parts_of(values, *sizes, *columns)
    _, _, _, begin, width, line, _ = stripes.table.T
    each = (np.tile(column, m.count) for column in (m.rows, m.columns, first, pieces))
    owned = width, -(-width // _COLUMNS), begin, line, at, *each
    lines = values.new_empty((3, m.count * m.lines))
    joined = parts_of(values, *owned)
    more = values if added is None else added.contiguous()
    launch_parts(
        _sum, parts, values, more, sums, sums.shape[1], ADD=added is not None, ROWS=_ROWS,
        TIMES=_TIMES, COLUMNS=_COLUMNS,
    )  # fmt: skip
    launch_parts(
        _join, joined, sums, lines, message, sums.shape[1], lines.shape[1], COLUMNS=_COLUMNS
    )
    return lines


@triton.jit
def _sum(
    values, added, sums, all_sums, table, parts, ADD: tl.constexpr, ROWS: tl.constexpr,
    TIMES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum v, |v| and the number of v >= 0 over each column."""
    own, number, n = own_part(table, parts)
    offset = tl.load(own + 2 * parts)
    columns = tl.load(own + 3 * parts)
    side = tl.load(own + 4 * parts)
    piece = number // side
    column = number % side * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], dtype=tl.float64)
    magnitude = tl.zeros([COLUMNS], dtype=tl.float64)
    count = tl.zeros([COLUMNS], dtype=tl.float64)
    for k in range(TIMES):
        row = (piece * TIMES + k).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        within = row[:, None] * columns + column[None, :]
        here = (within < n) & (column[None, :] < columns)
        at = offset + within
        v = tl.load(values + at, mask=here, other=0.0)
        if ADD:
            v = v + tl.load(added + at, mask=here, other=0.0)
            tl.store(values + at, v, mask=here)
        distance = v.to(tl.float64)
        total += tl.sum(tl.where(here, distance, 0.0), axis=0)
        magnitude += tl.sum(tl.where(here, tl.abs(distance), 0.0), axis=0)
        count += tl.sum((here & (distance >= 0.0)).to(tl.float64), axis=0)
    place = sums + tl.load(own + 5 * parts) + piece * columns + column
    tl.store(place, total, mask=column < columns)
    tl.store(place + all_sums, magnitude, mask=column < columns)
    tl.store(place + 2 * tl.cast(all_sums, tl.int64), count, mask=column < columns)


@triton.jit
def _join(sums, lines, message, all_sums, all_lines, table, parts, COLUMNS: tl.constexpr):
    """Compute thresholds and levels of some columns of a stripe; copy levels to its frame."""
    own, number, width = own_part(table, parts)
    lane = number * COLUMNS + tl.arange(0, COLUMNS)
    inside = lane < width
    column = tl.load(own + 2 * parts) + lane
    rows = tl.load(own + 5 * parts).to(tl.float64)
    columns = tl.load(own + 6 * parts)
    here = inside & (column < columns)  # the rest of the stripe is outside the matrix
    place = sums + tl.load(own + 7 * parts) + column
    total = tl.zeros([COLUMNS], dtype=tl.float64)
    magnitude = tl.zeros([COLUMNS], dtype=tl.float64)
    count = tl.zeros([COLUMNS], dtype=tl.float64)
    for _ in range(tl.load(own + 8 * parts).to(tl.int32)):
        total += tl.load(place, mask=here, other=0.0)
        magnitude += tl.load(place + all_sums, mask=here, other=0.0)
        count += tl.load(place + 2 * tl.cast(all_sums, tl.int64), mask=here, other=0.0)
        place += columns
    line = lines + tl.load(own + 3 * parts) + lane
    # half the sum of two sums is rounded, so the counts decide what is exactly 0
    low = tl.where(count < rows, (total - magnitude) / (2.0 * (rows - count)), 0.0)
    high = tl.where(count > 0.0, (magnitude + total) / (2.0 * count), 0.0)
    low = tl.where(here, low, 0.0).to(tl.float32)
    high = tl.where(here, high, 0.0).to(tl.float32)
    tl.store(line, tl.zeros([COLUMNS], dtype=tl.float32), mask=inside)
    tl.store(line + all_lines, low, mask=inside)
    tl.store(line + 2 * tl.cast(all_lines, tl.int64), high, mask=inside)
    body = message + tl.load(own + 4 * parts) + lane * 4
    for k in tl.static_range(4):
        byte = low.to(tl.uint32, bitcast=True) >> (8 * k)
        tl.store(body + k, (byte & 255).to(tl.uint8), mask=inside)
        byte = high.to(tl.uint32, bitcast=True) >> (8 * k)
        tl.store(body + 4 * width + k, (byte & 255).to(tl.uint8), mask=inside)
