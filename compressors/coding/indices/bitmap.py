"""Values at the set bits of bitmaps: gather from a bucket, and scatter back.

A bitmap has one bit per element, the first in the lowest bit of the first byte; bitmaps of a
bucket's tensors are consecutive, and values are in the order of the set bits. Loops process blocks
of `BLOCK` elements, whose first value `bit_starts` gives, and do not branch on bits: half of the
branches would be mispredicted (ten times slower).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.indices.index_coding import set_bits
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.kernels import spread
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, kernel, launch
from gcsim.compressors.segments import Column, Segments, starts

BLOCK = 1 << 14
"""Elements of a block; a multiple of eight."""
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def bytes_of(segments: Segments) -> Column:
    """Return the bytes of each tensor's bitmap."""
    sizes: Column = packed_bytes(segments.length, 1)
    return sizes


def places(segments: Segments) -> NDArray[np.int64]:
    """Return (first element, elements, first byte of bitmap, first block): int64 `[tensors, 4]`."""
    at = starts(bytes_of(segments)), segments.cells(BLOCK).first
    return np.stack((segments.begin, segments.length, *at), axis=1)


def bit_starts(bits: Tensor, segments: Segments) -> NDArray[np.int64]:
    """Count the set bits before each block, and all: int64 `[blocks + 1]`; not metered."""
    blocks = segments.cells(BLOCK)
    begins = starts(bytes_of(segments))[blocks.owner] + blocks.number * (BLOCK // 8)
    # blocks are not empty and bitmaps are contiguous, so a block ends where the next begins
    counts = np.add.reduceat(_ONES[array(bits)], begins, dtype=np.int64)
    return np.append(0, counts.cumsum())


def bits_each(begins: NDArray[np.int64], segments: Segments) -> Column:
    """Return the number of set bits of each tensor, given `bit_starts`."""
    blocks = segments.cells(BLOCK)
    found: Column = begins[blocks.first + blocks.count] - begins[blocks.first]
    return found


def _moved(name: str, values: Tensor, bits: Tensor, some: Tensor, times: int) -> Any:
    most = values.numel()
    moved = times * values.nbytes, bits.nbytes, some.nbytes
    return [launch("gather_scatter", f"{name}:{spread(most)}", most, *moved)]


@counted_as(lambda out, values, bits, *_: _moved("bitmap.at_bits", values, bits, out, 1))
def at_bits(values: Tensor, bits: Tensor, segments: Segments, begins: NDArray[np.int64]) -> Tensor:
    """Return the values whose bit is set, float32; `begins` is the result of `bit_starts`."""
    out = np.empty(begins[-1], dtype=np.float32)
    given = array(values), array(bits), begins, out
    in_tiles(_take_tiles, segments.cells(BLOCK).tiles, places(segments), *given)
    return tensor(out, values)


@counted_as(
    lambda _, out, bits, __, ___, values, *____: _moved("bitmap.add_at_bits", out, bits, values, 2)
)
def add_at_bits(
    out: Tensor, bits: Tensor, segments: Segments, begins: NDArray[np.int64], values: Tensor,
    weight: float,
) -> None:  # fmt: skip
    """Add weight * values, one per set bit, to `out`, flat float32, in place."""
    with written_back(out) as target:
        in_tiles(
            _add_tiles, segments.cells(BLOCK).tiles, places(segments), target, array(bits), begins,
            array(values), np.float32(weight),
        )  # fmt: skip


@kernel("streaming", updates=("bits",), name="bitmap.unite")
def unite(bits: Tensor, others: Tensor, numbers: Tensor) -> None:
    """Set in bitmaps, in place, the bits set in others and those with the given numbers."""
    with written_back(bits) as union:
        np.bitwise_or(union, array(others), out=union)
        set_bits(array(numbers), union)


@loop
def _take_tiles(start, stop, tiles, places, values, bits, begins, out):
    found = np.empty(BLOCK + 8, dtype=np.float32)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, BLOCK):
            part = values[places[t, 0] + first : places[t, 0] + min(first + BLOCK, end)]
            packed = bits[places[t, 2] + first // 8 :]
            at = np.uint64(0)
            for b in range(part.size // 8):
                for j in range(8):  # the next value overwrites this one if its bit is 0
                    found[at] = part[8 * b + j]
                    at += np.uint64((packed[b] >> np.uint8(j)) & np.uint8(1))
            for i in range(part.size // 8 * 8, part.size):
                found[at] = part[i]
                at += np.uint64((packed[i // 8] >> np.uint8(i % 8)) & np.uint8(1))
            block = places[t, 3] + first // BLOCK
            # the set bits before each block are known, so threads write to separate places
            target = out[begins[block] : begins[block + 1]]
            for i in range(target.size):
                target[i] = found[i]


@loop
def _add_tiles(start, stop, tiles, places, out, bits, begins, values, weight):
    weighted = np.zeros(BLOCK + 8, dtype=np.float32)
    source = weighted.view(np.uint32)  # as integers: unwanted values are multiplied by zero
    spread = np.zeros(BLOCK, dtype=np.float32)
    targets = spread.view(np.uint32)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, BLOCK):
            part = out[places[t, 0] + first : places[t, 0] + min(first + BLOCK, end)]
            byte = places[t, 2] + first // 8
            packed = bits[byte : byte + (part.size + 7) // 8]
            block = places[t, 3] + first // BLOCK
            given = values[begins[block] : begins[block + 1]]
            for i in range(given.size):
                weighted[i] = weight * given[i]
            at = np.uint64(0)
            for b in range(packed.size):
                eight = targets[8 * b : 8 * b + 8]
                for j in range(8):
                    bit = (packed[b] >> np.uint8(j)) & np.uint8(1)
                    eight[j] = source[at] * np.uint32(bit)
                    at += np.uint64(bit)
            for i in range(part.size):
                part[i] += spread[i]
