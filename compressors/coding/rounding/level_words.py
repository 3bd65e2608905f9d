"""Elias' omega code of levels, of which most are zero, with signs.

| code   | what travels                                                                         |
|--------|--------------------------------------------------------------------------------------|
| dense  | of every element omega(|q| + 1), then one bit for the sign unless q = 0              |
| sparse | of each element with q != 0: omega(gap), sign, omega(|q|); gap is the distance to the |
|        | one before, of the first the distance to element -1                                  |

Levels are given as codes q + s, as `levels.py` makes them; a set sign bit says negative. Words
follow each other bit after bit, as in `elias.py`.

Written in parallel: the bits of each block of elements are counted first, so that every block
knows where it begins; the bytes that two blocks share are joined at the end. A reader cannot know
where the middle is: dense words are read several at a time with a table of all that twelve bits
may hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.elias import (
    PEEK,
    check_end,
    get_omega,
    next_bits,
    omega_bits,
    put_bits,
    put_omega,
)
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts, tiles_of
from gcsim.errors import InputError

WordCoding = str
"""Dense or sparse words: elias_dense, elias_sparse."""
Coded = tuple[Tensor, Column, Column]
_BLOCK = 1 << 14
_ROOM = 8
"""Words that are read at a time, at most."""


def _launches(
    coding: WordCoding, dense: str, sparse: str, lengths: Column, sizes: Column
) -> list[KernelCost]:
    """A pass over codes, a byte each, and bodies."""
    if coding == "elias_dense":
        return [launch("streaming", dense, lengths, lengths, sizes)]
    name = f"{sparse}:{spread(int(np.maximum(lengths, sizes).max(initial=0)))}"
    return [launch("gather_scatter", name, lengths, lengths, sizes)]


@counted_as(
    lambda coded, codes, segments, steps, coding: _launches(
        coding, "level_words.encode_dense", "level_words.encode_sparse", segments.length, coded[1]
    )
)
@primitive
def coded_levels(codes: Tensor, segments: Segments, steps: int, coding: WordCoding) -> Coded:
    """(bodies, one behind the other, uint8; bytes of each; elements of each that travel).

    `codes` are q + s, uint8, one tensor's behind the other's.
    """
    data, begins = array(codes), starts(segments.length)
    tiles = tiles_of(segments.length, segments.column(_BLOCK))
    nonzero, first, last, bits, before = np.zeros((5, len(tiles)), dtype=np.int64)
    words = np.zeros((2, 256), dtype=np.uint64)
    if coding == "elias_dense":
        _dense_words(steps, words)
        in_tiles(_count_dense, tiles, data, begins, words[1].astype(np.int64), bits)
        sent = segments.length
    else:
        in_tiles(_count_sparse, tiles, data, begins, steps, nonzero, first, last, bits)
        _carry(tiles, first, last, before, bits)
        sent = _by_tensor(tiles, nonzero, segments)
    total = _by_tensor(tiles, bits, segments)
    sizes = packed_bytes(total, 1)
    place = starts(bits) + (8 * starts(sizes) - starts(total))[tiles[:, 0]]  # first bit of a tile
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    edges = np.zeros((len(tiles), 2), dtype=np.uint8)
    if coding == "elias_dense":
        in_tiles(_write_dense, tiles, data, begins, words, place, bits, out, edges)
    else:
        in_tiles(_write_sparse, tiles, data, begins, steps, before, place, bits, out, edges)
    _join(place, bits, edges, out)
    return tensor(out, codes), sizes, sent


@counted_as(
    lambda _, body, sizes, segments, sent, steps, coding: _launches(
        coding, "level_words.decode_dense", "level_words.decode_sparse", segments.length, sizes
    )
)
@primitive
def decoded_levels(
    body: Tensor, sizes: Column, segments: Segments, sent: Column, steps: int, coding: WordCoding
) -> Tensor:
    """Undo `coded_levels`: uint8.

    Raises `InputError` unless each body holds exactly its words, of levels up to s, padded with
    zeros to a whole byte.
    """
    data, length, at = np.ascontiguousarray(array(body)), segments.length, starts(sizes)
    table = np.zeros((3, 0), dtype=np.uint64)
    if coding == "elias_dense":
        if (length > 8 * sizes).any():
            raise InputError(f"damaged payload: {sizes} bytes for {length} levels")
        table = np.zeros((3, 1 << PEEK), dtype=np.uint64)
        _reading_table(steps, table)
    codes = np.full(int(length.sum()), steps, dtype=np.uint8)
    ends = np.zeros(len(sizes), dtype=np.int64)
    whole = np.stack((np.arange(len(length)), np.zeros_like(length), length), axis=1)
    in_tiles(_read, whole, data, at, sizes, steps, sent, table, codes, starts(length), ends)
    for first, size, end in zip(at.tolist(), sizes.tolist(), ends.tolist(), strict=True):
        check_end(data[first : first + size], end)
    return tensor(codes, body)


def _by_tensor(tiles: NDArray[np.int64], counts: Column, segments: Segments) -> Column:
    """The sum over the tiles of each tensor."""
    found = np.zeros(len(segments.length), dtype=np.int64)
    np.add.at(found, tiles[:, 0], counts)
    return found


# --- writing --------------------------------------------------------------------------------------


@loop
def _dense_words(steps: int, words: Any) -> None:
    """Fill in the word of each code and its length in bits."""
    room = np.zeros(8, dtype=np.uint8)
    for code in range(2 * steps + 1):
        room[:] = 0
        end = put_omega(room, 0, abs(code - steps) + 1)
        if code < steps:
            end = put_bits(room, end, 1, 1)
        elif code > steps:
            end += 1
        words[0, code] = room.view(np.uint64)[0]
        words[1, code] = np.uint64(end)


@loop
def _count_dense(
    start: int, stop: int, tiles: Any, codes: Any, begins: Any, lengths: Any, bits: Any
) -> None:
    for tile in range(start, stop):
        part = _own(codes, begins, tiles[tile])
        total = 0
        for i in range(part.size):
            total += lengths[part[i]]
        bits[tile] = total


@loop
def _own(codes: Any, begins: Any, tile: Any) -> Any:
    """The codes of a tile."""
    begin = begins[tile[0]]
    return codes[begin + tile[1] : begin + tile[2]]


@loop
def _write_dense(
    start: int, stop: int, tiles: Any, codes: Any, begins: Any, words: Any, place: Any, bits: Any,
    out: Any, edges: Any,
) -> None:  # fmt: skip
    room = np.zeros(_BLOCK + 1, dtype=np.uint32)  # no word is longer than 32 bits
    for tile in range(start, stop):
        part = _own(codes, begins, tiles[tile])
        filled = np.uint64(place[tile]) & np.uint64(7)  # bits of the tile before, in its byte
        word = np.uint64(0)
        at = np.uint64(0)
        for i in range(part.size):
            word |= words[0, part[i]] << filled
            filled += words[1, part[i]]
            room[at] = np.uint32(word & np.uint64(0xFFFFFFFF))
            # no branch: with 32 bits or more, those written are dropped and `at` goes on
            word >>= filled & np.uint64(32)
            at += filled >> np.uint64(5)
            filled &= np.uint64(31)
        room[at] = np.uint32(word & np.uint64(0xFFFFFFFF))
        _put_block(room.view(np.uint8), place[tile], bits[tile], out, edges[tile])


@loop
def _count_sparse(
    start: int, stop: int, tiles: Any, codes: Any, begins: Any, steps: int, nonzero: Any,
    first: Any, last: Any, bits: Any,
) -> None:  # fmt: skip
    """Count for each tile: levels that are not zero, places of the first and the last (-1: none),
    and bits of the words but for the first gap."""
    for tile in range(start, stop):
        part = _own(codes, begins, tiles[tile])
        previous = first[tile] = -1
        total = found = 0
        for i in range(part.size):
            if part[i] != steps:
                total += 1 + omega_bits(abs(np.int64(part[i]) - steps))
                if previous < 0:
                    first[tile] = tiles[tile, 1] + i
                else:
                    total += omega_bits(i - previous)
                previous = i
                found += 1
        bits[tile], nonzero[tile] = total, found
        last[tile] = tiles[tile, 1] + previous if found > 0 else -1


@loop
def _carry(tiles: Any, first: Any, last: Any, before: Any, bits: Any) -> None:
    """Add the bits of first gaps; where the level before a tile is that is not zero (-1: none)."""
    for tile in range(tiles.shape[0]):
        before[tile] = -1
        if tiles[tile, 1] > 0:
            before[tile] = last[tile - 1] if last[tile - 1] >= 0 else before[tile - 1]
        if first[tile] >= 0:
            bits[tile] += omega_bits(first[tile] - before[tile])


@loop
def _write_sparse(
    start: int, stop: int, tiles: Any, codes: Any, begins: Any, steps: int, before: Any, place: Any,
    bits: Any, out: Any, edges: Any,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        part = _own(codes, begins, tiles[tile])
        position = place[tile] % 8
        room = np.zeros(bits[tile] // 8 + 16, dtype=np.uint8)
        previous = before[tile] - tiles[tile, 1]
        for i in range(part.size):
            level = np.int64(part[i]) - steps
            if level != 0:
                position = put_omega(room, position, i - previous)
                position = put_bits(room, position, np.int64(level < 0), 1)
                position = put_omega(room, position, abs(level))
                previous = i
        _put_block(room, place[tile], bits[tile], out, edges[tile])


@loop
def _put_block(room: Any, place: int, bits: int, out: Any, edges: Any) -> None:
    """A tile's bytes, which begin inside of `room`'s first, to their place in `out`.

    The first and the last, which other tiles may share, to `edges`.
    """
    first = place // 8
    size = (place + bits + 7) // 8 - first
    if bits > 0:
        edges[0] = room[0]
        if size > 1:
            edges[1] = room[size - 1]
            inner = out[first + 1 : first + size - 1]
            for i in range(inner.size):
                inner[i] = room[i + 1]


@loop
def _join(place: Any, bits: Any, edges: Any, out: Any) -> None:
    for tile in range(bits.size):
        if bits[tile] > 0:
            out[place[tile] // 8] |= edges[tile, 0]
            out[(place[tile] + bits[tile] + 7) // 8 - 1] |= edges[tile, 1]


# --- reading --------------------------------------------------------------------------------------


@loop
def _reading_table(steps: int, table: Any) -> None:
    """Fill in, by the next bits: codes of the words that they hold, how many, and their length."""
    words = np.zeros((2, 256), dtype=np.uint64)
    _dense_words(steps, words)
    single = np.zeros(1 << PEEK, dtype=np.int64)  # code + 1 of the first word, 0: too long
    for code in range(2 * steps + 1):
        length = words[1, code]
        if length <= np.uint64(PEEK):
            step = 1 << np.int64(length)
            for bits in range(np.int64(words[0, code]), 1 << PEEK, step):
                single[bits] = code + 1
    for bits in range(1 << PEEK):
        used = np.uint64(0)
        count = 0
        codes = np.uint64(0)
        while count < _ROOM:
            code = single[np.uint64(bits) >> used] - 1
            if code < 0 or used + words[1, code] > np.uint64(PEEK):
                break
            codes |= np.uint64(code) << np.uint64(8 * count)
            used += words[1, code]
            count += 1
        table[0, bits] = codes
        table[1, bits] = np.uint64(count)
        table[2, bits] = used


@loop
def _read_dense(packed: Any, steps: int, table: Any, codes: Any) -> Any:
    """Position behind the last word, -1 for a level above s or a word that does not end."""
    limit = 8 * packed.size
    position: Any = 0
    i: Any = 0
    while i < codes.size:
        if i + _ROOM <= codes.size and position + 24 <= limit:
            entry = next_bits(packed, position)
            if table[1, entry] > 0:  # whole words: up to `_ROOM` codes at once, some of them spare
                found = table[0, entry]
                for j in range(_ROOM):
                    codes[i + j] = np.uint8((found >> np.uint64(8 * j)) & np.uint64(255))
                i += np.int64(table[1, entry])
                position += np.int64(table[2, entry])
                continue
        value, position = get_omega(packed, position, limit)
        if position < 0 or value > steps + 1:
            return -1
        level = value - 1
        if level > 0:
            if position >= limit:
                return -1
            if (packed[position >> 3] >> (position & 7)) & 1:
                level = -level
            position += 1
        codes[i] = np.uint8(level + steps)
        i += 1
    return position


@loop
def _read_sparse(packed: Any, nonzero: int, steps: int, codes: Any) -> int:
    """Read like `_read_dense`, -1 also for an element behind the last; `codes` are preset to s."""
    limit = 8 * packed.size
    position = 0
    at = -1
    for _ in range(nonzero):
        gap, position = get_omega(packed, position, limit)
        at += gap
        if position < 0 or at >= codes.size or position >= limit:
            return -1
        negative = (packed[position >> 3] >> (position & 7)) & 1
        level, position = get_omega(packed, position + 1, limit)
        if position < 0 or level > steps:
            return -1
        codes[at] = np.uint8(steps - level if negative else steps + level)
    return position


@loop
def _read(
    start: int, stop: int, tensors: Any, data: Any, at: Any, sizes: Any, steps: int, sent: Any,
    table: Any, codes: Any, begins: Any, ends: Any,
) -> None:  # fmt: skip
    for t in range(start, stop):
        body, own = data[at[t] : at[t] + sizes[t]], codes[begins[t] : begins[t] + tensors[t, 2]]
        if table.shape[1] > 0:
            ends[t] = _read_dense(body, steps, table, own)
        else:
            ends[t] = _read_sparse(body, sent[t], steps, own)
