"""One bit an element and two levels a cell of a bucket: levels, bits and messages.

Bit 1 says the cell's upper level, 0 its lower one; for columns of a matrix see `columns.py`. Bits
lie in the order of the elements, the first in the lowest bit of the first byte; those after a
tensor's last element are 0.

A frame's body is the levels, float32, then the bits. Its flags say which levels: TWO_LEVELS the
lower levels of all cells, then the upper ones; SYMMETRIC the upper ones (the lower ones are their
negatives); KNOWN_LEVELS nothing, the receiver has them. `params` is the length of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.packing import (
    demand_no_stray,
    fold_bits,
    packed_bytes,
    unfold_bits,
)
from gcsim.compressors.coding.one_bit.signs import written_to
from gcsim.compressors.coding.rounding.bucket_levels import clip_cells
from gcsim.compressors.coding.rounding.levels import magnifier
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    SUM_BLOCK,
    array,
    in_tiles,
    loop,
    summing_loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import Cells, Column, Segments
from gcsim.errors import InputError

TWO_LEVELS, SYMMETRIC, KNOWN_LEVELS = 0, 1, 2
MAX_HALVINGS = 24
"""Passes of `optimal_bounds` over a cell, at most."""

_CHUNK = 4096
"""Elements whose bits are gathered before they are folded; a multiple of 8."""


# --- messages -------------------------------------------------------------------------------------


def message_of(
    values: Tensor, cells: Cells, flags: int, levels: Sequence[Tensor],
    put_bits: Callable[[Tensor, Column], None],
) -> Tensor:  # fmt: skip
    """The message of a bucket: `levels` as `flags` say, float32 `[cells]` each, then bits.

    `put_bits(message, at)` writes the bits of each tensor from a byte of the message on.
    """
    segments, head = cells.segments, 4 * cells.count
    sizes = len(levels) * head + packed_bytes(segments.length, 1)
    message, at = frames(
        values, Codec.BINARY, segments, sizes, flags=flags, params=cells.size, fixed=True
    )
    for number, level in enumerate(levels):
        put(message, at + number * head, level, head)
    put_bits(message, at + len(levels) * head)
    return seal(message, at, sizes)


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float,
    known: tuple[Tensor, Tensor, int] | None = None,
) -> None:  # fmt: skip
    """out += weight * decoded message, in place; `out` is float32 `[layout.numel]`.

    `known` are levels (lower, upper, float32 `[cells]`) and the length of cells; the message then
    holds no levels. Raises `InputError` when the message is damaged or of another layout.
    """
    segments, found = Segments.of(layout), read(message, layout, Codec.BINARY)
    flags, size = found.alike("flags"), found.alike("params")
    if size < 1 or flags not in (TWO_LEVELS, SYMMETRIC, KNOWN_LEVELS):
        raise InputError(f"damaged payload: kind {flags}, buckets of {size} elements")
    if (flags == KNOWN_LEVELS) != (known is not None) or (known and size != known[2]):
        raise InputError("damaged payload: levels and what the receiver expects do not fit")
    cells, at = segments.cells(size), found.at
    head = 4 * cells.count
    found.demand_sizes((2, 1, 0)[flags] * head + packed_bytes(segments.length, 1))
    if known is not None:
        lows, highs, _ = known
    else:
        highs = taken(message, at + (flags == TWO_LEVELS) * head, head, torch.float32)
        lows = taken(message, at, head, torch.float32) if flags == TWO_LEVELS else -highs
    add_chosen(out, cells, message, at + (2, 1, 0)[flags] * head, lows, highs, weight)


def clipped(bucket: Bucket, size: int, clip: float | None) -> Bucket:
    """The bucket with its cells of `size` elements clipped; itself without `clip`."""
    if clip is None:
        return bucket
    gradient = bucket.gradient.clone()
    clip_to_spread(gradient, Segments.of(bucket.layout).cells(size), clip)
    return Bucket(layout=bucket.layout, gradient=gradient)


# --- primitives -----------------------------------------------------------------------------------


def _moving(
    kind: KernelClass, name: str, of_element: int, of_cell: int
) -> Callable[..., list[KernelCost]]:
    """The entry of a pass that moves so many bytes an element and a cell."""

    def launches(_: object, values: object, cells: Cells, *given: object) -> list[KernelCost]:
        n = cells.segments.length
        return [launch(kind, name, n, of_element * n, of_cell * cells.count)]

    return launches


@counted_as(_moving("streaming", "bucket_levels.clip_to_spread", 8, 0))
@primitive
def clip_to_spread(values: Tensor, cells: Cells, clip: float) -> None:
    """Clip each cell of a flat float32 to `clip` standard deviations, in place.

    The deviation is the population's, about the mean; a cell where it is 0 is not clipped.
    """
    with written_back(values) as data:
        in_tiles(_clip, cells.spans, data, clip)


@counted_as(_moving("reduction", "bingrad_b.class_means", 4, 12))
@primitive
def class_means(values: Tensor, cells: Cells, iterations: int) -> Tensor:
    """Thresholds, lower and upper levels of the cells of a flat float32: float32 `[3, cells]`.

    A threshold is the cell's mean, then `iterations` times the middle between the levels, which
    are the means of the elements below and from the threshold on.
    """
    found = np.empty((3, cells.total), dtype=np.float32)
    in_tiles(_class_means, cells.spans, array(values), iterations, found)
    return tensor(found, values)


@counted_as(_moving("reduction", "bingrad_b.class_sums", 4, 16))
@primitive
def class_sums(values: Tensor, cells: Cells, thresholds: Tensor) -> Tensor:
    """Of each cell: sum below the threshold, sum from it on, number of the latter.

    `values` is a flat float32, `thresholds` float32 `[cells]`; float32 `[3, cells]`.
    """
    found = np.empty((3, cells.total), dtype=np.float32)
    in_tiles(_class_sums, cells.spans, array(values), array(thresholds), found)
    return tensor(found, values)


@counted_as(_moving("reduction", "bingrad_pb.optimal_bounds", 4, 4))
@primitive
def optimal_bounds(values: Tensor, cells: Cells) -> Tensor:
    """The bound b of each cell of least error (`bingrad_pb.py`): float32 `[cells]`."""
    bounds = np.empty(cells.total, dtype=np.float32)
    in_tiles(_optimal_bounds, cells.spans, array(values), bounds)
    return tensor(bounds, values)


def _bit_launches(
    _: object, values: object, cells: Cells, *given: object, name: str = "binary.bits_above"
) -> list[KernelCost]:
    n = cells.segments.length
    return [launch("streaming", name, n, 4 * n, 4 * cells.count, packed_bytes(n, 1))]


@counted_as(_bit_launches)
@primitive
def put_bits_above(
    values: Tensor, cells: Cells, thresholds: Tensor, bits: Tensor, at: Column
) -> None:
    """Write one bit an element, v >= its cell's threshold, from byte `at` of each tensor on.

    `values` is a flat float32, `thresholds` float32 `[cells]`, `bits` uint8.
    """
    segments = cells.segments
    with written_to(bits) as (out,):
        in_tiles(
            _bits_above, segments.tiles, array(values), segments.table, cells.first, cells.size,
            array(thresholds), out, at,
        )  # fmt: skip


@counted_as(
    lambda result, values, cells, *given: [
        drawn("binary.random_bits", cells.segments.length, 16),
        *_bit_launches(result, values, cells, name="binary.random_bits"),
    ]
)
@primitive
def put_random_bits(
    values: Tensor, cells: Cells, bounds: Tensor, keys: NDArray[np.uint64], bits: Tensor,
    at: Column,
) -> None:  # fmt: skip
    """Write one random bit an element, 1 with probability (v + b) / 2b, as `put_bits_above`.

    Decoded as b or -b it is v on average; elements beyond their cell's b, float32 `[cells]`,
    saturate. The probability is right to 2^-17. `keys` are of each tensor's random numbers.
    """
    segments = cells.segments
    with written_to(bits) as (out,):
        in_tiles(
            _random_bits, segments.tiles, array(values), segments.table, cells.first, cells.size,
            array(bounds), keys, out, at,
        )  # fmt: skip


def _choosing(_: object, out: object, cells: Cells, *given: object) -> list[KernelCost]:
    n = cells.segments.length
    moved = 8 * n, packed_bytes(n, 1), 8 * cells.count
    return [launch("streaming", "binary.add_chosen", n, *moved)]


@counted_as(_choosing)
@primitive
def add_chosen(
    out: Tensor, cells: Cells, bits: Tensor, at: Column, lows: Tensor, highs: Tensor, weight: float
) -> None:
    """out += weight * (high if its bit is set else low), in place; `out` is a flat float32.

    `lows` and `highs` are float32 `[cells]`; each tensor's bits begin at byte `at`. Raises
    `InputError` when bits are set behind a tensor's last; `out` is then worthless.
    """
    segments, data = cells.segments, array(bits)
    demand_no_stray(data, at, segments.length, 1)
    with written_back(out) as sums:
        in_tiles(
            _add_chosen, segments.tiles, data, at, segments.table, cells.first, cells.size,
            array(lows), array(highs), np.float32(weight), sums,
        )  # fmt: skip


# --- loops over cells -----------------------------------------------------------------------------


@loop
def _clip(start: int, stop: int, spans: Any, values: Any, factor: float) -> None:
    for span in range(start, stop):
        part = values[spans[span, 1] : spans[span, 2]]
        clip_cells(0, part.size, part, part.size, factor)


@loop
def _class_means(
    start: int, stop: int, spans: Any, values: Any, iterations: int, found: Any
) -> None:
    for span in range(start, stop):
        cell, begin, end = spans[span]
        part = values[begin:end]
        total, _, _ = _sums_about(part, np.float32(0))
        threshold = np.float32(total / part.size)
        low, high = threshold, threshold
        for iteration in range(iterations + 1):
            total, magnitude, count = _sums_about(part, threshold)
            low, high = threshold, threshold
            if count < part.size:
                low = np.float32(threshold + 0.5 * (total - magnitude) / (part.size - count))
            if count > 0:
                high = np.float32(threshold + 0.5 * (total + magnitude) / count)
            between = np.float32(0.5 * (np.float64(low) + np.float64(high)))
            if iteration == iterations or between == threshold:
                break
            threshold = between
        found[0, cell], found[1, cell], found[2, cell] = threshold, low, high


@loop
def _class_sums(
    start: int, stop: int, spans: Any, values: Any, thresholds: Any, found: Any
) -> None:
    for span in range(start, stop):
        cell, begin, end = spans[span]
        part, threshold = values[begin:end], thresholds[cell]
        total, magnitude, count = _sums_about(part, threshold)
        found[0, cell] = threshold * (part.size - count) + 0.5 * (total - magnitude)
        found[1, cell] = threshold * count + 0.5 * (total + magnitude)
        found[2, cell] = count


@summing_loop
def _sums_about(part: Any, centre: Any) -> tuple[float, float, float]:
    """Sum of d = v - centre, sum of |d|, number of elements with d >= 0; part is one cell.

    Half the sum or difference of the first two are the sums over the two classes: a loop without
    a condition, which is vectorised.
    """
    total, magnitude, count = 0.0, 0.0, 0.0
    for i in range(part.size):
        distance = np.float64(part[i]) - np.float64(centre)
        total += distance
        magnitude += abs(distance)
        count += np.float64(part[i] >= centre)
    return total, magnitude, count


@loop
def _optimal_bounds(start: int, stop: int, spans: Any, values: Any, bounds: Any) -> None:
    for span in range(start, stop):
        cell, begin, end = spans[span]
        part = values[begin:end]
        low, high = 0.0, _mean_from(part, np.float32(0))
        for _ in range(MAX_HALVINGS):
            if high - low <= 2.0**-22 * high:
                break
            middle = 0.5 * (low + high)
            reached = _mean_from(part, np.float32(middle))
            if reached >= middle:
                low, high = middle, min(high, reached)
            else:
                low, high = max(low, reached), middle
        bounds[cell] = np.float32(high)


@loop
def _mean_from(part: Any, bound: Any) -> float:
    """Sum of |v| over the elements with |v| >= bound, over the number of all elements."""
    total = 0.0
    for first in range(0, part.size, SUM_BLOCK):
        total += _sum_from(part[first : first + SUM_BLOCK], bound)
    mean: float = total / part.size
    return mean


@summing_loop
def _sum_from(block: Any, bound: Any) -> Any:
    total = np.float32(0)
    for i in range(block.size):
        magnitude = abs(block[i])
        total += magnitude if magnitude >= bound else np.float32(0)
    return total


# --- loops over tiles -----------------------------------------------------------------------------


@loop
def _bits_above(
    start: int, stop: int, tiles: Any, values: Any, table: Any, cells: Any, sizes: Any,
    thresholds: Any, bits: Any, places: Any,
) -> None:  # fmt: skip
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for tile in range(start, stop):
        t, begin, stop_at = tiles[tile]
        own, size = values[table[t, 0] : table[t, 0] + table[t, 1]], sizes[t]
        out = bits[places[t] : places[t] + (own.size + 7) // 8]
        for at in range(begin, stop_at, _CHUNK):
            end = min(at + _CHUNK, stop_at)
            words[:] = np.uint64(0)
            first = at
            while first < end:
                cell = first // size
                last = min(end, (cell + 1) * size)
                part, marks = own[first:last], flags[first - at :]
                threshold = thresholds[cells[t] + cell]
                for i in range(part.size):
                    marks[i] = np.uint8(part[i] >= threshold)
                first = last
            fold_bits(words, out[at // 8 : (end + 7) // 8])


@loop
def _random_bits(
    start: int, stop: int, tiles: Any, values: Any, table: Any, cells: Any, sizes: Any,
    bounds: Any, keys: Any, bits: Any, places: Any,
) -> None:  # fmt: skip
    """Compares as `bucket_levels` does."""
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    drawn = np.empty(_CHUNK // 4, dtype=np.uint64)
    random16 = drawn.view(np.uint16)
    for tile in range(start, stop):
        t, begin, stop_at = tiles[tile]
        own, size = values[table[t, 0] : table[t, 0] + table[t, 1]], sizes[t]
        out = bits[places[t] : places[t] + (own.size + 7) // 8]
        for at in range(begin, stop_at, _CHUNK):
            end = min(at + _CHUNK, stop_at)
            words[:] = np.uint64(0)
            for k in range((end - at + 3) // 4):
                drawn[k] = bits64(keys[t], at // 4 + k)
            first = at
            while first < end:
                cell = first // size
                last = min(end, (cell + 1) * size)
                part, marks, random = own[first:last], flags[first - at :], random16[first - at :]
                bound = bounds[cells[t] + cell]
                scale = magnifier(bound)
                low = -bound * scale
                gap = np.float32(-2) * low
                for i in range(part.size):
                    fraction = (np.float32(random[i]) + np.float32(0.5)) * np.float32(2.0**-16)
                    marks[i] = np.uint8(part[i] * scale - low > fraction * gap)
                first = last
            fold_bits(words, out[at // 8 : (end + 7) // 8])


@loop
def _add_chosen(
    start: int, stop: int, tiles: Any, bits: Any, places: Any, table: Any, cells: Any, sizes: Any,
    lows: Any, highs: Any, weight: np.float32, out: Any,
) -> None:  # fmt: skip
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for tile in range(start, stop):
        t, begin, stop_at = tiles[tile]
        own, size = out[table[t, 0] : table[t, 0] + table[t, 1]], sizes[t]
        packed = bits[places[t] : places[t] + (own.size + 7) // 8]
        for at in range(begin, stop_at, _CHUNK):
            end = min(at + _CHUNK, stop_at)
            unfold_bits(packed[at // 8 : (end + 7) // 8], words)
            first = at
            while first < end:
                cell = first // size
                last = min(end, (cell + 1) * size)
                sums, marks = own[first:last], flags[first - at :]
                low, high = weight * lows[cells[t] + cell], weight * highs[cells[t] + cell]
                for i in range(sums.size):
                    sums[i] += high if marks[i] else low
                first = last
