"""Norms, sums and errors of the cells of a bucket, in one pass each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors import loops
from gcsim.compressors.coding import scans
from gcsim.compressors.coding.rounding.truncated_normals import Numbers, last_not_above
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Cells, Segments

Norm = Literal["max", "l2"]
_LARGE_CELL = 1 << 18
"""Cells of at least this length are summed by several threads."""
_MAGNITUDE, _LENGTH, _SUMS, _SPREAD, _ERROR = range(5)
_NONE = np.zeros(0)


def _reading(name: str, of_cell: int) -> Callable[..., list[KernelCost]]:
    """Return the cost of a pass that reads elements and moves this many bytes per cell."""

    def launches(_: object, values: object, cells: Cells, *given: object) -> list[KernelCost]:
        n, moved = cells.segments.length, of_cell * cells.count
        return [launch("reduction", name, np.maximum(n, moved // 8), 4 * n, moved)]

    return launches


@counted_as(_reading("levels.bucket_norms", 4))
@primitive
def cell_norms(values: Tensor, cells: Cells, norm: Norm) -> Tensor:
    """Return the maximum |v| or Euclidean norm of each cell of a flat float32: float32 `[cells]`,
    NaN if the cell has one. The Euclidean norm is summed in float64: squares do not overflow."""
    maximum, data = norm == "max", np.ascontiguousarray(loops.array(values))
    long = (cells.size >= _LARGE_CELL) & (cells.count > 0)
    tiles = cells.tiles[~long[cells.tiles[:, 0]]] if long.any() else cells.tiles
    norms = _by_cell(data, cells, _MAGNITUDE if maximum else _LENGTH, tiles)[0].astype(np.float32)
    for cell, begin, end in cells.spans[long[cells.owner]] if long.any() else ():
        norms[cell] = _norm_of(data[begin:end], maximum)
    return loops.tensor(norms, values)


@counted_as(
    lambda _, values, segments, *__: [
        launch("reduction", "terngrad.magnitude_and_spread", segments.length, 4 * segments.length)
    ]
)
@primitive
def clipped_magnitudes(
    values: Tensor, segments: Segments, clip: float | None, at_bound: bool
) -> tuple[Tensor, Tensor]:
    """Return (each tensor's clipping bound, its largest |v| then): float32 `[tensors]` each. The
    bound is `clip` population standard deviations; infinite without `clip` or if all elements are
    equal or one is not finite. `at_bound`: a finite bound is the magnitude; 0 if empty."""
    cells, bounds = segments.cells(loops.SUM_BLOCK), np.full(len(segments.table), np.inf)
    found, largest = _by_cell(loops.array(values), cells, _SPREAD), np.zeros(len(bounds))
    for t in np.flatnonzero(segments.length):
        own, n = found[:, cells.first[t] : cells.first[t] + cells.count[t]], segments.length[t]
        largest[t], mean, square = own[0].max(), own[1].sum() / n, own[2].sum() / n
        deviation = max(square - mean**2, 0.0) ** 0.5
        if clip is not None and deviation > 0:
            bounds[t] = min(clip * deviation, loops.FLOAT32_MAX)
    bounds = bounds.astype(np.float32)
    most = np.where(np.isfinite(bounds) & at_bound, bounds, np.minimum(largest, bounds))
    return loops.tensor(bounds, values), loops.tensor(most.astype(np.float32), values)


@counted_as(_reading("adaptive_levels.bucket_sums", 16))
@primitive
def cell_sums(values: Tensor, cells: Cells) -> Tensor:
    """Return sum and sum of squares of the elements of each cell: float64 `[cells, 2]`."""
    return loops.tensor(
        np.ascontiguousarray(_by_cell(loops.array(values), cells, _SUMS)[:2].T), values
    )


@counted_as(_reading("tables.rounding_error", 4))
@primitive
def table_errors(
    values: Tensor, cells: Cells, norms: Tensor, levels: NDArray[np.float32]
) -> Numbers:
    """Return E|Q(v) - v|^2 of each tensor rounded to a table times norms: float64 `[tensors]`, the
    sum of norm^2 (r - lo) (hi - r) over the elements r = v / norm of a flat float32."""
    given = loops.array(norms).astype(np.float64), levels.astype(np.float64)
    errors = _by_cell(loops.array(values), cells, _ERROR, cells.tiles, *given)[0]
    parts = zip(cells.first.tolist(), cells.count.tolist(), strict=True)
    return np.array([float(errors[first : first + count].sum()) for first, count in parts])


def _by_cell(
    values: NDArray[np.float32], cells: Cells, what: int, tiles: NDArray[np.int64] | None = None,
    norms: Numbers = _NONE, levels: Numbers = _NONE,
) -> Numbers:  # fmt: skip
    """Return three numbers per cell, float64 `[3, cells]`; zeros for cells without a tile."""
    found = np.zeros((3, cells.total))
    loops.in_tiles(
        _walk, cells.tiles if tiles is None else tiles, np.ascontiguousarray(values),
        cells.segments.table, cells.first, cells.size, what, norms, levels, found,
    )  # fmt: skip
    return found


@loops.loop
def _walk(start, stop, tiles, values, table, firsts, sizes, what, norms, levels, found):
    room = np.empty(1, dtype=np.uint32)
    pattern = room.view(np.float32)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        own = values[table[t, 0] : table[t, 0] + table[t, 1]]
        for first in range(start_of, stop_of, sizes[t]):
            part = own[first : min(first + sizes[t], stop_of)]
            cell = firsts[t] + first // sizes[t]
            total, squares = 0.0, 0.0
            if what in (_MAGNITUDE, _SPREAD):
                room[0] = scans.greatest_magnitude(part)
                found[0, cell] = pattern[0]
            # the centre is common to the tensor's cells, as their sums are added later
            if what == _SPREAD:  # about the first element, against cancellation
                found[1, cell], found[2, cell] = scans.moments(part, np.float64(own[0]))
            elif what == _LENGTH:
                for at in range(0, part.size, loops.SUM_BLOCK):
                    total += scans.sum_of_squares(part[at : at + loops.SUM_BLOCK])
                found[0, cell] = _root(total)
            elif what == _SUMS:
                for at in range(0, part.size, loops.SUM_BLOCK):
                    added, squared = scans.moments(part[at : at + loops.SUM_BLOCK], 0.0)
                    total += added
                    squares += squared
                found[0, cell], found[1, cell] = total, squares
            elif what == _ERROR:
                norm = norms[cell]
                for i in range(part.size):
                    share = part[i] / norm if norm > 0 else 0.0
                    low = last_not_above(levels, share)
                    # the product is negative outside the table
                    total += max((share - levels[low]) * (levels[low + 1] - share), 0.0)
                found[0, cell] = norm * norm * total


@loops.loop
def _root(total) -> np.float32:
    """Return the square root, at most the largest float32 (infinity and NaN are kept)."""
    root = np.sqrt(total)
    if np.isfinite(root):
        root = min(root, loops.FLOAT32_MAX)
    return np.float32(root)


def _norm_of(values: NDArray[np.float32], maximum: bool) -> np.float32:
    if maximum:
        found = np.zeros(-(-values.size // loops.SUM_BLOCK), dtype=np.uint32)
        loops.in_parallel(scans.block_magnitudes, values.size, values, found)
        return np.float32(found.max().view(np.float32))
    sums = loops.partial_sums(values.size)
    loops.in_parallel(scans.block_squares, values.size, values, sums)
    return np.float32(_root(float(sums.sum())))
