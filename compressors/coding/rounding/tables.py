"""Random rounding to a table of levels that all workers know.

Buckets of `size` consecutive elements share a norm; r = v / norm, in [-1, 1], becomes one of the
two levels next to it, lo <= r <= hi, hi with probability (r - lo) / (hi - lo). The mean is then r
and the variance (r - lo) (hi - r): over a tensor, E|Q(v) - v|^2 = sum norm^2 (r - lo) (hi - r).

A code is the number of a level in the ascending table, which begins with -1 and ends with 1. With
one random u for all levels it is the number of pairs of neighbours with lo + u (hi - lo) < r: all
pairs below r count, none above it does. u has 16 bits, as in `levels.py`, and with it the mean of
a code is right to 2^-17.

A frame holds the norms (float32) and the codes of `bits` bits; no table travels. Where workers
know several, the frame's flags say which one its codes are of: flags = bits + 16 number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.packing import (
    damaged,
    demand_no_stray,
    packed_bytes,
    stray_bits,
)
from gcsim.compressors.coding.rounding.levels import (
    CHUNK,
    STRAY,
    Norm,
    cell_norms,
    get_chunk,
    put_chunk,
    random_fractions,
)
from gcsim.compressors.coding.rounding.truncated_normals import Numbers, last_not_above
from gcsim.compressors.coding.scans import moments
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Cells, Column, Segments, keys_of
from gcsim.errors import InputError

Levels = NDArray[np.float32]

MAX_BITS = 8
_NUMBER_AT = 4
"""Bits of a frame's flags before the table's number: widths up to `MAX_BITS` fit them."""
COUNTED = 32
"""Tables of up to that many levels are searched by counting, longer ones from a cell on."""
_CELL_BITS = 18
"""A cell is a range of float32 numbers that differ in their lowest bits only."""
_TOGETHER = 4
"""Pairs of levels that are counted at a time."""


def exponential_levels(bits: int, multiplier: float, *, zero: bool) -> Levels:
    """Levels ±1, ±p, ±p^2, …, ascending, p the multiplier: float32.

    Without zero 2^bits levels, the smallest magnitude p^(2^(bits-1) - 1); with zero 2^bits - 1,
    and the smallest is p^(2^(bits-1) - 2).
    """
    magnitudes = multiplier ** np.arange(2 ** (bits - 1) - zero, dtype=np.float64)
    return np.concatenate((-magnitudes, [0.0] * zero, magnitudes[::-1])).astype(np.float32)


class TableParameters(CompressorParameters):
    """What every method with a table of levels that all workers know lets choose."""

    bits: int = Field(4, ge=2, le=MAX_BITS, description="of an element's code")
    bucket: int | None = Field(
        1024,
        ge=1,
        le=65535,
        description="elements that share one norm (32 bits a bucket); null: one norm a tensor",
    )
    norm: Norm = Field("l2", description="a bucket's norm: l2 (the paper's), or its maximum |v|")


def encode_message(
    bucket: Bucket, tables: Sequence[Levels], chosen: TableParameters, worker: Worker, step: int,
    purpose: str, numbered: Mapping[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """The message of a bucket's gradient: uint8, one frame a tensor; `purpose`: of the key.

    `numbered`: of tensors' tables, by the tensor's index; the first where it says nothing.
    """
    gradient, layout, bits = bucket.gradient, bucket.layout, chosen.bits
    segments, known = Segments.of(layout), numbered or {}
    cells = segments.cells(chosen.bucket)
    numbers = np.array([known.get(piece.index, 0) for piece in layout.slices])
    keys = keys_of(layout, worker.seed, step, purpose, worker.rank)
    norms = cell_norms(gradient, cells, chosen.norm)
    head, tail = 4 * cells.count, packed_bytes(segments.length, bits)
    flags, params = bits | numbers << _NUMBER_AT, chosen.bucket or 0
    message, at = frames(
        gradient,
        Codec.TABLE,
        segments,
        head + tail,
        flags=flags,
        params=params,
        fixed=numbered is None,
    )
    put(message, at, norms, head)
    levels = np.stack(tables)
    round_to_table(gradient, cells, norms, levels, numbers, keys, message, at + head, bits=bits)
    return seal(message, at, head + tail)


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, tables: Sequence[Levels],
    chosen: TableParameters,
) -> None:  # fmt: skip
    """Add what `encode_message` made; `InputError` for another width or bucket length, too."""
    segments, found = Segments.of(layout), read(message, layout, Codec.TABLE)
    bits, size = chosen.bits, chosen.bucket or 0
    numbers, widths = np.divmod(found.flags, 1 << _NUMBER_AT)
    wrong = (widths != bits) | (found.params != size) | (numbers >= len(tables))
    for width, number, params in zip(
        widths[wrong], numbers[wrong], found.params[wrong], strict=True
    ):
        raise InputError(
            f"damaged payload: codes of {width} bits into table {number}, {params} elements "
            f"a norm; expected {bits} bits, {len(tables)} tables and {size}"
        )
    cells = segments.cells(chosen.bucket)
    head = 4 * cells.count
    found.demand_sizes(head + packed_bytes(segments.length, bits))
    norms, levels = taken(message, found.at, head, torch.float32), np.stack(tables)
    given = cells, norms, levels, numbers, message, found.at + head
    add_from_table(out, *given, bits=bits, weight=weight)


def table_error(values: Tensor, levels: Levels, *, size: int | None, norm: Norm) -> float:
    """E|Q(v) - v|^2 of float32 `[n]`: sum norm^2 (r - lo) (hi - r), in float64."""
    cells = Segments.alone(values.numel()).cells(size)
    return float(table_errors(values, cells, cell_norms(values, cells, norm), levels)[0])


# --- primitives: all tensors of a bucket ---------------------------------------------------------


def _rounding(
    _: object, values: object, cells: Cells, norms: object, levels: object, numbers: object,
    keys: object, out: object, at: object, *, bits: int,
) -> Iterator[KernelCost]:  # fmt: skip
    n, size = cells.segments.length, packed_bytes(cells.segments.length, bits)
    most = np.maximum(n, cells.count)
    yield drawn("tables.encode_table", n, 16)
    yield launch("streaming", "tables.encode_table", most, 4 * n, 4 * cells.count, size)


@counted_as(_rounding)
@primitive
def round_to_table(
    values: Tensor, cells: Cells, norms: Tensor, levels: Levels, numbers: Column,
    keys: NDArray[np.uint64], out: Tensor, at: Column, *, bits: int,
) -> None:  # fmt: skip
    """Round elements at random to levels times a norm, and write their codes; in one pass.

    Parameters
    ----------
    values : flat float32 of the cells' table
    norms : float32 `[cells]`; larger elements saturate at their cell's norm
    levels : float32 `[tables, levels]`, each ascending from -1 to 1, at most 2^bits
    numbers : of each tensor's table
    keys : of each tensor's random bits (`random_key`)
    out, at : uint8 that is written to; first byte of each tensor, whose ceil(n bits / 8) bytes are
        laid out as `packing.pack_bits` does
    bits : of a code, 1 to 8
    """
    data, segments = np.ascontiguousarray(array(values)), cells.segments
    rows = [_search_of(own.tobytes()) for own in levels]
    lower, gaps, first, most = (np.stack(each) for each in zip(*rows, strict=True))
    with written_back(out) as target:
        in_tiles(
            _encode, segments.tiles, data, segments.table, array(norms), cells.first, cells.size,
            lower, gaps, first, most, numbers, keys, bits, target, at,
        )  # fmt: skip


def _adding(
    _: object, out: object, cells: Cells, norms: object, levels: object, numbers: object,
    packed: object, at: object, *, bits: int, weight: float,
) -> Iterator[KernelCost]:  # fmt: skip
    n, size = cells.segments.length, packed_bytes(cells.segments.length, bits)
    most = np.maximum(n, cells.count)
    yield launch("streaming", "tables.add_table", most, 8 * n, size, 4 * cells.count)


@counted_as(_adding)
@primitive
def add_from_table(
    out: Tensor, cells: Cells, norms: Tensor, levels: Levels, numbers: Column, packed: Tensor,
    at: Column, *, bits: int, weight: float,
) -> None:  # fmt: skip
    """out += weight * norm * level, in place: undoes `round_to_table` in one pass.

    Raises `InputError` for stray bits, or a code behind the last level; `out` is then worthless.
    """
    data, segments = np.ascontiguousarray(array(packed)), cells.segments
    demand_no_stray(data, at, segments.length, bits)
    table = np.zeros((len(levels), 1 << MAX_BITS), dtype=np.float32)
    table[:, : levels.shape[1]] = levels
    highest = np.zeros(len(segments.tiles), dtype=np.uint8)
    with written_back(out) as target:
        in_tiles(
            _add, segments.tiles, data, at, segments.table, array(norms), cells.first, cells.size,
            table, numbers, bits, np.float32(weight), target, highest,
        )  # fmt: skip
    demand_codes(int(highest.max(initial=0)), levels.shape[1])


def demand_codes(highest: int, levels: int) -> None:
    """`InputError` for a code behind the last level; `STRAY`: for bits behind the last code."""
    if highest >= STRAY:
        raise stray_bits()
    if highest >= levels:
        raise damaged(f"code {highest} into a table of {levels} levels")


def _measuring(
    _: object, values: object, cells: Cells, norms: object, levels: object
) -> Iterator[KernelCost]:
    n, count = cells.segments.length, cells.count
    yield launch("reduction", "tables.rounding_error", np.maximum(n, count), 4 * n, 4 * count)


@counted_as(_measuring)
@primitive
def table_errors(values: Tensor, cells: Cells, norms: Tensor, levels: Levels) -> Numbers:
    """`table_error` of each tensor of a flat float32: float64 `[tensors]`."""
    data, sums = np.ascontiguousarray(array(values)), np.zeros(cells.total)
    in_tiles(
        _add_errors, cells.tiles, data, cells.segments.table, array(norms), cells.first, cells.size,
        levels.astype(np.float64), sums,
    )  # fmt: skip
    parts = zip(cells.first.tolist(), cells.count.tolist(), strict=True)
    return np.array([float(sums[first : first + count].sum()) for first, count in parts])


def _summing(_: object, values: object, cells: Cells) -> Iterator[KernelCost]:
    n, count = cells.segments.length, cells.count
    most = np.maximum(n, 2 * count)
    yield launch("reduction", "adaptive_levels.bucket_sums", most, 4 * n, 16 * count)


@counted_as(_summing)
@primitive
def cell_sums(values: Tensor, cells: Cells) -> Tensor:
    """Sum of the elements and of their squares of each cell: float64 `[cells, 2]`."""
    data, sums = np.ascontiguousarray(array(values)), np.zeros((cells.total, 2))
    given = data, cells.segments.table, cells.first, cells.size, sums
    in_tiles(_cell_sums, cells.tiles, *given)
    return tensor(sums, values)


@lru_cache(maxsize=1 << 6)
def _search_of(content: bytes) -> tuple[Levels, Levels, NDArray[np.uint8], int]:
    """(lower levels of pairs; gaps; `_cells`) of a table."""
    levels = np.frombuffer(content, dtype=np.float32)
    pairs = levels.size - 1
    room = 1 << MAX_BITS if levels.size > COUNTED else -(-pairs // _TOGETHER) * _TOGETHER
    lower = np.full(room, np.inf, dtype=np.float32)  # a pair at infinity is below no element
    gaps = np.zeros(room, dtype=np.float32)
    lower[:pairs], gaps[:pairs] = levels[:-1], np.diff(levels)
    return lower, gaps, *_cells(lower)


def _cells(lower: Levels) -> tuple[NDArray[np.uint8], int]:
    """By cell: the last level that none of its numbers is below; and the most levels in a cell."""
    if lower.size <= COUNTED:
        return np.zeros(0, dtype=np.uint8), 0
    first = np.arange(1 << (32 - _CELL_BITS), dtype=np.uint32) << np.uint32(_CELL_BITS)
    least = first.view(np.float32)
    greatest = (first | np.uint32((1 << _CELL_BITS) - 1)).view(np.float32)
    with np.errstate(invalid="ignore"):  # some cells hold NaN
        least, greatest = np.minimum(least, greatest), np.maximum(least, greatest)
        inside = np.abs(least) <= 1  # no other number occurs
    start = np.where(inside, np.searchsorted(lower, least, side="right") - 1, 0).clip(min=0)
    last = np.where(inside, np.searchsorted(lower, greatest, side="right") - 1, 0).clip(min=0)
    return start.astype(np.uint8), int((last - start).max())


@loop
def _encode(
    start: int, stop: int, tiles: Any, values: Any, table: Any, norms: Any, firsts: Any, sizes: Any,
    lowers: Any, gaps: Any, cells: Any, most: Any, tables: Any, keys: Any, bits: int, out: Any,
    at: Any,
) -> None:  # fmt: skip
    words = np.empty(CHUNK // 4, dtype=np.uint64)
    fractions = words.view(np.uint16)
    shares = np.empty(CHUNK, dtype=np.float32)
    random = np.empty(CHUNK, dtype=np.float32)
    numbers = np.empty(CHUNK, dtype=np.int32)
    codes = np.empty(CHUNK, dtype=np.uint8)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        begin, n = table[t]
        own, norm, size = values[begin : begin + n], norms[firsts[t] :], sizes[t]
        packed = out[at[t] : at[t] + (n * bits + 7) // 8]
        lower, gap = lowers[tables[t]], gaps[tables[t]]
        for first in range(start_of, stop_of, CHUNK):
            last = min(first + CHUNK, stop_of)
            length = last - first
            random_fractions(keys[t], first, words[: (length + 3) // 4])
            place = first
            while place < last:
                cell = place // size
                end = min((cell + 1) * size, last)
                _divide(own[place:end], norm[cell], shares[place - first : end - first])  # -1 … 1
                place = end
            for i in range(length):
                random[i] = np.float32(fractions[i]) * np.float32(2.0**-16) + np.float32(2.0**-17)
            if lower.size > COUNTED:
                _search(
                    shares[:length], random, lower, gap, cells[tables[t]], most[tables[t]], numbers
                )
            else:
                _count(shares[:length], random, lower, gap, numbers)
            for i in range(length):
                codes[i] = np.uint8(numbers[i])
            put_chunk(codes, length, bits, first, packed)


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


@loop
def _divide(values: Any, norm: np.float32, shares: Any) -> None:
    one = np.float32(1)
    if norm == np.float32(0):
        norm = one
    for i in range(values.size):
        shares[i] = min(max(values[i] / norm, -one), one)


@loop
def _count(shares: Any, random: Any, lower: Any, gaps: Any, numbers: Any) -> None:
    # a code is the number of pairs whose random point between two levels is below the share;
    # four pairs at a time, each over the whole chunk: vectorised, and without a search
    for i in range(shares.size):
        numbers[i] = 0
    for pair in range(0, lower.size, _TOGETHER):
        low = lower[pair : pair + _TOGETHER]
        gap = gaps[pair : pair + _TOGETHER]
        low0, low1, low2, low3 = low[0], low[1], low[2], low[3]
        gap0, gap1, gap2, gap3 = gap[0], gap[1], gap[2], gap[3]
        for i in range(shares.size):
            share, u = shares[i], random[i]
            found = np.int32(low0 + u * gap0 < share) + np.int32(low1 + u * gap1 < share)
            found += np.int32(low2 + u * gap2 < share) + np.int32(low3 + u * gap3 < share)
            numbers[i] += found


@loop
def _search(
    shares: Any, random: Any, lower: Any, gaps: Any, cells: Any, most: int, numbers: Any
) -> None:
    bits = shares.view(np.uint32)
    for i in range(shares.size):  # a share's highest bits name a cell of few levels
        numbers[i] = cells[bits[i] >> np.uint32(_CELL_BITS)]
    for _ in range(most):
        for i in range(shares.size):
            numbers[i] += np.int32(lower[numbers[i] + 1] <= shares[i])
    for i in range(shares.size):
        below = lower[numbers[i]] + random[i] * gaps[numbers[i]] < shares[i]
        numbers[i] += np.int32(below)


@loop
def _add(
    start: int, stop: int, tiles: Any, data: Any, at: Any, table: Any, norms: Any, firsts: Any,
    sizes: Any, levels: Any, tables: Any, bits: int, weight: np.float32, out: Any, highest: Any,
) -> None:  # fmt: skip
    codes = np.empty(CHUNK, dtype=np.uint8)
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        begin, n = table[t]
        own, norm, size = out[begin : begin + n], norms[firsts[t] :], sizes[t]
        packed = data[at[t] : at[t] + (n * bits + 7) // 8]
        most = np.uint8(0)
        for first in range(start_of, stop_of, CHUNK):
            last = min(first + CHUNK, stop_of)
            most = max(most, get_chunk(packed, first, last - first, bits, codes))
            place = first
            while place < last:
                cell = place // size
                end = min((cell + 1) * size, last)
                some = codes[place - first : end - first]
                _add_scaled(own[place:end], some, levels[tables[t]], weight * norm[cell])
                place = end
        highest[tile] = most


@loop
def _add_scaled(out: Any, codes: Any, table: Any, factor: np.float32) -> None:
    for i in range(out.size):
        out[i] += table[codes[i]] * factor
