"""Exact selection of the largest share of the positive and of the negative elements.

A sample bounds both signs' thresholds from below, one pass adds and marks what reaches the lower
bound, and a selection among the marked follows. If the sample was misleading, and for short
tensors, the selection runs on all elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gcsim.compressors import loops
from gcsim.compressors.coding.one_bit.signs import sum_of_magnitudes
from gcsim.compressors.coding.selecting import selection
from gcsim.compressors.coding.selecting.marks import Marks, collect, demand_numbers, mark_arrays
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import counted_as, kernel, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts


def _launches(
    found: tuple[Tensor, Tensor, Column, Tensor], _: object, segments: Segments, *__: object,
    **___: object,
) -> Iterator[KernelCost]:  # fmt: skip
    n = segments.length
    yield launch("streaming", "dryden._add_and_count", n, 12 * n)
    name = "dryden._largest_of_each_sign"
    yield launch("selection", name, n, 4 * n, 16 * found[0].numel())


@counted_as(_launches)
@primitive
def largest_of_each_sign(
    values: Tensor, segments: Segments, proportion: float, *, memory: Tensor
) -> tuple[Tensor, Tensor, Column, Tensor]:
    """Add values to memory and select the largest max(1, round(proportion n)) of each sign's n.

    Parameters
    ----------
    values, memory : flat float32 of the table

    Returns
    -------
    (indices within the tensor, int64 `[sum of k]`, ascending; values float32 `[sum of k]`; k of
    each sign and tensor, int64 `[2, tensors]`; magnitudes float32 `[sum of k]`, first those of all
    tensors' positive values, then those of the negative ones). Among equals the lowest index wins.

    Raises
    ------
    InputError
        If the values contain NaN.
    """
    added, tensors = np.ascontiguousarray(loops.array(values)), segments.cells(None).tiles
    limits = np.full(len(segments.table), np.inf, dtype=np.float32)
    with loops.written_back(memory) as source:
        given = source, added, segments.table, proportion, limits.view(np.uint32)
        loops.in_tiles(_bound, tensors, *given)
        marks = Marks.room(torch.from_numpy(source[:0]), segments, limits)
        mark_arrays(source, added, segments, marks, segments.tiles, sides=True)
        k, strange = selection.counts_kept(marks.host[2:4], proportion), np.zeros(1, dtype=np.uint8)
        total = int(k.sum())
        indices, taken = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.float32)
        sizes = np.empty(total, dtype=np.float32)
        loops.in_tiles(
            _choose, tensors, source, segments.table, k, starts(k.sum(axis=0)),
            starts(k.reshape(-1)).reshape(k.shape), marks.up, marks.first,
            loops.array(marks.counts), marks.places, marks.passed, indices, taken, sizes, strange,
        )  # fmt: skip
    demand_numbers(strange[0])
    return (
        loops.tensor(indices, values),
        loops.tensor(taken, values),
        k,
        loops.tensor(sizes, values),
    )


@kernel("reduction", name="dryden._means")
@primitive
def means_of_signs(sizes: Tensor, k: Column) -> Tensor:
    """Return the means of the positive and the negative values: float32 `[tensors, 2]`, 0 if none.
    `sizes` are the magnitudes, `k` their numbers as in `largest_of_each_sign`."""
    counts = k.reshape(-1)
    room = (
        1 - -counts // loops.SUM_BLOCK
    )  # a zero behind each row's sums, also where there is no sum
    begins, sums = starts(room), np.zeros(room.sum())
    _sum_rows(loops.array(sizes), counts, begins, sums)
    totals = np.add.reduceat(sums, begins) / np.maximum(1, counts)
    means = np.minimum(totals, loops.FLOAT32_MAX).astype(np.float32).reshape(k.shape)
    return loops.tensor(np.stack((means[0], 0 - means[1]), axis=1), sizes)


@loops.loop
def _sum_rows(sizes, counts, begins, sums):
    """Sum blocks of magnitudes, `counts` of each row, from its begin on."""
    at = 0
    for row in range(counts.size):
        own = sizes[at : at + counts[row]]
        at += counts[row]
        for first in range(0, own.size, loops.SUM_BLOCK):
            block = begins[row] + first // loops.SUM_BLOCK
            sums[block] = sum_of_magnitudes(own[first : min(first + loops.SUM_BLOCK, own.size)])


@loops.loop
def _split(values):
    """Return magnitudes of positive and of negative elements, their places and numbers."""
    sizes = np.empty((2, values.size + 1), dtype=np.float32)  # one more than needed
    places = np.empty(sizes.shape, dtype=np.int32)
    above, below = 0, 0
    for i in range(values.size):
        x = values[i]
        # no branch: both sides store each element, and overwrite it if the cursor has not moved
        sizes[0, above], sizes[1, below] = x, -x
        places[0, above] = places[1, below] = i
        above += x > np.float32(0)
        below += x < np.float32(0)
    return sizes, places, (above, below)


@loops.loop
def _bound(start, stop, tiles, source, added, table, proportion, limits):
    """Bound the lower of both signs' thresholds from below, using a sample."""
    for tile in range(start, stop):
        t = tiles[tile, 0]
        begin, n = table[t]
        # expect at least 16 sampled elements of each sign
        stride = min(selection.SAMPLE_STRIDE, int(np.rint(n * proportion / 32)) | 1)
        if n < selection.WORTH_A_SAMPLE or stride < 3:
            continue
        sample = source[begin : begin + n : stride] + added[begin : begin + n : stride]
        for side in range(2):
            # the other sign's elements become 0, which no rank within `available` reaches
            sizes = np.maximum(-sample if side else sample, np.float32(0))
            available = np.count_nonzero(sizes)
            if available > 0:
                rank: Any = min(available, selection.safe_rank(available * proportion))
                bits = np.uint32(selection.kth_of_few(sizes.view(np.uint32), rank)[0])
                # bits order as the magnitudes; one limit serves both signs
                limits[t] = min(limits[t], bits)


@loops.loop
def _choose(
    start, stop, tiles, source, table, k, firsts, begins, up, blocks, counts, places, passed,
    indices, taken, magnitudes, strange,
):  # fmt: skip
    for tile in range(start, stop):  # one tensor per tile
        t, _, n = tiles[tile]
        part = source[table[t, 0] : table[t, 0] + n]
        own, found = np.empty(passed[t], dtype=np.int64), np.empty(passed[t], dtype=np.float32)
        first = blocks[t]
        if own.size and collect(part, 0, up[t], counts[first:], places[first:], own, found, False):
            strange[0] = 1
        # with k or more of each sign marked, the k largest of each are among them
        among = np.sum(found > 0) >= k[0, t] and np.sum(found < 0) >= k[1, t]
        found = found if among else part
        sizes, within, many = _split(found)
        chosen = np.zeros(found.size, dtype=np.bool_)
        for side in range(2):
            most, out = np.empty(k[side, t] + 1, dtype=np.int64), magnitudes[begins[side, t] :]
            if k[side, t]:
                selection.take_few(sizes[side, : many[side]].view(np.uint32), k[side, t], most)
            for j in range(k[side, t]):
                out[j] = sizes[side, most[j]]
                # one mask for both signs, as the message lists them together, by place
                chosen[within[side, most[j]]] = True
        at = firsts[t]
        for place in np.flatnonzero(chosen):
            indices[at], taken[at] = own[place] if among else place, found[place]
            at += 1
