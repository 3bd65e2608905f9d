"""Exact selection of the k largest magnitudes of each tensor.

A short tensor is added, selected from and cleared within the processor's cache. In a long one the
adding pass marks elements above a sampled threshold, slightly more than k, and selects among those;
if the sample was misleading (fewer than k marks, or far more), among all elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting.marks import (
    NOTHING,
    Marks,
    collect,
    demand_numbers,
    mark_arrays,
)
from gcsim.compressors.coding.selecting.selection import (
    WORTH_A_SAMPLE,
    check_k,
    kth_of_few,
    safe_rank,
    stride_of,
    take_few,
)
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, kernel, launch
from gcsim.compressors.on_device import handled, primitive
from gcsim.compressors.segments import Column, Segments, starts


def _launches(
    _: object, values: Tensor, segments: Segments, k: Column, *, memory: Tensor | None = None,
    marks: Marks | None = None, ranked: NDArray[np.bool_] | None = None, **__: object,
) -> Iterator[KernelCost]:  # fmt: skip
    sizes = zip(segments.length.tolist(), k.tolist(), strict=True)
    marked = np.array([not handled(values) and stride_of(n, many) > 0 for n, many in sizes], bool)
    selected = np.ones(len(k), bool) if ranked is None else ranked
    for bounded, exact in product((False, True), (True, False)):
        here = (marked == bounded) & (selected == exact)
        n, many = (column[here] for column in (segments.length, k))
        if len(n) and memory is not None:
            adds = "marks.add_and_mark" if bounded else "aten.add_"
            yield launch("streaming", adds, n, 12 * n)
        if len(n):
            given = marks is not None or (bounded and memory is not None)
            name = "selection.take_largest" + ":marks" * given
            yield launch("selection" if exact else "gather_scatter", name, n, 4 * n, 12 * many)


@counted_as(_launches)
@primitive
def largest(
    values: Tensor, segments: Segments, k: Column, *, memory: Tensor | None = None,
    marks: Marks | None = None, ranked: NDArray[np.bool_] | None = None,
    cleared: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Select the k largest |values| of each tensor: (indices within the tensor, int64 `[sum of k]`,
    ascending; values float32 `[sum of k]`), of consecutive tensors. Among equal magnitudes the
    lowest index wins. Raises `InputError` for NaN.

    Parameters
    ----------
    values : flat float32 of the table
    k : how many of each tensor, 0 to its length
    memory : as `values`; memory += values, and selected elements become zero
    marks : candidates, if marked already; may be too few
    ranked : whether a tensor's largest are wanted; of others the first k of the marked. None: all
    cleared : flat vectors of the table, in which selected elements become zero
    """
    length, first = segments.length, starts(k)
    check_k(length, k)
    indices, taken = np.empty(int(k.sum()), dtype=np.int64), np.empty(int(k.sum()), np.float32)
    added = np.ascontiguousarray(array(values)) if memory is not None else NOTHING
    strange, tiles = np.zeros(1, dtype=np.uint8), segments.cells(None).tiles  # one tensor each
    with written_back(values if memory is None else memory) as source:
        if marks is None:
            marks = _bounded(source, added, segments, k)
        in_tiles(
            _choose, tiles, source, added, segments.table, k, first,
            np.ones(len(k), dtype=np.bool_) if ranked is None else ranked, marks.up,
            marks.first, array(marks.counts), marks.places, marks.passed, indices, taken, strange,
        )  # fmt: skip
    demand_numbers(strange[0])
    for vector in cleared:
        with written_back(vector) as target:
            target[segments.begin.repeat(k) + indices] = 0
    return tensor(indices, values), tensor(taken, values)


@kernel("selection", name="selection.largest")
def largest_of(values: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest |values| of one tensor: int64 `[k]`, ascending."""
    return largest(values, Segments.alone(values.numel()), np.array([k]))[0]


def _bounded(source: Any, added: Any, segments: Segments, k: Column) -> Marks:
    """Mark long tensors with a limit that most likely slightly more than k elements of source +
    added reach. Marked tensors are also added; others have an infinite limit."""
    if segments.longest < WORTH_A_SAMPLE:
        return _no_marks()
    limits = np.full(len(k), np.inf, dtype=np.float32)
    in_tiles(_bound, segments.cells(None).tiles, source, added, segments.table, k, limits)
    marks = Marks.room(torch.from_numpy(source[:0]), segments, limits)
    tiles = segments.tiles_of(np.where(limits < np.inf, segments.length, 0))
    mark_arrays(source, added, segments, marks, tiles)
    return marks


@cache
def _no_marks() -> Marks:
    return Marks.room(torch.empty(0), Segments.behind([]), 0.0)


@loop
def _bound(start, stop, tiles, source, added, table, k, limits):
    for tile in range(start, stop):
        t = tiles[tile, 0]
        begin, n = table[t]
        stride = stride_of(n, k[t])
        if stride > 0:
            # adds only the sample; the marking pass adds the tensor
            sample = source[begin : begin + n : stride].copy()
            if added.size:
                more = added[begin : begin + n : stride]
                for i in range(sample.size):
                    sample[i] += more[i]
            rank = safe_rank(k[t] / stride)
            limits[t : t + 1].view(np.uint32)[0] = kth_of_few(sample.view(np.uint32), rank)[0]


@loop
def _choose(  # noqa: PLR0912
    start, stop, tiles, source, added, table, k, firsts, ranked, up, blocks, counts, places, passed,
    indices, taken, strange,
):  # fmt: skip
    for tile in range(start, stop):  # one tensor per tile
        t, _, n = tiles[tile]
        part = source[table[t, 0] : table[t, 0] + n]
        index = indices[firsts[t] : firsts[t] + k[t]]
        value = taken[firsts[t] : firsts[t] + k[t]]
        # a tensor without a sample has an infinite limit; without long tensors there are no limits
        marked = up.size > 0 and up[t] < np.inf
        if marked and (not ranked[t] or k[t] <= passed[t] <= 4 * k[t]):
            own = np.empty(passed[t], dtype=np.int64)
            found = np.empty(passed[t], dtype=np.float32)
            first = blocks[t]
            if collect(part, 0, up[t], counts[first:], places[first:], own, found, False):
                strange[0] = 1
            if ranked[t] and k[t] < own.size:
                take_few(found.view(np.uint32), k[t], index)
                for j in range(index.size):
                    index[j] = own[index[j]]
            else:
                for j in range(index.size):
                    index[j] = own[j]
        else:
            # the marking pass has already added a marked tensor
            if added.size and not marked:
                more = added[table[t, 0] : table[t, 0] + n]
                for i in range(part.size):
                    part[i] += more[i]
            if k[t] > 0 and not take_few(part.view(np.uint32), k[t], index):
                strange[0] = 1
        for j in range(index.size):
            value[j] = part[index[j]]
            if added.size:
                part[index[j]] = np.float32(0)
