"""The k largest magnitudes of each tensor of a bucket, exactly.

A short tensor is added up, selected from and cleared while it lies in the processor's cache. Of a
long one the elements that pass a sample's threshold, a little more than k, are marked while it is
added up, and the largest are among those. When the sample misled (fewer than k are marked, or far
more), the selection runs on all elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gcsim.compressors.coding.selecting.marks import NOTHING, Marks, mark_arrays
from gcsim.compressors.coding.selecting.selection import (
    NO_NUMBER,
    WORTH_A_SAMPLE,
    bound,
    check_k,
    chosen_among,
    clear_at,
    stride_of,
    take_few,
)
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, kernel, launch
from gcsim.compressors.on_device import handled, primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError


def _launches(
    _: object, values: Tensor, segments: Segments, k: Column, *, memory: Tensor | None = None,
    marks: Marks | None = None,
) -> Iterator[KernelCost]:  # fmt: skip
    sizes = zip(segments.length.tolist(), k.tolist(), strict=True)
    marked = np.array([not handled(values) and stride_of(n, many) > 0 for n, many in sizes], bool)
    for bounded in (False, True):
        n, many = (column[marked == bounded] for column in (segments.length, k))
        if len(n) and memory is not None:
            adds = "marks.add_and_mark" if bounded else "aten.add_"
            yield launch("streaming", adds, n, 12 * n)
        if len(n):
            given = marks is not None or (bounded and memory is not None)
            name = "selection.take_largest" + ":marks" * given
            yield launch("selection", name, n, 4 * n, 12 * many)


@counted_as(_launches)
@primitive
def largest(
    values: Tensor, segments: Segments, k: Column, *, memory: Tensor | None = None,
    marks: Marks | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The k largest |values| of each tensor, one tensor's behind the other's.

    Parameters
    ----------
    values : flat float32 of the table
    k : how many of each tensor, 0 to its length
    memory : as `values`; memory += values, of which the largest are then taken out (zero remains)
    marks : candidates, where they are marked already; that they are enough is not assumed

    Returns
    -------
    (indices within the tensor, int64 `[sum of k]`, ascending; values float32 `[sum of k]`). Among
    equal magnitudes the lowest index wins.

    Raises
    ------
    InputError
        When not-a-number is among the values.
    """
    table, length, first = segments.table, segments.length, starts(k)
    check_k(length, k)
    indices, taken = np.empty(int(k.sum()), dtype=np.int64), np.empty(int(k.sum()), np.float32)
    added = np.ascontiguousarray(array(values)) if memory is not None else NOTHING
    few, many = np.flatnonzero(length < WORTH_A_SAMPLE), np.flatnonzero(length >= WORTH_A_SAMPLE)
    strange = np.zeros(1, dtype=np.uint8)
    with written_back(values if memory is None else memory) as source:
        in_tiles(
            _take_few, segments.rows(few).tiles, source, added, table[few], k[few], first[few],
            indices, taken, strange,
        )  # fmt: skip
        if strange[0]:
            raise InputError(NO_NUMBER)
        candidates = _candidates(source, added, segments, k, many, marks)
        for i, t in enumerate(many):
            part = source[table[t, 0] : table[t, 0] + length[t]]
            out = slice(first[t], first[t] + k[t])
            own = candidates.rows(slice(i, i + 1))
            indices[out], taken[out] = chosen_among(part, int(k[t]), own)
            if memory is not None:
                in_parallel(clear_at, int(k[t]), part, indices[out])
    return tensor(indices, values), tensor(taken, values)


@kernel("selection", name="selection.largest")
def largest_of(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest |values| of one tensor: int64 `[k]`, ascending."""
    return largest(values, Segments.alone(values.numel()), np.array([k]))[0]


def _candidates(
    source: Any, added: Any, segments: Segments, k: Column, rows: Column, given: Marks | None
) -> Marks:
    """Add up these tensors, and mark what a sample bounds where nothing is marked already."""
    own = segments.rows(rows)
    marks = Marks.room(torch.from_numpy(source), own, np.inf) if given is None else given.rows(rows)
    unmarked = []
    for i, (begin, n) in enumerate(own.table):
        if np.isinf(marks.up[i]):
            terms = [each[begin : begin + n] for each in (source, added) if each.size]
            limit = bound(int(k[rows[i]]), *terms)
            if limit is not None:
                marks.up[i], marks.down[i] = limit, -limit
            if limit is not None or added.size:
                unmarked.append(i)
    some = marks.rows(unmarked)
    mark_arrays(source, added, own.rows(unmarked), some)
    marks.passed[unmarked] = some.passed
    return marks


@loop
def _take_few(
    start: int, stop: int, tiles: Any, source: Any, added: Any, table: Any, k: Any, firsts: Any,
    indices: Any, taken: Any, strange: Any,
) -> None:  # fmt: skip
    for tile in range(start, stop):  # which is a tensor
        t, _, n = tiles[tile]
        part = source[table[t, 0] : table[t, 0] + n]
        if added.size:
            more = added[table[t, 0] : table[t, 0] + n]
            for i in range(part.size):
                part[i] += more[i]
        if k[t] > 0:
            index = indices[firsts[t] : firsts[t] + k[t]]
            value = taken[firsts[t] : firsts[t] + k[t]]
            if not take_few(part.view(np.uint32), k[t], index):
                strange[0] = 1
            for j in range(index.size):
                value[j] = part[index[j]]
                if added.size:
                    part[index[j]] = np.float32(0)
