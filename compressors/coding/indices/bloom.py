"""How can a set of positions travel in few bits when a few wrong ones do no harm? Bloom filters.

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
from typing import Any

import numpy as np

from gcsim.compressors.coding.indices.index_coding import find_bits, set_places
from gcsim.compressors.coding.integers.packing import check_packed, packed_bytes
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, inlined, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device

_BLOCK = 1 << 12
"""Positions that are asked for together."""


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
@on_device("indices.bloom")
def bloom_filter(indices: Tensor, size: BloomSize, key: np.uint64) -> Tensor:
    """The filter that holds `indices`, int64 `[k]`: uint8 `[ceil(m / 8)]`."""
    words = np.zeros(-(-size.nbytes // 4), dtype=np.uint32)
    _insert(array(indices), words, np.uint64(size.bits), size.hashes, key)
    return tensor(words.astype("<u4", copy=False).view(np.uint8)[: size.nbytes], indices)


@kernel("gather_scatter")
@on_device("indices.bloom")
def bloom_positives(bits: Tensor, n: int, size: BloomSize, key: np.uint64) -> Tensor:
    """All positions in 0 … n-1 that the filter seems to hold, int64, ascending.

    Raises `InputError` when the filter has not the length of `size`, or its padding is not zero.
    """
    filled = np.ascontiguousarray(array(bits))
    check_packed(filled, size.bits, 1)
    words = np.frombuffer(filled.tobytes() + bytes(-filled.size % 4), dtype="<u4")
    words = words.astype(np.uint32, copy=False)
    found = np.zeros(packed_bytes(n, 1), dtype=np.uint8)
    counts = np.zeros(-(-n // _BLOCK), dtype=np.int64)
    in_parallel(
        _query, n, words, np.uint64(size.bits), size.hashes, key, found, counts, grain=_BLOCK
    )
    return tensor(set_places(found, int(counts.sum())), bits)


@inlined
def _mixed(index: Any, key: Any) -> Any:
    """32 bits that are another number for each position below 2^32."""
    x = np.uint32(np.uint32(index) ^ key)
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@inlined
def _constant(number: Any) -> Any:
    # (j^3 - j) / 6 of enhanced double hashing, in the highest bits, which decide on the place
    return np.uint32(((number * number * number - number) // 6) << 20)


@inlined
def _place(first: Any, step: Any, number: Any, bits: Any) -> Any:
    """The place of hash function `number` >= 0 in the filter, of the position's two hashes."""
    strides = np.uint32(np.uint32(number) * step)
    drawn = np.uint32(np.uint32(first + strides) + _constant(number))
    return np.uint32((np.uint64(drawn) * bits) >> np.uint64(32))


@inlined
def _is_set(words: Any, place: Any) -> Any:
    word = words[np.int64(place >> np.uint32(5))]
    return np.uint32(np.uint32(word >> np.uint32(place & np.uint32(31))) & np.uint32(1))


@inlined
def _keys(key: Any) -> Any:
    return np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))


@loop
def _insert(indices: Any, words: Any, bits: Any, hashes: int, key: Any) -> None:
    low, high = _keys(key)
    for index in indices:
        first = _mixed(index, low)
        step = np.uint32(_mixed(first, high) | np.uint32(1))
        for number in range(hashes):
            place = _place(first, step, number, bits)
            words[np.int64(place >> np.uint32(5))] |= np.uint32(1) << (place & np.uint32(31))


@loop
def _query(
    start: int, stop: int, words: Any, bits: Any, hashes: int, key: Any, found: Any, counts: Any
) -> None:
    # Half of the positions pass a hash function. Those left are written down without a branch,
    # which would be guessed wrong every other time.
    low, high = _keys(key)
    firsts, steps = np.empty(_BLOCK, dtype=np.uint32), np.empty(_BLOCK, dtype=np.uint32)
    passed = np.empty(_BLOCK, dtype=np.uint32)
    candidates = np.empty(_BLOCK + 1, dtype=np.int32)
    for begin in range(start, stop, _BLOCK):
        size = min(_BLOCK, stop - begin)
        for i in range(size):
            first = _mixed(begin + i, low)
            step = np.uint32(_mixed(first, high) | np.uint32(1))
            firsts[i], steps[i] = first, step
        for i in range(size):
            passed[i] = _is_set(words, _place(firsts[i], steps[i], 0, bits))
        left = 0
        for i in range(size):
            candidates[left] = i
            left += int(passed[i])
        for number in range(1, hashes):
            kept = 0
            for c in range(left):
                i = candidates[c]
                place = _place(firsts[i], steps[i], number, bits)
                candidates[kept] = i
                kept += int(_is_set(words, place))
            left = kept
        counts[begin // _BLOCK] = left
        for c in range(left):
            position = begin + candidates[c]
            found[position >> 3] |= np.uint8(1 << (position & 7))


# --- of short tensors, inside other loops --------------------------------------------------------


@loop
def filled(indices: Any, bits: int, hashes: int, key: Any) -> Any:
    """The bytes of `bloom_filter`, up to a multiple of four."""
    words = np.zeros((bits + 31) // 32, dtype=np.uint32)
    _insert(indices, words, np.uint64(bits), hashes, key)
    return words.view(np.uint8)


@loop
def asked(filter_bytes: Any, n: int, bits: int, hashes: int, key: Any) -> Any:
    """`bloom_positives` of bytes as `filled` gives them, int64."""
    found = np.zeros((n + 7) // 8, dtype=np.uint8)
    counts = np.zeros((n + _BLOCK - 1) // _BLOCK, dtype=np.int64)
    _query(0, n, filter_bytes.view(np.uint32), np.uint64(bits), hashes, key, found, counts)
    places = np.empty(counts.sum(), dtype=np.int64)
    find_bits(found, places)
    return places
