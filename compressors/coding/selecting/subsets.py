"""Uniformly random subsets of k of n elements, drawn with O(k) random numbers.

The counts per segment of 2^20 positions are drawn first (hypergeometric). In a segment, uniform
positions are marked in a bitmap until enough are marked (those left out, if more than half are
wanted); a scan lists them in ascending order. All subsets are equally likely (up to 2^-24). Numbers
are keyed by draw, so that the result does not depend on threads.

Source: rejection of repeated draws, as in L. Devroye, "Non-uniform random variate generation",
Springer 1986.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import in_tiles, inlined, loop, tensor
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.random import bits64, stream
from gcsim.compressors.segments import Column, Segments, starts, tiles_of
from gcsim.errors import InternalError

SEGMENT = 1 << 20
"""Elements of a segment, whose bitmap fits the cache."""
Place = tuple[int, int, int, str]
"""Seed, step, tensor and purpose for `stream`."""


def draw_subset(like: Tensor, segments: Segments, k: Column, streams: Sequence[Place]) -> Tensor:
    """Draw a uniformly random subset of k elements of each tensor: int64 `[sum of k]`, ascending
    places in the flat bucket, on the device of `like`; each tensor uses its `stream`. Raises
    `InternalError` unless 0 <= k <= n < 10^9."""
    given = zip(streams, segments.length.tolist(), k.tolist(), strict=True)
    shares, keys = zip(*(_parts_of(*each) for each in given), strict=True)
    pieces = tiles_of(segments.length, segments.column(SEGMENT))  # [pieces, 3]
    counts = np.array([count for parts in shares for count in parts], dtype=np.int64)
    return _draw_pieces(like, segments, pieces, counts, np.array(keys, dtype=np.uint64))


def _parts_of(place: Place, n: int, k: int) -> tuple[list[int], int]:
    """Return (number of positions in each segment; the key of the numbers that draw them)."""
    if not 0 <= k <= n < 1_000_000_000:
        raise InternalError(f"cannot draw {k} distinct positions out of {n}")
    if k == 0 or n <= SEGMENT:
        return [k] if k else [0] * -(-n // SEGMENT), _key(place) if k else 0
    generator = stream(*place)
    sizes = np.diff([*range(0, n, SEGMENT), n])
    parts = generator.multivariate_hypergeometric(sizes, k).tolist()
    return parts, generator.bit_generator.random_raw()


@lru_cache(maxsize=1 << 10)
def _key(place: Place) -> int:
    return stream(*place).bit_generator.random_raw()


def fewer(pieces: NDArray[np.int64], counts: Column) -> Column:
    """Return how many positions to draw per piece: for more than half, those left out."""
    found: Column = np.minimum(counts, pieces[:, 2] - pieces[:, 1] - counts)
    return found


@counted_as(
    lambda found, _, __, pieces, counts, *___: [
        drawn("subsets.distinct_positions", fewer(pieces, counts), 64),
        launch("random", "subsets.distinct_positions", counts, found.nbytes),
    ]
)
@primitive
def _draw_pieces(
    like: Tensor, segments: Segments, pieces: NDArray[np.int64], counts: Column,
    keys: NDArray[np.uint64],
) -> Tensor:  # fmt: skip
    """Draw positions of `counts` elements of each piece (tensor, first element, end)."""
    positions = np.empty(counts.sum(), dtype=np.int64)
    in_tiles(_mark_and_list, pieces, segments.begin, counts, starts(counts), keys, positions)
    return tensor(positions, like)


@inlined
def _ones(word) -> int:
    # bit counts of 2, 4 and 8 bits in place; the product sums the bytes in the highest one
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    low = word & np.uint64(0x3333333333333333)
    word = low + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@loop
def _mark_and_list(start, stop, pieces, begins, counts, at, keys, positions):
    """Draw the given number of random positions of each piece, ascending."""
    words, one = np.empty(SEGMENT // 64, dtype=np.uint64), np.uint64(1)
    for piece in range(start, stop):
        t, first, last = pieces[piece]
        n, out = last - first, positions[at[piece] : at[piece] + counts[piece]]
        used = words[: (n + 63) // 64]  # one bit per position
        used[:] = np.uint64(0)
        complement = 2 * out.size > n  # more than half: draw those left out
        wanted = n - out.size if complement else out.size
        # 4 numbers per position keep pieces apart: half of n takes about 0.7 n draws
        marked, number = 0, 4 * first
        while marked < wanted:
            bits = bits64(keys[t], number) >> np.uint64(20)
            number += 1
            # 44 bits times n <= 2^20 fit a word
            position = (bits * np.uint64(n)) >> np.uint64(44)
            word = np.int64(position >> np.uint64(6))
            bit = one << (position & np.uint64(63))
            marked += int((used[word] & bit) == np.uint64(0))
            used[word] |= bit
        found = 0
        for i in range(used.size):
            word64 = used[i]
            if complement:
                word64 = ~word64
                # clear the complement's ones past the last position
                if 64 * i + 64 > n:
                    word64 &= (one << np.uint64(n - 64 * i)) - one
            while word64:
                # the ones below the lowest set bit are as many as its place
                lowest = word64 & (~word64 + one)
                out[found] = begins[t] + first + 64 * i + _ones(lowest - one)
                found += 1
                word64 ^= lowest
