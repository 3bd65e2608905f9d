"""Parts of a selection by magnitude: numbers of elements, samples, the k-th largest.

The k-th largest is found exactly, without sorting: by a radix selection over the bits of the
magnitudes, which as integers have the order of the floats. Among equal magnitudes the lowest index
wins, so that every implementation and device selects the same set.

Assumes finite values; not-a-number is an `InputError`. Indices are int64 and ascending everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting.marks import BLOCK, Marks, note_places, take_arrays
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor
from gcsim.compressors.meter import counted_as, kernel, launch, unpriced
from gcsim.compressors.on_device import handled, primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError, InternalError

SAMPLE_STRIDE = 255
"""Of the sample that bounds the k-th largest; odd: not in step with a matrix' rows."""
WORTH_A_SAMPLE = 1 << 15
"""Fewer elements are not worth a sample."""
_MAGNITUDE = 0x7FFFFFFF
NO_NUMBER = "cannot select the largest magnitudes: a value is not a number"


def count_kept(numel: int, ratio: float) -> int:
    """k = max(1, round(n * ratio)); 0 for an empty tensor."""
    return min(numel, max(1, round(numel * ratio)))


def counts_kept(lengths: NDArray[np.int64], ratio: float) -> NDArray[np.int64]:
    """`count_kept` of each tensor."""
    rounded: NDArray[np.int64] = np.rint(lengths * ratio).astype(np.int64)
    return np.minimum(lengths, np.maximum(1, rounded))


def share_kept(numel: int, ratio: float) -> float:
    """k / n; 1 for an empty tensor, of which nothing is lost."""
    return count_kept(numel, ratio) / numel if numel else 1.0


def safe_rank(expected: float) -> int:
    """Of a sample: the rank below which, most likely, lies all that `expected` of it stand for.

    Six standard deviations beyond what is expected.
    """
    return int(expected + 6 * expected**0.5) + 1


def flat_places(indices: Tensor, segments: Segments, counts: Column) -> Tensor:
    """Places in the flat bucket of indices within tensors, so many of each: int64."""
    return indices + each_of(segments.begin, counts, indices)


@unpriced  # part of the kernel that works on the sample
def strided(
    terms: Sequence[Tensor], segments: Segments, start: Column, stride: Column, counts: Column
) -> list[Tensor]:
    """Elements start, start + stride, … of each tensor, so many of each: float32 `[sum of counts]`.

    Of several flat vectors of the table.
    """
    first = segments.begin + start
    if not handled(terms[0]):
        return [tensor(_strided(array(term), first, stride, counts), term) for term in terms]
    number = torch.arange(int(counts.sum()), device=terms[0].device)
    first = first - starts(counts) * stride
    places = number.mul_(each_of(stride, counts, number)).add_(each_of(first, counts, number))
    return [term[places] for term in terms]


@unpriced  # kernels read the table
def each_of(column: Column, counts: Column, like: Tensor) -> Tensor:
    """A tensor's number for each of its elements: int64 `[sum of counts]`."""
    both = torch.from_numpy(np.stack((column, counts))).to(like.device)
    return both[0].repeat_interleave(both[1], output_size=int(counts.sum()))


@kernel("gather_scatter", name="selection._sum")
def sum_of(terms: list[Tensor]) -> Tensor:
    """The sum of samples."""
    return sum(terms[1:], start=terms[0])


def _kth_launches(_: object, values: object, segments: Segments, k: object) -> Iterator[KernelCost]:
    yield launch("selection", "selection.kth_magnitude", segments.length, 4 * segments.length)


@counted_as(_kth_launches)
@primitive
def kth_magnitude(values: Tensor, segments: Segments, k: Column) -> NDArray[np.float32]:
    """The k-th largest |value| of each tensor, 1 <= k <= its length: float32 `[tensors]`.

    Not-a-number counts as larger than everything.
    """
    check_rank(segments, k)
    data = np.ascontiguousarray(array(values))
    rows = zip(segments.begin, segments.length, k, strict=True)
    return np.array([_kth(data[begin : begin + n], rank) for begin, n, rank in rows], np.float32)


def check_rank(segments: Segments, k: Column) -> None:
    """`InternalError` unless each tensor has an element number k."""
    if ((k < 1) | (k > segments.length)).any():
        raise InternalError(f"no element number {k} of {segments.length}")


def check_k(n: Any, k: Any) -> None:
    """`InternalError` unless k of n elements can be selected; numbers or columns."""
    if np.any((k < 0) | (k > n)):
        raise InternalError(f"cannot select {k} of {n} elements")


def stride_of(n: int, k: int) -> int:
    """Distance of the samples that bound the k-th largest of n; 0 when a sample does not pay."""
    stride = min(SAMPLE_STRIDE, (k // 16) | 1)
    pays = n >= WORTH_A_SAMPLE and stride >= 3 and safe_rank(k / stride) <= -(-n // stride)
    return stride if pays else 0


def bound(k: int, *terms: NDArray[np.float32]) -> np.float32 | None:
    """A threshold that a little more than k elements of the sum of `terms` most likely pass.

    Below the k-th largest with six standard deviations; None when a sample does not pay.
    """
    stride = stride_of(terms[0].size, k)
    if not stride:
        return None
    with np.errstate(over="ignore"):
        sample = sum((term[::stride] for term in terms[1:]), start=terms[0][::stride])
    return _kth(np.ascontiguousarray(sample), safe_rank(k / stride))


def chosen_among(
    values: NDArray[np.float32], k: int, marks: Marks
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(indices, values) of the k largest of a tensor, among its marks if those are k to 4 k."""
    if k == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    if k <= marks.passed[0] <= 4 * k:
        indices, taken = take_arrays(values, Segments.alone(values.size), marks, False)
        chosen = _exactly(taken, k)
        return indices[chosen], taken[chosen]
    chosen = _exactly(values, k)
    return chosen, values[chosen]


def _exactly(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Indices of the k largest magnitudes, 1 <= k <= n, by passes over all of them."""
    if values.size < WORTH_A_SAMPLE:
        places = np.empty(k, dtype=np.int64)
        if not take_few(values.view(np.uint32), k, places):
            raise InputError(NO_NUMBER)
        return places
    if _any_nan(values):
        raise InputError(NO_NUMBER)
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
    if values.size < WORTH_A_SAMPLE:
        return np.uint32(kth_of_few(bits, k)[0]).view(np.float32)
    chunk = max(1 << 16, -(-values.size // 64))
    prefix, rank = 0, k
    for above, shift, bins in ((31, 20, 2048), (20, 10, 1024), (10, 0, 1024)):
        counts = np.zeros((-(-values.size // chunk), 2, bins), dtype=np.int64)
        in_parallel(
            _histogram, values.size, bits, np.uint32(prefix), np.uint32(above), np.uint32(shift),
            np.uint32(bins - 1), counts, chunk, grain=chunk,
        )  # fmt: skip
        at_least_bin = np.cumsum(counts.sum(axis=(0, 1))[::-1])  # [bins], from the highest bin down
        place = int(np.searchsorted(at_least_bin, rank))
        if place:
            rank -= int(at_least_bin[place - 1])  # within the bin that holds the k-th
        prefix = prefix * bins + bins - 1 - place
    return np.uint32(prefix).view(np.float32)


# --- loops ------------------------------------------------------------------------------------


@loop
def _strided(values: Any, first: Any, stride: Any, counts: Any) -> Any:
    """Samples of each tensor: from its first on, a stride apart."""
    out = np.empty(counts.sum(), dtype=values.dtype)
    at = 0
    for t in range(counts.size):
        for i in range(counts[t]):
            out[at + i] = values[first[t] + i * stride[t]]
        at += counts[t]
    return out


@loop
def clear_at(start: int, stop: int, values: Any, indices: Any) -> None:
    """Set elements to zero."""
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
def kth_of_few(bits: Any, k: int) -> Any:
    """The bits of the k-th largest magnitude of float32 as uint32, as `_kth` finds them.

    And how many elements that are equal to it are among the k largest.
    """
    counts = np.empty(2048, dtype=np.int32)
    prefix, rank = np.int64(0), np.int64(k)
    for above, shift, bins in ((31, 20, 2048), (20, 10, 1024), (10, 0, 1024)):
        counts[:bins] = 0
        for i in range(bits.size):
            x = np.int64(bits[i] & np.uint32(_MAGNITUDE))
            if x >> above == prefix:
                counts[(x >> shift) & (bins - 1)] += 1
        place = bins - 1
        while counts[place] < rank:
            rank -= counts[place]
            place -= 1
        prefix = prefix * bins + place
    return prefix, rank


@loop
def _least_first_bits(bits: Any, k: int) -> Any:
    """The first eleven bits of the k-th largest magnitude, and how many have these or more."""
    counts = np.zeros(2048, dtype=np.int32)
    for i in range(bits.size):
        counts[(bits[i] >> np.uint32(20)) & np.uint32(2047)] += 1
    least, reached = 2048, 0
    while reached < k:
        least -= 1
        reached += counts[least]
    return least, reached


@loop
def take_few(bits: Any, k: int, places: Any) -> bool:
    """The places of the k largest magnitudes, the first of equals; False for not-a-number.

    Their first eleven bits tell who may be among them; the rest is done with those few.
    """
    least, reached = _least_first_bits(bits, k)
    found = np.empty(reached + 1, dtype=np.int32)
    at = 0
    for i in range(bits.size):
        found[at] = i
        at += ((bits[i] >> np.uint32(20)) & np.uint32(2047)) >= np.uint32(least)
    sizes = np.empty(reached, dtype=np.uint32)
    numbers = True
    for j in range(reached):
        sizes[j] = bits[found[j]] & np.uint32(_MAGNITUDE)
        numbers &= sizes[j] <= np.uint32(0x7F800000)
    limit, ties = kth_of_few(sizes, k)
    at = 0
    for j in range(reached):
        if sizes[j] > limit or (sizes[j] == limit and ties > 0):
            ties -= sizes[j] == limit
            places[at] = found[j]
            at += 1
    return numbers


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
        if left:  # the block in which the ties run out: `lowest` is above them here
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
