"""Which values belong to the set bits of a bitmap? Pick them out of a vector, and put them back.

A bitmap has one bit an element, the first in the lowest bit of the first byte; values travel in
the order of the set bits. Loops go by blocks of `BLOCK` elements, whose first value `bit_starts`
knows, and take no branch on a bit: half of the branches would be predicted wrong (ten times
slower).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.indices.index_coding import set_bits
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import kernel, unpriced
from gcsim.compressors.on_device import on_device

BLOCK = 1 << 14
"""Elements treated in one go; a multiple of eight."""


@unpriced  # of bits that somebody reads anyway
@on_device("indices.bitmaps")
def bit_starts(bits: Tensor, n: int) -> NDArray[np.int64]:
    """Set bits before each block of a bitmap of n elements, then of all: int64 `[blocks + 1]`."""
    counts = np.zeros(1 + -(-n // BLOCK), dtype=np.int64)
    in_parallel(count_bits, n, array(bits), counts, grain=BLOCK)
    return counts.cumsum()


@loop
def starts_of(bits: Any, n: int) -> Any:
    """`bit_starts`, inside a loop."""
    counts = np.zeros(1 + (n + BLOCK - 1) // BLOCK, dtype=np.int64)
    count_bits(0, n, bits, counts)
    return counts.cumsum()


@loop
def count_bits(start: int, stop: int, bits: Any, counts: Any) -> None:
    """The loop of `bit_starts`: set bits of each block, into counts[1 + its number]."""
    for first in range(start, stop, BLOCK):
        part = bits[first // 8 : (min(first + BLOCK, stop) + 7) // 8]
        total = np.int64(0)
        for b in range(part.size):
            byte = part[b]  # its bits are added up in pairs, fours, and all eight
            byte = byte - ((byte >> np.uint8(1)) & np.uint8(0x55))
            byte = (byte & np.uint8(0x33)) + ((byte >> np.uint8(2)) & np.uint8(0x33))
            total += np.int64((byte + (byte >> np.uint8(4))) & np.uint8(0x0F))
        counts[1 + first // BLOCK] = total


@kernel("gather_scatter")
@on_device("indices.bitmaps")
def at_bits(values: Tensor, bits: Tensor, starts: NDArray[np.int64]) -> Tensor:
    """The values where a bit is set, float32, of float32 `[n]` and uint8 `[ceil(n / 8)]`."""
    out = torch.empty(int(starts[-1]), dtype=torch.float32)
    given = array(values), array(bits), starts, array(out)
    in_parallel(take_bits, values.numel(), *given, grain=BLOCK)
    return out.to(values.device)


@loop
def take_bits(start: int, stop: int, values: Any, bits: Any, starts: Any, out: Any) -> None:
    """The loop of `at_bits`."""
    found = np.empty(BLOCK + 8, dtype=np.float32)
    for first in range(start, stop, BLOCK):
        part = values[first : min(first + BLOCK, stop)]
        packed = bits[first // 8 : first // 8 + part.size // 8]
        at = np.uint64(0)
        for b in range(packed.size):
            for j in range(8):  # every value is written, the next one over it if its bit is 0
                found[at] = part[8 * b + j]
                at += np.uint64((packed[b] >> np.uint8(j)) & np.uint8(1))
        rest = part[8 * packed.size :]
        if rest.size:
            byte = bits[first // 8 + packed.size]
            for j in range(rest.size):
                found[at] = rest[j]
                at += np.uint64((byte >> np.uint8(j)) & np.uint8(1))
        target = out[starts[first // BLOCK] : starts[first // BLOCK + 1]]
        for i in range(target.size):
            target[i] = found[i]


@kernel("gather_scatter", updates=("out",))
@on_device("indices.bitmaps")
def add_at_bits(
    out: Tensor, bits: Tensor, starts: NDArray[np.int64], values: Tensor, weight: float
) -> None:
    """out += weight * values, one for each set bit, in place; `out` is float32 `[n]`."""
    with written_back(out) as target:
        in_parallel(
            add_bits, out.numel(), target, array(bits), starts, array(values), np.float32(weight),
            grain=BLOCK,
        )  # fmt: skip


@loop
def add_bits(
    start: int, stop: int, out: Any, bits: Any, starts: Any, values: Any, weight: Any
) -> None:
    """The loop of `add_at_bits`."""
    most = (min(BLOCK, stop - start) + 7) // 8 * 8  # of a block
    weighted = np.zeros(most + 8, dtype=np.float32)
    source = weighted.view(np.uint32)  # as integers: what is not wanted is multiplied by zero
    spread = np.zeros(most, dtype=np.float32)
    places = spread.view(np.uint32)
    for first in range(start, stop, BLOCK):
        part = out[first : min(first + BLOCK, stop)]
        packed = bits[first // 8 : first // 8 + (part.size + 7) // 8]
        given = values[starts[first // BLOCK] : starts[first // BLOCK + 1]]
        for i in range(given.size):
            weighted[i] = weight * given[i]
        at = np.uint64(0)
        for b in range(packed.size):
            eight = places[8 * b : 8 * b + 8]
            for j in range(8):
                bit = (packed[b] >> np.uint8(j)) & np.uint8(1)
                eight[j] = source[at] * np.uint32(bit)
                at += np.uint64(bit)
        for i in range(part.size):
            part[i] += spread[i]


@kernel("streaming", updates=("bits",))
@on_device("indices.bitmaps")
def unite(bits: Tensor, others: Tensor, indices: Tensor) -> None:
    """Set in a bitmap, in place, the bits of another one and those of int32 indices."""
    with written_back(bits) as union:
        np.bitwise_or(union, array(others), out=union)
        set_bits(array(indices), union)


@kernel("streaming")
@on_device("indices.bitmaps")
def as_mask(bits: Tensor, n: int) -> Tensor:
    """The bits as float32 `[n]` of 0 and 1."""
    flags = np.unpackbits(array(bits), count=n, bitorder="little")
    return tensor(flags.astype(np.float32), bits)
