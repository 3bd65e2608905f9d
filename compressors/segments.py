"""A bucket's table: the tensors' begins and lengths, their cells, and the tiles that threads share.

A primitive works on all tensors of a bucket in one call over the table's tiles (a tensor's elements
first … last - 1); a tensor alone is a table of one row. Per-tensor quantities (selected elements, a
body's begin) are columns: arrays with one number a row. Tiles are cut at multiples of their length
from the tensor's first element, so that sums by blocks do not depend on threads.
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
"""Elements of a tile: they stay in the processor's cache."""
Column = NDArray[np.int64]
"""One number a row of the table."""
ZERO = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Segments:
    table: NDArray[np.int64]
    """`[tensors, 2]`: first element in the flat bucket, and number of elements."""

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
        """The table of consecutive tensors of these lengths."""
        length = np.asarray(lengths, dtype=np.int64)
        return cls(np.stack((starts(length), length), axis=1))

    @cached_property
    def twice(self) -> Segments:
        """The table with the rows of all tensors twice."""
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
        """Most elements of a tensor."""
        return int(self.length.max(initial=0))

    @cached_property
    def tiles(self) -> NDArray[np.int64]:
        """`[tiles, 3]`: tensor, first element, element behind the last."""
        return self.tiles_of(self.length)

    def tiles_of(self, counts: Column) -> NDArray[np.int64]:
        """Tiles of so many elements of each tensor: `[tiles, 3]`."""
        return tiles_of(counts, self.column(TILE))

    def column(self, values: int | ArrayLike) -> Column:
        """A number for each row, or one for all: a column that nobody changes."""
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
        """Cells of `size` elements, the last perhaps shorter; None: one cell a tensor."""
        if size not in self._cells:
            sizes = np.maximum(1, self.length) if size is None else self.column(size)
            self._cells[size] = Cells(self, sizes, -(-self.length // sizes))
        return self._cells[size]

    def even_cells(self, most: int | None) -> Cells:
        """Cells of at most `most` elements, as equal as can be; None: one cell a tensor."""
        if most is None:
            return self.cells(None)
        if -most not in self._cells:  # beside those of a size
            size = np.maximum(1, -(-self.length // np.maximum(1, -(-self.length // most))))
            self._cells[-most] = Cells(self, size, -(-self.length // size))
        return self._cells[-most]

    @cached_property
    def whole(self) -> Cells:
        """A cell for each tensor, also for one without elements."""
        return Cells(self, np.maximum(1, self.length), self.column(1))


@dataclass(frozen=True, eq=False)
class Cells:
    """Consecutive elements that share a number, such as a norm."""

    segments: Segments
    size: Column
    """Elements of each cell but perhaps the last."""
    count: Column
    """Cells of each tensor."""

    @cached_property
    def first(self) -> Column:
        """Number of each tensor's first cell."""
        return starts(self.count)

    @cached_property
    def total(self) -> int:
        return int(self.count.sum())

    @cached_property
    def owner(self) -> Column:
        """Tensor of each cell."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @cached_property
    def number(self) -> Column:
        """Number of each cell within its tensor."""
        return np.arange(self.total) - self.first[self.owner]

    @cached_property
    def length(self) -> Column:
        """Elements of each cell."""
        size = self.size[self.owner]
        return np.minimum(size, self.segments.length[self.owner] - self.number * size)

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """`[cells, 3]`: cell, its first element in the flat bucket, element behind its last."""
        begin = self.segments.begin[self.owner] + self.number * self.size[self.owner]
        return np.stack((np.arange(self.total), begin, begin + self.length), axis=1)

    @cached_property
    def slots(self) -> tuple[Column, Column, int]:
        """Sums of what cells and blocks of `SUM_BLOCK` have in common: each tensor's first, each
        cell's first, and their number."""
        # block t and cell c meet in sum t + c; between two cells that end with a block lies a zero
        rooms = -(-self.segments.length // SUM_BLOCK) + self.count
        first, size = starts(rooms), self.size[self.owner]
        begins = first[self.owner] + self.number * size // SUM_BLOCK + self.number
        return first, begins, int(rooms.sum())

    @cached_property
    def tiles(self) -> NDArray[np.int64]:
        """Tiles of whole cells, `[tiles, 3]` as those of `Segments`."""
        # no cell is cut: one of more than `TILE` elements is a tile of its own
        grain = self.size * np.maximum(1, TILE // self.size)
        return tiles_of(self.segments.length, grain)


def starts(lengths: Column) -> Column:
    """Begin of each when they are consecutive."""
    begins: Column = lengths.cumsum() - lengths
    return begins


def keys_of(
    layout: BucketLayout, seed: int, step: int, purpose: str, rank: int | None
) -> NDArray[np.uint64]:
    """A key for each tensor's random numbers (`random_key`): uint64 `[tensors]`.

    A worker's, or with a rank of None that of all workers.
    """
    return random_keys(seed, step, layout.numbers, purpose, rank)


def spread(numbers: Tensor, counts: Column) -> Tensor:
    """Repeat each tensor's number `counts` times: `[tensors]` to `[sum of counts]`."""
    times = torch.from_numpy(counts).to(numbers.device)
    return numbers.repeat_interleave(times, output_size=int(counts.sum()))


@loop
def tiles_of(lengths: Any, grains: Any) -> NDArray[np.int64]:
    """Tiles of each tensor, cut at multiples of its grain: `[tiles, 3]`."""
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
