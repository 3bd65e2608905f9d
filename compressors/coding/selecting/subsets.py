"""Which k of n elements does a uniformly random subset take? Drawn with O(k) random numbers.

The numbers that fall in segments of 2^20 positions are drawn first (they are hypergeometric). In a
segment, uniform positions are marked in a bitmap until enough different ones are (of the
complement, above one half); scanning the bitmap gives them in ascending order. No position is
preferred (up to 2^-24), so all subsets are equally likely.

Every number is numbered by its draw, so the result does not depend on the threads.

Source: rejection of what was drawn before, as in L. Devroye, "Non-uniform random variate
generation", Springer 1986.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import in_parallel, inlined, loop, tensor
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.random import bits64
from gcsim.errors import InternalError

SEGMENT = 1 << 20
"""Elements whose bitmap stays in the cache."""


@kernel("random", resident=("like",))
@on_device("selecting.sampling")
def distinct_positions(like: Tensor, generator: np.random.Generator, n: int, k: int) -> Tensor:
    """A uniformly random subset of k of the positions 0 … n-1: int64 `[k]`, ascending.

    On the device of `like`. Raises `InternalError` unless 0 <= k <= n < 10^9.
    """
    parts, key = parts_of(generator, n, k)
    ends = np.array(list(itertools.accumulate(parts, initial=0)), dtype=np.int64)
    positions = np.empty(k, dtype=np.int64)
    in_parallel(mark_and_list, n, ends, key, positions, grain=SEGMENT)
    count_random(min(k, n - k), 64)
    return tensor(positions, like)


def parts_of(generator: np.random.Generator, n: int, k: int) -> tuple[list[int], np.uint64]:
    """(how many positions lie in each segment; the key of the numbers that draw them)."""
    if not 0 <= k <= n < 1_000_000_000:
        raise InternalError(f"cannot draw {k} distinct positions out of {n}")
    parts = [k]
    if n > SEGMENT:
        sizes = np.full(-(-n // SEGMENT), SEGMENT)
        if n % SEGMENT:
            sizes[-1] = n % SEGMENT
        parts = generator.multivariate_hypergeometric(sizes, k).tolist()
    return parts, np.uint64(generator.bit_generator.random_raw())


# --- loops ------------------------------------------------------------------------------------


@inlined
def _ones(word: np.uint64) -> int:
    """Bits that are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    low = word & np.uint64(0x3333333333333333)
    word = low + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@loop
def mark_and_list(start: int, stop: int, ends: Any, key: np.uint64, positions: Any) -> None:
    """In each segment as many random positions as `ends` says, ascending."""
    words = np.empty((min(SEGMENT, stop - start) + 63) // 64, dtype=np.uint64)
    one = np.uint64(1)
    for first in range(start, stop, SEGMENT):
        n = min(SEGMENT, stop - first)
        at, k = ends[first // SEGMENT], ends[first // SEGMENT + 1] - ends[first // SEGMENT]
        complement = 2 * k > n  # more than half: draw those that are left out
        wanted = n - k if complement else k
        words[:] = np.uint64(0)
        marked, number = 0, 4 * first
        while marked < wanted:
            bits = bits64(key, number) >> np.uint64(20)
            number += 1
            position = (bits * np.uint64(n)) >> np.uint64(44)
            word = np.int64(position >> np.uint64(6))
            bit = one << (position & np.uint64(63))
            marked += int((words[word] & bit) == np.uint64(0))
            words[word] |= bit
        used = words[: -(-n // 64)]
        for i in range(used.size):
            word64 = used[i]
            if complement:
                word64 = ~word64
                if 64 * i + 64 > n:
                    word64 &= (one << np.uint64(n - 64 * i)) - one
            while word64:
                lowest = word64 & (~word64 + one)
                positions[at] = first + 64 * i + _ones(lowest - one)
                at += 1
                word64 ^= lowest
