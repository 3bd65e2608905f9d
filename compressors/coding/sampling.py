"""Which elements does a random draw take? Exact subsets and independent draws, without n uniforms.

Independent draws: element i is taken with probability p_i = min(1, scale |w_i|), whatever happens
to the others. The sums of |w| over blocks of 16 elements, S_b, are kept. One uniform U a block
decides by inversion: if U >= scale S_b, which bounds P(block not empty) from above, the block is
empty and its elements are not read (most blocks, at a density of a hundredth). Else F = 1 -
prod(1 - p_j) is accumulated over its elements; the first i with U < F is the first one taken, and
after it the same goes on with a fresh uniform. That is the exact distribution, up to the 53 bits
of a uniform: n/16 uniforms and one for each element taken.

Subset of exactly k out of n: the numbers that fall in segments of 2^20 are drawn first (they are
hypergeometric). In a segment, uniform positions are marked in a bitmap until enough different ones
are (of the complement, above one half); scanning the bitmap gives them in ascending order. No
position is preferred (up to 2^-24), so all subsets are equally likely: O(k) numbers of 64 bits.

Every number is numbered by its block (or draw), so the result does not depend on the threads.

Source: L. Devroye, "Non-uniform random variate generation", Springer 1986, II.2 (inversion) and
XII.2 (sampling without replacement by rejection).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import array, in_parallel, inlined, loop, summing_loop
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.random import bits64, fraction64
from gcsim.errors import InternalError

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 16
"""Elements that share a sum: one line of the cache in float32."""
_CHUNK = 1 << 16
"""Elements whose positions are collected together: a multiple of `BLOCK`."""
_SEGMENT = 1 << 20
"""Elements whose bitmap stays in the cache."""
_SLACK = 2.0**-40
"""More than the rounding of a block's sum."""


class Weights:
    """Weights of n elements, in host memory, with the sums of their blocks."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        """float32 `[n]`, any signs: |w| counts. Change it only through this module."""
        self.sums = block_sums(values)
        """float64 `[ceil(n / 16)]`."""


@kernel("reduction")
def block_sums(values: Tensor) -> Tensor:
    """Sums of |v| over blocks of 16 elements (the last may be shorter): float64 `[ceil(n/16)]`."""
    sums = np.empty(-(-values.numel() // BLOCK), dtype=np.float64)
    in_parallel(_add_blocks, values.numel(), array(values), sums, grain=_CHUNK)
    return torch.from_numpy(sums)


def saturation(weights: Weights, scale: float) -> tuple[int, float, float]:
    """What `scale` saturates, and what it leaves.

    Returns the number of elements with scale |w| >= 1, the sum of |w| of all others, and the sum
    of w^2 of the saturated.
    """
    return _saturation(weights.sums, weights, scale)


@kernel("reduction")
def _saturation(sums: Tensor, weights: Weights, scale: float) -> tuple[int, float, float]:
    n = weights.values.numel()
    partial = np.zeros((-(-n // _CHUNK), 3), dtype=np.float64)
    values = array(weights.values)
    in_parallel(_add_unsaturated, n, values, array(sums), float(scale), partial, grain=_CHUNK)
    count, rest, squares = partial.sum(axis=0).tolist()
    return int(count), rest, squares


def draw(
    weights: Weights,
    scale: float,
    key: np.uint64,
    *,
    expected: int,
    factor: float = 1.0,
    prior: Tensor | None = None,
    chances: bool = False,
) -> tuple[Tensor, Tensor]:
    """Positions drawn independently with probability p_i = min(1, scale |w_i|).

    Parameters
    ----------
    weights : w
    scale : 0 or more; finite
    key : of the uniforms (`random_key`)
    expected : about the sum of p; only what the meter counts depends on it
    factor : below 1, what was drawn is then multiplied by it in `weights`, in place, unless that
        is below 1e-30, where float32 ends
    prior : float32 `[n]`, multiplied in the same way, in place
    chances : whether the probabilities are wanted

    Returns
    -------
    int64 `[m]`, ascending, and p at those positions, float32 `[m]` (empty unless wanted)
    """
    drawing = _draw_and_lower if factor < 1.0 else _draw_only
    touched = weights.values[: BLOCK * expected]  # a block for each element drawn
    return drawing(weights.sums, touched, weights, scale, key, (factor, prior, chances))


@kernel("random")
def distinct_positions(generator: np.random.Generator, n: int, k: int) -> Tensor:
    """A uniformly random subset of k of the positions 0 … n-1: int64 `[k]`, ascending.

    Raises `InternalError` unless 0 <= k <= n < 10^9.
    """
    if not 0 <= k <= n < 1_000_000_000:
        raise InternalError(f"cannot draw {k} distinct positions out of {n}")
    sizes = np.full(-(-n // _SEGMENT), _SEGMENT)
    if n % _SEGMENT:
        sizes[-1] = n % _SEGMENT
    parts = generator.multivariate_hypergeometric(sizes, k) if sizes.size > 1 else [k]
    key = np.uint64(generator.bit_generator.random_raw())
    ends = np.concatenate(([0], np.cumsum(parts))).astype(np.int64)
    positions = np.empty(k, dtype=np.int64)
    in_parallel(_mark_and_list, n, ends, key, positions, grain=_SEGMENT)
    count_random(min(k, n - k), 64)
    return torch.from_numpy(positions)


def _draw(
    sums: Tensor,
    touched: Tensor,
    weights: Weights,
    scale: float,
    key: np.uint64,
    options: tuple[float, Tensor | None, bool],
) -> tuple[Tensor, Tensor]:
    """See `draw`; `sums` and `touched` are what the meter counts as read."""
    factor, prior, chances = options
    n = weights.values.numel()
    if not (n and scale > 0.0):
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    found = np.empty(n, dtype=np.int32 if n < 1 << 31 else np.int64)
    chance = np.empty(n if chances else 0, dtype=np.float32)  # only what is drawn is written
    counts = np.zeros((-(-n // _CHUNK) + 1, 2), dtype=np.float64)
    lowered = np.empty(0, dtype=np.float32) if prior is None else array(prior)
    in_parallel(
        _draw_chunks, n, array(weights.values), array(sums), lowered,
        float(scale), key, float(factor), found, chance, counts, grain=_CHUNK,
    )  # fmt: skip
    ends = counts[:, 0].astype(np.int64).cumsum()
    count_random(sums.numel() + int(ends[-1]), 64)
    positions = np.empty(int(ends[-1]), dtype=np.int64)
    kept = np.empty(int(ends[-1]) if chances else 0, dtype=np.float32)
    in_parallel(_compact, n, found, chance, ends, positions, kept, grain=_CHUNK)
    return torch.from_numpy(positions), torch.from_numpy(kept)


_draw_only = kernel("random")(_draw)
_draw_and_lower = kernel("random", updates=("touched",))(_draw)


# --- loops ------------------------------------------------------------------------------------


@summing_loop
def _add_blocks(start: int, stop: int, values: Any, sums: Any) -> None:
    """Sums of |v| over the blocks of a part."""
    values = values[start:stop]
    sums = sums[start // BLOCK : -(-stop // BLOCK)]
    whole = values.size // BLOCK
    for b in range(whole):
        block = values[b * BLOCK : b * BLOCK + BLOCK]
        total = 0.0
        for i in range(BLOCK):
            total += abs(np.float64(block[i]))
        sums[b] = total
    if whole < sums.size:
        total = 0.0
        for i in range(whole * BLOCK, values.size):
            total += abs(np.float64(values[i]))
        sums[whole] = total


@summing_loop
def _add_unsaturated(
    start: int, stop: int, values: Any, sums: Any, scale: float, partial: Any
) -> None:
    """Per chunk: elements with scale |v| >= 1, sum of the others, sum of squares of the former."""
    heavy = np.empty(_CHUNK // BLOCK, dtype=np.int64)
    for first in range(start, stop, _CHUNK):
        last = min(first + _CHUNK, stop)
        part = sums[first // BLOCK : -(-last // BLOCK)]
        number = 0
        for b in range(part.size):
            heavy[number] = b
            number += int(part[b] * scale >= 1.0)
        count, rest, squares = 0.0, 0.0, 0.0
        if 8 * number > part.size:
            elements = values[first:last]
            for i in range(elements.size):
                value = abs(np.float64(elements[i]))
                over = 1.0 if value * scale >= 1.0 else 0.0  # a factor, so that it vectorises
                count += over
                squares += over * value * value
                rest += value - over * value
        else:
            for b in range(part.size):
                rest += part[b] if part[b] * scale < 1.0 else 0.0
            for h in range(number):
                begin = first + heavy[h] * BLOCK
                for i in range(begin, min(begin + BLOCK, last)):
                    value = abs(np.float64(values[i]))
                    over = 1.0 if value * scale >= 1.0 else 0.0
                    count += over
                    squares += over * value * value
                    rest += value - over * value
        partial[first // _CHUNK, 0] = count
        partial[first // _CHUNK, 1] = rest
        partial[first // _CHUNK, 2] = squares


@inlined
def _lowered(value: Any, factor: Any) -> Any:
    """value * factor, unless that is where float32 ends."""
    product = np.float32(value * factor)
    return product if product >= np.float32(1e-30) else value


@inlined
def _sum(values: Any, begin: int, end: int) -> Any:
    """Sum of |v|."""
    total = 0.0
    for i in range(begin, end):
        total += abs(np.float64(values[i]))
    return total


@loop
def _draw_chunks(
    start: int, stop: int, values: Any, sums: Any, prior: Any, scale: float, key: np.uint64,
    factor: float, found: Any, chance: Any, counts: Any,
) -> None:  # fmt: skip
    """Positions drawn in each chunk, from `found[first of the chunk]` on; their number."""
    hits = np.empty(_CHUNK // BLOCK, dtype=np.int64)
    factor32 = np.float32(factor)
    for first in range(start, stop, _CHUNK):
        last = min(first + _CHUNK, stop)
        number = 0
        for b in range(first // BLOCK, -(-last // BLOCK)):
            hits[number] = b
            number += int(fraction64(key, b) < sums[b] * scale * (1.0 + _SLACK))
        # Load the blocks together: one by one, each would wait for the branches of the last.
        loaded = np.float32(0)
        for hit in range(number):
            loaded += values[hits[hit] * BLOCK]
        at = first
        for hit in range(number):
            b = hits[hit]
            u, left, before = fraction64(key, b), sums[b] * scale * (1.0 + _SLACK), at
            begin, end = b * BLOCK, min(b * BLOCK + BLOCK, last)
            fresh = sums.size + begin  # number of the block's next uniform
            taken, survive = 0.0, 1.0
            for i in range(begin, end):
                p = min(1.0, scale * abs(np.float64(values[i])))
                left -= p
                taken += survive * p
                survive *= 1.0 - p
                if u < taken or survive == 0.0:
                    found[at] = i
                    if chance.size:
                        chance[at] = p
                    u = fraction64(key, fresh + at - before)
                    at += 1
                    if u >= left:  # bounds P(another one) from above
                        break
                    taken, survive = 0.0, 1.0
            if factor < 1.0 and at > before:
                for j in range(before, at):
                    values[found[j]] = _lowered(values[found[j]], factor32)
                sums[b] = _sum(values, begin, end)
        if prior.size:
            for j in range(first, at):
                prior[found[j]] = _lowered(prior[found[j]], factor32)
        counts[first // _CHUNK + 1, 0] = at - first
        counts[first // _CHUNK + 1, 1] = loaded  # so that the loads are not optimised away


@loop
def _compact(
    start: int, stop: int, found: Any, chance: Any, ends: Any, positions: Any, kept: Any
) -> None:
    """Bring the chunks' positions (and probabilities) together."""
    for first in range(start, stop, _CHUNK):
        chunk = first // _CHUNK
        source = found[first : first + ends[chunk + 1] - ends[chunk]]
        target = positions[ends[chunk] : ends[chunk + 1]]
        for j in range(target.size):
            target[j] = source[j]
        if kept.size:
            for j in range(target.size):
                kept[ends[chunk] + j] = chance[first + j]


@inlined
def _ones(word: np.uint64) -> int:
    """Bits that are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    low = word & np.uint64(0x3333333333333333)
    word = low + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@loop
def _mark_and_list(start: int, stop: int, ends: Any, key: np.uint64, positions: Any) -> None:
    """In each segment as many random positions as `ends` says, ascending."""
    words = np.empty(_SEGMENT // 64, dtype=np.uint64)
    one = np.uint64(1)
    for first in range(start, stop, _SEGMENT):
        n = min(_SEGMENT, stop - first)
        at, k = ends[first // _SEGMENT], ends[first // _SEGMENT + 1] - ends[first // _SEGMENT]
        complement = 2 * k > n
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
