"""Norms, sums and errors of the cells of a bucket, in one pass each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.rounding.truncated_normals import Numbers, last_not_above
from gcsim.compressors.coding.scans import (
    block_magnitudes,
    block_squares,
    greatest_magnitude,
    moments,
    sum_of_squares,
)
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import (
    FLOAT32_MAX,
    SUM_BLOCK,
    array,
    in_parallel,
    in_tiles,
    loop,
    partial_sums,
    tensor,
)
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Cells, Segments, starts

Norm = Literal["max", "l2"]
_LARGE_CELL = 1 << 18
"""Cells from here on are summed up by several threads."""


def _reading(name: str, of_cell: int) -> Callable[..., list[KernelCost]]:
    """The entry of a pass that reads elements, and moves so many bytes a cell."""

    def launches(_: object, values: object, cells: Cells, *given: object) -> list[KernelCost]:
        n, moved = cells.segments.length, of_cell * cells.count
        return [launch("reduction", name, np.maximum(n, moved // 8), 4 * n, moved)]

    return launches


@counted_as(_reading("levels.bucket_norms", 4))
@primitive
def cell_norms(values: Tensor, cells: Cells, norm: Norm) -> Tensor:
    """Maximum |v| or Euclidean norm of each cell of a flat float32: float32 `[cells]`.

    The Euclidean norm is summed in float64: squares of float32 neither overflow nor vanish.
    NaN where a cell holds one.
    """
    data, table = np.ascontiguousarray(array(values)), cells.segments.table
    maximum = norm == "max"
    norms = np.zeros(cells.total, dtype=np.float32)
    long = (cells.size >= _LARGE_CELL) & (cells.count > 0)
    tiles = cells.tiles[~long[cells.tiles[:, 0]]] if long.any() else cells.tiles
    in_tiles(_tile_norms, tiles, data, table, cells.size, cells.first, maximum, norms)
    for cell, begin, end in cells.spans[long[cells.owner]] if long.any() else ():
        norms[cell] = _norm_of(data[begin:end], maximum)
    return tensor(norms, values)


@counted_as(
    lambda _, values, segments: [
        launch("reduction", "terngrad.magnitude_and_spread", segments.length, 4 * segments.length)
    ]
)
@primitive
def magnitudes_and_spreads(values: Tensor, segments: Segments) -> NDArray[np.float64]:
    """Largest |v| and population standard deviation of each tensor: float64 `[tensors, 2]`.

    Zeros for a tensor without elements. The deviation is exactly zero when all elements are equal;
    it is NaN when one is not finite.
    """
    blocks = -(-segments.length // SUM_BLOCK)
    first, total = starts(blocks), int(blocks.sum())
    largest, sums = np.zeros(total, dtype=np.uint32), np.zeros((2, total))
    data = np.ascontiguousarray(array(values))
    in_tiles(_moments, segments.tiles, data, segments.table, first, largest, sums)
    found = np.zeros((len(blocks), 2))
    for t in np.flatnonzero(blocks):
        own = slice(first[t], first[t] + blocks[t])
        mean, square = (float(each[own].sum()) / segments.length[t] for each in sums)
        found[t] = largest[own].max().view(np.float32), max(square - mean**2, 0.0) ** 0.5
    return found


@counted_as(_reading("adaptive_levels.bucket_sums", 16))
@primitive
def cell_sums(values: Tensor, cells: Cells) -> Tensor:
    """Sum of the elements and of their squares of each cell: float64 `[cells, 2]`."""
    data, sums = np.ascontiguousarray(array(values)), np.zeros((cells.total, 2))
    in_tiles(_cell_sums, cells.tiles, data, cells.segments.table, cells.first, cells.size, sums)
    return tensor(sums, values)


@counted_as(_reading("tables.rounding_error", 4))
@primitive
def table_errors(
    values: Tensor, cells: Cells, norms: Tensor, levels: NDArray[np.float32]
) -> Numbers:
    """E|Q(v) - v|^2 of each tensor that is rounded to a table times norms: float64 `[tensors]`.

    The sum of norm^2 (r - lo) (hi - r) over the elements r = v / norm of a flat float32.
    """
    data, sums = np.ascontiguousarray(array(values)), np.zeros(cells.total)
    in_tiles(
        _add_errors, cells.tiles, data, cells.segments.table, array(norms), cells.first, cells.size,
        levels.astype(np.float64), sums,
    )  # fmt: skip
    parts = zip(cells.first.tolist(), cells.count.tolist(), strict=True)
    return np.array([float(sums[first : first + count].sum()) for first, count in parts])


# --- loops ----------------------------------------------------------------------------------------


@loop
def _tile_norms(
    start: int, stop: int, tiles: Any, values: Any, table: Any, sizes: Any, cells: Any,
    maximum: bool, norms: Any,
) -> None:  # fmt: skip
    found = np.empty(1, dtype=np.uint32)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        begin, size = table[t, 0], sizes[t]
        for first in range(start_of, stop_of, size):
            part = values[begin + first : begin + min(first + size, stop_of)]
            if maximum:
                found[0] = greatest_magnitude(part)
                norms[cells[t] + first // size] = found.view(np.float32)[0]
            else:
                total = 0.0
                for at in range(0, part.size, SUM_BLOCK):
                    total += sum_of_squares(part[at : at + SUM_BLOCK])
                norms[cells[t] + first // size] = _root(total)


@loop
def _root(total: float) -> np.float32:
    """The square root, at most the largest float32 (infinity and NaN stay)."""
    root = np.sqrt(total)
    if np.isfinite(root):
        root = min(root, FLOAT32_MAX)
    return np.float32(root)


def _norm_of(values: NDArray[np.float32], maximum: bool) -> np.float32:
    """The norm of one long cell."""
    if maximum:
        found = np.zeros(-(-values.size // SUM_BLOCK), dtype=np.uint32)
        in_parallel(block_magnitudes, values.size, values, found)
        return np.float32(found.max().view(np.float32))
    sums = partial_sums(values.size)
    in_parallel(block_squares, values.size, values, sums)
    return np.float32(_root(float(sums.sum())))


@loop
def _moments(
    start: int, stop: int, tiles: Any, values: Any, table: Any, blocks: Any, largest: Any, sums: Any
) -> None:
    """Spread of each block, about the tensor's first element: nearly equal values lose nothing."""
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        begin = table[t, 0]
        for first in range(start_of, stop_of, SUM_BLOCK):
            part = values[begin + first : begin + min(first + SUM_BLOCK, stop_of)]
            block = blocks[t] + first // SUM_BLOCK
            largest[block] = greatest_magnitude(part)
            sums[0, block], sums[1, block] = moments(part, np.float64(values[begin]))


@loop
def _add_errors(
    start: int, stop: int, tiles: Any, values: Any, table: Any, norms: Any, firsts: Any, sizes: Any,
    levels: Any, sums: Any,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        own = values[table[t, 0] : table[t, 0] + table[t, 1]]
        for first in range(start_of, stop_of, sizes[t]):
            cell = firsts[t] + first // sizes[t]
            norm = np.float64(norms[cell])
            total = 0.0
            for i in range(first, min(first + sizes[t], stop_of)):
                share = own[i] / norm if norm > 0 else 0.0
                low = last_not_above(levels, share)
                total += max((share - levels[low]) * (levels[low + 1] - share), 0.0)
            sums[cell] = norm * norm * total


@loop
def _cell_sums(
    start: int, stop: int, tiles: Any, values: Any, table: Any, firsts: Any, sizes: Any, sums: Any
) -> None:
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        own = values[table[t, 0] : table[t, 0] + table[t, 1]]
        for first in range(start_of, stop_of, sizes[t]):
            part = own[first : min(first + sizes[t], stop_of)]
            cell = firsts[t] + first // sizes[t]
            for at in range(0, part.size, SUM_BLOCK):
                total, squares = moments(part[at : at + SUM_BLOCK], 0.0)
                sums[cell, 0] += total
                sums[cell, 1] += squares
