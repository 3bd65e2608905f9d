"""Matrices of a bucket as one bit an element and two levels a column, in stripes of columns.

A bit says whether an element reaches its column's threshold. Loops pass over the rows as they lie
in memory: the innermost one runs along a row, so that vectors hold elements of different columns. A
narrow matrix is treated as one with several of its rows in each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import TensorSlice
from gcsim.compressors.coding.integers.packing import (
    demand_no_stray,
    fold_bits,
    packed_bytes,
    unfold_bits,
)
from gcsim.compressors.coding.one_bit.signs import written_to
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts, tiles_of

_CHUNK = 4096
"""Elements whose bits are gathered before they are folded; a multiple of 8."""
_SUM_PARTS = 32
"""Most blocks of rows that are added up on their own."""
_WIDE = 512
"""Columns from which on a row is worth a loop of vectors."""
_NONE = np.zeros(0, dtype=np.float32)


def matrix_shape(piece: TensorSlice) -> tuple[int, int]:
    """(rows, columns) of a tensor: its first dimension by all others; a vector is one column."""
    rows = piece.shape[0] if piece.shape else 1
    return rows, (piece.numel // rows if rows else 0)


@dataclass(frozen=True, eq=False)
class Stripes:
    """Neighbouring columns of matrices that lie in a flat vector."""

    table: NDArray[np.int64]
    """`[stripes, 6]`: rows and columns of the matrix, its first element, first column and width of
    the stripe, which may reach beyond the matrix, and number of its first line."""

    @cached_property
    def width(self) -> Column:
        return np.ascontiguousarray(self.table[:, 4])

    @cached_property
    def elements(self) -> Segments:
        """The table of the stripes' elements, one stripe behind the other."""
        return Segments.behind(self.table[:, 0] * self.width)


@dataclass(frozen=True, eq=False)
class Matrices:
    """Matrices in a flat vector, each cut into equally many stripes of columns.

    Every column is a line of what is known of columns: all stripes of the first owner, then those
    of the second, and so on.
    """

    rows: Column
    columns: Column
    offset: Column
    """First element of each."""
    count: int
    """Stripes of each."""

    @cached_property
    def width(self) -> Column:
        """Columns of each stripe; the last ones may reach beyond the matrix."""
        return -(-self.columns // self.count)

    @cached_property
    def line(self) -> Column:
        """First line of each matrix's first stripe."""
        return starts(self.width)

    @cached_property
    def lines(self) -> int:
        """Lines of one owner."""
        return int(self.width.sum())

    @cached_property
    def stripes(self) -> Stripes:
        """Those of all owners."""
        return self._stripes(range(self.count))

    def stripes_of(self, owner: int) -> Stripes:
        """Those of one owner, whose lines begin at 0."""
        return self._stripes([owner])

    def _stripes(self, owners: Any) -> Stripes:
        rows = [
            (self.rows, self.columns, self.offset, owner * self.width, self.width,
             self.line + number * self.lines)
            for number, owner in enumerate(owners)
        ]  # fmt: skip
        table = np.array(rows, dtype=np.int64)  # [owners, 6, matrices]
        return Stripes(np.ascontiguousarray(table.transpose(0, 2, 1).reshape(-1, 6)))

    @cached_property
    def owned(self) -> Matrices:
        """One owner's stripes as matrices, one behind the other."""
        offset = starts(self.rows * self.width)
        return Matrices(self.rows, self.width, offset, 1)

    @cached_property
    def line_of_columns(self) -> NDArray[np.int64]:
        """Line of each column of all matrices."""
        owner = np.repeat(np.arange(len(self.columns)), self.columns)
        column = np.arange(len(owner)) - starts(self.columns)[owner]
        width = self.width[owner]
        lines: NDArray[np.int64] = self.line[owner] + column // width * self.lines + column % width
        return lines

    @cached_property
    def _blocks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(tiles of blocks of rows; `[matrices, 5]`: rows of a block, blocks, first sum, columns,
        elements of a row of several narrow ones)."""
        size = self.rows * self.columns
        wide = self.columns * np.maximum(1, _WIDE // np.maximum(1, self.columns))
        rows = -(-size // np.maximum(1, wide))
        together = np.maximum(16, -(-rows // _SUM_PARTS))
        blocks = -(-rows // together)
        first = starts(3 * blocks * wide)
        table = np.stack((together, blocks, first, self.columns, wide), axis=1)
        return tiles_of(size, np.maximum(1, together * wide)), np.ascontiguousarray(table)


def _summing(
    _: object, values: object, matrices: Matrices, *, centres: Tensor | None = None,
    added: Tensor | None = None,
) -> list[KernelCost]:  # fmt: skip
    n, lines = matrices.rows * matrices.columns, matrices.columns
    if added is None:
        return [launch("reduction", "columns.column_sums", n, 4 * n, 28 * lines)]
    return [launch("reduction", "columns.add_and_sum_columns", n, 12 * n, 24 * lines)]


@counted_as(_summing)
@primitive
def column_sums(
    values: Tensor, matrices: Matrices, *, centres: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Of each column, with d = v - centre: the sum of d, the sum of |d|, the number of d >= 0.

    Half the sum or difference of the first two are the sums over the two sides. Lines beyond a
    matrix have sums of 0.

    Parameters
    ----------
    values : flat float32 that the matrices lie in, row by row
    centres : float32 `[lines]`; None: zeros
    added : as `values`; is first added to them, in place

    Returns
    -------
    float64 `[3, lines]`
    """
    tiles, blocks = matrices._blocks
    sums = np.zeros(int((3 * blocks[:, 1] * blocks[:, 4]).sum()), dtype=np.float64)
    found = np.zeros((3, matrices.count * matrices.lines), dtype=np.float64)
    middle = np.zeros(len(matrices.line_of_columns), dtype=np.float32)
    if centres is not None:
        middle[:] = array(centres)[matrices.line_of_columns]
    more = _NONE if added is None else np.ascontiguousarray(array(added))
    with written_back(values) as data:
        in_tiles(
            _sum_tiles, tiles, data, more, matrices.offset, matrices.rows * matrices.columns,
            blocks, middle, starts(matrices.columns), sums,
        )  # fmt: skip
    _join_blocks(sums, blocks, matrices.line_of_columns, found)
    return tensor(found, values)


@counted_as(
    lambda _, values, stripes, lines, bits, at, *, keep_error: [
        launch(
            "streaming", "columns.column_bits" + ":keep_error" * keep_error,
            stripes.elements.length, 4 * (1 + keep_error) * stripes.elements.length,
            12 * stripes.width, packed_bytes(stripes.elements.length, 1),
        )
    ]
)  # fmt: skip
@primitive
def put_column_bits(
    values: Tensor, stripes: Stripes, lines: Tensor, bits: Tensor, at: Column, *, keep_error: bool
) -> None:
    """Write bits v >= threshold of stripes; with `keep_error`, `values` loses what they say.

    Parameters
    ----------
    values : flat float32 of the matrices; with `keep_error` each element of the stripes becomes
        itself minus its level, in place
    lines : thresholds, lower and upper levels: float32 `[3, lines]`
    bits, at : uint8; first byte of each stripe's ceil(rows * width / 8), row by row; beyond the
        matrix bits are 0
    """
    with written_to(bits, values if keep_error else None) as (out, errors):
        data = errors if keep_error else np.ascontiguousarray(array(values))
        in_tiles(
            _bit_tiles, stripes.elements.tiles, data, stripes.table, array(lines), keep_error, out,
            at,
        )  # fmt: skip


@counted_as(
    lambda _, out, stripes, *given: [
        launch(
            "streaming", "columns.add_columns", stripes.elements.length,
            8 * stripes.elements.length, packed_bytes(stripes.elements.length, 1),
            8 * stripes.width,
        )
    ]
)  # fmt: skip
@primitive
def add_columns(
    out: Tensor, stripes: Stripes, bits: Tensor, at: Column, lows: Tensor, highs: Tensor,
    weight: float,
) -> None:  # fmt: skip
    """out += weight * (high if its bit is set else low) for stripes of columns, in place.

    `lows` and `highs` are float32 `[lines]`; see `put_column_bits`. Raises `InputError` when bits
    are set behind a stripe's last; `out` is then worthless.
    """
    data = array(bits)
    demand_no_stray(data, at, stripes.elements.length, 1)
    with written_back(out) as sums:
        in_tiles(
            _add_tiles, stripes.elements.tiles, sums, stripes.table, data, at, array(lows),
            array(highs), np.float32(weight),
        )  # fmt: skip


# --- loops -----------------------------------------------------------------------------------


@loop
def _sum_tiles(
    start: int, stop: int, tiles: Any, values: Any, added: Any, offsets: Any, sizes: Any,
    blocks: Any, centres: Any, begins: Any, sums: Any,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        m, first, last = tiles[tile]
        together, count, at, columns, wide = blocks[m]
        middle = np.empty(wide, dtype=np.float32)
        for i in range(wide):
            middle[i] = centres[begins[m] + i % columns]
        own = slice(offsets[m], offsets[m] + sizes[m])
        part = sums[at : at + 3 * count * wide].reshape(3, count, wide)
        _add_columns(first, last, values[own], added[own], middle, together, part)


@loop
def _join_blocks(sums: Any, blocks: Any, places: Any, found: Any) -> None:
    """Add up blocks of rows, and rows that lie in one, in the order in which numpy does."""
    begin = 0
    for m in range(blocks.shape[0]):
        _, count, at, columns, wide = blocks[m]
        size = count * wide
        for i in range(3):
            part = sums[at + i * size : at + (i + 1) * size]
            if columns == 1 and size:
                found[i, places[begin]] = _sum_by_halves(part)
            elif columns:
                total, lines = found[i], places[begin : begin + columns]
                for row in range(size // columns):
                    for column in range(columns):
                        total[lines[column]] += part[row * columns + column]
        begin += columns


@loop
def _bit_tiles(
    start: int, stop: int, tiles: Any, values: Any, table: Any, lines: Any, keep_error: bool,
    bits: Any, at: Any,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        e, begin, end = tiles[tile]
        rows, columns, offset, first, width, line = table[e]
        own = values[offset : offset + rows * columns]
        times = _times(columns, first, width)
        some = _repeated(lines[:, line : line + width], times)
        out = bits[at[e] : at[e] + (rows * width + 7) // 8]
        _stripe_bits(
            begin, end, own, columns * times, first, width * times, some[0], some[1], some[2],
            keep_error, out,
        )  # fmt: skip


@loop
def _add_tiles(
    start: int, stop: int, tiles: Any, out: Any, table: Any, bits: Any, at: Any, lows: Any,
    highs: Any, weight: np.float32,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        e, begin, end = tiles[tile]
        rows, columns, offset, first, width, line = table[e]
        own = out[offset : offset + rows * columns]
        times = _times(columns, first, width)
        both = np.empty((2, width), dtype=np.float32)
        for i in range(width):
            both[0, i], both[1, i] = lows[line + i], highs[line + i]
        some = _repeated(both, times)
        packed = bits[at[e] : at[e] + (rows * width + 7) // 8]
        _add_stripe(
            begin, end, own, columns * times, first, width * times, packed, some[0], some[1],
            weight,
        )  # fmt: skip


@loop
def _times(columns: int, first: int, width: int) -> int:
    """Rows of a narrow matrix that are treated as one, where the stripe is all of it."""
    return max(1, _WIDE // columns) if first == 0 and width == columns else 1


@loop
def _repeated(lines: Any, times: int) -> Any:
    count, width = lines.shape
    out = np.empty((count, width * times), dtype=np.float32)
    for row in range(count):
        for again in range(times):
            for i in range(width):
                out[row, again * width + i] = lines[row, i]
    return out


@loop
def _add_columns(
    start: int, stop: int, values: Any, added: Any, centres: Any, together: int, sums: Any
) -> None:
    """sums `[3, blocks of rows, columns]`; start and stop are multiples of a block of rows.

    Four rows at a time: a sum is read and written once for four elements. What is `added` to
    the values first, unless empty, is added to these rows while they are in the cache.
    """
    columns = centres.size
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
                    centre = np.float64(centres[i])
                    d0, d1 = np.float64(row0[i]) - centre, np.float64(row1[i]) - centre
                    d2, d3 = np.float64(row2[i]) - centre, np.float64(row3[i]) - centre
                    total[i] += (d0 + d1) + (d2 + d3)
                    magnitude[i] += (abs(d0) + abs(d1)) + (abs(d2) + abs(d3))
                    reached = np.int32(d0 >= 0) + np.int32(d1 >= 0)
                    reached += np.int32(d2 >= 0) + np.int32(d3 >= 0)
                    count[i] += np.float64(reached)
                first += 4 * columns
            else:
                row = values[first : min(first + columns, end)]
                for i in range(row.size):
                    distance = np.float64(row[i]) - np.float64(centres[i])
                    total[i] += distance
                    magnitude[i] += abs(distance)
                    count[i] += np.float64(distance >= 0)
                first += columns


@loop
def _stripe_bits(
    start: int, stop: int, values: Any, columns: int, first: int, width: int, thresholds: Any,
    lows: Any, highs: Any, keep_error: bool, bits: Any,
) -> None:  # fmt: skip
    """Bits of some elements of a stripe, counted row by row; the error takes their place."""
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    present = min(width, columns - first)  # the rest of the stripe lies beyond the matrix
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        words[:] = np.uint64(0)
        here = at if present > 0 else end
        while here < end:
            row, column = here // width, here % width
            next_row = here - column + width
            length = max(0, min(end - here, present - column))
            source = row * columns + first + column  # the stripe lies in rows of the whole matrix
            part, marks = values[source : source + length], flags[here - at :]
            threshold = thresholds[column : column + length]
            low, high = lows[column : column + length], highs[column : column + length]
            if keep_error:
                for i in range(length):
                    upper, lower = high[i], low[i]  # read both: a choice, not a condition
                    above = part[i] >= threshold[i]
                    marks[i] = np.uint8(above)
                    part[i] -= upper if above else lower
            else:
                for i in range(length):
                    marks[i] = np.uint8(part[i] >= threshold[i])
            here = min(end, next_row)
        fold_bits(words, bits[at // 8 : (end + 7) // 8])


@loop
def _add_stripe(
    start: int, stop: int, out: Any, columns: int, first: int, width: int, bits: Any, lows: Any,
    highs: Any, weight: np.float32,
) -> None:  # fmt: skip
    """Add weight * level to some elements of a stripe, counted row by row."""
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    present = min(width, columns - first)
    if present <= 0:
        return
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        unfold_bits(bits[at // 8 : (end + 7) // 8], words)
        here = at
        while here < end:
            row, column = here // width, here % width
            next_row = here - column + width
            length = max(0, min(end - here, present - column))
            source = row * columns + first + column
            sums, marks = out[source : source + length], flags[here - at :]
            low, high = lows[column : column + length], highs[column : column + length]
            for i in range(length):
                upper, lower = high[i], low[i]
                sums[i] += weight * (upper if marks[i] else lower)
            here = min(end, next_row)


@loop
def _sum_by_halves(values: Any) -> Any:
    """The sum of a multiple of 512 numbers as numpy adds up what lies side by side: by halves, and
    at most 128 of them in eight sums."""
    if values.size > 128:
        half = values.size // 2 - values.size // 2 % 8
        return _sum_by_halves(values[:half]) + _sum_by_halves(values[half:])
    parts = values[:8].copy()
    for i in range(8, values.size):
        parts[i % 8] += values[i]
    return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + (
        (parts[4] + parts[5]) + (parts[6] + parts[7])
    )
