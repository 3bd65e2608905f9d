"""Which elements pass a threshold? They are marked in one pass and collected in another.

The pass over all elements *marks* those that do not lie inside the open interval (down, up), noting
their places block by block, and `take` collects them. The marking pass is where a gradient is added
to what a worker remembers, so that each is read once.

Not-a-number lies in no interval, is marked, and is an `InputError` when it is taken. Indices are
int64 and ascending.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import (
    array,
    in_parallel,
    inlined,
    loop,
    tensor,
    total_of,
    written_back,
)
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device
from gcsim.errors import InputError, InternalError

BLOCK = 4096
"""Elements that are marked together."""
NOTED = 512
"""Places that a block has room for; a fuller block is searched again when it is taken."""
_DENSE = 32
"""With more than one hit in so many elements, a block's places are found without branches."""


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Which elements a pass found outside the open interval (down, up)."""

    down: np.float32
    up: np.float32
    counts: Any
    """int64, by block of `BLOCK` elements: an array, or on a GPU a tensor."""
    places: NDArray[np.uint16]
    """`[blocks, 512]`: their positions within the block, where there are fewer than 512."""

    @property
    def total(self) -> int:
        """Number of marked elements."""
        return int(total_of(self.counts))


def new_marks(n: int, up: float | np.float32, down: float | np.float32 | None = None) -> Marks:
    """Room for the marks of n elements; `down` is -up unless given."""
    blocks = -(-n // BLOCK)
    return Marks(
        down=np.float32(-up if down is None else down),
        up=np.float32(up),
        counts=np.zeros(blocks, dtype=np.int64),
        places=np.empty((blocks, NOTED), dtype=np.uint16),
    )


@kernel("streaming")
@on_device("selecting.selection")
def mark(values: Tensor, up: float | np.float32, down: float | np.float32 | None = None) -> Marks:
    """Mark what is >= `up` or <= `down` (-up unless given); `values` is float32 `[n]`."""
    marks = new_marks(values.numel(), up, down)
    in_parallel(
        _mark, values.numel(), array(values), marks.up, marks.down, marks.counts, marks.places
    )
    return marks


@kernel("streaming", updates=("memory",))
@on_device("selecting.selection")
def add_and_mark(
    memory: Tensor, gradient: Tensor, up: float | np.float32, down: float | np.float32 | None = None
) -> Marks:
    """memory += gradient, in place, and `mark` the sum in the same pass; both float32 `[n]`."""
    marks = new_marks(memory.numel(), up, down)
    with written_back(memory) as sums:
        in_parallel(
            _add_and_mark, sums.size, sums, array(gradient),
            marks.up, marks.down, marks.counts, marks.places,
        )  # fmt: skip
    return marks


@kernel("gather_scatter", variants=("clear",), by_results=True)
@on_device("selecting.selection")
def take(values: Tensor, marks: Marks, *, clear: bool = False) -> tuple[Tensor, Tensor]:
    """(indices int64 `[m]`, ascending; their values float32 `[m]`) of the marked elements.

    With `clear` they are then set to zero in `values`. Raises `InputError` when one is
    not-a-number.
    """
    if not clear:
        indices, taken = take_arrays(array(values), marks, False)
    else:
        with written_back(values) as source:
            indices, taken = take_arrays(source, marks, True)
    return tensor(indices, values), tensor(taken, values)


def take_arrays(
    values: NDArray[np.float32], marks: Marks, clear: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """`take` of an array, inside a function that the meter counts already."""
    if values.size > BLOCK * marks.counts.size:
        raise InternalError(f"marks of {marks.counts.size} blocks for {values.size} elements")
    total = marks.total
    indices, taken = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.float32)
    nan = np.zeros(1, dtype=np.uint8)
    in_parallel(
        _take, values.size, values, marks.up, marks.down, marks.counts, marks.places,
        indices, taken, clear, nan,
    )  # fmt: skip
    if nan[0]:
        raise InputError("cannot select by magnitude: a value is not a number")
    return indices, taken


@kernel("gather_scatter")
def at_least(values: Tensor, threshold: float) -> Tensor:
    """Indices with |value| >= threshold, int64, ascending: one compare-and-compact pass."""
    if values.device.type != "cpu":
        return (values.abs() >= threshold).nonzero().view(-1)
    return take(values, mark(values, max(threshold, 0.0)))[0]


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
def _mark(start: int, stop: int, values: Any, up: Any, down: Any, counts: Any, places: Any) -> None:
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    for first in range(start, stop, BLOCK):
        part = values[first : min(first + BLOCK, stop)]
        row = places[first // BLOCK]
        counts[first // BLOCK] = mark_block(part, up, down, mask, words, row)


@loop
def _add_and_mark(
    start: int, stop: int, sums: Any, added: Any, up: Any, down: Any, counts: Any, places: Any
) -> None:
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    for first in range(start, stop, BLOCK):
        part = sums[first : min(first + BLOCK, stop)]
        more = added[first : min(first + BLOCK, stop)]
        for i in range(part.size):
            part[i] += more[i]
        row = places[first // BLOCK]
        counts[first // BLOCK] = mark_block(part, up, down, mask, words, row)


@loop
def _take(
    start: int, stop: int, values: Any, up: Any, down: Any, counts: Any, places: Any,
    indices: Any, taken: Any, clear: bool, nan: Any,
) -> None:  # fmt: skip
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    found = np.zeros(BLOCK + 1, dtype=np.uint16)
    at = counts[: start // BLOCK].sum()
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        count = counts[block]
        if count == 0:
            continue
        part = values[first : min(first + BLOCK, stop)]
        here = places[block]
        if count >= NOTED:  # too many to have been noted
            mark_block(part, up, down, mask, words, found)
            here = found
        index, value = indices[at : at + count], taken[at : at + count]
        at += count
        unordered = False
        for i in range(count):
            place = here[i]
            x = part[place]
            index[i] = first + place
            value[i] = x
            unordered |= np.isnan(x)
            if clear:
                part[place] = np.float32(0)
        if unordered:
            nan[0] = 1
