"""Selection by threshold: elements are marked in one pass over a bucket and collected in another.

The marking pass also adds a gradient to a worker's memory, so that each is read once; it records
places by block, and `take` collects them. NaN passes every limit and raises `InputError` when
taken. Indices are int64, within their tensor and ascending, of consecutive tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, inlined, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, kernel, launch
from gcsim.compressors.on_device import handled, primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError

BLOCK = 4096
NOTED = 512
"""Room for a block's places; a fuller block is searched again."""
_DENSE = 32
"""Elements per hit below which a block is searched without branches."""
UPPER, LOWER = 1.3, 0.8
"""`adjust` corrects counts outside these multiples of k, multiplying limits by these factors."""
ROUNDS = 10
"""Largest number of corrections of a limit."""
NO_NUMBER = "cannot select by magnitude: a value is not a number"
NOTHING = np.zeros(0, dtype=np.float32)
Limits = ArrayLike | Tensor


@dataclass(eq=False)
class Marks:
    """Elements whose magnitude is not below their tensor's limit."""

    up: Any
    """Float32 `[tensors]`, an array or a tensor on the device."""
    first: Column
    """First block of each tensor."""
    counts: Tensor
    """Number of marked elements in each block of `BLOCK` elements, int32 `[blocks]`."""
    places: NDArray[np.uint16]
    """`[blocks, 512]`: their positions within the block, if fewer than 512."""
    totals: Tensor
    """Int32 `[.., tensors]`: numbers of marked elements, NaN (only on a device), elements above and
    below zero (if requested); on a device then the limit's bits less one, and `adjust`'s result."""

    @classmethod
    def room(cls, like: Tensor, segments: Segments, up: Limits) -> Marks:
        blocks, tensors, on_gpu = segments.cells(BLOCK), len(segments.table), handled(like)
        if isinstance(up, torch.Tensor) and not on_gpu:
            up = array(up)
        if not isinstance(up, torch.Tensor):
            up = np.full(tensors, up, dtype=np.float32)
        columns = 4 + (ROUNDS + 1) * on_gpu
        return cls(
            up=up, first=blocks.first,
            # a kernel writes all blocks; a loop may skip tensors, whose blocks then count 0
            counts=(like.new_empty if on_gpu else like.new_zeros)(blocks.total, dtype=torch.int32),
            places=np.empty((0 if on_gpu else blocks.total, NOTED), dtype=np.uint16),
            totals=like.new_zeros((columns, tensors), dtype=torch.int32),
        )  # fmt: skip

    @cached_property
    def host(self) -> NDArray[np.int32]:
        """The totals on the host; the first access waits."""
        return array(self.totals)

    @property
    def passed(self) -> Column:
        """Number of marked elements of each tensor."""
        passed: Column = self.host[0].astype(np.int64)
        return passed


def _mark_launches(
    _: object, values: object, segments: Segments, *__: object, memory: Tensor | None = None
) -> Iterator[KernelCost]:
    n = segments.length
    if memory is None:
        yield launch("streaming", "marks.mark", n, 4 * n)
    else:
        yield launch("streaming", "marks.add_and_mark", n, 12 * n)


@counted_as(_mark_launches)
def mark(
    values: Tensor, segments: Segments, limits: Limits, *, memory: Tensor | None = None
) -> Marks:
    """Mark the elements with |value| >= limit of each tensor.

    Parameters
    ----------
    values : flat float32 of the table
    limits : `[tensors]`, or one for all, as float32
    memory : as `values`; memory += values, and the sum is marked
    """
    source, added = (values, None) if memory is None else (memory, values)
    marks = Marks.room(values, segments, limits)
    fill_marks(source, segments, marks, added)
    return marks


@primitive
def fill_marks(
    values: Tensor, segments: Segments, marks: Marks, added: Tensor | None, sides: bool = False
) -> None:
    """Run the pass of `mark`: values += added, if given; fill counts, places and totals, with
    `sides` also the numbers of elements above and below zero."""
    with written_back(values) as source:
        more = NOTHING if added is None else array(added)
        mark_arrays(source, more, segments, marks, segments.tiles, sides)


def mark_arrays(
    source: NDArray[np.float32], added: NDArray[np.float32], segments: Segments, marks: Marks,
    tiles: NDArray[np.int64], sides: bool = False,
) -> None:  # fmt: skip
    """Do `fill_marks` for the tiles of some tensors; `added` may be empty."""
    with written_back(marks.counts) as counts, written_back(marks.totals) as totals:
        signs = np.empty((2, counts.size * sides), dtype=np.int32)
        in_tiles(
            _mark, tiles, source, np.ascontiguousarray(added), segments.table, marks.up,
            marks.first, counts, marks.places, signs,
        )  # fmt: skip
        count_marks(segments.length, marks.first, counts, totals[0])
        for own, total in zip(signs, totals[2:], strict=False):
            if sides:
                count_marks(segments.length, marks.first, own, total)
    # drop the cached totals of the previous pass
    marks.__dict__.pop("host", None)


def _adjusting(
    rounds: int, values: object, segments: Segments, marks: object, k: object, *, raised: bool
) -> Iterator[KernelCost]:
    for _ in range(rounds if raised else min(rounds, 1)):
        yield from _mark_launches(None, values, segments)


@counted_as(_adjusting)
@primitive
def adjust(values: Tensor, segments: Segments, marks: Marks, k: Column, *, raised: bool) -> int:
    """Lower limits that fewer than 0.8 k elements of a tensor pass, by a factor of 0.8 at a time;
    with `raised`, raise those that more than 1.3 k pass, by 1.3. Limits of 0 and infinity stay.
    Return the rounds needed, at most `ROUNDS`."""
    with written_back(values) as source:

        def again(rows: NDArray[np.bool_]) -> None:
            tiles = segments.tiles_of(np.where(rows, segments.length, 0))
            mark_arrays(source, NOTHING, segments, marks, tiles)

        return by_rounds(marks, k, raised, again)


def by_rounds(
    marks: Marks, k: Column, raised: bool, again: Callable[[NDArray[np.bool_]], None]
) -> int:
    """Do `adjust`, where `again` marks tensors by their new limits."""
    # in float64: a float32 limit is rounded, but not the product of all factors
    limits = marks.up.astype(np.float64)
    for rounds in range(ROUNDS):
        few, many = (marks.passed < LOWER * k), raised & (marks.passed > UPPER * k)
        rows = (few | many) & np.isfinite(limits) & (limits > 0)
        if not rows.any():
            return rounds
        limits *= np.where(rows, np.where(many, UPPER, LOWER), 1.0)
        marks.up[rows] = limits[rows]
        again(rows)
    return ROUNDS


def _take_launches(
    found: tuple[Tensor, Tensor], values: object, segments: Segments, marks: object, *,
    clear: bool = False,
) -> Iterator[KernelCost]:  # fmt: skip
    k, reach = found[0].numel(), spread(segments.longest)
    name = "marks.take" + ":clear" * clear + f":{reach}"
    cost = launch("gather_scatter", name, segments.length, 4 * segments.length, 12 * k)
    yield replace(cost, work=max(1, 12 * k))


@counted_as(_take_launches)
@primitive
def take(
    values: Tensor, segments: Segments, marks: Marks, *, clear: bool = False
) -> tuple[Tensor, Tensor]:
    """Collect the marked elements: (indices int64, values float32, each `[sum of passed]`); with
    `clear` they become zero in `values`. Raises `InputError` for NaN."""
    total = int(marks.passed.sum())
    indices, taken = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.float32)
    strange = np.zeros(1, dtype=np.uint8)
    with written_back(values) as source:
        in_tiles(
            _take, segments.tiles, source, segments.table, marks.up, marks.first,
            starts(marks.passed), array(marks.counts), marks.places, indices, taken, clear, strange,
        )  # fmt: skip
    demand_numbers(strange[0])
    return tensor(indices, values), tensor(taken, values)


def passing(
    values: Tensor, segments: Segments, limits: Limits, *, memory: Tensor | None = None
) -> tuple[Tensor, Tensor, Column]:
    """Select the elements with |value| >= limit: (indices within the tensor, int64, ascending;
    values float32; how many per tensor), of consecutive tensors. Raises `InputError` for NaN.

    Parameters
    ----------
    values : flat float32 of the table
    limits : `[tensors]`, or one for all, as float32
    memory : as `values`; memory += values, and selected elements become zero
    """
    marks = mark(values, segments, limits, memory=memory)
    source = values if memory is None else memory
    return *take(source, segments, marks, clear=memory is not None), marks.passed


def demand_numbers(strange: bool) -> None:
    """Raise `InputError` if the values contain NaN."""
    if strange:
        raise InputError(NO_NUMBER)


@kernel("gather_scatter")
@primitive
def at_least(values: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return (indices, int64, ascending; values) of the elements with |value| >= threshold."""
    own = array(values)
    places = np.flatnonzero(~(np.abs(own) < np.float32(threshold)))  # includes NaN
    demand_numbers(np.isnan(own[places]).any())
    return tensor(places, values), tensor(own[places], values)


@inlined
def note_places(mask, words, size, hits, places):
    """List the positions where `mask` (uint8, 0 or 1; `words` is its view) is 1; for loops.
    `places` has room for `hits` + 1; `mask` is 0 from `size` to the next multiple of eight."""
    found = 0
    if hits * _DENSE < size:
        for word in range((size + 7) // 8):  # few hits: skip eights of zeros
            if words[word]:
                for bit in range(8):
                    places[found] = 8 * word + bit
                    found += mask[8 * word + bit]
    elif hits:  # many: write every place, keep it if the mask is 1
        for i in range(size):
            places[found] = i
            found += mask[i]


@inlined
def mark_block(part, limit, mask, words, places):
    """Count the elements of `part` (at most `BLOCK`) that reach the limit; list their positions if
    `places` has room for all. `mask` is scratch of `BLOCK` + 8 bytes, `words` its view."""
    hits = np.int32(0)
    for i in range(part.size):
        reaches = not abs(part[i]) < limit  # also true for NaN
        mask[i] = reaches
        hits += np.int32(reaches)
    mask[part.size : part.size + 8] = 0
    if hits < places.size:
        note_places(mask, words, part.size, hits, places)
    return hits


@loop
def _mark(start, stop, tiles, values, added, table, up, firsts, counts, places, sides):
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin = table[t, 0] + first
        whole = values[begin : begin + last - first]
        for at in range(0, whole.size, BLOCK):
            part = whole[at : min(at + BLOCK, whole.size)]
            if added.size:
                more = added[begin + at : begin + at + part.size]
                for i in range(part.size):
                    part[i] += more[i]
            # tiles begin at multiples of a block, so threads share no block
            block = firsts[t] + (first + at) // BLOCK
            if sides.size:
                positive, negative = np.int32(0), np.int32(0)
                for i in range(part.size):
                    positive += np.int32(part[i] > np.float32(0))
                    negative += np.int32(part[i] < np.float32(0))
                sides[0, block], sides[1, block] = positive, negative
            counts[block] = mark_block(part, up[t], mask, words, places[block])


@loop
def count_marks(lengths, firsts, counts, passed):
    """Count each tensor's marked elements."""
    for t in range(lengths.size):
        blocks = (lengths[t] + BLOCK - 1) // BLOCK
        passed[t] = counts[firsts[t] : firsts[t] + blocks].sum()


@loop
def collect(whole, first, limit, counts, places, indices, taken, clear) -> bool:
    """Collect the marked elements of a part of a tensor that begins at element `first`, the start
    of a block, with its blocks' `counts` and `places`; return whether one is NaN."""
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    found = np.zeros(BLOCK + 1, dtype=np.uint16)
    out, unordered = np.int64(0), False
    for block in range((whole.size + BLOCK - 1) // BLOCK):
        count = np.int64(counts[block])
        if count == 0:
            continue
        at = block * BLOCK
        part = whole[at : min(at + BLOCK, whole.size)]
        here = places[block]
        if count >= NOTED:  # too many to be listed
            mark_block(part, limit, mask, words, found)
            here = found
        index, value = indices[out : out + count], taken[out : out + count]
        out += count
        for i in range(count):
            place = here[i]
            x = part[place]
            index[i] = first + at + place
            value[i] = x
            unordered |= np.isnan(x)
            if clear:
                part[place] = np.float32(0)
    return unordered


@loop
def _take(
    start, stop, tiles, values, table, up, firsts, begins, counts, places, indices, taken, clear,
    strange,
):  # fmt: skip
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        own = firsts[t] + first // BLOCK
        # after the marks of the tensor's earlier tiles
        out = begins[t] + counts[firsts[t] : own].sum()
        whole = values[table[t, 0] + first : table[t, 0] + last]
        given = whole, first, up[t], counts[own:], places[own:], indices[out:], taken[out:], clear
        if collect(*given):
            strange[0] = 1
