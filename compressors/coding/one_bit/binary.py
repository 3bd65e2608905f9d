"""Two levels for each cell of a bucket, and their messages.

A frame's body holds the levels, float32, then the bits (`bits.py`): 1 for the cell's upper level, 0
for the lower one. Flags: TWO_LEVELS: the lower levels of all cells, then the upper ones; SYMMETRIC:
only upper ones, whose negatives are the lower ones. `params` is the cell length.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcsim.compressors import loops
from gcsim.compressors.coding.rounding.bucket_levels import clip_cells
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Cells

MAX_HALVINGS = 24
"""Largest number of passes of `optimal_bounds` over a cell."""


def _moving(
    kind: KernelClass, name: str, of_element: int, of_cell: int
) -> Callable[..., list[KernelCost]]:
    """Return the cost of a pass that moves this many bytes per element and per cell."""

    def launches(_: object, values: object, cells: Cells, *given: object) -> list[KernelCost]:
        n = cells.segments.length
        return [launch(kind, name, n, of_element * n, of_cell * cells.count)]

    return launches


@counted_as(_moving("streaming", "bucket_levels.clip_to_spread", 8, 0))
@primitive
def clip_to_spread(values: Tensor, cells: Cells, clip: float) -> None:
    """Clip cells to `clip` population standard deviations (unless that is 0), in place."""
    with loops.written_back(values) as data:
        loops.in_tiles(_clip, cells.spans, data, clip)


@counted_as(_moving("reduction", "bingrad_b.class_means", 4, 12))
@primitive
def class_means(values: Tensor, cells: Cells) -> Tensor:
    """Return thresholds, lower and upper levels of a flat float32: float32 `[3, cells]`. A
    threshold is the cell's mean; the levels are the means of the elements below it and the rest."""
    found = np.empty((3, cells.total), dtype=np.float32)
    loops.in_tiles(_class_means, cells.spans, loops.array(values), found)
    return loops.tensor(found, values)


@counted_as(_moving("reduction", "bingrad_pb.optimal_bounds", 4, 4))
@primitive
def optimal_bounds(values: Tensor, cells: Cells) -> Tensor:
    """Return the bound b with the least error for each cell (`bingrad.py`): float32 `[cells]`."""
    bounds = np.empty(cells.total, dtype=np.float32)
    loops.in_tiles(_optimal_bounds, cells.spans, loops.array(values), bounds)
    return loops.tensor(bounds, values)


@loops.loop
def _clip(start, stop, spans, values, factor):
    for span in range(start, stop):
        part = values[spans[span, 1] : spans[span, 2]]
        clip_cells(0, part.size, part, part.size, factor)


@loops.loop
def _class_means(start, stop, spans, values, found):
    for span in range(start, stop):
        cell, begin, end = spans[span]
        part = values[begin:end]
        total, _, _ = _sums_about(part, np.float32(0))
        threshold = np.float32(total / part.size)
        total, magnitude, count = _sums_about(part, threshold)
        low, high = threshold, threshold
        if count < part.size:
            low = np.float32(threshold + 0.5 * (total - magnitude) / (part.size - count))
        if count > 0:
            high = np.float32(threshold + 0.5 * (total + magnitude) / count)
        found[0, cell], found[1, cell], found[2, cell] = threshold, low, high


@loops.summing_loop
def _sums_about(part, centre) -> tuple[float, float, float]:
    """Return sum of d = v - centre, sum of |d|, number of d >= 0, for one cell. Half the sum or
    difference of the first two is the sum of a class, without a condition, which vectorises."""
    total, magnitude, count = 0.0, 0.0, 0.0
    for i in range(part.size):
        distance = np.float64(part[i]) - np.float64(centre)
        total += distance
        magnitude += abs(distance)
        count += np.float64(part[i] >= centre)
    return total, magnitude, count


@loops.loop
def _optimal_bounds(start, stop, spans, values, bounds):
    for span in range(start, stop):
        cell, begin, end = spans[span]
        part = values[begin:end]
        # the mean falls as the bound grows, so its value at 0 is at or above the root
        low, high = 0.0, _mean_from(part, np.float32(0))
        for _ in range(MAX_HALVINGS):
            if high - low <= 2.0**-22 * high:
                break
            middle = 0.5 * (low + high)
            reached = _mean_from(part, np.float32(middle))
            # the root lies between `middle` and the mean for it
            if reached >= middle:
                low, high = middle, min(high, reached)
            else:
                low, high = max(low, reached), middle
        bounds[cell] = np.float32(high)


@loops.loop
def _mean_from(part, bound) -> float:
    """Return the sum of |v| over the elements with |v| >= bound, divided by the number of all."""
    total = 0.0
    for first in range(0, part.size, loops.SUM_BLOCK):
        # float32 within a block, for wide vectors; float64 between blocks
        total += _sum_from(part[first : first + loops.SUM_BLOCK], bound)
    mean: float = total / part.size
    return mean


@loops.summing_loop
def _sum_from(block, bound):
    total = np.float32(0)
    for i in range(block.size):
        magnitude = abs(block[i])
        total += magnitude if magnitude >= bound else np.float32(0)
    return total
