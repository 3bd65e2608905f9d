"""How does a matrix travel as one bit an element and two levels a column?

A bit says whether an element reaches its column's threshold. Sums, bits and decoded values are
those of all columns or of a stripe of neighbouring ones, in passes over the rows as they lie in
memory: the innermost loop runs along a row, so that vectors hold elements of different columns. A
narrow matrix is treated as one with several of its rows in each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import TensorSlice
from gcsim.compressors.coding.integers.packing import fold_bits, packed_bytes, unfold_bits
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import count_bytes, kernel
from gcsim.compressors.on_device import on_device

_CHUNK = 4096
"""Elements whose bits are gathered before they are folded; a multiple of 8."""
_SUM_PARTS = 32
"""Most blocks of rows that are added up on their own."""


def matrix_shape(piece: TensorSlice) -> tuple[int, int]:
    """(rows, columns) of a tensor: its first dimension by all others; a vector is one column."""
    rows = piece.shape[0] if piece.shape else 1
    return rows, (piece.numel // rows if rows else 0)


@kernel("reduction")
@on_device("one_bit.columns")
def column_sums(values: Tensor, centres: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each column, with d = v - centre: the sum of d, the sum of |d|, the number of d >= 0.

    Half the sum or difference of the first two are the sums over the two sides.

    `values` is float32 `[rows * columns]`, row by row, `centres` float32 `[columns]`; the results
    are float64 `[columns]`.
    """
    found = summed(array(values), np.empty(0, dtype=np.float32), array(centres), columns)
    return tensor(found[0], values), tensor(found[1], values), tensor(found[2], values)


@kernel("reduction", updates=("values",))
@on_device("one_bit.columns")
def add_and_sum_columns(
    values: Tensor, added: Tensor, columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """values += added, in place, and the `column_sums` of the result about zero."""
    with written_back(values) as data:
        found = summed(data, array(added), np.zeros(columns, dtype=np.float32), columns)
    return tensor(found[0], values), tensor(found[1], values), tensor(found[2], values)


def summed(
    values: NDArray[np.float32],
    added: NDArray[np.float32],
    centres: NDArray[np.float32],
    columns: int,
) -> NDArray[np.float64]:
    """`column_sums` of values + `added` (or none of it), float64 `[3, columns]`."""
    times = _widening(columns)
    wide = columns * times
    rows = -(-values.size // wide)
    together = max(16, -(-rows // _SUM_PARTS))
    sums = np.zeros((3, -(-rows // together), wide), dtype=np.float64)
    middle = np.empty((times, columns), dtype=np.float32)
    middle[:] = centres
    given = values, added, middle.reshape(-1), together, sums
    in_parallel(_add_columns, values.size, *given, grain=wide * together)
    found: NDArray[np.float64] = sums.reshape(3, -1, columns).sum(axis=1)
    return found


def _widening(columns: int) -> int:
    """How many rows of a narrow matrix are treated as one: the innermost loop runs over a row."""
    return max(1, 512 // columns)


@kernel("streaming", resident=("values",), variants=("keep_error",))  # a stripe
@on_device("one_bit.columns")
def column_bits(
    values: Tensor,
    columns: int,
    stripe: tuple[int, int],
    levels: tuple[Tensor, Tensor, Tensor],
    *,
    keep_error: bool,
) -> Tensor:
    """Bits v >= threshold of some columns; with `keep_error`, `values` loses what they say.

    Parameters
    ----------
    values : float32 `[rows * columns]`, row by row; with `keep_error` each element of the stripe
        becomes itself minus its level, in place
    stripe : first column and number of columns (at least 1); beyond the matrix bits are 0
    levels : thresholds, lower and upper levels, float32 `[columns of the stripe]` each

    Returns
    -------
    uint8 `[ceil(rows * columns of the stripe / 8)]`, row by row
    """
    width = stripe[1]
    rows = values.numel() // columns
    bits = np.empty(packed_bytes(rows * width, 1), dtype=np.uint8)
    count_bytes("streaming", 4 * rows * width * (2 if keep_error else 1))
    with written_back(values) as data:
        wide, lines = _lines(columns, stripe, levels)
        in_parallel(stripe_bits, rows * width, data, *wide, *lines, keep_error, bits)
    return tensor(bits, values)


@kernel("streaming", resident=("out",))
@on_device("one_bit.columns")
def add_columns(
    out: Tensor,
    columns: int,
    stripe: tuple[int, int],
    bits: Tensor,
    levels: tuple[Tensor, Tensor],
    *,
    weight: float,
) -> None:
    """out += weight * (high if its bit is set else low) for a stripe of columns, in place.

    `out` is float32 `[rows * columns]`, `levels` the lower and upper ones; see `column_bits`.
    """
    rows = out.numel() // columns
    count_bytes("streaming", 8 * rows * stripe[1])
    with written_back(out) as sums:
        wide, lines = _lines(columns, stripe, levels)
        in_parallel(
            add_stripe, rows * stripe[1], sums, *wide, array(bits), *lines, np.float32(weight)
        )


def _lines(
    columns: int, stripe: tuple[int, int], of_columns: tuple[Tensor, ...]
) -> tuple[tuple[int, int, int], list[NDArray[np.float32]]]:
    """((columns, first, width), values of each column): of several rows in one when that fits."""
    first, width = stripe
    times = _widening(columns) if stripe == (0, columns) else 1
    lines = [array(line) for line in of_columns]
    if times > 1:
        lines = [np.tile(line, times) for line in lines]
    return (columns * times, first, width * times), lines


# --- loops -----------------------------------------------------------------------------------


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
def stripe_bits(
    start: int, stop: int, values: Any, columns: int, first: int, width: int, thresholds: Any,
    lows: Any, highs: Any, keep_error: bool, bits: Any,
) -> None:  # fmt: skip
    """The loop of `column_bits`."""
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    present = min(width, columns - first)  # the rest of the stripe lies beyond the matrix
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        words[:] = np.uint64(0)
        here = at
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
def add_stripe(
    start: int, stop: int, out: Any, columns: int, first: int, width: int, bits: Any, lows: Any,
    highs: Any, weight: np.float32,
) -> None:  # fmt: skip
    """The loop of `add_columns`."""
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    present = min(width, columns - first)
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


# --- of short matrices, inside other loops ------------------------------------------------------


@loop
def summed_inside(values: Any, added: Any, columns: int) -> Any:
    """`summed` about zero, in the order in which numpy adds up: float64 `[3, columns]`."""
    times = max(1, 512 // columns)
    rows = (values.size + columns * times - 1) // (columns * times)
    together = max(16, (rows + _SUM_PARTS - 1) // _SUM_PARTS)
    blocks = (rows + together - 1) // together
    sums = np.zeros((3, blocks, columns * times), dtype=np.float64)
    middle = np.zeros(columns * times, dtype=np.float32)
    _add_columns(0, values.size, values, added, middle, together, sums)
    found = np.zeros((3, columns), dtype=np.float64)
    for i in range(3):
        lines, total = sums[i].reshape(blocks * times, columns), found[i]
        if columns == 1:
            total[0] = _sum_by_halves(lines.reshape(-1))
            continue
        for line in range(lines.shape[0]):
            for column in range(columns):
                total[column] += lines[line, column]
    return found


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
