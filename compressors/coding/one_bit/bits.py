"""One bit per element: bits set by thresholds or at random, and the levels that they select.

Bits are in the elements' order, the first in the lowest bit of the first byte; bits after the last
element are 0. Elements are grouped in stripes: adjacent columns of a matrix in a flat vector, with
levels for bits 0 and 1 per column; or a tensor's elements as one row, with levels per `size`
elements (`Stripes.of`). A line is one such pair of levels. Loops run along rows in memory order and
join several rows of a narrow matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.frames import IN_ORDER, copy_pieces
from gcsim.compressors.coding.integers import packing
from gcsim.compressors.coding.rounding.levels import magnifier
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import FLOAT32_MAX, array, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import Cells, Column, Segments, starts

CHUNK = 4096
"""Number of elements whose bits are collected before folding; a multiple of 8."""
_WIDE = 1024
"""Columns that make a row worth a vector loop."""
NONE = np.zeros(0, dtype=np.float32)
NO_KEYS = np.zeros(0, dtype=np.uint64)
_NO_ROOM = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Stripes:
    table: NDArray[np.int64]
    """`[stripes, 7]`: rows and columns of the matrix, its first element; the stripe's first column
    and width, which may exceed the matrix; its first line; elements of a row per line (0: one line
    per column)."""

    @classmethod
    @lru_cache(maxsize=1 << 8)
    def of(cls, cells: Cells) -> Stripes:
        """Return a bucket's tensors as rows with one line per cell."""
        n = cells.segments.length
        columns = 1 + 0 * n, n, cells.segments.begin, 0 * n, n, cells.first, cells.size
        return cls(np.stack(columns, axis=1))

    @cached_property
    def of_columns(self) -> bool:
        """Whether there is one line per column."""
        return not self.table[:, 6].any()

    @cached_property
    def width(self) -> Column:
        return np.ascontiguousarray(self.table[:, 4])

    @cached_property
    def lines(self) -> Column:
        return -(-self.width // np.maximum(1, self.table[:, 6]))

    @cached_property
    def begins(self) -> Column:
        """First line of each stripe if stripes are consecutive."""
        return starts(self.lines)

    @cached_property
    def elements(self) -> Segments:
        """Table of the elements of consecutive stripes."""
        return Segments.behind(self.table[:, 0] * self.width)

    @cached_property
    def sizes(self) -> Column:
        """Bytes of the bits of each stripe."""
        return packing.packed_bytes(self.elements.length, 1)


def _bit_launches(
    _: object, values: object, stripes: Stripes, lines: object, bits: object, at: object, *,
    keep_error: bool = False, keys: object = None,
) -> Iterator[KernelCost]:  # fmt: skip
    n, levels = stripes.elements.length, 4 * stripes.lines
    name = "binary.bits_above"
    if keys is not None:
        name = "binary.random_bits"
        yield drawn(name, n, 16)
    elif stripes.of_columns:
        name, levels = "columns.column_bits" + ":keep_error" * keep_error, 3 * levels
    yield launch("streaming", name, n, 4 * (1 + keep_error) * n, levels, stripes.sizes)


@counted_as(_bit_launches)
@primitive
def put_bits(
    values: Tensor, stripes: Stripes, lines: Tensor, bits: Tensor, at: Column, *,
    keep_error: bool = False, keys: NDArray[np.uint64] | None = None,
) -> None:  # fmt: skip
    """Write one bit per element: 1 if it reaches its line's threshold, or at random.

    Parameters
    ----------
    values : flat float32 of the stripes; with `keep_error` each element of columns becomes itself
        minus its level, in place
    lines : float32 `[rows, lines]`: thresholds; with `keep_error` lower and upper levels behind
    bits, at : uint8; first byte of each stripe's bits, row by row; beyond the matrix they are 0
    keys : of each tensor's random numbers; thresholds are then bounds b, and a bit is 1 with
        probability (v + b) / 2b, right to 2^-17, so that b or -b is v on average; elements beyond b
        saturate
    """
    random = keys is not None
    with written_to(bits, values if keep_error else None) as (out, errors):
        data = errors if keep_error else np.ascontiguousarray(array(values))
        in_tiles(
            _put_tiles, stripes.elements.tiles, data, stripes.table, array(lines), keep_error,
            random, keys if keys is not None else NO_KEYS, out, at,
        )  # fmt: skip


def _choosing(
    _: object, out: object, stripes: Stripes, bits: object, at: object, levels: object,
    places: object, weights: object, *, overwrite: bool = False, scales: bool = False,
    room: object = None,
) -> list[KernelCost]:  # fmt: skip
    name = "columns.add_columns" if stripes.of_columns else "binary.add_chosen"
    if scales:
        name = "signs.write_signs" if overwrite else "signs.add_signs"
    n, lines = stripes.elements.length, (4 if scales else 8) * stripes.lines
    return [launch("streaming", name, n, 8 * n, stripes.sizes, lines)]


@counted_as(_choosing)
@primitive
def add_levels(
    out: Tensor, stripes: Stripes, bits: Tensor, at: Column, levels: Tensor,
    places: tuple[Column, Column], weights: tuple[float, float], *, overwrite: bool = False,
    scales: bool = False, room: Column | None = None,
) -> None:  # fmt: skip
    """Add weight * the level of each element's bit to `out` in place, or `overwrite` it. Raises
    `InputError` if bits are set after a stripe's last, or a scale is not finite and >= 0; `out` is
    then undefined on a GPU.

    Parameters
    ----------
    out : flat float32 of the stripes
    bits, at : uint8; first byte of each stripe's bits, or of its `room`, of which the others are 0
    levels, places : uint8; first bytes of each stripe's levels, float32 `[lines]`, of bits 0 and 1
    weights : for the levels of bits 0 and 1
    scales : whether levels are scales
    """
    data = array(bits)
    spare = _NO_ROOM if room is None else room
    stray = packing.has_stray(data, at, stripes.elements.length, 1, spare)
    alike = places[:1] if places[0] is places[1] else places
    found = np.empty((len(alike), int(stripes.lines.sum())), dtype=np.float32)
    for row, each in zip(found, alike, strict=True):
        copy_pieces(array(levels), each, row.view(np.uint8), IN_ORDER, 4 * stripes.lines)
    lines = found[0], found[-1]
    # NaN fails both
    right = np.count_nonzero((lines[0] >= 0) & (lines[0] <= FLOAT32_MAX)) if scales else -1
    demand_signs(stray=stray, right=right in (-1, len(lines[0])))
    both = np.empty((2, len(lines[0])), dtype=np.float32)
    for weight, line, row in zip(weights, lines, both, strict=True):
        np.multiply(line, np.float32(weight), out=row)
    with written_back(out) as target:
        in_tiles(
            _add_tiles, stripes.elements.tiles, data, at, both, stripes.begins, stripes.table,
            target, not overwrite,
        )  # fmt: skip


def demand_signs(stray: bool, right: bool = True) -> None:
    """Raise `InputError` if bits are set after a tensor's last, or scales are not `right`."""
    if stray:
        raise packing.stray_bits()
    if not right:
        raise packing.damaged("a scale is negative or not a finite number")


class written_to:  # noqa: N801 - as `written_back`
    """Like `written_back` for several tensors; None becomes an empty array."""

    __slots__ = ("_each",)

    def __init__(self, *targets: Tensor | None) -> None:
        self._each = [None if one is None else written_back(one) for one in targets]

    def __enter__(self) -> list[NDArray[Any]]:
        return [NONE if one is None else one.__enter__() for one in self._each]

    def __exit__(self, *raised: object) -> None:
        for one in self._each:
            if one is not None:
                one.__exit__(*raised)


@loop
def _times(rows, columns, first, width, size) -> int:
    """Return how many rows of a narrow matrix to join, if the stripe spans the matrix."""
    whole = size == 0 and first == 0 and width == columns
    return max(1, min(rows, _WIDE // max(1, columns))) if whole else 1


@loop
def _repeated(lines, times):
    count, width = lines.shape
    out = np.empty((count, width * times), dtype=np.float32)
    for row in range(count):
        for again in range(times):
            for i in range(width):
                out[row, again * width + i] = lines[row, i]
    return out


@loop
def _run(here, end, width, present, size):
    """Return (row, column, cell, elements up to the end of row, of cell, or `end`)."""
    row, cell = here // width, 0
    column = here - row * width
    length = min(end - here, present - column)
    if size:
        cell = column // size
        length = min(length, (cell + 1) * size - column)
    return row, column, cell, length


@loop
def _put_tiles(start, stop, tiles, values, table, lines, keep_error, random, keys, bits, at):
    words = np.empty(CHUNK // 8, dtype=np.uint64)
    # one byte per element; `fold_bits` turns each word into a byte
    flags = words.view(np.uint8)
    drawn = np.empty(CHUNK // 4, dtype=np.uint64)
    random16 = drawn.view(np.uint16)
    for tile in range(start, stop):
        e, begin, stop_at = tiles[tile]
        rows, columns, offset, first, width, line, size = table[e]
        own = values[offset : offset + rows * columns]
        out = bits[at[e] : at[e] + (rows * width + 7) // 8]
        present = min(width, columns - first)  # the rest of the stripe is outside the matrix
        times = _times(rows, columns, first, width, size)
        some = lines if size else _repeated(lines[:, line : line + width], times)
        # if there are only thresholds, the single row serves as all three
        limits, lows, highs = some[0], some[len(some) // 2], some[-1]
        columns, width, present = columns * times, width * times, present * times
        for chunk in range(begin, stop_at, CHUNK):
            end = min(chunk + CHUNK, stop_at)
            words[:] = np.uint64(0)
            if random:
                for k in range((end - chunk + 3) // 4):
                    # four elements per random number; chunks begin at multiples of four
                    drawn[k] = bits64(keys[e], chunk // 4 + k)
            here = chunk if present > 0 else end
            while here < end:
                row, column, cell, length = _run(here, end, width, present, size)
                # outside the matrix: skip to the next row
                if length <= 0:
                    here += width - column
                    continue
                source = row * columns + first + column
                part, marks = own[source : source + length], flags[here - chunk :]
                if random:
                    _draw(part, marks, random16[here - chunk :], limits[line + cell])
                elif size:
                    limit = limits[line + cell]
                    for i in range(part.size):
                        marks[i] = np.uint8(part[i] >= limit)
                else:
                    _compare(part, marks, limits, lows, highs, column, keep_error)
                here += length
            packing.fold_bits(words, out[chunk // 8 : (end + 7) // 8])


@loop
def _draw(part, marks, random16, bound):
    """Draw the bits; compares in the same way as `levels.py`."""
    scale = magnifier(bound)
    low = -bound * scale
    gap = np.float32(-2) * low
    for i in range(part.size):
        # the middle of one of 2^16 steps, so the error is half a step, 2^-17
        fraction = (np.float32(random16[i]) + np.float32(0.5)) * np.float32(2.0**-16)
        marks[i] = np.uint8(part[i] * scale - low > fraction * gap)


@loop
def _compare(part, marks, limits, lows, highs, column, keep_error):
    threshold = limits[column:]
    if keep_error:
        lows, highs = lows[column:], highs[column:]
        for i in range(part.size):
            upper, lower = highs[i], lows[i]  # reading both makes a select, not a branch
            above = part[i] >= threshold[i]
            marks[i] = np.uint8(above)
            part[i] -= upper if above else lower
    else:
        for i in range(part.size):
            marks[i] = np.uint8(part[i] >= threshold[i])


@loop
def _add_tiles(start, stop, tiles, bits, at, lines, begins, table, out, add):
    words = np.empty(CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for tile in range(start, stop):
        e, begin, stop_at = tiles[tile]
        rows, columns, offset, first, width, _, size = table[e]
        own = out[offset : offset + rows * columns]
        packed = bits[at[e] : at[e] + (rows * width + 7) // 8]
        present, line = min(width, columns - first), begins[e]
        # join rows of a narrow matrix and repeat their lines, so that the inner loops are long
        times = _times(rows, columns, first, width, size)
        some = lines if size else _repeated(lines[:, line : line + width], times)
        lows, highs = some[0], some[1]
        columns, width, present = columns * times, width * times, present * times
        for chunk in range(begin, stop_at if present > 0 else begin, CHUNK):
            end = min(chunk + CHUNK, stop_at)
            packing.unfold_bits(packed[chunk // 8 : (end + 7) // 8], words)
            here = chunk
            while here < end:
                row, column, cell, length = _run(here, end, width, present, size)
                # bits outside the matrix select nothing
                if length <= 0:
                    here += width - column
                    continue
                source = row * columns + first + column
                part, marks = own[source : source + length], flags[here - chunk :]
                if size == 0:
                    zeros, ones = lows[column:], highs[column:]
                    if not add:
                        part[:] = np.float32(0)
                    for i in range(part.size):
                        upper, lower = ones[i], zeros[i]
                        part[i] += upper if marks[i] else lower
                else:
                    zero, one = lows[line + cell], highs[line + cell]
                    if add:
                        for i in range(part.size):
                            part[i] += one if marks[i] else zero
                    else:
                        for i in range(part.size):
                            part[i] = one if marks[i] else zero
                here += length
