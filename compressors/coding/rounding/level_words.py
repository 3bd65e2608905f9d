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
from gcsim.compressors.loops import in_tiles, loop
from gcsim.compressors.segments import Column, Segments, starts, tiles_of
from gcsim.errors import InputError

_BLOCK = 1 << 14
_ROOM = 8
"""Words that are read at a time, at most."""


Bytes = NDArray[np.uint8]


def dense_words(codes: Bytes, segments: Segments, steps: int) -> tuple[Bytes, Column]:
    """(bodies of dense words of codes q + s, each in [0, 2s], one behind the other; bytes of each).

    `codes` are those of a bucket, one tensor's behind the other's.
    """
    words = np.zeros((2, 256), dtype=np.uint64)
    _dense_words(steps, words)
    tiles, begins = _blocks(segments)
    bits = np.zeros(len(tiles), dtype=np.int64)
    in_tiles(_count_dense, tiles, codes, begins, words[1].astype(np.int64), bits)
    return _written(tiles, bits, segments, _write_dense, codes, begins, words)


def sparse_words(codes: Bytes, segments: Segments, steps: int) -> tuple[Bytes, Column, Column]:
    """`dense_words`, but of sparse words; and the number of levels of each that are not zero."""
    tiles, begins = _blocks(segments)
    nonzero, last, bits, before = np.zeros((4, len(tiles)), dtype=np.int64)
    in_tiles(_find, tiles, codes, begins, steps, nonzero, last)
    _carry(tiles, last, before)
    in_tiles(_count_sparse, tiles, codes, begins, steps, before, bits)
    given = codes, begins, steps, before
    body, sizes = _written(tiles, bits, segments, _write_sparse, *given)
    return body, sizes, _by_tensor(tiles, nonzero, segments)


def read_dense(body: Bytes, sizes: Column, segments: Segments, steps: int) -> Bytes:
    """Undo `dense_words`.

    Raises `InputError` unless each body holds exactly its words, of levels up to s, padded with
    zeros to a whole byte.
    """
    if (segments.length > 8 * sizes).any():
        raise InputError(f"damaged payload: {sizes} bytes for {segments.length} levels")
    table = np.zeros((3, 1 << PEEK), dtype=np.uint64)
    _reading_table(steps, table)
    return _read(body, sizes, segments, _dense_tensors, steps, table)


def read_sparse(body: Bytes, sizes: Column, segments: Segments, sent: Column, steps: int) -> Bytes:
    """Undo `sparse_words`; `InputError` as for `read_dense`."""
    return _read(body, sizes, segments, _sparse_tensors, steps, sent)


def _blocks(segments: Segments) -> tuple[NDArray[np.int64], Column]:
    """(tiles that are written at a time; where the codes of each tensor begin)."""
    return tiles_of(segments.length, segments.column(_BLOCK)), starts(segments.length)


def _by_tensor(tiles: NDArray[np.int64], counts: Column, segments: Segments) -> Column:
    """The sum over the tiles of each tensor."""
    found = np.zeros(len(segments.length), dtype=np.int64)
    np.add.at(found, tiles[:, 0], counts)
    return found


def _written(
    tiles: NDArray[np.int64], bits: Column, segments: Segments, write: Any, *given: Any
) -> tuple[Bytes, Column]:
    """(bodies, of tiles that have so many bits; bytes of each)."""
    total = _by_tensor(tiles, bits, segments)
    sizes = packed_bytes(total, 1)
    place = starts(bits) + (8 * starts(sizes) - starts(total))[tiles[:, 0]]  # first bit of a tile
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    edges = np.zeros((len(tiles), 2), dtype=np.uint8)
    in_tiles(write, tiles, *given, place, bits, out, edges)
    _join(place, bits, edges, out)
    return out, sizes


def _read(
    body: Bytes, sizes: Column, segments: Segments, read: Any, steps: int, known: Any
) -> Bytes:
    """The codes, which `read` reads tensor by tensor."""
    length, at = segments.length, starts(sizes)
    codes = np.full(int(length.sum()), steps, dtype=np.uint8)
    ends = np.zeros(len(sizes), dtype=np.int64)
    whole = np.stack((np.arange(len(length)), np.zeros_like(length), length), axis=1)
    in_tiles(read, whole, body, at, sizes, steps, known, codes, starts(length), ends)
    for first, size, end in zip(at.tolist(), sizes.tolist(), ends.tolist(), strict=True):
        check_end(body[first : first + size], end)
    return codes


# --- writing --------------------------------------------------------------------------------------


@loop
def _dense_words(steps: int, words: Any) -> None:
    """By code: the word and its length in bits."""
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
def _find(
    start: int, stop: int, tiles: Any, codes: Any, begins: Any, steps: int, nonzero: Any, last: Any
) -> None:
    """By tile: how many levels are not zero, and where the last of them is (-1: none)."""
    for tile in range(start, stop):
        part = _own(codes, begins, tiles[tile])
        found = 0
        for i in range(part.size):
            found += part[i] != steps
        at = part.size - 1
        while at >= 0 and part[at] == steps:
            at -= 1
        nonzero[tile] = found
        last[tile] = tiles[tile, 1] + at if at >= 0 else -1


@loop
def _carry(tiles: Any, last: Any, before: Any) -> None:
    """By tile: where the last level of its tensor before it is that is not zero (-1: none)."""
    for tile in range(tiles.shape[0]):
        before[tile] = -1
        if tiles[tile, 1] > 0:
            before[tile] = last[tile - 1] if last[tile - 1] >= 0 else before[tile - 1]


@loop
def _count_sparse(
    start: int, stop: int, tiles: Any, codes: Any, begins: Any, steps: int, before: Any, bits: Any
) -> None:
    for tile in range(start, stop):
        part = _own(codes, begins, tiles[tile])
        previous = before[tile] - tiles[tile, 1]
        total = 0
        for i in range(part.size):
            if part[i] != steps:
                level = abs(np.int64(part[i]) - steps)
                total += omega_bits(i - previous) + 1 + omega_bits(level)
                previous = i
        bits[tile] = total


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
    """By the next bits: the codes of the words that they hold, how many, and their length."""
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
    """As `_read_dense`, -1 also for an element behind the last; `codes` are preset to s."""
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
def _dense_tensors(
    start: int, stop: int, tensors: Any, data: Any, at: Any, sizes: Any, steps: int, table: Any,
    codes: Any, begins: Any, ends: Any,
) -> None:  # fmt: skip
    for t in range(start, stop):
        body = data[at[t] : at[t] + sizes[t]]
        ends[t] = _read_dense(body, steps, table, codes[begins[t] : begins[t] + tensors[t, 2]])


@loop
def _sparse_tensors(
    start: int, stop: int, tensors: Any, data: Any, at: Any, sizes: Any, steps: int, sent: Any,
    codes: Any, begins: Any, ends: Any,
) -> None:  # fmt: skip
    for t in range(start, stop):
        body, own = data[at[t] : at[t] + sizes[t]], codes[begins[t] : begins[t] + tensors[t, 2]]
        ends[t] = _read_sparse(body, sent[t], steps, own)
