"""Matrices of a bucket with two levels per column: sums over columns, and levels.

Loops run along rows in memory order, so that vectors hold elements of different columns; several
rows of a narrow matrix are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import TensorSlice
from gcsim.compressors.coding.frames import put
from gcsim.compressors.coding.one_bit.bits import NONE, Stripes
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, starts, tiles_of

_SUM_PARTS = 32
"""Largest number of row blocks with separate sums."""
_WIDE = 512
"""Columns that make a row worth a vector loop."""


def matrix_shape(piece: TensorSlice) -> tuple[int, int]:
    """Return (rows, columns) of a tensor: first dimension by all others; a vector is one column."""
    rows = piece.shape[0] if piece.shape else 1
    return rows, (piece.numel // rows if rows else 0)


@dataclass(frozen=True, eq=False)
class Matrices:
    """Matrices in a flat vector, each divided into the same number of stripes of columns. Every
    column is a line: first the columns of all stripes of the first owner, then of the second, …"""

    rows: Column
    columns: Column
    offset: Column
    count: int
    """Number of stripes per matrix."""

    @cached_property
    def width(self) -> Column:
        """Columns of each stripe; the last stripes may exceed the matrix."""
        return -(-self.columns // self.count)

    @cached_property
    def line(self) -> Column:
        """First line of the first stripe of each matrix."""
        return starts(self.width)

    @cached_property
    def lines(self) -> int:
        return int(self.width.sum())

    @cached_property
    def stripes(self) -> Stripes:
        return self._stripes(range(self.count))

    def stripes_of(self, owner: int) -> Stripes:
        """Return the stripes of one owner, with lines that begin at 0."""
        return self._stripes([owner])

    def _stripes(self, owners: Any) -> Stripes:
        rows = [
            (self.rows, self.columns, self.offset, owner * self.width, self.width,
             self.line + number * self.lines, 0 * self.rows)
            for number, owner in enumerate(owners)
        ]  # fmt: skip
        table = np.array(rows, dtype=np.int64)  # [owners, 7, matrices]
        return Stripes(np.ascontiguousarray(table.transpose(0, 2, 1).reshape(-1, 7)))

    @cached_property
    def owned(self) -> Matrices:
        """The stripes of one owner, as consecutive matrices."""
        offset = starts(self.rows * self.width)
        return Matrices(self.rows, self.width, offset, 1)

    @cached_property
    def line_of_columns(self) -> NDArray[np.int64]:
        owner = np.repeat(np.arange(len(self.columns)), self.columns)
        column = np.arange(len(owner)) - starts(self.columns)[owner]
        width = self.width[owner]
        lines: NDArray[np.int64] = self.line[owner] + column // width * self.lines + column % width
        return lines

    @cached_property
    def _blocks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(tiles that are blocks of rows; `[matrices, 5]`: rows per block, blocks, first sum,
        columns, elements of a joined row)."""
        size = self.rows * self.columns
        wide = self.columns * np.maximum(1, _WIDE // np.maximum(1, self.columns))
        rows = -(-size // np.maximum(1, wide))
        together = np.maximum(16, -(-rows // _SUM_PARTS))
        # blocks depend only on the shape, so sums do not depend on threads
        blocks = -(-rows // together)
        first = starts(3 * blocks * wide)
        table = np.stack((together, blocks, first, self.columns, wide), axis=1)
        return tiles_of(size, np.maximum(1, together * wide)), np.ascontiguousarray(table)


def _measuring(
    _: object, values: object, matrices: Matrices, message: object, at: object, *,
    added: Tensor | None = None,
) -> list[KernelCost]:  # fmt: skip
    n, lines = matrices.rows * matrices.columns, matrices.columns
    if added is None:
        return [launch("reduction", "columns.column_sums", n, 4 * n, 28 * lines)]
    return [launch("reduction", "columns.add_and_sum_columns", n, 12 * n, 24 * lines)]


@counted_as(_measuring)
@primitive
def column_levels(
    values: Tensor, matrices: Matrices, message: Tensor, at: Column, *, added: Tensor | None = None
) -> Tensor:
    """Return thresholds (0), lower and upper levels of columns, float32 `[3, lines]`, and write the
    levels to a message: the means of a column's elements below 0 and of the others, 0 if there are
    none and for lines outside a matrix.

    Parameters
    ----------
    values : flat float32 that the matrices lie in, row by row
    message, at : uint8; first byte of each stripe's lower levels, which the upper ones follow
    added : as `values`; is first added to them, in place
    """
    lines = np.zeros((3, matrices.count * matrices.lines), dtype=np.float32)
    rows = np.repeat(matrices.stripes.table[:, 0], matrices.stripes.width)
    total, magnitude, count = column_sums(values, matrices, added)
    with np.errstate(all="ignore"):  # empty classes, or overflow
        # half the sum of two sums is rounded, so the counts decide what is exactly 0
        lines[1] = np.where(count < rows, (total - magnitude) / (2 * (rows - count)), 0.0)
        lines[2] = np.where(count > 0, (magnitude + total) / (2 * count), 0.0)
    found, head = tensor(lines, values), 4 * matrices.stripes.width
    put(message, np.concatenate((at, at + head)), found[1:].reshape(-1), np.tile(head, 2))
    return found


def column_sums(
    values: Tensor, matrices: Matrices, added: Tensor | None = None
) -> NDArray[np.float64]:
    """Return each column's sums of v and |v|, and number of v >= 0: float64 `[3, lines]`, 0 outside
    a matrix. Half the sum or difference of the first two is a class's sum. First adds `added`, in
    place."""
    tiles, blocks = matrices._blocks
    sums = np.zeros(int((3 * blocks[:, 1] * blocks[:, 4]).sum()), dtype=np.float64)
    found = np.zeros((3, matrices.count * matrices.lines), dtype=np.float64)
    more = NONE if added is None else np.ascontiguousarray(array(added))
    with written_back(values) as data:
        in_tiles(
            _sum_tiles, tiles, data, more, matrices.offset, matrices.rows * matrices.columns,
            blocks, sums,
        )  # fmt: skip
    _join_blocks(sums, blocks, matrices.line_of_columns, found)
    return found


@loop
def _sum_tiles(start, stop, tiles, values, added, offsets, sizes, blocks, sums):
    for tile in range(start, stop):
        m, first, last = tiles[tile]
        together, count, at, _, wide = blocks[m]
        own = slice(offsets[m], offsets[m] + sizes[m])
        part = sums[at : at + 3 * count * wide].reshape(3, count, wide)
        _add_columns(first, last, values[own], added[own], together, part)


@loop
def _join_blocks(sums, blocks, places, found):
    """Add up the blocks of rows, and the rows joined in one, in numpy's order."""
    begin = 0
    for m in range(blocks.shape[0]):
        _, count, at, columns, wide = blocks[m]
        size = count * wide
        for i in range(3):
            part = sums[at + i * size : at + (i + 1) * size]
            # a vector: all sums belong to its only column
            if columns == 1 and size:
                found[i, places[begin]] = _sum_by_halves(part)
            elif columns:
                total, lines = found[i], places[begin : begin + columns]
                # a row of sums holds several rows of a narrow matrix
                for row in range(size // columns):
                    for column in range(columns):
                        total[lines[column]] += part[row * columns + column]
        begin += columns


@loop
def _add_columns(start, stop, values, added, together, sums):
    """Fill sums `[3, blocks of rows, columns]`; start and stop are multiples of a block of rows.
    Four rows share one read and write of a sum; `added` is added while the rows are in the
    cache."""
    columns = sums.shape[2]
    for at in range(start, stop, together * columns):
        end = min(at + together * columns, stop)
        block = at // (together * columns)
        total, magnitude, count = sums[0, block], sums[1, block], sums[2, block]
        first = at
        while first < end:
            if added.size and (first - at) % (4 * columns) == 0:
                rows, more = values[first : first + 4 * columns], added[first : first + 4 * columns]
                for i in range(min(rows.size, end - first)):
                    rows[i] += more[i]
            if first + 4 * columns <= end:
                row0 = values[first : first + columns]
                row1 = values[first + columns : first + 2 * columns]
                row2 = values[first + 2 * columns : first + 3 * columns]
                row3 = values[first + 3 * columns : first + 4 * columns]
                for i in range(columns):
                    d0, d1 = np.float64(row0[i]), np.float64(row1[i])
                    d2, d3 = np.float64(row2[i]), np.float64(row3[i])
                    total[i] += (d0 + d1) + (d2 + d3)
                    magnitude[i] += (abs(d0) + abs(d1)) + (abs(d2) + abs(d3))
                    reached = np.int32(d0 >= 0) + np.int32(d1 >= 0)
                    reached += np.int32(d2 >= 0) + np.int32(d3 >= 0)
                    count[i] += np.float64(reached)
                first += 4 * columns
            else:
                # a last row may be short, but also begins with column 0
                row = values[first : min(first + columns, end)]
                for i in range(row.size):
                    distance = np.float64(row[i])
                    total[i] += distance
                    magnitude[i] += abs(distance)
                    count[i] += np.float64(distance >= 0)
                first += columns


@loop
def _sum_by_halves(values):
    """Sum 512 m contiguous numbers in numpy's order: by halves, then up to 128 in eight sums."""
    if values.size > 128:
        half = values.size // 2 - values.size // 2 % 8
        return _sum_by_halves(values[:half]) + _sum_by_halves(values[half:])
    parts = values[:8].copy()
    for i in range(8, values.size):
        parts[i % 8] += values[i]
    return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + (
        (parts[4] + parts[5]) + (parts[6] + parts[7])
    )
