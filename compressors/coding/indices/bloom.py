"""Bloom filters: a set of positions in few bits, where a few wrong ones do no harm.

k of n positions are put into a filter of m bits with h hash functions; whoever has the filter asks
it for each of the n positions. Every position that was put in is found, and of the others a
fraction: with h = ceil(log2(1/f)) and m = ceil(k log2(1/f) / ln 2) = 1.44 k log2(1/f) bits, half
of the bits are set and about a fraction f is found by mistake.

The hash functions are the 32-bit numbers a + j b + c_j, scaled to 0 … m-1, where a and b are
mixtures of the position's bits with a key and c_j is a cubic in j (enhanced double hashing; without
the cubic short filters have a fifth more false positives).

Sources: B. Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 1970;
A. Kirsch, M. Mitzenmacher, "Less hashing, same performance", Random Structures & Algorithms 2008;
P. Dillinger, P. Manolios, "Bloom filters in probabilistic verification", FMCAD 2004.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import check_packed, packed_bytes
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, tensor
from gcsim.compressors.meter import kernel

_TOGETHER = 1 << 18
"""Positions that are asked for in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomSize:
    """The shape of a filter."""

    bits: int
    """m, at least 1, below 2^32."""
    hashes: int
    """h, at least 1."""

    @property
    def nbytes(self) -> int:
        """Bytes of the filter, rounded up."""
        return packed_bytes(self.bits, 1)


def bloom_size(k: int, false_positive_rate: float) -> BloomSize:
    """The shortest filter for k positions and a rate in (0, 1)."""
    doublings = math.log2(1 / false_positive_rate)
    return BloomSize(
        bits=max(1, math.ceil(k * doublings / math.log(2))), hashes=max(1, math.ceil(doublings))
    )


@kernel("gather_scatter")
def bloom_filter(indices: Tensor, size: BloomSize, key: np.uint64) -> Tensor:
    """The filter that holds `indices`, int64 `[k]`: uint8 `[ceil(m / 8)]`."""
    held = np.zeros(size.bits, dtype=np.bool_)
    hashes = _hashes(array(indices).astype(np.uint32), key)
    for number in range(size.hashes):
        held[_places(*hashes, number, size.bits)] = True
    return tensor(np.packbits(held, bitorder="little"), indices)


@kernel("gather_scatter")
def bloom_positives(bits: Tensor, n: int, size: BloomSize, key: np.uint64) -> Tensor:
    """All positions in 0 … n-1 that the filter seems to hold, int64, ascending.

    Raises `InputError` when the filter has not the length of `size`, or its padding is not zero.
    """
    packed = array(bits)
    check_packed(packed, size.bits, 1)
    held = np.unpackbits(packed, bitorder="little")
    found = [np.zeros(0, dtype=np.int64)]
    for begin in range(0, n, _TOGETHER):
        left = np.arange(begin, min(begin + _TOGETHER, n), dtype=np.uint32)
        first, step = _hashes(left, key)
        for number in range(size.hashes):
            passed = np.flatnonzero(held[_places(first, step, number, size.bits)])
            left, first, step = left[passed], first[passed], step[passed]
        found.append(left.astype(np.int64))
    return tensor(np.concatenate(found), bits)


Words = NDArray[np.uint32]


def _hashes(positions: Words, key: np.uint64) -> tuple[Words, Words]:
    """a and b of each position."""
    first = _mixed(positions ^ np.uint32(key & np.uint64(0xFFFFFFFF)))
    return first, _mixed(first ^ np.uint32(key >> np.uint64(32))) | np.uint32(1)


def _mixed(x: Words) -> Words:
    """32 bits that are another number for each 32 bits."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _places(first: Words, step: Words, number: int, bits: int) -> NDArray[np.uint64]:
    """Places of hash function `number` in the filter."""
    # (j^3 - j) / 6 of enhanced double hashing, in the highest bits, which decide on the place
    cubic = ((number**3 - number) // 6) << 20 & 0xFFFFFFFF
    drawn = first + np.uint32(number) * step + np.uint32(cubic)
    return (drawn.astype(np.uint64) * np.uint64(bits)) >> np.uint64(32)
