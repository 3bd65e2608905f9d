"""One bit an element and two levels a cell on a GPU: the kernels of `coding/one_bit/binary.py`.

To find levels one program works on a cell until it is done. Sums are of float64, in an order of
their own (`reductions.py`).
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.one_bit import binary as loops
from gcsim.compressors.coding.one_bit.signs import demand_signs
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.rounding.levels import parts_of_cells
from gcsim.compressors.gpu.words import (
    GROUPS,
    float64,
    float64_bits,
    load_codes,
    magnifier,
    places_of,
    random16,
    store_codes,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, Column

_WIDEST = 1024
"""Elements of a cell that are added up at a time, at most."""


@kernel_of(loops.clip_to_spread)
def clip_to_spread(values: Tensor, cells: Cells, clip: float) -> None:
    """A program reads a cell three times."""
    launch_parts(_clip, _by_cell(values, cells), values, float64_bits(clip), WIDTH=_width(cells))


@kernel_of(loops.class_means)
def class_means(values: Tensor, cells: Cells, iterations: int) -> Tensor:
    """A program iterates over a cell."""
    found = values.new_empty((3, cells.total))
    launch_parts(
        _means, _by_cell(values, cells), values.contiguous(), found, iterations, cells.total,
        WIDTH=_width(cells),
    )  # fmt: skip
    return found


@kernel_of(loops.class_sums)
def class_sums(values: Tensor, cells: Cells, thresholds: Tensor) -> Tensor:
    """A program adds up a cell."""
    found = values.new_empty((3, cells.total))
    launch_parts(
        _sums, _by_cell(values, cells), values.contiguous(), thresholds.contiguous(), found,
        cells.total, WIDTH=_width(cells),
    )  # fmt: skip
    return found


@kernel_of(loops.optimal_bounds)
def optimal_bounds(values: Tensor, cells: Cells) -> Tensor:
    """The loop's sums are of float32, these of float64."""
    bounds, data = values.new_empty(cells.total), values.contiguous()
    launch_parts(
        _halve, _by_cell(values, cells), data, bounds, loops.MAX_HALVINGS, WIDTH=_width(cells)
    )
    return bounds


@kernel_of(loops.put_bits_above)
def put_bits_above(
    values: Tensor, cells: Cells, thresholds: Tensor, bits: Tensor, at: Column
) -> None:
    """A program writes a tile."""
    parts = parts_of_cells(values, cells, at)
    launch_parts(
        _above, parts, values.contiguous(), thresholds, bits, GROUPS=GROUPS, INDEX=parts.index
    )


@kernel_of(loops.put_random_bits)
def put_random_bits(
    values: Tensor, cells: Cells, bounds: Tensor, keys: NDArray[np.uint64], bits: Tensor,
    at: Column,
) -> None:  # fmt: skip
    """A program writes a tile."""
    parts = parts_of_cells(values, cells, at, keys)
    launch_parts(_draw, parts, values.contiguous(), bounds, bits, GROUPS=GROUPS, INDEX=parts.index)


@kernel_of(loops.add_chosen)
def add_chosen(
    out: Tensor, cells: Cells, bits: Tensor, at: Column, lows: Tensor, highs: Tensor, weight: float
) -> None:
    """Padding is checked `when_known`."""
    parts = parts_of_cells(out, cells, at)
    stray = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _choose, parts, out, bits.contiguous(), lows, highs, stray, float(np.float32(weight)),
        GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip
    when_known(stray.any(), demand_signs)


def _by_cell(like: Tensor, cells: Cells) -> Parts:
    """A program a cell; those of one tensor behind those of the other."""
    columns = cells.segments.length, cells.count, cells.segments.begin, cells.size
    return parts_of(like, *(each.tolist() for each in columns))


def _width(cells: Cells) -> int:
    return min(_WIDEST, 1 << max(0, int(cells.size.max(initial=1)) - 1).bit_length())


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _above(
    values, thresholds, out, table, parts, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=at < n, other=0.0)
    cell = tl.load(column + 3 * parts) + at // tl.load(column + 5 * parts).to(INDEX)
    threshold = tl.load(thresholds + cell, mask=at < n, other=0.0)
    place = out + tl.load(column + 4 * parts)
    store_codes(place, group, (at < n) & (v >= threshold), (n + 7) // 8, 1)


@triton.jit
def _draw(
    values, bounds, out, table, parts, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    key = tl.load(column + 6 * parts).to(tl.uint64, bitcast=True)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=at < n, other=0.0)
    cell = tl.load(column + 3 * parts) + at // tl.load(column + 5 * parts).to(INDEX)
    bound = tl.load(bounds + cell, mask=at < n, other=0.0)
    scale = magnifier(bound)
    low = -bound * scale
    fraction = (random16(key, group, GROUPS).to(tl.float32) + 0.5) * 2.0**-16
    up = (at < n) & (v * scale - low > fraction * (low * -2.0))
    store_codes(out + tl.load(column + 4 * parts), group, up, (n + 7) // 8, 1)


@triton.jit
def _choose(
    out, bits, lows, highs, stray, weight, table, parts, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    cell = tl.load(column + 3 * parts) + at // tl.load(column + 5 * parts).to(INDEX)
    low = weight * tl.load(lows + cell, mask=at < n, other=0.0)
    high = weight * tl.load(highs + cell, mask=at < n, other=0.0)
    target = out + tl.load(column + 2 * parts) + at
    total = tl.load(target, mask=at < n, other=0.0)
    code = load_codes(bits + tl.load(column + 4 * parts), group, (n + 7) // 8, 1)
    behind = tl.where(at < n, 0, code)
    tl.store(stray + tl.program_id(0), tl.max(tl.max(behind, axis=1), axis=0))
    tl.store(target, total + tl.where(code != 0, high, low), mask=at < n)


@triton.jit
def _about(values, first, length, centre, WIDTH: tl.constexpr):
    """Of a cell: the sum of d = v - centre, the sum of |d|, the number of d >= 0; float64."""
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
    """Begin and length of this program's cell."""
    column, number, n = own_part(table, parts)
    size = tl.load(column + 3 * parts)
    first = number.to(tl.int64) * size
    begin = tl.load(column + 2 * parts) + first
    return begin, tl.minimum(size, n - first).to(tl.int32)


@triton.jit
def _means(
    values, found, iterations, cells, table, parts, WIDTH: tl.constexpr,
):  # fmt: skip
    first, length = _cell(table, parts)
    elements = length.to(tl.float64)
    total, magnitude, count = _about(values, first, length, tl.cast(0.0, tl.float32), WIDTH)
    threshold = (total / elements).to(tl.float32)
    low = threshold
    high = threshold
    following = threshold
    left = tl.cast(iterations, tl.int32) + 1
    while left > 0:
        threshold = following
        total, magnitude, count = _about(values, first, length, threshold, WIDTH)
        wide = threshold.to(tl.float64)
        below = wide + 0.5 * (total - magnitude) / tl.maximum(elements - count, 1.0)
        above = wide + 0.5 * (total + magnitude) / tl.maximum(count, 1.0)
        low = tl.where(count < elements, below.to(tl.float32), threshold)
        high = tl.where(count > 0, above.to(tl.float32), threshold)
        following = (0.5 * (low.to(tl.float64) + high.to(tl.float64))).to(tl.float32)
        left = tl.where(following == threshold, 0, left - 1)
    cell = tl.program_id(0)
    tl.store(found + cell, threshold)
    tl.store(found + cells + cell, low)
    tl.store(found + 2 * cells + cell, high)


@triton.jit
def _sums(
    values, thresholds, found, cells, table, parts, WIDTH: tl.constexpr,
):  # fmt: skip
    first, length = _cell(table, parts)
    cell = tl.program_id(0)
    threshold = tl.load(thresholds + cell)
    total, magnitude, count = _about(values, first, length, threshold, WIDTH)
    wide = threshold.to(tl.float64)
    below = wide * (length.to(tl.float64) - count) + 0.5 * (total - magnitude)
    above = wide * count + 0.5 * (total + magnitude)
    tl.store(found + cell, below.to(tl.float32))
    tl.store(found + cells + cell, above.to(tl.float32))
    tl.store(found + 2 * cells + cell, count.to(tl.float32))


@triton.jit
def _mean_from(values, first, length, bound, WIDTH: tl.constexpr):
    """Sum of |v| over the elements with |v| >= bound, over the number of all elements."""
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
