"""Tables of a bucket's tensors: their offsets and lengths, cells, and tiles to divide among
threads.

A primitive processes all tensors of a bucket in one call over the table's tiles (elements first …
last - 1 of a tensor). Values per tensor (selected elements, offset of a body) are columns: arrays
with one number per row. Tiles are cut at multiples of their length from the tensor's first element,
so that blocked sums do not depend on the threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, loop
from gcsim.compressors.random import random_keys

TILE = 1 << 16
"""Elements per tile: few enough to stay in the processor's cache."""
Column = NDArray[np.int64]
"""One number for each row of the table."""
ZERO = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Segments:
    table: NDArray[np.int64]
    """`[tensors, 2]`: offset in the flat bucket, and number of elements."""

    @classmethod
    def of(cls, layout: BucketLayout) -> Segments:
        if cls not in layout.facts:
            layout.facts[cls] = cls(layout.table)
        found: Segments = layout.facts[cls]
        return found

    @classmethod
    @lru_cache(maxsize=1 << 8)
    def alone(cls, n: int) -> Segments:
        return cls(np.array([(0, n)], dtype=np.int64))

    @classmethod
    def behind(cls, lengths: ArrayLike) -> Segments:
        """Return the table of consecutive tensors with these lengths."""
        length = np.asarray(lengths, dtype=np.int64)
        return cls(np.stack((starts(length), length), axis=1))

    @cached_property
    def twice(self) -> Segments:
        """The table with all its rows repeated once."""
        return Segments(np.concatenate((self.table, self.table)))

    def rows(self, chosen: Any) -> Segments:
        return Segments(np.ascontiguousarray(self.table[chosen]))

    @cached_property
    def begin(self) -> Column:
        return np.ascontiguousarray(self.table[:, 0])

    @cached_property
    def length(self) -> Column:
        return np.ascontiguousarray(self.table[:, 1])

    @cached_property
    def longest(self) -> int:
        """Number of elements of the longest tensor."""
        return int(self.length.max(initial=0))

    @cached_property
    def tiles(self) -> NDArray[np.int64]:
        """`[tiles, 3]`: tensor, first element, end (exclusive)."""
        return self.tiles_of(self.length)

    def tiles_of(self, counts: Column) -> NDArray[np.int64]:
        """Return the tiles of the first `counts` elements of each tensor: `[tiles, 3]`."""
        return tiles_of(counts, self.column(TILE))

    def column(self, values: int | ArrayLike) -> Column:
        """Return a column with a number per row, or one number in all rows. Do not modify it."""
        if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim:
            return values
        if not isinstance(values, int):
            return np.full(len(self.table), values, dtype=np.int64)
        if values not in self._columns:
            self._columns[values] = np.full(len(self.table), values, dtype=np.int64)
        return self._columns[values]

    @cached_property
    def _columns(self) -> dict[int, Column]:
        return {}

    @cached_property
    def _cells(self) -> dict[int | None, Cells]:
        return {}

    def cells(self, size: int | None) -> Cells:
        """Return cells of `size` elements, the last may be shorter; None: one cell per tensor."""
        if size not in self._cells:
            sizes = np.maximum(1, self.length) if size is None else self.column(size)
            self._cells[size] = Cells(self, sizes, -(-self.length // sizes))
        return self._cells[size]

    def even_cells(self, most: int | None) -> Cells:
        """Return nearly equal cells of at most `most` elements; None: one cell per tensor."""
        if most is None:
            return self.cells(None)
        if -most not in self._cells:  # negative keys, as `cells` uses the positive ones
            size = np.maximum(1, -(-self.length // np.maximum(1, -(-self.length // most))))
            self._cells[-most] = Cells(self, size, -(-self.length // size))
        return self._cells[-most]

    @cached_property
    def whole(self) -> Cells:
        """One cell per tensor, even for a tensor without elements."""
        return Cells(self, np.maximum(1, self.length), self.column(1))


@dataclass(frozen=True, eq=False)
class Cells:
    """Runs of consecutive elements that share a number, such as a norm."""

    segments: Segments
    size: Column
    """Elements in a cell, per tensor; a tensor's last cell may be shorter."""
    count: Column
    """Number of cells, per tensor."""

    @cached_property
    def first(self) -> Column:
        """Index of each tensor's first cell."""
        return starts(self.count)

    @cached_property
    def total(self) -> int:
        return int(self.count.sum())

    @cached_property
    def owner(self) -> Column:
        """Tensor that contains each cell."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @cached_property
    def number(self) -> Column:
        """Index of each cell within its tensor."""
        return np.arange(self.total) - self.first[self.owner]

    @cached_property
    def length(self) -> Column:
        """Number of elements of each cell."""
        size = self.size[self.owner]
        return np.minimum(size, self.segments.length[self.owner] - self.number * size)

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """`[cells, 3]`: cell, its first element in the flat bucket, end (exclusive)."""
        begin = self.segments.begin[self.owner] + self.number * self.size[self.owner]
        return np.stack((np.arange(self.total), begin, begin + self.length), axis=1)

    @cached_property
    def slots(self) -> tuple[Column, Column, int]:
        """Slots for partial sums, one for each overlap of a cell with a block of `SUM_BLOCK`: each
        tensor's first slot, each cell's first slot, and the number of slots."""
        # block t and cell c share slot t + c; a slot stays 0 if a cell ends where a block does
        rooms = -(-self.segments.length // SUM_BLOCK) + self.count
        first, size = starts(rooms), self.size[self.owner]
        begins = first[self.owner] + self.number * size // SUM_BLOCK + self.number
        return first, begins, int(rooms.sum())

    @cached_property
    def tiles(self) -> NDArray[np.int64]:
        """Tiles that consist of whole cells: `[tiles, 3]` like those of `Segments`."""
        # no cell is cut: a cell of more than `TILE` elements is a tile of its own
        grain = self.size * np.maximum(1, TILE // self.size)
        return tiles_of(self.segments.length, grain)


def starts(lengths: Column) -> Column:
    """Return the offset of each run when runs of these lengths are consecutive."""
    begins: Column = lengths.cumsum() - lengths
    return begins


def keys_of(
    layout: BucketLayout, seed: int, step: int, purpose: str, rank: int | None
) -> NDArray[np.uint64]:
    """Return a key for each tensor's random numbers (`random_key`): uint64 `[tensors]`. With
    `rank=None` all workers share the keys."""
    return random_keys(seed, step, layout.numbers, purpose, rank)


def spread(numbers: Tensor, counts: Column) -> Tensor:
    """Repeat each tensor's number `counts` times: from `[tensors]` to `[sum of counts]`."""
    times = torch.from_numpy(counts).to(numbers.device)
    return numbers.repeat_interleave(times, output_size=int(counts.sum()))


@loop
def tiles_of(lengths: Any, grains: Any) -> NDArray[np.int64]:
    """Return the tiles of each tensor, cut at multiples of its grain: `[tiles, 3]`."""
    total = 0
    for t in range(lengths.size):
        total += (lengths[t] + grains[t] - 1) // grains[t]
    tiles = np.empty((total, 3), dtype=np.int64)
    at = 0
    for t in range(lengths.size):
        for first in range(0, lengths[t], grains[t]):
            tiles[at, 0] = t
            tiles[at, 1] = first
            tiles[at, 2] = min(first + grains[t], lengths[t])
            at += 1
    return tiles
