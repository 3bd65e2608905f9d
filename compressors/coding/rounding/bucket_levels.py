"""Random rounding to levels that each bucket finds for itself and sends along.

Buckets of `size` consecutive elements (the last one may be shorter) have a table of s ascending
levels l_0 … l_{s-1}. An element v between two neighbours becomes the upper one with probability
(v - l_j) / (l_{j+1} - l_j), else the lower one, so that the mean is v; outside the table it
saturates. The mean square error is exactly the sum of (v - l_j) (l_{j+1} - v), plus what
saturation cuts off.

One random number u an element decides against all gaps at once: the code is the number of j with
v - l_j > u (l_{j+1} - l_j). Of the gaps below v all are counted, of those above none, and its own
with the right probability. u = (r + 1/2) / 65536 of 16 random bits: the probability is right to
2^-17, and an element that is a level stays what it is. Both sides are compared times 2^24, so that
the product is right where the gap is a denormal number; times 1/4 where levels are so large that
their distance would overflow.

A frame's body is the tables, float32 `[buckets, s]`, then the codes as base-s digits. Levels are
found in each bucket's sorted elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.digits import digit_bytes
from gcsim.compressors.coding.rounding.level_codes import coded_levels, decoded_levels
from gcsim.compressors.coding.rounding.levels import bucket_parts
from gcsim.compressors.coding.scans import moments
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    array,
    in_tiles,
    inlined,
    loop,
    summing_loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import Cells, Segments, starts
from gcsim.errors import InputError

LEVEL_COUNTS = (3, 5, 9)
"""Numbers of levels that pack well: 1.6, 2.33 and 3.2 bits an element."""
MAX_BUCKET = 65535

_PIECE = 1024

Clip = Annotated[
    float | None,
    Field(
        gt=0,
        description="c: clip to c standard deviations of the bucket (paper: 1.7, 2.5); null: no",
    ),
]


def encode_message(
    gradient: Tensor, cells: Cells, tables: Tensor, keys: NDArray[np.uint64], size: int
) -> Tensor:
    """The message of a flat gradient, rounded to the tables of its cells of `size` elements."""
    segments, count = cells.segments, tables.shape[1]
    codes = round_between(gradient, cells, tables, keys)
    head = 4 * count * cells.count
    coded, tail, _ = coded_levels(codes, segments, count // 2, "digits")
    message, at = frames(
        gradient, Codec.LEVELS, segments, head + tail, flags=count, params=size, fixed=True
    )
    put(message, at, tables.view(-1), head)
    put(message, at + head, coded, tail)
    return seal(message, at, head + tail)


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * level, in place; `InputError` for a damaged or another message."""
    segments, found = Segments.of(layout), read(message, layout, Codec.LEVELS)
    count, size = found.alike("flags"), found.alike("params")
    if count not in LEVEL_COUNTS or size < 1:
        raise InputError(f"damaged payload: {count} levels, buckets of {size} elements")
    cells, length = segments.cells(size), segments.length
    head, tail = 4 * count * cells.count, digit_bytes(length, count)
    found.demand_sizes(head + tail)
    tables = taken(message, found.at, head, torch.float32).view(-1, count)  # [cells, levels]
    body = taken(message, found.at + head, tail, torch.uint8)
    codes = decoded_levels(body, tail, segments, length, count // 2, "digits")
    add_between(out, cells, tables, codes, weight)


def rounding_error(values: Tensor, tables: Tensor, size: int) -> float:
    """The mean over the random numbers of |Q(v) - v|^2 for `values`, float32 `[n]`.

    The sum over elements of (v - l_j) (l_{j+1} - v), with v clipped to its bucket's table, plus
    the square of what the clipping takes away.
    """
    total = 0.0
    for elements, buckets, length in bucket_parts(values.numel(), size):
        given = values[elements].double().view(-1, length)
        table = tables[buckets].double()
        inside = given.clamp(table[:, :1], table[:, -1:])
        above = torch.searchsorted(table, inside, right=True).clamp_(1, table.shape[1] - 1)
        low, high = table.gather(1, above - 1), table.gather(1, above)
        total += float(((inside - low) * (high - inside) + (given - inside).square()).sum())
    return total


# --- primitives: all tensors of a bucket ---------------------------------------------------------


def _searching(
    tables: Tensor, values: object, cells: Cells, count: int, *_: object
) -> Iterator[KernelCost]:
    n, levels = cells.segments.length, count * cells.count
    most = np.maximum(n, levels)
    yield launch("sort", "bucket_levels.search_levels", most, 4 * n, 4 * levels)


@counted_as(_searching)
@primitive
def optimal_levels(
    values: Tensor, cells: Cells, count: int, clip: float | None, sweeps: int
) -> Tensor:
    """Levels of least error of each cell (`orq.py`), ascending: float32 `[cells, count]`.

    Found greedily, then `sweeps` times improved in turn. Elements are first clipped to `clip`
    standard deviations of their cell (population, about the mean; not where that is 0).
    """
    return _searched(values, cells, count, clip, _optimal_levels, sweeps)


@counted_as(_searching)
@primitive
def quantiles(values: Tensor, cells: Cells, count: int, clip: float | None) -> Tensor:
    """Quantiles j / (count - 1) of each cell, clipped as by `optimal_levels`."""
    return _searched(values, cells, count, clip, _quantiles)


def _rounding(
    _: object, values: object, cells: Cells, tables: Tensor, keys: object
) -> Iterator[KernelCost]:
    n, levels = cells.segments.length, tables.shape[1] * cells.count
    yield drawn("bucket_levels.round_between", n, 16)
    yield launch(
        "streaming", "bucket_levels.round_between", np.maximum(n, levels), 5 * n, 4 * levels
    )


@counted_as(_rounding)
@primitive
def round_between(values: Tensor, cells: Cells, tables: Tensor, keys: NDArray[np.uint64]) -> Tensor:
    """Codes of randomly rounded elements, uint8, one tensor's behind the other's.

    `values` is a flat float32, `tables` float32 `[cells, s]`, ascending; elements outside saturate.
    `keys` are of each tensor's random bits (`random_key`).
    """
    segments = cells.segments
    codes = np.empty(int(segments.length.sum()), dtype=np.uint8)
    in_tiles(
        _round, cells.tiles, array(values), segments.table, array(tables), cells.first, cells.size,
        keys, codes, starts(segments.length),
    )  # fmt: skip
    return tensor(codes, values)


def _adding(
    _: object, out: object, cells: Cells, tables: Tensor, codes: object, weight: float
) -> Iterator[KernelCost]:
    n, levels = cells.segments.length, tables.shape[1] * cells.count
    most = np.maximum(n, levels)
    yield launch("streaming", "bucket_levels._add_from_tables", most, 9 * n, 4 * levels)


@counted_as(_adding)
@primitive
def add_between(out: Tensor, cells: Cells, tables: Tensor, codes: Tensor, weight: float) -> None:
    """out += weight * the levels that `codes` stand for, in place: undoes `round_between`."""
    given = array(tables), cells.first, cells.size, array(codes), starts(cells.segments.length)
    with written_back(out) as target:
        in_tiles(_look_up, cells.tiles, target, cells.segments.table, *given, np.float32(weight))


# --- searches -------------------------------------------------------------------------------------


def _searched(
    values: Tensor, cells: Cells, count: int, clip: float | None, search: Any, *given: int
) -> Tensor:
    """The tables that `search(rows, levels, *given)` fills from sorted, clipped cells."""
    data, table = array(values), cells.segments.table
    tables = np.empty((cells.total, count), dtype=np.float32)
    factor = 0.0 if clip is None else clip

    def search_tiles(start: int, stop: int, tiles: NDArray[np.int64]) -> None:
        # interpreted, but on many cells at a time; numpy sorts without the interpreter's lock
        for t, first, last in tiles[start:stop].tolist():
            size, at = int(cells.size[t]), int(cells.first[t])
            part = data[table[t, 0] + first : table[t, 0] + last]
            whole = part.size // size * size
            for some, length in ((part[:whole], size), (part[whole:], part.size - whole)):
                if some.size:
                    rows = some.reshape(-1, length).copy()
                    rows.sort(axis=1)
                    if factor:
                        clip_cells(0, rows.size, rows.reshape(-1), length, factor)
                    cell = at + (first if length == size else first + whole) // size
                    search(rows, tables[cell : cell + len(rows)], *given)

    in_tiles(search_tiles, cells.tiles)
    return tensor(tables, values)


@loop
def clip_cells(start: int, stop: int, values: Any, size: int, factor: float) -> None:
    """Clip each bucket to `factor` of its standard deviations, in place."""
    for at in range(start, stop, size):
        part = values[at : min(at + size, stop)]
        total, _ = moments(part, 0.0)
        _, squares = moments(part, total / part.size)
        bound = np.float32(factor * np.sqrt(squares / part.size))
        if bound > 0:
            for i in range(part.size):
                part[i] = min(max(part[i], -bound), bound)


@loop
def _optimal_levels(rows: Any, levels: Any, sweeps: int) -> None:
    last = levels.shape[1] - 1
    for r in range(rows.shape[0]):
        row, found = rows[r], levels[r]
        found[0], found[last] = row[0], row[row.size - 1]
        stride = last // 2
        while stride:
            for k in range(stride, last, 2 * stride):
                low, high = found[k - stride], found[k + stride]
                middle = np.float32(0.5 * (np.float64(low) + np.float64(high)))
                found[k] = _best_between(row, low, high, middle)
            stride //= 2
        for _ in range(sweeps):
            changed = False
            for k in range(1, last):
                better = _best_between(row, found[k - 1], found[k + 1], found[k])
                changed |= better != found[k]
                found[k] = better
            if not changed:
                break


@loop
def _best_between(row: Any, low: Any, high: Any, otherwise: Any) -> Any:
    """The best level between `low` and `high`; `otherwise` when no element lies between them."""
    first = np.searchsorted(row, low, side="right")
    between = row[first : max(first, np.searchsorted(row, high, side="left"))]
    if not between.size:
        return otherwise
    above = _sum_above(between, np.float64(low)) / (np.float64(high) - np.float64(low))
    rank = min(max(int(above), 0), between.size - 1)  # of NaN nothing is known
    return between[between.size - 1 - rank]


@summing_loop
def _sum_above(part: Any, low: float) -> float:
    """The sum of v - low: without it, the other elements' sums would cancel to nothing."""
    total = 0.0
    for i in range(part.size):
        total += np.float64(part[i]) - low
    return total


@loop
def _quantiles(rows: Any, levels: Any) -> None:
    last = levels.shape[1] - 1
    for r in range(rows.shape[0]):
        row = rows[r]
        for j in range(last + 1):
            numerator = j * (row.size - 1)
            at, rest = numerator // last, numerator % last
            low = np.float64(row[at])
            if rest:
                low += (np.float64(row[at + 1]) - low) * (np.float64(rest) / np.float64(last))
            levels[r, j] = np.float32(low)


@inlined
def magnifier(largest: Any) -> Any:
    """Inside a loop: what both sides of a comparison are multiplied with.

    `largest` is the largest magnitude of a level. A gap of up to twice that must not overflow.
    """
    return np.float32(2.0**24) if largest < np.float32(1e30) else np.float32(0.25)


@loop
def _round(
    start: int, stop: int, tiles: Any, values: Any, table: Any, tables: Any, firsts: Any,
    sizes: Any, keys: Any, codes: Any, places: Any,
) -> None:  # fmt: skip
    words = np.empty(_PIECE // 4 + 2, dtype=np.uint64)
    random16 = words.view(np.uint16)
    fractions = np.empty(_PIECE, dtype=np.float32)
    scaled = np.empty(_PIECE, dtype=np.float32)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        own, key = values[table[t, 0] : table[t, 0] + table[t, 1]], keys[t]
        for at in range(start_of, stop_of, sizes[t]):
            levels = tables[firsts[t] + at // sizes[t]]
            end = min(at + sizes[t], stop_of)
            scale = magnifier(max(abs(levels[0]), abs(levels[-1])))
            for first in range(at, end, _PIECE):
                length = min(_PIECE, end - first)
                word = first // 4  # 64 random bits are the 16 of each of four elements
                for k in range((first + length + 3) // 4 - word):
                    words[k] = bits64(key, word + k)
                drawn = random16[first - 4 * word : first - 4 * word + length]
                piece = own[first : first + length]
                out = codes[places[t] + first : places[t] + first + length]
                for i in range(length):
                    fractions[i] = (np.float32(drawn[i]) + np.float32(0.5)) * np.float32(2.0**-16)
                    scaled[i] = piece[i] * scale
                    out[i] = 0
                for j in range(levels.size - 1):  # a code counts the random points that v exceeds
                    low = levels[j] * scale
                    gap = levels[j + 1] * scale - low
                    for i in range(length):
                        out[i] += np.uint8(scaled[i] - low > fractions[i] * gap)


@loop
def _look_up(
    start: int, stop: int, tiles: Any, out: Any, table: Any, tables: Any, firsts: Any, sizes: Any,
    codes: Any, places: Any, weight: np.float32,
) -> None:  # fmt: skip
    weighted = np.zeros(256, dtype=np.float32)  # any byte is a valid index
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        for at in range(start_of, stop_of, sizes[t]):
            levels = tables[firsts[t] + at // sizes[t]]
            for j in range(levels.size):
                weighted[j] = weight * levels[j]
            end = min(at + sizes[t], stop_of)
            chosen = codes[places[t] + at : places[t] + end]
            sums = out[table[t, 0] + at : table[t, 0] + end]
            for i in range(sums.size):
                sums[i] += weighted[chosen[i]]
