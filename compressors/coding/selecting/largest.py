"""The k largest magnitudes of each tensor of a bucket, exactly: `selection.py` over a table.

A short tensor is added up, selected from and cleared while it lies in the processor's cache. Of a
long one the elements that pass a sample's threshold are marked while it is added up, and the
largest are among those marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gcsim.compressors.coding.selecting.marks import BLOCK, NOTED, Marks, mark_block
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
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import handled, primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError

_NOTHING = np.zeros(0, dtype=np.float32)


def _launches(
    _: object, values: Tensor, segments: Segments, k: Column, *, memory: Tensor | None = None
) -> Iterator[KernelCost]:
    sizes = zip(segments.length.tolist(), k.tolist(), strict=True)
    marked = np.array([not handled(values) and stride_of(n, many) > 0 for n, many in sizes])
    for marks in (False, True):
        n, many = (column[marked == marks] for column in (segments.length, k))
        if len(n) and memory is not None:
            adds = "marks.add_and_mark" if marks else "aten.add_"
            yield launch("streaming", adds, n, 12 * n)
        if len(n):
            name = "selection.take_largest" + ":marks" * (marks and memory is not None)
            yield launch("selection", name, n, 4 * n, 12 * many)


@counted_as(_launches)
@primitive
def largest(
    values: Tensor, segments: Segments, k: Column, *, memory: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest |values| of each tensor, one tensor's behind the other's.

    Parameters
    ----------
    values : flat float32 of the table
    k : how many of each tensor, 0 to its length
    memory : as `values`; memory += values, of which the largest are then taken out (zero remains)

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
    added = np.ascontiguousarray(array(values)) if memory is not None else _NOTHING
    long = np.flatnonzero(length >= WORTH_A_SAMPLE)
    blocks = np.where(length >= WORTH_A_SAMPLE, -(-length // BLOCK), 0)
    marks = _Marks(len(k), int(blocks.sum()))
    with written_back(values if memory is None else memory) as source:
        for t in long:
            own = slice(table[t, 0], table[t, 0] + length[t])
            terms = (source[own], added[own]) if added.size else (source[own],)
            marks.limits[t] = bound(int(k[t]), *terms)
        strange = np.zeros(1, dtype=np.uint8)
        in_tiles(
            _take_tiles, segments.tiles, source, added, table, k, first, starts(blocks),
            marks.limits, marks.counts, marks.places, indices, taken, strange,
        )  # fmt: skip
        if strange[0]:
            raise InputError(NO_NUMBER)
        for t, block in zip(long, starts(blocks)[long], strict=True):
            part = source[table[t, 0] : table[t, 0] + length[t]]
            out = slice(first[t], first[t] + k[t])
            some = slice(block, block + blocks[t])
            indices[out], taken[out] = chosen_among(part, int(k[t]), marks.of(int(t), some))
            if memory is not None:
                in_parallel(clear_at, int(k[t]), part, indices[out])
    return tensor(indices, values), tensor(taken, values)


class _Marks:
    """Elements of long tensors that pass a limit; a limit of not-a-number marks none."""

    def __init__(self, tensors: int, blocks: int) -> None:
        self.limits = np.full(tensors, np.nan, dtype=np.float32)
        self.counts = np.zeros(blocks, dtype=np.int64)
        self.places = np.empty((blocks, NOTED), dtype=np.uint16)

    def of(self, t: int, blocks: slice) -> Marks | None:
        """Positions of one tensor, whose blocks these are."""
        if np.isnan(self.limits[t]):
            return None
        up = self.limits[t]
        return Marks(down=-up, up=up, counts=self.counts[blocks], places=self.places[blocks])


@loop
def _take_tiles(
    start: int, stop: int, tiles: Any, source: Any, added: Any, table: Any, k: Any, firsts: Any,
    blocks: Any, limits: Any, counts: Any, places: Any, indices: Any, taken: Any, strange: Any,
) -> None:  # fmt: skip
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin = table[t, 0] + first
        part = source[begin : begin + last - first]
        marking = not np.isnan(limits[t])
        for at in range(0, part.size, BLOCK):
            piece = part[at : min(at + BLOCK, part.size)]
            if added.size:
                more = added[begin + at : begin + at + piece.size]
                for i in range(piece.size):
                    piece[i] += more[i]
            if marking:
                block = blocks[t] + (first + at) // BLOCK
                up = limits[t]
                counts[block] = mark_block(piece, up, -up, mask, words, places[block])
        if table[t, 1] < WORTH_A_SAMPLE and k[t] > 0:  # the tile is the tensor
            index = indices[firsts[t] : firsts[t] + k[t]]
            value = taken[firsts[t] : firsts[t] + k[t]]
            if not take_few(part.view(np.uint32), k[t], index):
                strange[0] = 1
            for j in range(index.size):
                value[j] = part[index[j]]
                if added.size:
                    part[index[j]] = np.float32(0)
