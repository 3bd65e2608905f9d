"""Levels that are fitted to each cell, by searching its sorted elements.

An element v between neighbours l_j of s ascending levels becomes the upper one with probability (v
- l_j) / (l_{j+1} - l_j), else the lower one, so that its mean is v; outside the table it saturates.
The mean square error is exactly the sum of (v - l_j) (l_{j+1} - v), plus that of saturation.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.coding.scans import moments
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, loop, summing_loop, tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Cells

LEVEL_COUNTS = (3, 5, 9)
"""Numbers of levels that pack well, in 1.6, 2.33 and 3.2 bits per element."""
MAX_BUCKET = 65535

Clip = Annotated[
    float | None,
    Field(
        gt=0,
        description="clip to c standard deviations of a bucket (paper: 1.7, 2.5); null: never clip",
    ),
]


def rounding_error(values: Tensor, tables: Tensor, size: int) -> float:
    """Return the mean of |Q(v) - v|^2 for `values`, float32 `[n]`: the sum of (v - l_j) (l_{j+1} -
    v), v clipped to its cell's table, plus the square of the clipped part."""
    given, table = values.double(), tables.double()[torch.arange(values.numel()) // size]
    inside = given.clamp(table[:, 0], table[:, -1])
    above = (table <= inside[:, None]).sum(1, keepdim=True).clamp_(1, table.shape[1] - 1)
    low, high = table.gather(1, above - 1)[:, 0], table.gather(1, above)[:, 0]
    return float(((inside - low) * (high - inside) + (given - inside).square()).sum())


def _searching(
    tables: Tensor, values: object, cells: Cells, count: int, *_: object
) -> list[KernelCost]:
    n, levels = cells.segments.length, count * cells.count
    most = np.maximum(n, levels)
    return [launch("sort", "bucket_levels.search_levels", most, 4 * n, 4 * levels)]


@counted_as(_searching)
@primitive
def optimal_levels(
    values: Tensor, cells: Cells, count: int, clip: float | None, sweeps: int
) -> Tensor:
    """Return the levels of least error of each cell (`orq.py`), ascending: float32 `[cells,
    count]`. They are found greedily, then improved in turn `sweeps` times; elements are first
    clipped to `clip` standard deviations of their cell (population, about the mean; unless 0)."""
    return _searched(values, cells, count, clip, _optimal_levels, sweeps)


@counted_as(_searching)
@primitive
def quantiles(values: Tensor, cells: Cells, count: int, clip: float | None) -> Tensor:
    """Return the quantiles j / (count - 1) of each cell, clipped as in `optimal_levels`."""
    return _searched(values, cells, count, clip, _quantiles)


# --- searches -------------------------------------------------------------------------------------


def _searched(
    values: Tensor, cells: Cells, count: int, clip: float | None, search: Any, *given: int
) -> Tensor:
    """Return the tables that `search(rows, levels, *given)` fills from sorted, clipped cells."""
    data, columns = array(values), (cells.segments.begin, cells.size, cells.first)
    begins, sizes, numbers = (column.tolist() for column in columns)
    tables = np.empty((cells.total, count), dtype=np.float32)
    factor = 0.0 if clip is None else clip

    def search_tiles(start: int, stop: int, tiles: NDArray[np.int64]) -> None:
        # interpreted, but for many cells at a time; numpy sorts without the GIL
        for t, first, last in tiles[start:stop].tolist():
            size, begin = sizes[t], begins[t]
            cut = last - (last - first) % size
            # only a tensor's last cell may be shorter: a matrix of one row
            for start_of, end, length in ((first, cut, size), (cut, last, last - cut)):
                if start_of < end:
                    rows = data[begin + start_of : begin + end].reshape(-1, length).copy()
                    rows.sort(axis=1)
                    if factor:
                        clip_cells(0, rows.size, rows.reshape(-1), length, factor)
                    cell = numbers[t] + start_of // size
                    search(rows, tables[cell : cell + len(rows)], *given)

    in_tiles(search_tiles, cells.tiles)
    return tensor(tables, values)


@loop
def clip_cells(start, stop, values, size, factor):
    """Clip each cell to `factor` of its standard deviations, in place."""
    for at in range(start, stop, size):
        part = values[at : min(at + size, stop)]
        total, _ = moments(part, 0.0)
        # squares about the mean take a second pass, but do not cancel as those about zero
        _, squares = moments(part, total / part.size)
        bound = np.float32(factor * np.sqrt(squares / part.size))
        if bound > 0:  # false also for NaN
            for i in range(part.size):
                part[i] = min(max(part[i], -bound), bound)


@loop
def _optimal_levels(rows, levels, sweeps):
    last = levels.shape[1] - 1
    for r in range(rows.shape[0]):
        row, found = rows[r], levels[r]
        found[0], found[last] = row[0], row[row.size - 1]
        # `last` is 2, 4 or 8: first the middle level, then the middles of the halves and quarters
        stride = last // 2
        while stride:
            for k in range(stride, last, 2 * stride):
                low, high = found[k - stride], found[k + stride]
                # float64, as the sum may overflow float32
                middle = np.float32(0.5 * (np.float64(low) + np.float64(high)))
                found[k] = _best_between(row, low, high, middle)
            stride //= 2
        for _ in range(sweeps):
            changed = False
            # coordinate descent: a level sees its lower neighbour as already moved in this sweep
            for k in range(1, last):
                better = _best_between(row, found[k - 1], found[k + 1], found[k])
                changed |= better != found[k]
                found[k] = better
            if not changed:
                break


@loop
def _best_between(row, low, high, otherwise):
    """Return the best level between `low` and `high`, or `otherwise` if no elements are there."""
    # elements at `high` add 1 to both sides of the condition (`orq.py`) and those at `low` add 0,
    # so both drop out
    first = np.searchsorted(row, low, side="right")
    between = row[first : max(first, np.searchsorted(row, high, side="left"))]
    if not between.size:
        return otherwise
    above = _sum_above(between, np.float64(low)) / (np.float64(high) - np.float64(low))
    # the best level has floor(T) elements above it
    rank = min(max(int(above), 0), between.size - 1)  # clamped in case of NaN
    return between[between.size - 1 - rank]


@summing_loop
def _sum_above(part, low) -> float:
    """Return the sum of v - low; summing v would cancel."""
    total = 0.0
    for i in range(part.size):
        total += np.float64(part[i]) - low
    return total


def _quantiles(rows: NDArray[np.float32], levels: NDArray[np.float32]) -> None:
    gaps, last = levels.shape[1] - 1, rows.shape[1] - 1
    # quantile j is at place j last / gaps of the sorted row: between two elements if `rest` > 0
    at, rest = np.divmod(np.arange(gaps + 1) * last, gaps)
    low, high = rows[:, at].astype(np.float64), rows[:, np.minimum(at + 1, last)]
    # without a rest take the element itself: infinity times 0 would be NaN
    levels[:] = np.where(rest > 0, low + (high - low) * (rest / gaps), low)
