"""Levels of a bucket's cells on a GPU: the kernels of `coding/one_bit/binary.py`. One program
handles a cell; sums are float64 in another order."""

from __future__ import annotations

import triton
import triton.language as tl

from gcsim.compressors.coding.one_bit import binary as loops
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import float64, float64_bits
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells

_WIDEST = 1024
"""Most elements of a cell that are added at a time."""


@kernel_of(loops.clip_to_spread)
def clip_to_spread(values: Tensor, cells: Cells, clip: float) -> None:
    """Clip in one launch; a program reads its cell three times."""
    launch_parts(_clip, _by_cell(values, cells), values, float64_bits(clip), WIDTH=_width(cells))


@kernel_of(loops.class_means)
def class_means(values: Tensor, cells: Cells) -> Tensor:
    """Find the levels in one launch; a program reads its cell twice."""
    found, data = values.new_empty((3, cells.total)), values.contiguous()
    launch_parts(_means, _by_cell(values, cells), data, found, cells.total, WIDTH=_width(cells))
    return found


@kernel_of(loops.optimal_bounds)
def optimal_bounds(values: Tensor, cells: Cells) -> Tensor:
    """Find the bounds; sums are float64, those of the loop partly float32."""
    bounds, data = values.new_empty(cells.total), values.contiguous()
    launch_parts(
        _halve, _by_cell(values, cells), data, bounds, loops.MAX_HALVINGS, WIDTH=_width(cells)
    )
    return bounds


def _by_cell(like: Tensor, cells: Cells) -> Parts:
    columns = cells.segments.length, cells.count, cells.segments.begin, cells.size
    return parts_of(like, *columns)


def _width(cells: Cells) -> int:
    # `tl.arange` needs a power of two
    return min(_WIDEST, 1 << max(0, int(cells.size.max(initial=1)) - 1).bit_length())


@triton.jit
def _about(values, first, length, centre, WIDTH: tl.constexpr):
    """Sum d = v - centre, |d| and the number of d >= 0 over a cell, in float64."""
    total = tl.cast(0.0, tl.float64)
    magnitude = tl.cast(0.0, tl.float64)
    count = tl.cast(0.0, tl.float64)
    for start in range(0, length, WIDTH):
        i = start + tl.arange(0, WIDTH)
        v = tl.load(values + first + i, mask=i < length, other=0.0)
        distance = tl.where(i < length, v.to(tl.float64) - centre.to(tl.float64), 0.0)
        total += tl.sum(distance, axis=0)
        magnitude += tl.sum(tl.abs(distance), axis=0)
        count += tl.sum(((i < length) & (v >= centre)).to(tl.float64), axis=0)
    return total, magnitude, count


@triton.jit
def _cell(table, parts):
    column, number, n = own_part(table, parts)
    size = tl.load(column + 3 * parts)
    first = number.to(tl.int64) * size
    begin = tl.load(column + 2 * parts) + first
    return begin, tl.minimum(size, n - first).to(tl.int32)


@triton.jit
def _means(values, found, cells, table, parts, WIDTH: tl.constexpr):
    first, length = _cell(table, parts)
    elements = length.to(tl.float64)
    total, magnitude, count = _about(values, first, length, tl.cast(0.0, tl.float32), WIDTH)
    threshold = (total / elements).to(tl.float32)
    total, magnitude, count = _about(values, first, length, threshold, WIDTH)
    wide = threshold.to(tl.float64)
    # avoids division by 0; an empty class has the threshold as its level
    below = wide + 0.5 * (total - magnitude) / tl.maximum(elements - count, 1.0)
    above = wide + 0.5 * (total + magnitude) / tl.maximum(count, 1.0)
    cell = found + tl.program_id(0)
    tl.store(cell, threshold)
    tl.store(cell + cells, tl.where(count < elements, below.to(tl.float32), threshold))
    tl.store(cell + 2 * cells, tl.where(count > 0, above.to(tl.float32), threshold))


@triton.jit
def _mean_from(values, first, length, bound, WIDTH: tl.constexpr):
    total = tl.cast(0.0, tl.float64)
    for start in range(0, length, WIDTH):
        i = start + tl.arange(0, WIDTH)
        size = tl.abs(tl.load(values + first + i, mask=i < length, other=0.0))
        total += tl.sum(tl.where(size >= bound, size, 0.0).to(tl.float64), axis=0)
    return total / length.to(tl.float64)


@triton.jit
def _halve(values, bounds, most, table, parts, WIDTH: tl.constexpr):
    first, length = _cell(table, parts)
    low = tl.cast(0.0, tl.float64)
    high = _mean_from(values, first, length, tl.cast(0.0, tl.float32), WIDTH)
    left = tl.cast(most, tl.int32)
    while left > 0:
        wide = high - low > high * 2.0**-22
        middle = 0.5 * (low + high)
        reached = _mean_from(values, first, length, middle.to(tl.float32), WIDTH)
        up = reached >= middle
        lower = tl.where(up, middle, tl.maximum(low, reached))
        upper = tl.where(up, tl.minimum(high, reached), middle)
        # a bracket that is narrow enough is kept, and ends the loop
        low = tl.where(wide, lower, low)
        high = tl.where(wide, upper, high)
        left = tl.where(wide, left - 1, 0)
    tl.store(bounds + tl.program_id(0), high.to(tl.float32))


@triton.jit(do_not_specialize=["factor"])
def _clip(values, factor: tl.uint64, table, parts, WIDTH: tl.constexpr):
    first, length = _cell(table, parts)
    elements = length.to(tl.float64)
    total, _, _ = _about(values, first, length, tl.cast(0.0, tl.float32), WIDTH)
    mean = total / elements
    squares = tl.cast(0.0, tl.float64)
    for start in range(0, length, WIDTH):
        i = start + tl.arange(0, WIDTH)
        v = tl.load(values + first + i, mask=i < length, other=0.0).to(tl.float64)
        distance = tl.where(i < length, v - mean, 0.0)
        squares += tl.sum(distance * distance, axis=0)
    bound = (float64(factor) * tl.sqrt(squares / elements)).to(tl.float32)
    if bound > 0.0:
        for start in range(0, length, WIDTH):
            i = start + tl.arange(0, WIDTH)
            v = tl.load(values + first + i, mask=i < length, other=0.0)
            clipped = tl.minimum(tl.maximum(v, -bound), bound)
            tl.store(values + first + i, clipped, mask=i < length)
