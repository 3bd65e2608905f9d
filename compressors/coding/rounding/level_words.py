"""How do levels of which most are zero become few bits? Elias' omega code, with signs.

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
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device
from gcsim.errors import InputError

_BLOCK = 1 << 14
_ROOM = 8
"""Words that are read at a time, at most."""


@kernel("streaming")
@on_device("integers.elias")
def encode_dense(codes: Tensor, steps: int) -> Tensor:
    """The dense words of codes q + s, uint8 `[n]`, each in [0, 2s]: uint8 `[ceil(bits / 8)]`."""
    data = np.ascontiguousarray(array(codes))
    words = np.zeros((2, 256), dtype=np.uint64)
    _dense_words(steps, words)
    bits = np.zeros(-(-data.size // _BLOCK), dtype=np.int64)
    in_parallel(_count_dense, data.size, data, words[1].astype(np.int64), bits, grain=_BLOCK)
    begins = _begins(bits)
    out = np.zeros(-(-int(begins[-1]) // 8), dtype=np.uint8)
    edges = np.zeros((begins.size, 2), dtype=np.uint8)
    in_parallel(_write_dense, data.size, data, words, begins, out, edges, grain=_BLOCK)
    _join(begins, edges, out)
    return tensor(out, codes)


@kernel("streaming")
@on_device("integers.elias")
def decode_dense(body: Tensor, count: int, steps: int) -> Tensor:
    """Undo `encode_dense`: uint8 `[count]`.

    Raises `InputError` unless the body holds exactly so many words of levels up to s, padded with
    zeros to a whole byte.
    """
    packed = np.ascontiguousarray(array(body))
    if count > 8 * packed.size:
        raise InputError(f"damaged payload: {packed.size} bytes for {count} levels")
    codes = np.empty(count, dtype=np.uint8)
    table = np.zeros((3, 1 << PEEK), dtype=np.uint64)
    _reading_table(steps, table)
    check_end(packed, int(_read_dense(packed, steps, table, codes)))
    return tensor(codes, body)


@kernel("gather_scatter")
@on_device("integers.elias")
def encode_sparse(codes: Tensor, steps: int) -> tuple[Tensor, int]:
    """(the sparse words, uint8 `[ceil(bits / 8)]`; the number of levels that are not zero)."""
    data = np.ascontiguousarray(array(codes))
    blocks = -(-data.size // _BLOCK)
    nonzero, last = np.zeros(blocks, dtype=np.int64), np.full(blocks, -1, dtype=np.int64)
    in_parallel(_find, data.size, data, steps, nonzero, last, grain=_BLOCK)
    before = np.concatenate(([-1], np.maximum.accumulate(last)[:-1])) if blocks else last
    bits = np.zeros(blocks, dtype=np.int64)
    in_parallel(_count_sparse, data.size, data, steps, before, bits, grain=_BLOCK)
    begins = _begins(bits)
    out = np.zeros(-(-int(begins[-1]) // 8), dtype=np.uint8)
    edges = np.zeros((begins.size, 2), dtype=np.uint8)
    in_parallel(_write_sparse, data.size, data, steps, before, begins, out, edges, grain=_BLOCK)
    _join(begins, edges, out)
    return tensor(out, codes), int(nonzero.sum())


@kernel("gather_scatter")
@on_device("integers.elias")
def decode_sparse(body: Tensor, count: int, nonzero: int, steps: int) -> Tensor:
    """Undo `encode_sparse`: uint8 `[count]`; `InputError` as for `decode_dense`."""
    packed = np.ascontiguousarray(array(body))
    codes = np.full(count, steps, dtype=np.uint8)
    check_end(packed, int(_read_sparse(packed, nonzero, steps, codes)))
    return tensor(codes, body)


def _begins(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each block begins, in bits, and behind them where the last one ends."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(bits)))


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
def _count_dense(start: int, stop: int, codes: Any, lengths: Any, bits: Any) -> None:
    for first in range(start, stop, _BLOCK):
        part = codes[first : min(first + _BLOCK, stop)]
        total = 0
        for i in range(part.size):
            total += lengths[part[i]]
        bits[first // _BLOCK] = total


@loop
def _write_dense(
    start: int, stop: int, codes: Any, words: Any, begins: Any, out: Any, edges: Any
) -> None:
    room = np.zeros(_BLOCK, dtype=np.uint32)  # no word is longer than 32 bits
    for first in range(start, stop, _BLOCK):
        block = first // _BLOCK
        part = codes[first : min(first + _BLOCK, stop)]
        filled = np.uint64(begins[block]) & np.uint64(7)  # bits of the block before, in its byte
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
        _put_block(room.view(np.uint8), block, begins, out, edges)


@loop
def _find(start: int, stop: int, codes: Any, steps: int, nonzero: Any, last: Any) -> None:
    """By block: how many levels are not zero, and where the last of them is (-1: none)."""
    for first in range(start, stop, _BLOCK):
        part = codes[first : min(first + _BLOCK, stop)]
        found = 0
        for i in range(part.size):
            found += part[i] != steps
        at = part.size - 1
        while at >= 0 and part[at] == steps:
            at -= 1
        nonzero[first // _BLOCK] = found
        last[first // _BLOCK] = first + at if at >= 0 else -1


@loop
def _count_sparse(start: int, stop: int, codes: Any, steps: int, before: Any, bits: Any) -> None:
    for first in range(start, stop, _BLOCK):
        part = codes[first : min(first + _BLOCK, stop)]
        previous = before[first // _BLOCK] - first
        total = 0
        for i in range(part.size):
            if part[i] != steps:
                level = abs(np.int64(part[i]) - steps)
                total += omega_bits(i - previous) + 1 + omega_bits(level)
                previous = i
        bits[first // _BLOCK] = total


@loop
def _write_sparse(
    start: int, stop: int, codes: Any, steps: int, before: Any, begins: Any, out: Any, edges: Any
) -> None:
    for first in range(start, stop, _BLOCK):
        block = first // _BLOCK
        part = codes[first : min(first + _BLOCK, stop)]
        position = begins[block] % 8
        room = np.zeros((begins[block + 1] - begins[block]) // 8 + 16, dtype=np.uint8)
        previous = before[block] - first
        for i in range(part.size):
            level = np.int64(part[i]) - steps
            if level != 0:
                position = put_omega(room, position, i - previous)
                position = put_bits(room, position, np.int64(level < 0), 1)
                position = put_omega(room, position, abs(level))
                previous = i
        _put_block(room, block, begins, out, edges)


@loop
def _put_block(room: Any, block: int, begins: Any, out: Any, edges: Any) -> None:
    """A block's bytes, which begin inside of `room`'s first, to their place in `out`.

    The first and the last, which other blocks may share, to `edges`.
    """
    first = begins[block] // 8
    size = (begins[block + 1] + 7) // 8 - first
    if begins[block + 1] > begins[block]:
        edges[block, 0] = room[0]
        if size > 1:
            edges[block, 1] = room[size - 1]
            inner = out[first + 1 : first + size - 1]
            for i in range(inner.size):
                inner[i] = room[i + 1]


@loop
def _join(begins: Any, edges: Any, out: Any) -> None:
    for block in range(begins.size - 1):
        if begins[block + 1] > begins[block]:
            out[begins[block] // 8] |= edges[block, 0]
            out[(begins[block + 1] + 7) // 8 - 1] |= edges[block, 1]


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
