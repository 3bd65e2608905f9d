"""Levels fitted to each cell, on a GPU: the kernels of `coding/rounding/bucket_levels.py`. Sorting
may order zeros of both signs differently from the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.rounding import bucket_levels as loops
from gcsim.compressors.gpu.one_bit.binary import clip_to_spread
from gcsim.compressors.gpu.words import BLOCK, blocks, launch, there
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells

_WIDEST = 1024


@kernel_of(loops.optimal_levels)
def optimal_levels(
    values: Tensor, cells: Cells, count: int, clip: float | None, sweeps: int
) -> Tensor:
    """Find the levels in two launches and a sort."""
    return _searched(_optimal, values, cells, count, clip, sweeps)


@kernel_of(loops.quantiles)
def quantiles(values: Tensor, cells: Cells, count: int, clip: float | None) -> Tensor:
    """Find the quantiles in two launches and a sort."""
    return _searched(_quantiles, values, cells, count, clip, 0)


def _searched(
    kernel: Any, values: Tensor, cells: Cells, count: int, clip: float | None, sweeps: int
) -> Tensor:
    """Find levels with a kernel in the clipped, sorted elements of cells, with NaN after them."""
    width = int(cells.size.max(initial=1))
    if clip is not None:
        values = values.clone()
        clip_to_spread(values, cells, clip)
    rows, pieces = values.new_empty((cells.total, width)), blocks(width)
    spans = there((cells.spans[:, 1], cells.length), values.device, np.int64)
    launch(
        _fill, cells.total * pieces, values.contiguous(), rows, spans, cells.total, width, pieces,
        BLOCK=BLOCK,
    )  # fmt: skip
    rows, levels = rows.sort(dim=1).values, values.new_empty((cells.total, count))
    launch(
        kernel, cells.total, rows, spans[1], levels, width, sweeps, COUNT=count,
        WIDTH=min(_WIDEST, 1 << max(0, width - 1).bit_length()),
    )  # fmt: skip
    return levels


@triton.jit
def _fill(values, rows, spans, cells, width, pieces, BLOCK: tl.constexpr):
    cell = (tl.program_id(0) // pieces).to(tl.int64)  # cell * width may exceed 32 bits
    at = tl.program_id(0) % pieces * BLOCK + tl.arange(0, BLOCK)
    begin, length = tl.load(spans + cell), tl.load(spans + cells + cell)
    v = tl.load(values + begin + at, mask=at < length, other=float("nan"))
    tl.store(rows + cell * width + at, v, mask=at < width)


@triton.jit
def _level(found, lane, which):
    # a program cannot index its vectors, so take the maximum over a single lane
    return tl.max(tl.where(lane == which, found, float("-inf")), axis=0)


@triton.jit
def _best(values, length, low, high, otherwise, WIDTH: tl.constexpr):
    # rows are sorted, so counts are places: the `between` elements begin at place `below`
    below = tl.cast(0, tl.int32)
    between = tl.cast(0, tl.int32)
    total = tl.cast(0.0, tl.float64)
    for start in range(0, length, WIDTH):
        i = start + tl.arange(0, WIDTH)
        v = tl.load(values + i, mask=i < length, other=0.0)
        inside = (i < length) & (v > low) & (v < high)
        below += tl.sum(((i < length) & (v <= low)).to(tl.int32), axis=0)
        between += tl.sum(inside.to(tl.int32), axis=0)
        total += tl.sum(tl.where(inside, v.to(tl.float64) - low.to(tl.float64), 0.0), axis=0)
    some = between > 0
    gap = tl.where(some, high.to(tl.float64) - low.to(tl.float64), 1.0)
    rank = tl.minimum(tl.maximum((total / gap).to(tl.int32), 0), between - 1)
    best = tl.load(values + below + between - 1 - rank, mask=some, other=0.0)
    return tl.where(some, best, otherwise)


@triton.jit
def _optimal(rows, lengths, levels, width, sweeps, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    values, lane = rows + row * width, tl.arange(0, 16)
    length = tl.load(lengths + row).to(tl.int32)
    found = tl.where(lane == 0, tl.load(values), tl.load(values + length - 1))
    for k in tl.static_range(1, COUNT - 1):  # greedily: the middle, those of the halves, …
        # k = 1 is the middle; 2 and 3 are the halves' middles, 4 to 7 the quarters'
        reach = (COUNT - 1) // (2 if k < 2 else (4 if k < 4 else 8))
        place = reach * (2 * (k - (1 if k < 2 else (2 if k < 4 else 4))) + 1)
        low, high = _level(found, lane, place - reach), _level(found, lane, place + reach)
        middle = (0.5 * (low.to(tl.float64) + high.to(tl.float64))).to(tl.float32)
        best = _best(values, length, low, high, middle, WIDTH)
        found = tl.where(lane == place, best, found)
    left = tl.cast(sweeps, tl.int32)
    while left > 0:
        before = found
        for k in tl.static_range(1, COUNT - 1):
            low, high = _level(found, lane, k - 1), _level(found, lane, k + 1)
            best = _best(values, length, low, high, _level(found, lane, k), WIDTH)
            found = tl.where(lane == k, best, found)
        moved = tl.max((found != before).to(tl.int32), axis=0)
        left = tl.where(moved > 0, left - 1, 0)
    tl.store(levels + row * COUNT + lane, found, mask=lane < COUNT)


@triton.jit
def _quantiles(rows, lengths, levels, width, sweeps, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    values, lane = rows + row * width, tl.arange(0, 16)
    length = tl.load(lengths + row)
    place = tl.where(lane < COUNT, lane, 0) * (length - 1)
    at, rest = place // (COUNT - 1), place % (COUNT - 1)
    low = tl.load(values + at).to(tl.float64)
    high = tl.load(values + tl.minimum(at + 1, length - 1)).to(tl.float64)
    share = rest.to(tl.float64) / tl.cast(COUNT - 1, tl.float64)
    level = tl.where(rest > 0, low + (high - low) * share, low)
    tl.store(levels + row * COUNT + lane, level.to(tl.float32), mask=lane < COUNT)
