"""Elements outside an interval: marked in one pass over a bucket and collected in another.

The pass over all elements marks those that do not lie inside the open interval (down, up) of their
tensor and notes their places block by block; `take` collects them. The marking pass is where a
gradient is added to a worker's memory, so that each is read once.

Not-a-number lies in no interval, is marked, and is an `InputError` when it is taken. Indices are
int64, within their tensor and ascending, one tensor's behind the other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
"""Elements that are marked together."""
NOTED = 512
"""Places that a block has room for; a fuller block is searched again when it is taken."""
_DENSE = 32
"""With more than one hit in so many elements, a block's places are found without branches."""
NO_NUMBER = "cannot select by magnitude: a value is not a number"
NOTHING = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Elements of a table that lie outside the open interval (down, up) of their tensor."""

    down: NDArray[np.float32]
    """`[tensors]`, as all columns below."""
    up: NDArray[np.float32]
    passed: Column
    """Marked elements of each tensor."""
    first: Column
    """First block of each tensor."""
    counts: Tensor
    """Marked elements of each block of `BLOCK` elements, int64 `[blocks]`."""
    places: NDArray[np.uint16]
    """`[blocks, 512]`: their positions within the block, where there are fewer than 512."""

    @classmethod
    def room(
        cls, like: Tensor, segments: Segments, up: ArrayLike, down: ArrayLike | None = None
    ) -> Marks:
        """Room for the marks of a table on the device of `like`."""
        tensors, blocks = len(segments.table), -(-segments.length // BLOCK)
        total = int(blocks.sum())
        upper = np.array(np.broadcast_to(up, tensors), dtype=np.float32)
        lower = -upper if down is None else np.array(np.broadcast_to(down, tensors), np.float32)
        return cls(
            down=lower, up=upper, passed=segments.column(0).copy(), first=starts(blocks),
            counts=torch.empty(total, dtype=torch.int64, device=like.device),
            places=np.empty((0 if handled(like) else total, NOTED), dtype=np.uint16),
        )  # fmt: skip

    def rows(self, chosen: Any) -> Marks:
        """The marks of some of the tensors."""
        columns = {name: getattr(self, name)[chosen] for name in ("down", "up", "passed", "first")}
        return replace(self, **columns)


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
    values: Tensor, segments: Segments, up: ArrayLike, down: ArrayLike | None = None, *,
    memory: Tensor | None = None,
) -> Marks:  # fmt: skip
    """Mark what is >= `up` or <= `down` (-up unless given) of each tensor.

    Parameters
    ----------
    values : flat float32 of the table
    up, down : `[tensors]`, or one limit for all, as float32
    memory : as `values`; memory += values, and the sum is marked in the same pass
    """
    source, added = (values, None) if memory is None else (memory, values)
    marks = Marks.room(values, segments, up, down)
    fill_marks(source, segments, marks, added)
    return marks


@counted_as(lambda _, values, segments, *__: _mark_launches(_, values, segments))
def mark_again(values: Tensor, segments: Segments, marks: Marks, rows: Column) -> None:
    """Mark these tensors again, by the limits that `marks` now has of them."""
    some = marks.rows(rows)
    fill_marks(values, segments.rows(rows), some, None)
    marks.passed[rows] = some.passed


def _counting_launches(
    _: object, values: object, segments: Segments, *__: object
) -> Iterator[KernelCost]:
    yield launch("streaming", "dryden._add_and_count", segments.length, 12 * segments.length)


@counted_as(_counting_launches)
def mark_and_count(
    values: Tensor, segments: Segments, up: ArrayLike, down: ArrayLike, memory: Tensor
) -> tuple[Marks, Column]:
    """`mark`, and the elements of each tensor above and below zero: int64 `[tensors, 2]`."""
    marks = Marks.room(values, segments, up, down)
    sides = np.zeros((2, len(segments.table)), dtype=np.int64)
    fill_marks(memory, segments, marks, values, sides)
    return marks, sides.T


@primitive
def fill_marks(
    values: Tensor, segments: Segments, marks: Marks, added: Tensor | None,
    sides: Column | None = None,
) -> None:  # fmt: skip
    """The pass of `mark`: values += added, if given; counts, places and `passed` of the marks.

    And the elements above and below zero in `sides`, int64 `[2, tensors]`, if given.
    """
    with written_back(values) as source:
        mark_arrays(source, NOTHING if added is None else array(added), segments, marks, sides)


def mark_arrays(
    source: NDArray[np.float32], added: NDArray[np.float32], segments: Segments, marks: Marks,
    sides: Column | None = None,
) -> None:  # fmt: skip
    """`fill_marks` of arrays; `added` may be empty."""
    counts = array(marks.counts)
    signs = np.empty((2, counts.size if sides is not None else 0), dtype=np.int64)
    in_tiles(
        _mark, segments.tiles, source, np.ascontiguousarray(added), segments.table, marks.up,
        marks.down, marks.first, counts, marks.places, signs,
    )  # fmt: skip
    count_marks(segments.length, marks.first, counts, marks.passed)
    if sides is not None:
        for own, side in zip(signs, sides, strict=True):
            count_marks(segments.length, marks.first, own, side)
    if not marks.counts.is_cpu:
        marks.counts.copy_(torch.from_numpy(counts))


def _take_launches(
    found: tuple[Tensor, Tensor], values: object, segments: Segments, marks: object, *,
    clear: bool = False,
) -> Iterator[KernelCost]:  # fmt: skip
    k, reach = found[0].numel(), spread(int(segments.length.max(initial=0)))
    name = "marks.take" + ":clear" * clear + f":{reach}"
    cost = launch("gather_scatter", name, segments.length, 4 * segments.length, 12 * k)
    yield replace(cost, work=max(1, 12 * k))


@counted_as(_take_launches)
@primitive
def take(
    values: Tensor, segments: Segments, marks: Marks, *, clear: bool = False
) -> tuple[Tensor, Tensor]:
    """(indices int64, values float32, each `[sum of passed]`) of the marked elements.

    With `clear` they are then set to zero in `values`. Raises `InputError` when one is
    not-a-number.
    """
    with written_back(values) as source:
        indices, taken = take_arrays(source, segments, marks, clear)
    return tensor(indices, values), tensor(taken, values)


def take_arrays(
    source: NDArray[np.float32], segments: Segments, marks: Marks, clear: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """`take` of an array."""
    total = int(marks.passed.sum())
    indices, taken = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.float32)
    strange = np.zeros(1, dtype=np.uint8)
    in_tiles(
        _take, segments.tiles, source, segments.table, marks.up, marks.down, marks.first,
        starts(marks.passed), array(marks.counts), marks.places, indices, taken, clear, strange,
    )  # fmt: skip
    if strange[0]:
        raise InputError(NO_NUMBER)
    return indices, taken


def passing(
    values: Tensor, segments: Segments, limits: ArrayLike, *, memory: Tensor | None = None
) -> tuple[Tensor, Tensor, Column]:
    """The elements with |value| >= limit, one tensor's behind the other's.

    Parameters
    ----------
    values : flat float32 of the table
    limits : `[tensors]`, or one for all, as float32
    memory : as `values`; memory += values, of which the elements are then taken out (zero remains)

    Returns
    -------
    (indices within the tensor, int64, ascending; values float32; how many of each tensor).

    Raises
    ------
    InputError
        When not-a-number is among the values.
    """
    marks = mark(values, segments, limits, memory=memory)
    source = values if memory is None else memory
    return *take(source, segments, marks, clear=memory is not None), marks.passed


@kernel("gather_scatter")
def at_least(values: Tensor, threshold: float) -> Tensor:
    """Indices with |value| >= threshold of a tensor, int64, ascending."""
    return passing(values, Segments.alone(values.numel()), max(threshold, 0.0))[0]


# --- loops ------------------------------------------------------------------------------------


@inlined
def note_places(mask: Any, words: Any, size: int, hits: Any, places: Any) -> None:
    """Inside a loop: the positions where `mask` (uint8, 0 or 1, `words` its view) is 1.

    `places` needs room for one more than the `hits`; what `mask` holds behind `size` is ignored
    as long as it is 0 up to the next multiple of eight.
    """
    found = 0
    if hits * _DENSE < size:
        for word in range((size + 7) // 8):  # few hits: most eights are zero, and passed over
            if words[word]:
                for bit in range(8):
                    places[found] = 8 * word + bit
                    found += mask[8 * word + bit]
    elif hits:  # many: every place is written, and kept where the mask is 1
        for i in range(size):
            places[found] = i
            found += mask[i]


@inlined
def mark_block(part: Any, up: Any, down: Any, mask: Any, words: Any, places: Any) -> Any:
    """Inside a loop: how many of `part` do not lie in (down, up), their positions in `places`.

    `part` has at most `BLOCK` elements, `mask` is scratch of `BLOCK` + 8 bytes and `words` its
    view. Where there are more than `places` has room for, it is left alone.
    """
    hits = np.int32(0)
    for i in range(part.size):
        outside = not ((part[i] < up) & (part[i] > down))  # NaN is outside, too
        mask[i] = outside
        hits += np.int32(outside)
    mask[part.size : part.size + 8] = 0
    if hits < places.size:
        note_places(mask, words, part.size, hits, places)
    return hits


@loop
def _mark(
    start: int, stop: int, tiles: Any, values: Any, added: Any, table: Any, up: Any, down: Any,
    firsts: Any, counts: Any, places: Any, sides: Any,
) -> None:  # fmt: skip
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
            block = firsts[t] + (first + at) // BLOCK
            if sides.size:
                positive, negative = np.int32(0), np.int32(0)
                for i in range(part.size):
                    positive += np.int32(part[i] > np.float32(0))
                    negative += np.int32(part[i] < np.float32(0))
                sides[0, block], sides[1, block] = positive, negative
            counts[block] = mark_block(part, up[t], down[t], mask, words, places[block])


@loop
def count_marks(lengths: Any, firsts: Any, counts: Any, passed: Any) -> None:
    """Marked elements of each tensor."""
    for t in range(lengths.size):
        blocks = (lengths[t] + BLOCK - 1) // BLOCK
        passed[t] = counts[firsts[t] : firsts[t] + blocks].sum()


@loop
def _take(
    start: int, stop: int, tiles: Any, values: Any, table: Any, up: Any, down: Any, firsts: Any,
    begins: Any, counts: Any, places: Any, indices: Any, taken: Any, clear: bool, strange: Any,
) -> None:  # fmt: skip
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    found = np.zeros(BLOCK + 1, dtype=np.uint16)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin = table[t, 0] + first
        whole = values[begin : begin + last - first]
        own = firsts[t] + first // BLOCK
        out = begins[t] + counts[firsts[t] : own].sum()
        for at in range(0, whole.size, BLOCK):
            block = own + at // BLOCK
            count = counts[block]
            if count == 0:
                continue
            part = whole[at : min(at + BLOCK, whole.size)]
            here = places[block]
            if count >= NOTED:  # too many to have been noted
                mark_block(part, up[t], down[t], mask, words, found)
                here = found
            index, value = indices[out : out + count], taken[out : out + count]
            out += count
            unordered = False
            for i in range(count):
                place = here[i]
                x = part[place]
                index[i] = first + at + place
                value[i] = x
                unordered |= np.isnan(x)
                if clear:
                    part[place] = np.float32(0)
            if unordered:
                strange[0] = 1
