"""Independent (Poisson) sampling of elements, with far fewer than n random numbers.

Element i is taken with probability p_i = min(1, scale |w_i|), independently. Sums S_b of |w| over
blocks of 16 elements are stored. One uniform U per block decides by inversion: if U >= scale S_b,
an upper bound on P(block not empty), the block is empty and its elements are not read (most blocks,
at a density of 1 %). Else F = 1 - prod(1 - p_j) is accumulated over its elements; the first i with
U < F is taken, and the same continues after it with a new uniform. The distribution is exact, up to
the 53 bits of a uniform, and takes n/16 uniforms and one per element taken. Numbers are keyed by
block, so that the result does not depend on threads.

Source: inversion, as in L. Devroye, "Non-uniform random variate generation", Springer 1986.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    array,
    in_tiles,
    inlined,
    loop,
    summing_loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.random import fraction64
from gcsim.compressors.segments import TILE, Cells, Column, Segments, starts

BLOCK = 16
"""Elements that share a sum: one cache line in float32."""
SLACK = 2.0**-40
"""Larger than the rounding error of a block's sum."""
_FLOOR = np.float32(1e-30)
"""Weights are not lowered below this, where float32 would end."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Weights of a bucket's elements; only functions of this module change them."""

    values: Tensor
    """Flat float32 of the table; only |w| matters."""
    segments: Segments
    sums: Tensor
    """`block_sums` of the values."""

    @classmethod
    def of(cls, values: Tensor, segments: Segments, largest: Tensor | None = None) -> Weights:
        """Return the weights of values, or of the squares that `block_sums` makes."""
        weights, sums = block_sums(values, segments, largest)
        return cls(weights, segments, sums)

    @property
    def blocks(self) -> Cells:
        return self.segments.cells(BLOCK)


def _summing(
    found: tuple[Tensor, Tensor], values: Tensor, _: object, largest: Tensor | None = None
) -> Iterator[KernelCost]:
    moved = values.nbytes * (1 + (largest is not None)), found[1].nbytes
    yield launch("reduction", "sampling.block_sums", values.numel(), *moved)


@counted_as(_summing)
@primitive
def block_sums(
    values: Tensor, segments: Segments, largest: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return (values; sums of |v| over blocks of 16 elements of each tensor, float64 `[blocks]`, as
    `segments.cells(16)`). `values` is flat float32 of the table; with `largest`, each tensor's
    largest |v|, float32, it becomes the squares of v / largest, or 1 if the largest is 0."""
    blocks, given = segments.cells(BLOCK), (values[:0] if largest is None else largest)
    squares = values if largest is None else torch.empty_like(values)
    sums = np.empty(blocks.total, dtype=np.float64)
    in_tiles(
        _sum_tiles, segments.tiles, segments.table, blocks.first, array(values), array(given),
        array(squares), sums,
    )  # fmt: skip
    return squares, tensor(sums, values)


def _draws(
    found: tuple[Tensor, Tensor, Column], values: Tensor, sums: Tensor, segments: Segments,
    *_: object, expected: Column, factor: float = 1.0, prior: Tensor | None = None, **__: object,
) -> Iterator[KernelCost]:  # fmt: skip
    touched = 4 * np.minimum(segments.length, BLOCK * expected)  # one block per element drawn
    name = "sampling.draw_and_lower" if factor < 1.0 else "sampling.draw"
    moved = sums.nbytes, touched * (1 + (factor < 1.0)), 0 if prior is None else prior.nbytes
    yield drawn(name, sums.numel() + len(found[0]), 64)
    yield launch("random", name, values.numel(), *moved, found[0].nbytes, found[1].nbytes)


@counted_as(_draws)
@primitive
def draw_poisson(
    values: Tensor, sums: Tensor, segments: Segments, scales: Tensor, keys: NDArray[np.uint64], *,
    expected: Column, factor: float = 1.0, prior: Tensor | None = None, chances: bool = False,
    apart: bool = False,
) -> tuple[Tensor, Tensor, Column]:  # fmt: skip
    """Draw positions independently with probability p_i = min(1, scale |w_i|).

    Returns int64 `[m]`, ascending places in the flat bucket (apart: in the tensor); p or the values
    there, float32 `[m]` (empty unless wanted); apart: numbers certain and not, `[2, tensors]`.

    Parameters
    ----------
    values, sums : of `Weights`
    scales : 0 or more, finite: float64 `[tensors]`
    keys : for each tensor's uniforms
    expected : about the sum of p of each tensor; only for the meter
    factor : below 1, multiplies the drawn weights, in place, but not to below 1e-30 (float32's end)
    prior : as `values`, multiplied in the same way, in place
    chances : whether the probabilities are wanted
    apart : all tensors' elements with p = 1 come first, then the others; with values
    """
    n, tiles = values.numel(), segments.tiles
    found = np.empty(n, dtype=np.uint16)  # within a tile, relative to its first element
    chance = np.empty(n if chances else 0, dtype=np.float32)  # only drawn elements are written
    counts, loaded = np.zeros(len(tiles), dtype=np.int64), np.zeros(len(tiles), dtype=np.float32)
    lowered = values.new_empty(0) if prior is None else prior
    with written_back(values) as own, written_back(sums) as totals, written_back(lowered) as low:
        in_tiles(
            _draw_tiles, tiles, segments.table, segments.cells(BLOCK).first, own, totals, low,
            array(scales), keys, float(factor), found, chance, counts, loaded,
        )  # fmt: skip
    m, k = int(counts.sum()), counts
    if apart:
        k = np.zeros((2, len(segments.table)), dtype=np.int64)
        places, taken = np.empty((2, m), dtype=np.int64), np.empty((2, m), dtype=np.float32)
        given = segments.table, array(values), array(scales)
        _part(tiles, *given, found, counts, k, places, taken)
        cut = int(k[0].sum())
        positions, kept = (
            np.concatenate((each[0, :cut], each[1, : m - cut])) for each in (places, taken)
        )
    else:
        positions, kept = np.empty(m, dtype=np.int64), np.empty(m * chances, dtype=np.float32)
        drew = found, chance, counts, starts(counts)
        in_tiles(_compact, tiles, segments.begin, *drew, positions, kept)
    return tensor(positions, values), tensor(kept, values), k


def _lifts(
    __: object, values: object, sums: object, segments: Segments, scales: Tensor, least: float,
    most: object, *, prior: Tensor | None = None, **_: object,
) -> Iterator[KernelCost]:  # fmt: skip
    n = segments.length[scales.numpy(force=True) > least]
    moved = 8 * n if prior is None else 16 * n
    yield launch("streaming", "sampling.lift", n, moved, 8 * -(-n // BLOCK))


@counted_as(_lifts)
@primitive
def lift(
    values: Tensor, sums: Tensor, segments: Segments, scales: Tensor, least: float, most: float, *,
    top: float = np.inf, prior: Tensor | None = None,
) -> None:  # fmt: skip
    """Multiply the weights of tensors whose scale (float64 `[tensors]`) exceeds `least` by it, up
    to `most`, in place; nonnegative weights are limited to `top`. `prior`, as `values`, is raised
    to 1e-30 in place; weights are then multiplied by it."""
    lifted = values.new_empty(0) if prior is None else prior
    with written_back(values) as own, written_back(sums) as totals, written_back(lifted) as low:
        in_tiles(
            _lift_tiles, segments.tiles, segments.table, segments.cells(BLOCK).first, own, totals,
            low, array(scales), float(least), float(most), np.float32(top),
        )  # fmt: skip


@summing_loop
def _add_blocks(start, stop, values, sums):
    values = values[start:stop]
    sums = sums[start // BLOCK : -(-stop // BLOCK)]
    whole = values.size // BLOCK
    # the constant length lets the compiler unroll; only a tensor's last block is shorter
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


@loop
def _sum_tiles(start, stop, tiles, table, blocks, values, largest, squares, sums):
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        own = values[table[t, 0] + first : table[t, 0] + last]
        out = squares[table[t, 0] + first : table[t, 0] + last]
        if largest.size:
            most = largest[t]
            for i in range(own.size):
                share = own[i] / most
                out[i] = share * share if most > 0 else np.float32(1)
        _add_blocks(0, last - first, out, sums[blocks[t] + first // BLOCK :])


@loop
def _lift_tiles(start, stop, tiles, table, blocks, values, sums, prior, scales, least, most, top):
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        if scales[t] > least:
            factor = np.float32(min(scales[t], most))
            own = values[table[t, 0] + first : table[t, 0] + last]
            for i in range(own.size):
                own[i] = min(own[i] * factor, top)
            if prior.size:
                before = prior[table[t, 0] + first : table[t, 0] + last]
                for i in range(own.size):
                    before[i] = max(before[i], _FLOOR)
                    own[i] *= before[i]
            _add_blocks(0, last - first, own, sums[blocks[t] + first // BLOCK :])


@loop
def _part(tiles, table, values, scales, found, counts, k, places, taken):
    many = np.zeros(2, dtype=np.int64)
    # one thread takes all tiles, so that the two cursors advance in order
    for tile in range(len(tiles)):
        t, first, _ = tiles[tile]
        begin, scale = table[t, 0], scales[t]
        for place in found[begin + first :][: counts[tile]]:
            v = values[begin + first + place]
            # 0: certain, 1: random
            side = int(abs(np.float64(v)) * scale < 1.0)
            places[side, many[side]], taken[side, many[side]] = first + place, v
            many[side] += 1
            k[side, t] += 1


@inlined
def _lowered(value, factor):
    """Return value * factor, or value if float32 would end there."""
    product = np.float32(value * factor)
    return product if product >= _FLOOR else value


@inlined
def _sum(values, begin, end):
    total = 0.0
    for i in range(begin, end):
        total += abs(np.float64(values[i]))
    return total


@loop
def _draw_tiles(
    start, stop, tiles, table, blocks, values, sums, prior, scales, keys, factor, found, chance,
    counts, loaded,
):  # fmt: skip
    """Draw each tile's positions, stored from its first element of `found` on; count them."""
    hits = np.empty(TILE // BLOCK, dtype=np.int64)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin, end = table[t, 0], table[t, 0] + table[t, 1]
        if scales[t] > 0.0:
            counts[tile], loaded[tile] = _draw_tile(
                first, last, values[begin:end], sums[blocks[t] :], prior[begin:end], scales[t],
                keys[t], factor, found[begin:end], chance[begin:end], hits,
            )  # fmt: skip


@loop
def _draw_tile(first, last, values, sums, prior, scale, key, factor, found, chance, hits):
    """Return (number drawn; a number that keeps the loads from being optimised away)."""
    factor32 = np.float32(factor)
    count = (values.size + BLOCK - 1) // BLOCK
    number = 0
    for b in range(first // BLOCK, -(-last // BLOCK)):
        hits[number] = b
        number += int(fraction64(key, b) < sums[b] * scale * (1.0 + SLACK))
    # load the blocks together: one by one, each would wait for the branches of the last
    loaded = np.float32(0)
    for hit in range(number):
        loaded += values[hits[hit] * BLOCK]
    at = first
    for hit in range(number):
        b = hits[hit]
        # invert the block's uniform: which element is hit first, given that one may be
        u, left, before = fraction64(key, b), sums[b] * scale * (1.0 + SLACK), at
        begin, end = b * BLOCK, min(b * BLOCK + BLOCK, last)
        # numbers below `count` open the blocks; then each block has as many as elements
        fresh = count + begin  # index of the block's next uniform
        taken, survive = 0.0, 1.0
        for i in range(begin, end):
            p = min(1.0, scale * abs(np.float64(values[i])))
            # still at least the sum of p over the remaining elements
            left -= p
            taken += survive * p  # P(the first hit is among those so far)
            survive *= 1.0 - p  # P(no hit so far)
            # p = 1 makes survive 0: a certain hit, even if rounding leaves `taken` below u
            if u < taken or survive == 0.0:
                found[at] = i - first
                if chance.size:
                    chance[at] = p
                u = fraction64(key, fresh + at - before)
                at += 1
                if u >= left:  # upper bound on P(another hit)
                    break
                taken, survive = 0.0, 1.0
        if factor < 1.0 and at > before:
            for j in range(before, at):
                values[first + found[j]] = _lowered(values[first + found[j]], factor32)
            # summed anew, as repeated corrections would accumulate rounding errors
            sums[b] = _sum(values, begin, end)
    if prior.size:
        for j in range(first, at):
            prior[first + found[j]] = _lowered(prior[first + found[j]], factor32)
    return at - first, loaded


@loop
def _compact(start, stop, tiles, begins, found, chance, counts, at, positions, kept):
    """Close the gaps between the tiles' positions (and probabilities)."""
    for tile in range(start, stop):
        t, first, _ = tiles[tile]
        source = found[begins[t] + first :][: counts[tile]]
        target = positions[at[tile] : at[tile] + counts[tile]]
        for j in range(target.size):
            target[j] = begins[t] + first + source[j]
        if kept.size:
            for j in range(target.size):
                kept[at[tile] + j] = chance[begins[t] + first + j]
