"""Which elements do independent draws take? Found with far fewer than n random numbers.

Element i is taken with probability p_i = min(1, scale |w_i|), whatever happens to the others. The
sums of |w| over blocks of 16 elements, S_b, are kept. One uniform U a block decides by inversion:
if U >= scale S_b, which bounds P(block not empty) from above, the block is empty and its elements
are not read (most blocks, at a density of a hundredth). Else F = 1 - prod(1 - p_j) is accumulated
over its elements; the first i with U < F is the first one taken, and after it the same goes on with
a fresh uniform. That is the exact distribution, up to the 53 bits of a uniform: n/16 uniforms and
one for each element taken.

Every number is numbered by its block, so the result does not depend on the threads.

Source: inversion, as in L. Devroye, "Non-uniform random variate generation", Springer 1986.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, inlined, loop, summing_loop, tensor
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.random import fraction64

BLOCK = 16
"""Elements that share a sum: one line of the cache in float32."""
_CHUNK = 1 << 16
"""Elements whose positions are collected together: a multiple of `BLOCK`."""
SLACK = 2.0**-40
"""More than the rounding of a block's sum."""


class Weights:
    """Weights of n elements, in host memory or where kernels are, with the sums of their blocks."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        """float32 `[n]`, any signs: |w| counts. Change it only through this module."""
        self.sums = block_sums(values)
        """float64 `[ceil(n / 16)]`."""


@kernel("reduction")
@on_device("selecting.sampling")
def block_sums(values: Tensor) -> Tensor:
    """Sums of |v| over blocks of 16 elements (the last may be shorter): float64 `[ceil(n/16)]`."""
    sums = np.empty(-(-values.numel() // BLOCK), dtype=np.float64)
    in_parallel(_add_blocks, values.numel(), array(values), sums, grain=_CHUNK)
    return tensor(sums, values)


def saturation(weights: Weights, scale: float) -> tuple[int, float, float]:
    """What `scale` saturates, and what it leaves.

    Returns the number of elements with scale |w| >= 1, the sum of |w| of all others, and the sum
    of w^2 of the saturated.
    """
    return _saturation(weights.sums, weights, scale)


@kernel("reduction")
@on_device("selecting.sampling")
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


@on_device("selecting.sampling")
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


_draw_only = kernel("random", name="sampling.draw")(_draw)
_draw_and_lower = kernel("random", updates=("touched",), name="sampling.draw_and_lower")(_draw)


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
                over = 1.0 if value * scale >= 1.0 else 0.0  # factors, so that it vectorises
                under = 1.0 if value * scale < 1.0 else 0.0
                count += over
                squares += over * value * value
                rest += under * value  # not value - over * value: such a sum may be reordered,
                # and what is light be lost beside what is heavy
        else:
            for b in range(part.size):
                rest += part[b] if part[b] * scale < 1.0 else 0.0
            for h in range(number):
                begin = first + heavy[h] * BLOCK
                for i in range(begin, min(begin + BLOCK, last)):
                    value = abs(np.float64(values[i]))
                    over = 1.0 if value * scale >= 1.0 else 0.0
                    under = 1.0 if value * scale < 1.0 else 0.0
                    count += over
                    squares += over * value * value
                    rest += under * value
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
            number += int(fraction64(key, b) < sums[b] * scale * (1.0 + SLACK))
        # Load the blocks together: one by one, each would wait for the branches of the last.
        loaded = np.float32(0)
        for hit in range(number):
            loaded += values[hits[hit] * BLOCK]
        at = first
        for hit in range(number):
            b = hits[hit]
            # the block's one uniform is inverted: who is hit first, given that somebody may be
            u, left, before = fraction64(key, b), sums[b] * scale * (1.0 + SLACK), at
            begin, end = b * BLOCK, min(b * BLOCK + BLOCK, last)
            fresh = sums.size + begin  # number of the block's next uniform
            taken, survive = 0.0, 1.0
            for i in range(begin, end):
                p = min(1.0, scale * abs(np.float64(values[i])))
                left -= p
                taken += survive * p  # P(the first one is among those so far)
                survive *= 1.0 - p  # P(none so far)
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


# --- of short tensors, inside other loops --------------------------------------------------------


@loop
def add_weights(values: Any, table: Any, begins: Any, sums: Any) -> None:
    """`block_sums` of each tensor of a layout's `table`, from `begins` of it on."""
    for t in range(table.shape[0]):
        first, n = table[t]
        _add_blocks(0, n, values[first : first + n], sums[begins[t] : begins[t + 1]])


@loop
def saturated(values: Any, sums: Any, scale: float) -> Any:
    """(number, sum of the others) of `saturation`, both float64."""
    partial = np.zeros((values.size // _CHUNK + 1, 3), dtype=np.float64)
    _add_unsaturated(0, values.size, values, sums, scale, partial)
    count, rest = 0.0, 0.0
    for chunk in range(partial.shape[0]):
        count += partial[chunk, 0]
        rest += partial[chunk, 1]
    return count, rest


@loop
def drawn(values: Any, sums: Any, scale: float, key: np.uint64) -> Any:
    """The positions of `draw`, int64."""
    nothing = np.empty(0, dtype=np.float32)
    n = values.size
    found = np.empty(n, dtype=np.int32)
    counts = np.zeros((-(-n // _CHUNK) + 1, 2), dtype=np.float64)
    if scale > 0.0:
        _draw_chunks(0, n, values, sums, nothing, scale, key, 1.0, found, nothing, counts)
    ends = np.zeros(counts.shape[0], dtype=np.int64)
    for chunk in range(1, ends.size):
        ends[chunk] = ends[chunk - 1] + np.int64(counts[chunk, 0])
    positions = np.empty(ends[-1], dtype=np.int64)
    _compact(0, n, found, nothing, ends, positions, nothing)
    return positions
