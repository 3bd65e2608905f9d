"""Bloom filters: compact sets of indices with a few false positives.

`sizes` holds [k, m, h, bytes] per tensor: there are k indices, each of which sets h of m bits; if m
is 0, indices are stored uncoded, 32 bits each. Hash functions are the numbers x + j y + c_j, scaled
to 0 … m-1; x and y mix the position with a key, c_j is a cubic in j (enhanced double hashing: P.
Dillinger, P. Manolios, "Bloom filters in probabilistic verification", FMCAD 2004). Runs in host
memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.checksum import number_at, put_number
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, inlined, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import Column, Segments

_TOGETHER = 1 << 12
"""Number of positions that are queried in one batch."""


@kernel("gather_scatter")
def bloom_filter(
    indices: Tensor, segments: Segments, sizes: NDArray[np.int64], key: np.uint64
) -> Tensor:
    """Return consecutive filters of indices, int64 `[sum of k]`: uint8."""
    out = np.zeros(int(sizes[3].sum()), dtype=np.uint8)
    _fill(array(indices), segments.begin, sizes, key, out)
    return tensor(out, indices)


@kernel("gather_scatter")
def bloom_positives(
    coded: Tensor, at: Column, segments: Segments, sizes: NDArray[np.int64], key: np.uint64
) -> tuple[Tensor, Column]:
    """Return the places in the bucket that filters report, int64, ascending; and how many per
    tensor. A tensor's filter begins at byte `at`. A filter with nonzero padding reports nothing,
    and indices beyond the tensor are ignored."""
    (begin, length), (k, bits, _, _) = segments.table.T, sizes
    passed = np.zeros(length.sum(), dtype=np.bool_)
    tiles = segments.tiles_of(np.where(bits > 0, length, k))
    in_tiles(_ask, tiles, segments.table, array(coded), at, sizes, key, passed)
    places = np.flatnonzero(passed)
    many = np.searchsorted(places, begin + length) - np.searchsorted(places, begin)
    return tensor(places, coded), many


@inlined
def _place(hashed, number, bits):
    """Return the bit that hash function `number` gives a position with these 64 random bits."""
    # y is odd, so its multiples modulo 2^32 all differ
    drawn = (hashed >> np.uint64(32)) + np.uint64(number) * (hashed | np.uint64(1))
    # add (j^3 - j) / 6 to the highest bits, which determine the place
    drawn += np.uint64((number * (number - 1) * (number + 1) // 6) << 20)
    return np.uint32(((drawn & np.uint64(0xFFFFFFFF)) * np.uint64(bits)) >> np.uint64(32))


@loop
def _fill(indices, begins, sizes, key, out):
    at = before = 0
    for t in range(begins.size):
        k, bits, hashes, nbytes = sizes[:, t]
        filled = out[at : at + nbytes]
        for j in range(k):
            index = indices[before + j]
            if not bits:
                put_number(filled, 4 * j, 4, np.uint64(index))
            hashed = bits64(key, begins[t] + index)
            for number in range(hashes):
                place = _place(hashed, number, bits)
                filled[place >> 3] |= np.uint8(1 << (place & 7))
        at, before = at + nbytes, before + k


@loop
def _ask(start, stop, tiles, table, coded, at, sizes, key, passed):
    """Query the filters, without branches: each hash function gets only the positions left over."""
    hashed, left = np.empty(_TOGETHER, dtype=np.uint64), np.empty(_TOGETHER, dtype=np.int32)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        (_, bits, hashes, _), filled, place_of = sizes[:, t], coded[at[t] :], table[t, 0]
        own = passed[place_of : place_of + table[t, 1]]
        if not bits:
            for j in range(first, last):
                index = number_at(filled, 4 * j, 4)
                if index < own.size:
                    own[index] = True
        if not bits or filled[(bits - 1) >> 3] >> ((bits - 1) & 7) > 1:  # bits after the last
            continue
        for begin in range(first, last, _TOGETHER):
            count = min(_TOGETHER, last - begin)
            for i in range(count):
                hashed[i], left[i] = bits64(key, place_of + begin + i), i
            for number in range(hashes):
                asked, count = count, 0
                for j in range(asked):
                    i = left[j]
                    place = _place(hashed[i], number, bits)
                    # in place, as `count` never exceeds j
                    left[count] = i
                    count += (filled[place >> 3] >> np.uint8(place & 7)) & np.uint8(1)
            for j in range(count):
                own[begin + left[j]] = True
