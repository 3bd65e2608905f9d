"""How is a vector rounded at random to a few evenly spaced levels, so that it is right on average?

Buckets of `size` consecutive elements (the last one may be shorter) share a norm; an element v
becomes one of the 2s + 1 values norm * q / s, q = -s … s, rounded up or down at random such that
the mean is v (Alistarh et al. 2017, "QSGD", arXiv:1610.02132).

Rounding uses 16 random bits an element: q = floor(s v / norm + (r + 1/2) / 65536), r uniform on
0 … 65535. The probability of the upper neighbour is then the fraction rounded to a multiple of
2^-16, so E[q] is within 2^-17 of s v / norm (plus float32 rounding of the quotient, at most
s 2^-23); with the half, a whole number and zero stay what they are.

A zero norm decodes to zeros. Codes are q + s; eight codes of b bits fill b bytes, as in
`packing.py`. Values, norms and random bits become packed codes in one pass, `CHUNK` elements at a
time: what lies between them never leaves the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import damaged, packed_bytes, stray_bits
from gcsim.compressors.coding.scans import (
    block_magnitudes,
    block_squares,
    greatest_magnitude,
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
    written_back,
)
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import Cells, Column

Norm = Literal["max", "l2"]

MAX_STEPS = 127
"""Codes fit a byte, and quotient plus random fraction fit float32's 24 bits exactly."""

CHUNK = 2048
"""Elements between the random numbers and the packed codes: a multiple of eight."""
SHARED_OUT = 1 << 16
"""Elements of a thread's smallest part: they stay in the processor's cache."""
_LARGE_CELL = 1 << 18
"""Cells from here on are summed up by several threads."""
STRAY = 256
"""In the place of a code: bits are set behind a tensor's last."""
_NO_BOUND = np.float32(np.inf)
_HALF = np.float32(2.0**-17)
_UNIT = np.float32(2.0**-16)


def bucket_count(n: int, size: int) -> int:
    """Buckets of `size` elements that `n` elements make, the last one possibly shorter."""
    return -(-n // size)


def bucket_parts(n: int, size: int) -> Iterator[tuple[slice, slice, int]]:
    """(elements, buckets, bucket length): the whole buckets, then the short one."""
    whole = n // size
    if whole:
        yield slice(0, whole * size), slice(0, whole), size
    if n % size:
        yield slice(whole * size, n), slice(whole, whole + 1), n % size


# --- primitives: all tensors of a bucket ---------------------------------------------------------


def _norm_launches(_: object, values: Tensor, cells: Cells, norm: Norm) -> list[KernelCost]:
    n = cells.segments.length
    return [launch("reduction", "levels.bucket_norms", n, 4 * n, 4 * cells.count)]


@counted_as(_norm_launches)
@primitive
def cell_norms(values: Tensor, cells: Cells, norm: Norm) -> Tensor:
    """Maximum |v| or Euclidean norm of each cell of a flat float32: float32 `[cells]`.

    The Euclidean norm is summed in float64: squares of float32 neither overflow nor vanish.
    NaN where a cell holds one.
    """
    data, table = np.ascontiguousarray(array(values)), cells.segments.table
    maximum = norm == "max"
    norms = np.zeros(cells.total, dtype=np.float32)  # of cells without elements
    long = (cells.size >= _LARGE_CELL) & (cells.count > 0)
    tiles = cells.tiles[~long[cells.tiles[:, 0]]] if long.any() else cells.tiles
    in_tiles(_tile_norms, tiles, data, table, cells.size, cells.first, maximum, norms)
    for t in np.flatnonzero(long):
        (begin, n), size = table[t], cells.size[t]
        for cell in range(cells.count[t]):
            own = data[begin + cell * size : begin + min(n, (cell + 1) * size)]
            norms[cells.first[t] + cell] = _norm_of(own, maximum)
    return tensor(norms, values)


def _rounding_launches(
    _: object, values: Tensor, cells: Cells, norms: Tensor, keys: object, out: Tensor, at: object,
    *, steps: int, bits: int, bounds: object = None,
) -> list[KernelCost]:  # fmt: skip
    n, name = cells.segments.length, "levels.encode_levels"
    moved = 4 * n, 4 * cells.count, packed_bytes(n, bits)
    return [drawn(name, n, 16), launch("streaming", name, n, *moved)]


@counted_as(_rounding_launches)
@primitive
def round_levels(
    values: Tensor, cells: Cells, norms: Tensor, keys: NDArray[np.uint64], out: Tensor, at: Column,
    *, steps: int, bits: int, bounds: NDArray[np.float32] | None = None,
) -> None:  # fmt: skip
    """Round elements at random to levels, and write their codes q + s; in one pass.

    Parameters
    ----------
    values : flat float32 of the cells' table
    cells : elements that share a norm
    norms : float32 `[cells]`; larger elements saturate at their cell's norm
    keys : of each tensor's random bits (`random_key`)
    out, at : uint8 that is written to; first byte of each tensor, whose ceil(n bits / 8) bytes are
        laid out as `packing.pack_bits` does
    steps : s, 1 to 127
    bits : of a code, 1 to 8; 8 leaves the codes as bytes
    bounds : elements of a tensor are clipped to [-bound, bound] first
    """
    data, table = np.ascontiguousarray(array(values)), cells.segments.table
    if bounds is None:
        bounds = np.full(len(table), _NO_BOUND)
    with written_back(out) as codes:
        in_tiles(
            _tile_codes, cells.segments.tiles, data, table, array(norms), cells.first, cells.size,
            keys, bounds, np.float32(steps), bits, codes, at,
        )  # fmt: skip


def _adding_launches(
    _: object, out: Tensor, cells: Cells, norms: Tensor, packed: Tensor, at: object,
    *, steps: int, bits: int, weight: float,
) -> list[KernelCost]:  # fmt: skip
    n = cells.segments.length
    moved = 8 * n, packed_bytes(n, bits), 4 * cells.count
    return [launch("streaming", "levels.add_packed_levels", n, *moved)]


@counted_as(_adding_launches)
@primitive
def add_coded_levels(
    out: Tensor, cells: Cells, norms: Tensor, packed: Tensor, at: Column,
    *, steps: int, bits: int, weight: float,
) -> None:  # fmt: skip
    """out += weight * norm * q / s, in place: undoes `round_levels` in one pass.

    `out` is a flat float32 of the cells' table, `packed` holds each tensor's codes from byte `at`
    on. Raises `InputError` for stray bits, or a code above 2s; `out` is then worthless.
    """
    data, tiles = np.ascontiguousarray(array(packed)), cells.segments.tiles
    highest = np.zeros(len(tiles), dtype=np.int64)
    with written_back(out) as target:
        in_tiles(
            _add_tiles, tiles, data, at, cells.segments.table, array(norms), cells.first,
            cells.size, np.float32(steps), np.float32(weight / steps), bits, target, highest,
        )  # fmt: skip
    demand_levels(int(highest.max(initial=0)), steps)


def demand_levels(highest: int, steps: int) -> None:
    """`InputError` for a code above 2s; `STRAY` stands for bits behind a tensor's last code."""
    if highest >= STRAY:
        raise stray_bits()
    if highest > 2 * steps:
        raise damaged(f"code {highest} where levels end at {2 * steps}")


# --- for loops, here and in other files ---------------------------------------------------------


@loop
def random_fractions(key: np.uint64, first: int, words: Any) -> None:
    """Random 64-bit words for the elements from `first`, a multiple of four, on: four each.

    Viewed as uint16, they are one number an element.
    """
    base = first // 4
    for i in range(words.size):
        words[i] = bits64(key, base + i)


@loop
def put_codes(codes: Any, bits: int, out: Any) -> None:
    """Pack whole groups of eight codes (uint8 `[8 m]`, which is overwritten) into `out`.

    `out` may end inside of the last group: then the rest is left out.
    """
    if bits == 8:
        for i in range(out.size):
            out[i] = codes[i]
        return
    if bits == 4:
        for i in range(out.size):
            out[i] = codes[2 * i] | (codes[2 * i + 1] << np.uint8(4))
        return
    if bits == 2:
        for i in range(out.size):
            low = codes[4 * i] | (codes[4 * i + 1] << np.uint8(2))
            out[i] = low | (codes[4 * i + 2] << np.uint8(4)) | (codes[4 * i + 3] << np.uint8(6))
        return
    # Eight codes are a word of eight lanes of a byte, each with `bits` bits of use. Three rounds
    # close the gaps of all words: lanes of 1, 2, 4 bytes become one of twice as many.
    words = codes.view(np.uint64)
    width = np.uint64(bits)
    lane = np.uint64(8)
    for _ in range(3):
        low = _fields(width, lane + lane)
        high = low << width
        shift = lane - width
        for i in range(words.size):
            words[i] = (words[i] & low) | ((words[i] >> shift) & high)
        width = width + width
        lane = lane + lane
    for group in range(out.size // bits):  # the first `bits` bytes of a word hold all eight
        for j in range(bits):
            out[group * bits + j] = codes[8 * group + j]
    done = out.size // bits
    for j in range(out.size - done * bits):
        out[done * bits + j] = codes[8 * done + j]


@loop
def get_codes(packed: Any, bits: int, codes: Any) -> None:
    """Undo `put_codes`: fills `codes` (uint8 `[8 m]`); what `packed` leaves out is zero."""
    if bits in (2, 4, 8):
        _get_even_codes(packed, bits, codes)
        return
    words = codes.view(np.uint64)
    for i in range(words.size):
        words[i] = np.uint64(0)
    for group in range(packed.size // bits):
        for j in range(bits):
            codes[8 * group + j] = packed[group * bits + j]
    done = packed.size // bits
    for j in range(packed.size - done * bits):
        codes[8 * done + j] = packed[done * bits + j]
    width = np.uint64(4 * bits)
    lane = np.uint64(32)
    for _ in range(3):  # the rounds of `put_codes`, backwards
        low = _fields(width, lane + lane)
        high = low << width
        shift = lane - width
        for i in range(words.size):
            words[i] = (words[i] & low) | ((words[i] & high) << shift)
        width = width >> np.uint64(1)
        lane = lane >> np.uint64(1)


@loop
def _get_even_codes(packed: Any, bits: int, codes: Any) -> None:
    """`get_codes` of codes that do not straddle bytes."""
    if bits == 8:
        for i in range(packed.size):
            codes[i] = packed[i]
    elif bits == 4:
        for i in range(packed.size):
            codes[2 * i] = packed[i] & np.uint8(15)
            codes[2 * i + 1] = packed[i] >> np.uint8(4)
    else:
        for i in range(packed.size):
            four = packed[i]
            codes[4 * i] = four & np.uint8(3)
            codes[4 * i + 1] = (four >> np.uint8(2)) & np.uint8(3)
            codes[4 * i + 2] = (four >> np.uint8(4)) & np.uint8(3)
            codes[4 * i + 3] = four >> np.uint8(6)
    for i in range(packed.size * 8 // bits, codes.size):
        codes[i] = 0


@loop
def _fields(width: np.uint64, period: np.uint64) -> np.uint64:
    """A mask of the `width` low bits of each field of `period` bits."""
    mask = np.uint64(0)
    at = np.uint64(0)
    while at < np.uint64(64):
        mask |= ((np.uint64(1) << width) - np.uint64(1)) << at
        at = at + period
    return mask


@loop
def put_chunk(codes: Any, length: int, bits: int, first: int, out: Any) -> None:
    """Pack the first `length` codes, those from element `first` on, to their place in `out`."""
    padded = (length + 7) // 8 * 8  # whole groups: the last one may be cut off again
    for i in range(length, padded):
        codes[i] = 0
    begin = first // 8 * bits
    put_codes(codes[:padded], bits, out[begin : begin + (length * bits + 7) // 8])


@loop
def get_chunk(packed: Any, first: int, length: int, bits: int, codes: Any) -> Any:
    """Undo `put_chunk`, into `codes`; the largest of the codes."""
    begin = first // 8 * bits
    room = codes[: (length + 7) // 8 * 8]
    get_codes(packed[begin : begin + (length * bits + 7) // 8], bits, room)
    most = np.uint8(0)
    for i in range(room.size):
        most = max(most, room[i])
    return most


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
    """The norm of one long bucket."""
    if maximum:
        found = np.zeros(bucket_count(values.size, SUM_BLOCK), dtype=np.uint32)
        in_parallel(block_magnitudes, values.size, values, found)
        return np.float32(found.max().view(np.float32))
    sums = partial_sums(values.size)
    in_parallel(block_squares, values.size, values, sums)
    return np.float32(_root(float(sums.sum())))


@loop
def round_bucket(
    values: Any, norm: np.float32, fractions: Any, steps: np.float32, bound: np.float32, codes: Any
) -> None:
    """Elements of one bucket to codes q + s, uint8; all arrays of the same length.

    `fractions` are 16 random bits each; elements beyond the bound or the norm saturate there.
    """
    one = np.float32(1)
    if norm == np.float32(0):
        norm = one
    for i in range(values.size):
        share = min(max(values[i], -bound), bound) / norm
        level = min(max(share, -one), one) * steps  # -s … s
        # up with the probability of the rest: the fraction is uniform on 2^-17, 3 2^-17, …
        level = np.floor(level + (np.float32(fractions[i]) * _UNIT + _HALF))
        codes[i] = np.uint8(np.int32(level + steps))


@loop
def _tile_codes(
    start: int, stop: int, tiles: Any, values: Any, table: Any, norms: Any, cells: Any, sizes: Any,
    keys: Any, bounds: Any, steps: np.float32, bits: int, out: Any, places: Any,
) -> None:  # fmt: skip
    words = np.empty(CHUNK // 4, dtype=np.uint64)
    fractions = words.view(np.uint16)
    codes = np.empty(CHUNK, dtype=np.uint8)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        own = values[table[t, 0] : table[t, 0] + table[t, 1]]
        size, norm, bound = sizes[t], norms[cells[t] :], bounds[t]
        packed = out[places[t] : places[t] + (own.size * bits + 7) // 8]
        for first in range(start_of, stop_of, CHUNK):
            last = min(first + CHUNK, stop_of)
            random_fractions(keys[t], first, words[: (last - first + 3) // 4])
            at = first  # a chunk may hold several cells, or lie within one
            while at < last:
                cell = at // size
                end = min((cell + 1) * size, last)
                some = slice(at - first, end - first)
                round_bucket(own[at:end], norm[cell], fractions[some], steps, bound, codes[some])
                at = end
            put_chunk(codes, last - first, bits, first, packed)


@loop
def _add_tiles(
    start: int, stop: int, tiles: Any, data: Any, places: Any, table: Any, norms: Any, cells: Any,
    sizes: Any, steps: np.float32, weight: np.float32, bits: int, out: Any, highest: Any,
) -> None:  # fmt: skip
    codes = np.empty(CHUNK, dtype=np.uint8)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        own = out[table[t, 0] : table[t, 0] + table[t, 1]]
        packed = data[places[t] : places[t] + (own.size * bits + 7) // 8]
        size, norm = sizes[t], norms[cells[t] :]
        most = np.int64(0)
        for first in range(start_of, stop_of, CHUNK):
            last = min(first + CHUNK, stop_of)
            most = max(most, np.int64(get_chunk(packed, first, last - first, bits, codes)))
            at = first  # a chunk may hold several cells, or lie within one
            while at < last:
                cell = at // size
                end = min((cell + 1) * size, last)
                _add_scaled(
                    own[at:end], codes[at - first : end - first], steps, weight * norm[cell]
                )
                at = end
        used = own.size * bits % 8
        if stop_of == own.size and used > 0 and packed[-1] >> np.uint8(used) > 0:
            most = np.int64(STRAY)
        highest[tile] = most


@loop
def _add_scaled(out: Any, codes: Any, steps: np.float32, factor: np.float32) -> None:
    for i in range(out.size):
        out[i] += (np.float32(codes[i]) - steps) * factor
