"""Count sketches: tables into which vectors are added up, and estimates of elements from them.

A table has r rows and c columns. In each row, element i is added to one column h(i) with a sign
s(i), both hashes of a key of seed, bucket and row; the estimate of element i is the median over
rows of s(i) table[row, h(i)]. Hashes are computed inside the loops: a table of them would take
5 n words. With several blocks they repeat from block to block, each with an offset and a sign.

Cost: r random accesses an element to add and to read, into tables that are larger than a
processor's near cache: about 1 ns each. Adding takes two partial tables, so that threads do not
share cells, whatever their number.

Source: M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams",
ICALP 2002.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import count_bytes, kernel
from gcsim.compressors.random import bits64, random_key, stream

PARTS = 2
"""Partial tables: each row of each is written by one thread only."""
_CHUNK = 1024
"""Elements whose estimates are made together: they stay in the processor's cache."""


class Hashes:
    """Column and sign of each element in each row of a table of `rows` x `columns`."""

    def __init__(
        self, seed: int, bucket: int, n: int, *, rows: int, columns: int, blocks: int = 1
    ) -> None:
        self.rows, self.columns = rows, columns
        self.length = max(1, -(-n // blocks))
        """Elements of a block, but for the last."""
        count = max(1, -(-n // self.length))
        names = [f"count sketch, row {row}" for row in range(rows)]
        self.keys = np.array([random_key(seed, 0, bucket, name) for name in names], dtype=np.uint64)
        shift = stream(seed, 0, bucket, "count sketch, blocks")
        self.offsets = shift.integers(0, columns, (rows, count)).astype(np.uint64)
        self.flips = shift.integers(0, 2, (rows, count)).astype(np.uint64)
        self.offsets[:, 0] = self.flips[:, 0] = 0

    @property
    def for_loops(self) -> tuple[Any, ...]:
        """What the loops take: keys, offsets, flips, block length, columns."""
        return self.keys, self.offsets, self.flips, self.length, np.uint64(self.columns)


@loop
def _hash(
    key: Any, first: int, offset: Any, flip: Any, total: Any, columns: Any, signs: Any
) -> None:
    """Fill columns (int32) and signs (float32) of the block's elements from number `first` on.

    The column is the upper half of 64 random bits, scaled, and moved by the block's offset; the
    sign is the lowest bit. Without branches and memory: it runs vectorised.
    """
    for i in range(columns.size):
        hashed = bits64(key, first + i)
        column = (((hashed >> np.uint64(32)) * total) >> np.uint64(32)) + offset
        columns[i] = column - total if column >= total else column
        signs[i] = np.float32(1) - np.float32(2) * np.float32((hashed ^ flip) & np.uint64(1))


@kernel("gather_scatter")
def sketch(values: Tensor, hashes: Hashes) -> Tensor:
    """The table of a float32 `[n]`: float32 `[r, c]`.

    Each cell adds up its elements in order, in `PARTS` sums: the same on any number of threads.
    """
    n = values.numel()
    count_bytes("gather_scatter", 8 * hashes.rows * n)  # cells read and written
    partial = np.zeros((PARTS, hashes.rows, hashes.columns), dtype=np.float32)
    units = PARTS * hashes.rows  # a unit is one row of the table of one part of the elements
    in_parallel(_add_rows, units * n, array(values), partial, *hashes.for_loops, grain=max(1, n))
    table: NDArray[np.float32] = partial[0]
    with np.errstate(over="ignore"):  # an update that is not finite is refused
        for other in partial[1:]:
            table += other
    return tensor(table, values)


@loop
def _add_rows(
    start: int, stop: int, values: Any, partial: Any, keys: Any, offsets: Any, flips: Any,
    length: int, total: Any,
) -> None:  # fmt: skip
    n = values.size
    columns, signs = np.empty(_CHUNK, dtype=np.int32), np.empty(_CHUNK, dtype=np.float32)
    for unit in range(start // max(1, n), stop // max(1, n)):
        part, row = unit % PARTS, unit // PARTS
        cells = partial[part][row]
        at, last = n * part // PARTS, n * (part + 1) // PARTS
        while at < last:
            block = at // length
            end = min(at + _CHUNK, last, (block + 1) * length)
            piece, here = values[at:end], columns[: end - at]
            offset, flip = offsets[row, block], flips[row, block]
            _hash(keys[row], at - block * length, offset, flip, total, here, signs[: end - at])
            for i in range(piece.size):
                cells[here[i]] += piece[i] * signs[i]
            at = end


@kernel("gather_scatter")
def estimate(table: Tensor, n: int, hashes: Hashes) -> Tensor:
    """The median over rows of each element's cell times sign: float32 `[n]`.

    Of an even number of rows the mean of the two in the middle.
    """
    out = np.empty(n, dtype=np.float32)
    count_bytes("gather_scatter", 4 * hashes.rows * n)  # cells read
    cells = array(table)
    in_parallel(_estimate, n, cells, out, *hashes.for_loops, grain=_CHUNK)
    return tensor(out, table)


@loop
def _estimate(
    start: int, stop: int, table: Any, out: Any, keys: Any, offsets: Any, flips: Any,
    length: int, total: Any,
) -> None:  # fmt: skip
    rows = keys.size
    columns, signs = np.empty(_CHUNK, dtype=np.int32), np.empty(_CHUNK, dtype=np.float32)
    seen = np.empty((rows, _CHUNK), dtype=np.float32)
    at = start
    while at < stop:
        block = at // length
        end = min(at + _CHUNK, stop, (block + 1) * length)
        here = columns[: end - at]
        for row in range(rows):
            cells, found = table[row], seen[row][: end - at]
            offset, flip = offsets[row, block], flips[row, block]
            _hash(keys[row], at - block * length, offset, flip, total, here, signs[: end - at])
            for i in range(found.size):
                found[i] = cells[here[i]] * signs[i]
        _sort_columns(seen, end - at)
        low_middle, high_middle, piece = seen[(rows - 1) // 2], seen[rows // 2], out[at:end]
        for i in range(piece.size):
            piece[i] = np.float32(0.5) * low_middle[i] + np.float32(0.5) * high_middle[i]
        at = end


@loop
def _sort_columns(values: Any, count: int) -> None:
    """Sort each column by exchanging rows, in an order that does not depend on the values."""
    rows = values.shape[0]
    for turn in range(rows):
        for row in range(turn % 2, rows - 1, 2):
            upper, lower = values[row][:count], values[row + 1][:count]
            for i in range(upper.size):
                one, other = upper[i], lower[i]
                upper[i] = one if one < other else other
                lower[i] = other if one < other else one


@kernel("gather_scatter", resident=("table",))
def take_off(
    indices: Tensor, values: Tensor, table: Tensor, hashes: Hashes, *, subtract: bool
) -> None:
    """Zero the cells of the indices (int32), or subtract the values' sketch, in place."""
    with written_back(table) as cells:
        _clear_cells(array(indices), array(values), cells, subtract, *hashes.for_loops)


@loop
def _clear_cells(
    indices: Any, values: Any, table: Any, subtract: bool, keys: Any, offsets: Any, flips: Any,
    length: int, total: Any,
) -> None:  # fmt: skip
    column, sign = np.empty(1, dtype=np.int32), np.empty(1, dtype=np.float32)
    for row in range(keys.size):
        cells = table[row]
        for at in range(indices.size):
            block = indices[at] // length
            offset, flip = offsets[row, block], flips[row, block]
            _hash(keys[row], indices[at] - block * length, offset, flip, total, column, sign)
            if subtract:
                cells[column[0]] -= values[at] * sign[0]
            else:
                cells[column[0]] = np.float32(0)
