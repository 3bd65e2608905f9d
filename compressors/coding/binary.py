"""How does a vector travel as one bit an element and two levels a group of elements?

Bit 1 says the group's upper level, 0 its lower one. Groups are buckets of `size` consecutive
elements (the last one may be shorter) or the columns of a matrix. Bits lie in the order of the
elements, the first in the lowest bit of the first byte; those after the last element are 0.

A frame's body is the levels, float32, then the bits. What its levels are, its flags say:
TWO_LEVELS the lower levels of all groups, then the upper ones; SYMMETRIC the upper ones (the
lower ones are their negatives); KNOWN_LEVELS nothing, the receiver has them.

Inside loops eight bits are eight bytes of 0 or 1 for as long as possible: those are compared and
chosen from with vector instructions, and one multiplication folds them into a byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gcsim.compressors.bucket import TensorSlice
from gcsim.compressors.coding.bucket_levels import magnifier
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.levels import bucket_count
from gcsim.compressors.coding.messages import split_body
from gcsim.compressors.coding.packing import packed_bytes
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import array, in_parallel, inlined, loop, tensor, written_back
from gcsim.compressors.meter import count_bytes, count_random, kernel
from gcsim.compressors.random import bits64
from gcsim.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

TWO_LEVELS, SYMMETRIC, KNOWN_LEVELS = 0, 1, 2

_CHUNK = 4096
"""Elements whose bits are gathered before they are folded; a multiple of 8."""
_SUM_PARTS = 32
"""Most blocks of rows that are added up on their own."""


# --- buckets ---------------------------------------------------------------------------------


@kernel("streaming")
def bits_above(values: Tensor, thresholds: Tensor, size: int) -> Tensor:
    """One bit an element, v >= its bucket's threshold: uint8 `[ceil(n / 8)]`.

    `values` is float32 `[n]`, `thresholds` float32 `[ceil(n / size)]`.
    """
    bits = np.empty(packed_bytes(values.numel(), 1), dtype=np.uint8)
    in_parallel(_bits_above, values.numel(), array(values), array(thresholds), size, bits)
    return tensor(bits, values)


@kernel("streaming")
def random_bits(values: Tensor, bounds: Tensor, size: int, key: np.uint64) -> Tensor:
    """One random bit an element, 1 with probability (v + b) / 2b: uint8 `[ceil(n / 8)]`.

    Decoded as b or -b it is v on average; elements beyond their bucket's b, float32
    `[ceil(n / size)]`, saturate. The probability is right to 2^-17.
    """
    bits = np.empty(packed_bytes(values.numel(), 1), dtype=np.uint8)
    in_parallel(_random_bits, values.numel(), array(values), array(bounds), size, key, bits)
    count_random(values.numel(), 16)
    return tensor(bits, values)


@kernel("streaming", updates=("out",))
def add_chosen(
    out: Tensor, bits: Tensor, lows: Tensor, highs: Tensor, *, size: int, weight: float
) -> None:
    """out += weight * (high if its bit is set else low), in place; `out` is float32 `[n]`.

    `lows` and `highs` are float32 `[ceil(n / size)]`.
    """
    with written_back(out) as sums:
        levels = array(lows), array(highs)
        in_parallel(_add_chosen, sums.size, array(bits), *levels, size, np.float32(weight), sums)


def pack_binary(
    bits: Tensor, levels: Tensor | None, *, numel: int, flags: int, size: int
) -> Tensor:
    """One tensor's frame; `levels` (float32, one dimension) as `flags` says."""
    body = bits if levels is None else torch.cat((as_bytes(levels), bits))
    return pack_frame(Codec.BINARY, body, numel=numel, nonzero=numel, flags=flags, params=size)


def read_binary(
    frame: Frame, known: tuple[Tensor, Tensor, int] | None = None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """(bits, lower levels, upper levels, bucket length) of a frame that `pack_binary` made.

    With `known` (lower levels, upper levels, bucket length) the frame must hold no levels and be
    of that bucket length, without it must hold levels. Raises `InputError` when the frame is
    damaged.
    """
    size, n = frame.params, frame.numel
    if size < 1 or frame.flags not in (TWO_LEVELS, SYMMETRIC, KNOWN_LEVELS):
        raise InputError(f"damaged payload: kind {frame.flags}, buckets of {size} elements")
    if (frame.flags == KNOWN_LEVELS) != (known is not None) or (known and size != known[2]):
        raise InputError("damaged payload: levels and what the receiver expects do not fit")
    buckets = bucket_count(n, size)
    cells = (2, 1, 0)[frame.flags] * buckets
    head, bits = split_body(frame, 4 * cells, packed_bytes(n, 1))
    demand_zero_padding(bits, n)
    if known is not None:
        return bits, *known
    levels = from_bytes(head, torch.float32, cells)
    if frame.flags == SYMMETRIC:
        return bits, -levels, levels, size
    return bits, levels[:buckets], levels[buckets:], size


def demand_zero_padding(bits: Tensor, count: int) -> None:
    """Raise `InputError` unless the bits after the first `count` are 0."""
    if count % 8 and int(bits[-1]) >> count % 8:
        raise InputError("damaged payload: padding after the last bit is not zero")


# --- columns of a matrix ---------------------------------------------------------------------


def matrix_shape(piece: TensorSlice) -> tuple[int, int]:
    """(rows, columns) of a tensor: its first dimension by all others; a vector is one column."""
    rows = piece.shape[0] if piece.shape else 1
    return rows, (piece.numel // rows if rows else 0)


@kernel("reduction")
def column_sums(values: Tensor, centres: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each column, with d = v - centre: the sum of d, the sum of |d|, the number of d >= 0.

    Half the sum or difference of the first two are the sums over the two sides.

    `values` is float32 `[rows * columns]`, row by row, `centres` float32 `[columns]`; the results
    are float64 `[columns]`.
    """
    found = _summed(array(values), np.empty(0, dtype=np.float32), array(centres), columns)
    return tensor(found[0], values), tensor(found[1], values), tensor(found[2], values)


@kernel("reduction", updates=("values",))
def add_and_sum_columns(
    values: Tensor, added: Tensor, columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """values += added, in place, and the `column_sums` of the result about zero."""
    with written_back(values) as data:
        found = _summed(data, array(added), np.zeros(columns, dtype=np.float32), columns)
    return tensor(found[0], values), tensor(found[1], values), tensor(found[2], values)


def _summed(
    values: NDArray[np.float32],
    added: NDArray[np.float32],
    centres: NDArray[np.float32],
    columns: int,
) -> NDArray[np.float64]:
    times = _widening(columns)
    wide = columns * times
    rows = -(-values.size // wide)
    together = max(16, -(-rows // _SUM_PARTS))
    sums = np.zeros((3, -(-rows // together), wide), dtype=np.float64)
    middle = np.tile(centres, times)
    grain = wide * together
    in_parallel(_add_columns, values.size, values, added, middle, together, sums, grain=grain)
    found: NDArray[np.float64] = sums.reshape(3, -1, columns).sum(axis=1)
    return found


def _widening(columns: int) -> int:
    """How many rows of a narrow matrix are treated as one: the innermost loop runs over a row."""
    return max(1, 512 // columns)


@kernel("streaming", resident=("values",))  # of which it touches a stripe
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
        in_parallel(_column_bits, rows * width, data, *wide, *lines, keep_error, bits)
    return tensor(bits, values)


@kernel("streaming", resident=("out",))
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
            _add_stripe, rows * stripe[1], sums, *wide, array(bits), *lines, np.float32(weight)
        )


def _lines(
    columns: int, stripe: tuple[int, int], of_columns: tuple[Tensor, ...]
) -> tuple[tuple[int, int, int], list[NDArray[np.float32]]]:
    """((columns, first, width), values of each column): of several rows in one when that fits."""
    first, width = stripe
    times = _widening(columns) if stripe == (0, columns) else 1
    lines = [np.tile(array(line), times) for line in of_columns]
    return (columns * times, first, width * times), lines


# --- loops -----------------------------------------------------------------------------------


@inlined
def _fold(words: Any, count: int, out: Any) -> None:
    """The lowest bits of the first `count` bytes of `words`, eight in a byte of `out`.

    In a word of bytes b_k in {0, 1}, bit 8k becomes bit 56 + k of the product, without carries.
    """
    for k in range((count + 7) // 8):
        out[k] = np.uint8((words[k] * np.uint64(0x0102040810204080)) >> np.uint64(56))


@inlined
def _unfold(packed: Any, words: Any) -> None:
    """The bits of each byte of `packed` as eight bytes: 0, or something else."""
    for k in range(packed.size):
        repeated = np.uint64(packed[k]) * np.uint64(0x0101010101010101)
        words[k] = repeated & np.uint64(0x8040201008040201)


@loop
def _bits_above(start: int, stop: int, values: Any, thresholds: Any, size: int, bits: Any) -> None:
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        words[:] = np.uint64(0)
        first = at
        while first < end:
            bucket = first // size
            last = min(end, (bucket + 1) * size)
            part, marks, threshold = values[first:last], flags[first - at :], thresholds[bucket]
            for i in range(part.size):
                marks[i] = np.uint8(part[i] >= threshold)
            first = last
        _fold(words, end - at, bits[at // 8 :])


@loop
def _random_bits(
    start: int, stop: int, values: Any, bounds: Any, size: int, key: np.uint64, bits: Any
) -> None:
    """Compares as `bucket_levels` does."""
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    drawn = np.empty(_CHUNK // 4, dtype=np.uint64)
    random16 = drawn.view(np.uint16)
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        words[:] = np.uint64(0)
        for k in range((end - at + 3) // 4):
            drawn[k] = bits64(key, at // 4 + k)
        first = at
        while first < end:
            bucket = first // size
            last = min(end, (bucket + 1) * size)
            part, marks, random = values[first:last], flags[first - at :], random16[first - at :]
            scale = magnifier(bounds[bucket])
            low, gap = -bounds[bucket] * scale, bounds[bucket] * np.float32(2)
            unit = scale / np.float32(65536)
            for i in range(part.size):
                fraction = (np.float32(random[i]) + np.float32(0.5)) * unit
                marks[i] = np.uint8(part[i] * scale - low > fraction * gap)
            first = last
        _fold(words, end - at, bits[at // 8 :])


@loop
def _add_chosen(
    start: int,
    stop: int,
    bits: Any,
    lows: Any,
    highs: Any,
    size: int,
    weight: np.float32,
    out: Any,
) -> None:
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        _unfold(bits[at // 8 : (end + 7) // 8], words)
        first = at
        while first < end:
            bucket = first // size
            last = min(end, (bucket + 1) * size)
            sums, marks = out[first:last], flags[first - at :]
            low, high = weight * lows[bucket], weight * highs[bucket]
            for i in range(sums.size):
                sums[i] += high if marks[i] else low
            first = last


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
def _column_bits(
    start: int,
    stop: int,
    values: Any,
    columns: int,
    first: int,
    width: int,
    thresholds: Any,
    lows: Any,
    highs: Any,
    keep_error: bool,
    bits: Any,
) -> None:
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
            source = row * columns + first + column
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
        _fold(words, end - at, bits[at // 8 :])


@loop
def _add_stripe(
    start: int,
    stop: int,
    out: Any,
    columns: int,
    first: int,
    width: int,
    bits: Any,
    lows: Any,
    highs: Any,
    weight: np.float32,
) -> None:
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    present = min(width, columns - first)
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        _unfold(bits[at // 8 : (end + 7) // 8], words)
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
