"""Which elements are sent? The k largest, or those above a threshold, and how to move them.

Selection by a threshold takes two steps: a pass over all elements *marks* those that do not lie
inside the open interval (down, up), noting their places block by block, and `take` collects
them. The marking pass is where a gradient is added to what a worker remembers, so that each is
read once.

The k largest magnitudes are found without sorting: a threshold from a sample marks a little more
than k candidates, and a selection among those finds the k-th largest exactly. When the sample
misled (fewer than k candidates, or far more) the selection runs on all n: a radix selection over
the bits of the magnitudes, which as integers have the order of the floats. Among equal
magnitudes the lowest index wins, so that every implementation and device selects the same set.

Assumes finite values; not-a-number lies in no interval, is marked, and is an `InputError` when it
is taken. Indices are int64 and ascending everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import array, in_parallel, inlined, loop, tensor, written_back
from gcsim.compressors.meter import kernel
from gcsim.errors import InputError, InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

BLOCK = 4096
"""Elements that are marked together."""
_NOTED = 512
"""Places that a block has room for; a fuller block is searched again when it is taken."""
_DENSE = 32
"""With more than one hit in so many elements, a block's places are found without branches."""
_STRIDE = 255
"""Of the sample that bounds the k-th largest; odd: not in step with a matrix' rows."""
_SAMPLED = 1 << 15
"""Fewer elements are not worth a sample."""
_MAGNITUDE = 0x7FFFFFFF


def count_kept(numel: int, ratio: float) -> int:
    """k = max(1, round(n * ratio)); 0 for an empty tensor."""
    return min(numel, max(1, round(numel * ratio)))


# --- by threshold -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Which elements a pass found outside the open interval (down, up)."""

    down: np.float32
    up: np.float32
    counts: NDArray[np.int64]
    """By block of `BLOCK` elements."""
    places: NDArray[np.uint16]
    """`[blocks, 512]`: their positions within the block, where there are fewer than 512."""

    @property
    def total(self) -> int:
        """Number of marked elements."""
        return int(self.counts.sum())


def new_marks(n: int, up: float | np.float32, down: float | np.float32 | None = None) -> Marks:
    """Room for the marks of n elements; `down` is -up unless given."""
    blocks = -(-n // BLOCK)
    return Marks(
        down=np.float32(-up if down is None else down),
        up=np.float32(up),
        counts=np.zeros(blocks, dtype=np.int64),
        places=np.empty((blocks, _NOTED), dtype=np.uint16),
    )


@kernel("streaming")
def mark(values: Tensor, up: float | np.float32, down: float | np.float32 | None = None) -> Marks:
    """Mark what is >= `up` or <= `down` (-up unless given); `values` is float32 `[n]`."""
    marks = new_marks(values.numel(), up, down)
    _marked(array(values), marks)
    return marks


@kernel("streaming", updates=("memory",))
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


@kernel("gather_scatter")
def take(values: Tensor, marks: Marks, *, clear: bool = False) -> tuple[Tensor, Tensor]:
    """(indices int64 `[m]`, ascending; their values float32 `[m]`) of the marked elements.

    With `clear` they are then set to zero in `values`. Raises `InputError` when one is
    not-a-number.
    """
    if not clear:
        indices, taken = _taken(array(values), marks, False)
    else:
        with written_back(values) as source:
            indices, taken = _taken(source, marks, True)
    return tensor(indices, values), tensor(taken, values)


@kernel("gather_scatter")
def at_least(values: Tensor, threshold: float) -> Tensor:
    """Indices with |value| >= threshold, int64, ascending: one compare-and-compact pass."""
    if values.device.type != "cpu":
        return (values.abs() >= threshold).nonzero().view(-1)
    return take(values, mark(values, max(threshold, 0.0)))[0]


def scatter_add(update: Tensor, indices: Tensor, values: Tensor) -> None:
    """update[indices] += values, in place; the indices of one call are distinct."""
    update.index_add_(0, indices, values)


def strided_sample(start: int, stride: int, *terms: Tensor) -> Tensor:
    """The sum of the terms at start, start + stride, …: float32 `[about n / stride]`."""
    return _sum([term[start::stride] for term in terms])


@kernel("gather_scatter")
def _sum(terms: list[Tensor]) -> Tensor:
    # numpy: a sample is too short for torch's threads
    with np.errstate(over="ignore"):
        total = sum((array(term) for term in terms[1:]), start=array(terms[0]).copy())
    return tensor(total, terms[0])


# --- the k largest ----------------------------------------------------------------------------


@kernel("selection")
def largest(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest |values|, int64 `[k]`, ascending; `values` is float32 `[n]`.

    Raises `InputError` when not-a-number is among the values.
    """
    return take_largest(values, k, clear=False)[0]


def add_and_take_largest(memory: Tensor, gradient: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """memory += gradient; then the k largest |memory| are taken out of it (zero remains).

    Both float32 `[n]`. Returns (indices int64 `[k]`, ascending; values float32 `[k]`). Raises
    `InputError` when not-a-number is among the sums.
    """
    _check_k(memory.numel(), k)
    if memory.device.type != "cpu":
        return take_largest(memory.add_(gradient), k)
    if (up := _bound(k, array(memory), array(gradient))) is None:
        return take_largest(memory.add_(gradient), k)
    return take_largest(memory, k, add_and_mark(memory, gradient, up))


@kernel("selection")
def take_largest(
    values: Tensor, k: int, marks: Marks | None = None, *, clear: bool = True
) -> tuple[Tensor, Tensor]:
    """The k largest |values| as (indices int64 `[k]`, values float32 `[k]`).

    `marks`, when given, hold candidates: that they are enough is not assumed. With `clear` they
    are set to zero in `values`. Raises `InputError` when not-a-number is among the values.
    """
    _check_k(values.numel(), k)
    if values.device.type != "cpu":
        indices = _largest_on_device(values, k)
        taken = values[indices]
        if clear:
            values.index_fill_(0, indices, 0.0)
        return indices, taken
    data = array(values)
    if marks is None and (up := _bound(k, data)) is not None:
        marks = mark(values, up)
    found, kept = _chosen(data, k, marks)
    if clear:
        in_parallel(_clear, found.size, data, found)
    return tensor(found, values), tensor(kept, values)


@kernel("selection")
def kth_magnitude(values: Tensor, k: int) -> float:
    """The k-th largest |value|, 1 <= k <= n, of float32 `[n]`; by radix selection.

    Not-a-number counts as larger than everything.
    """
    if not 1 <= k <= values.numel():
        raise InternalError(f"no element number {k} of {values.numel()}")
    return float(_kth(array(values), k))


def _check_k(n: int, k: int) -> None:
    if not 0 <= k <= n:
        raise InternalError(f"cannot select {k} of {n} elements")


def _bound(k: int, *terms: NDArray[np.float32]) -> np.float32 | None:
    """A threshold that a little more than k elements of the sum of `terms` most likely pass.

    Below the k-th largest with six standard deviations; None when a sample does not pay.
    """
    n = terms[0].size
    stride = min(_STRIDE, (k // 16) | 1)
    if n < _SAMPLED or stride < 3:
        return None
    with np.errstate(over="ignore"):
        sample = sum((term[::stride] for term in terms[1:]), start=terms[0][::stride])
    expected = k / stride
    rank = int(expected + 6 * expected**0.5) + 1
    return None if rank > sample.size else _kth(np.ascontiguousarray(sample), rank)


def _chosen(
    values: NDArray[np.float32], k: int, marks: Marks | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(indices, values) of the k largest, from the marked ones if those are k to 4 k."""
    if k == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    if marks is not None and k <= marks.total <= 4 * k:
        indices, taken = _taken(values, marks, False)
        chosen = _exactly(taken, k)
        return indices[chosen], taken[chosen]
    chosen = _exactly(values, k)
    return chosen, values[chosen]


def _exactly(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Indices of the k largest magnitudes, 1 <= k <= n, by passes over all of them."""
    if _any_nan(values):
        raise InputError("cannot select the largest magnitudes: a value is not a number")
    if k == values.size:
        return np.arange(k)
    bits = values.view(np.int32)
    limit = _kth(values, k).view(np.int32)
    blocks = -(-values.size // BLOCK)
    above, ties = np.zeros(blocks, dtype=np.int64), np.zeros(blocks, dtype=np.int64)
    in_parallel(_count_ranked, values.size, bits, limit, above, ties)
    wanted = k - int(above.sum())  # of the ties, the first
    before = np.cumsum(ties) - ties
    all_ties = before + ties <= wanted
    ties = np.clip(wanted - before, 0, ties)
    offsets = np.cumsum(above + ties) - (above + ties)
    some_ties = np.where(all_ties, 0, ties)
    found = np.empty(k, dtype=np.int64)
    least = np.where(all_ties, limit, limit + 1).astype(np.int32)
    in_parallel(_take_ranked, values.size, bits, limit, least, some_ties, offsets, found)
    return found


def _any_nan(values: NDArray[np.float32]) -> bool:
    flag = np.zeros(1, dtype=np.uint8)
    in_parallel(_find_nan, values.size, values, flag)
    return bool(flag[0])


def _kth(values: NDArray[np.float32], k: int) -> np.float32:
    """The k-th largest magnitude: eleven, ten and ten bits of it, one pass each."""
    bits = values.view(np.uint32)
    chunk = max(1 << 16, -(-values.size // 64))
    prefix, rank = 0, k
    for above, shift, bins in ((31, 20, 2048), (20, 10, 1024), (10, 0, 1024)):
        counts = np.zeros((-(-values.size // chunk), 2, bins), dtype=np.int64)
        in_parallel(
            _histogram, values.size, bits, np.uint32(prefix), np.uint32(above), np.uint32(shift),
            np.uint32(bins - 1), counts, chunk, grain=chunk,
        )  # fmt: skip
        at_least_bin = np.cumsum(counts.sum(axis=(0, 1))[::-1])
        place = int(np.searchsorted(at_least_bin, rank))
        if place:
            rank -= int(at_least_bin[place - 1])
        prefix = prefix * bins + bins - 1 - place
    return np.uint32(prefix).view(np.float32)


def _largest_on_device(values: Tensor, k: int) -> Tensor:
    if k == 0:
        return torch.zeros(0, dtype=torch.int64, device=values.device)
    magnitudes = values.abs()
    kth = torch.topk(magnitudes, k, sorted=False).values.min()
    found = (magnitudes >= kth).nonzero().view(-1)
    surplus = found.numel() - k
    if surplus < 0:
        raise InputError("cannot select the largest magnitudes: a value is not a number")
    if surplus:
        ties = (magnitudes[found] == kth).nonzero().view(-1)
        kept = torch.ones_like(found, dtype=torch.bool)
        kept[ties[ties.numel() - surplus :]] = False
        found = found[kept]
    return found


# --- loops ------------------------------------------------------------------------------------


def _marked(values: NDArray[np.float32], marks: Marks) -> None:
    in_parallel(_mark, values.size, values, marks.up, marks.down, marks.counts, marks.places)


def _taken(
    values: NDArray[np.float32], marks: Marks, clear: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    if values.size > BLOCK * marks.counts.size:
        raise InternalError(f"marks of {marks.counts.size} blocks for {values.size} elements")
    ends = np.cumsum(marks.counts)
    indices = np.empty(marks.total, dtype=np.int64)
    taken = np.empty(marks.total, dtype=np.float32)
    nan = np.zeros(1, dtype=np.uint8)
    in_parallel(
        _take, values.size, values, marks.up, marks.down, marks.counts, marks.places,
        ends - marks.counts, indices, taken, clear, nan,
    )  # fmt: skip
    if nan[0]:
        raise InputError("cannot select by magnitude: a value is not a number")
    return indices, taken


@inlined
def note_places(mask: Any, words: Any, size: int, hits: Any, places: Any) -> None:
    """Inside a loop: the positions where `mask` (uint8, 0 or 1, `words` its view) is 1.

    `places` needs room for one more than the `hits`; what `mask` holds behind `size` is ignored
    as long as it is 0 up to the next multiple of eight.
    """
    found = 0
    if hits * _DENSE < size:
        for word in range((size + 7) // 8):
            if words[word]:
                for bit in range(8):
                    places[found] = 8 * word + bit
                    found += mask[8 * word + bit]
    elif hits:
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
        outside = not ((part[i] < up) & (part[i] > down))
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
    offsets: Any, indices: Any, taken: Any, clear: bool, nan: Any,
) -> None:  # fmt: skip
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    found = np.zeros(BLOCK + 1, dtype=np.uint16)
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        count = counts[block]
        if count == 0:
            continue
        part = values[first : min(first + BLOCK, stop)]
        here = places[block]
        if count >= _NOTED:
            mark_block(part, up, down, mask, words, found)
            here = found
        index = indices[offsets[block] : offsets[block] + count]
        value = taken[offsets[block] : offsets[block] + count]
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


@loop
def _clear(start: int, stop: int, values: Any, indices: Any) -> None:
    part = indices[start:stop]
    for i in range(part.size):
        values[part[i]] = np.float32(0)


@loop
def _find_nan(start: int, stop: int, values: Any, flag: Any) -> None:
    part = values[start:stop]
    count = np.int32(0)
    for i in range(part.size):
        count |= np.int32(np.isnan(part[i]))
    if count:
        flag[0] = 1


@loop
def _histogram(
    start: int, stop: int, bits: Any, prefix: Any, above: Any, shift: Any, mask: Any,
    counts: Any, chunk: int,
) -> None:  # fmt: skip
    """Count the magnitudes that begin with `prefix` by their next bits."""
    part = bits[start:stop]
    even, odd = counts[start // chunk, 0], counts[start // chunk, 1]
    half = part.size // 2
    for i in range(half):  # two tables: equal neighbours wait less for each other
        x = part[2 * i] & np.uint32(_MAGNITUDE)
        even[(x >> shift) & mask] += x >> above == prefix
        y = part[2 * i + 1] & np.uint32(_MAGNITUDE)
        odd[(y >> shift) & mask] += y >> above == prefix
    if part.size % 2:
        x = part[part.size - 1] & np.uint32(_MAGNITUDE)
        even[(x >> shift) & mask] += x >> above == prefix


@loop
def _count_ranked(start: int, stop: int, bits: Any, limit: Any, above: Any, ties: Any) -> None:
    """By block: magnitudes above `limit`, and equal to it, as integers."""
    for first in range(start, stop, BLOCK):
        part = bits[first : min(first + BLOCK, stop)]
        larger, equal = np.int32(0), np.int32(0)
        for i in range(part.size):
            magnitude = part[i] & np.int32(_MAGNITUDE)
            larger += np.int32(magnitude > limit)
            equal += np.int32(magnitude == limit)
        above[first // BLOCK] = larger
        ties[first // BLOCK] = equal


@loop
def _take_ranked(
    start: int, stop: int, bits: Any, limit: Any, least: Any, ties: Any, offsets: Any, found: Any
) -> None:
    """Positions of the magnitudes from `least` (a block's) on, and of the first `ties` equals."""
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    places = np.zeros(BLOCK + 1, dtype=np.uint16)
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        part = bits[first : min(first + BLOCK, stop)]
        lowest = least[block]
        hits = np.int32(0)
        for i in range(part.size):
            chosen = (part[i] & np.int32(_MAGNITUDE)) >= lowest
            mask[i] = chosen
            hits += np.int32(chosen)
        mask[part.size : part.size + 8] = 0
        left = ties[block]
        if left:
            hits += np.int32(left)
            for i in range(part.size):
                if (part[i] & np.int32(_MAGNITUDE)) == limit:
                    mask[i] = 1
                    left -= 1
                    if left == 0:
                        break
        note_places(mask, words, part.size, hits, places)
        out = found[offsets[block] : offsets[block] + hits]
        for i in range(out.size):
            out[i] = first + places[i]
