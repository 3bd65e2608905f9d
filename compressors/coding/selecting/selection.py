"""The number k of selected elements, strided samples, and the k-th largest magnitude.

The k-th largest is found exactly, without sorting, by radix selection over the bits of the
magnitudes, which order as integers. Among equal magnitudes the lowest index wins, so that every
implementation and device selects the same set. NaN raises `InputError`. Indices are int64 and
ascending.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, launch, unpriced
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InternalError

SAMPLE_STRIDE = 255
"""Stride of the sample that bounds the k-th largest; odd, so as not to align with matrix rows."""
WORTH_A_SAMPLE = 1 << 15
"""Shorter tensors are selected from without a sample."""
_SORTED = 16
"""Largest k for which the selected elements are kept sorted."""
_MAGNITUDE = 0x7FFFFFFF


def count_kept(numel: int, ratio: float) -> int:
    """Return k = max(1, round(n * ratio)); 0 for an empty tensor."""
    return min(numel, max(1, round(numel * ratio)))


def counts_kept(lengths: NDArray[Any], ratio: float) -> NDArray[np.int64]:
    """Return `count_kept` of each tensor."""
    rounded = np.rint(lengths * ratio).astype(np.int64)
    kept: NDArray[np.int64] = np.minimum(lengths, np.maximum(1, rounded))
    return kept


def share_kept(numel: int, ratio: float) -> float:
    """Return k / n; 1 for an empty tensor."""
    return count_kept(numel, ratio) / numel if numel else 1.0


def flat_places(indices: Tensor, segments: Segments, counts: Column) -> Tensor:
    """Return the places in the flat bucket of indices within tensors, `counts` of each: int64."""
    return indices + each_of(segments.begin, counts, indices)


@unpriced  # kernels read the table
def each_of(column: Column, counts: Column, like: Tensor) -> Tensor:
    """Return a tensor's number for each of its elements: int64 `[sum of counts]`."""
    if like.is_cpu:
        return torch.from_numpy(column.repeat(counts))
    both = torch.from_numpy(np.stack((column, counts))).to(like.device)
    return both[0].repeat_interleave(both[1], output_size=int(counts.sum()))


def _sampling(
    found: Tensor, *_: object, momentum: Tensor | None = None, **__: object
) -> Iterator[KernelCost]:
    n, terms = found.numel(), 2 if momentum is None else 3
    name = "selection._sum" if momentum is None else "dgc._next_velocity"
    yield launch("gather_scatter", f"{name}:{spread(n)}", n, 4 * (terms + 1) * n)


@counted_as(_sampling)
@primitive
def sampled(
    memory: Tensor, added: Tensor, segments: Segments, start: Column, stride: Column,
    counts: Column, *, momentum: Tensor | None = None, m: float = 0.0, nesterov: bool = False,
) -> Tensor:  # fmt: skip
    """Sample the elements start, start + stride, … of memory + added, `counts` of each tensor:
    float32 `[sum of counts]`. With a momentum u, sample the velocity memory + g' instead, for g =
    `added`: g' = m u + g, or m (u + g) + g (Nesterov). All are flat float32 of the table."""
    out = np.empty(counts.sum(), dtype=np.float32)
    u = out[:0] if momentum is None else array(momentum)
    columns = segments.begin + start, stride, counts
    _sample(array(memory), array(added), u, np.float32(m), nesterov, *columns, out)
    return tensor(out, memory)


def _kth_launches(_: object, values: object, segments: Segments, k: object) -> Iterator[KernelCost]:
    yield launch("selection", "selection.kth_magnitude", segments.length, 4 * segments.length)


@counted_as(_kth_launches)
@primitive
def kth_magnitude(values: Tensor, segments: Segments, k: Column) -> Tensor:
    """Return the k-th largest |value| (infinity for k = 0; NaN is largest): float32 `[tensors]`."""
    check_k(segments.length, k)
    found = np.full(len(k), np.inf, dtype=np.float32)
    bits, tiles = array(values).view(np.uint32), segments.cells(None).tiles
    in_tiles(_find_kth, tiles, bits, segments.table, k, found.view(np.uint32))
    return tensor(found, values)


Elements = tuple[Tensor, Tensor, Column]
"""Indices within the tensor, int64, ascending; values, float32; how many per tensor."""


def _delivering(
    _: object, update: object, residual: object, segments: Segments, own: Elements, kept: Elements,
    weight: float,
) -> Iterator[KernelCost]:  # fmt: skip
    reach = spread(segments.longest)
    for name, (indices, *_rest) in (("index_add_", kept), ("index_copy_", own)):
        n = indices.numel()
        yield launch("gather_scatter", f"aten.{name}:{reach}", n, 20 * n)


@counted_as(_delivering)
@primitive
def deliver(
    update: Tensor, residual: Tensor, segments: Segments, own: Elements, kept: Elements,
    weight: float,
) -> None:  # fmt: skip
    """Add weight * kept to `update`, in float64; remove from the residual those `own` elements that
    were kept. `update` and `residual` are flat float32 of the table, changed in place."""
    columns = [starts(own[2]), own[2], starts(kept[2]), kept[2]]
    with written_back(update) as out, written_back(residual) as rest:
        elements = [array(each) for each in (*own[:2], *kept[:2])]
        arguments: Any = (segments.begin, *columns, *elements, weight, out, rest)
        _deliver(*arguments)


def check_k(n: Any, k: Any) -> None:
    """Raise `InternalError` unless k of n elements can be selected; numbers or columns."""
    if np.any((k < 0) | (k > n)):
        raise InternalError(f"cannot select {k} of {n} elements")


@loop
def stride_of(n, k) -> int:
    """Return the stride of the sample that bounds the k-th largest of n; 0 if it does not pay."""
    # the sample contains about 16 or more of the k largest, and must reach the safe rank
    stride = min(SAMPLE_STRIDE, (k // 16) | 1)
    pays = n >= WORTH_A_SAMPLE and stride >= 3 and safe_rank(k / stride) <= -(-n // stride)
    return stride if pays else 0


@loop
def safe_rank(expected) -> int:
    """Return a sample rank that most likely exceeds `expected`, by six standard deviations."""
    return int(expected + 6 * expected**0.5) + 1


@loop
def _sample(memory, added, u, m, nesterov, first, stride, counts, out):
    at = 0
    for t in range(counts.size):
        for i in range(counts[t]):
            place = first[t] + i * stride[t]
            more = added[place]
            if u.size and nesterov:
                more += (u[place] + more) * m
            elif u.size:
                more += u[place] * m
            out[at + i] = memory[place] + more
        at += counts[t]


@loop
def _deliver(
    begins, firsts, counts, kept_firsts, kept_counts, own, values, kept, sums, weight, update,
    residual,
):  # fmt: skip
    for t in range(begins.size):
        at, end = kept_firsts[t], kept_firsts[t] + kept_counts[t]
        for j in range(at, end):
            update[begins[t] + kept[j]] += np.float32(weight * sums[j])
        for i in range(firsts[t], firsts[t] + counts[t]):
            # both lists ascend: one walk over them finds the common elements
            while at < end and kept[at] < own[i]:
                at += 1
            gone = at < end and kept[at] == own[i]
            residual[begins[t] + own[i]] = np.float32(0) if gone else values[i]


@loop
def _find_kth(start, stop, tiles, bits, table, k, found):
    for tile in range(start, stop):  # one tensor per tile
        t = tiles[tile, 0]
        if k[t] > 0:
            own = bits[table[t, 0] : table[t, 0] + table[t, 1]]
            found[t] = np.uint32(kth_of_few(own, k[t])[0])


@loop
def kth_of_few(bits, k):
    """Return (uint32 bits of the k-th largest magnitude; its equals among the k largest)."""
    counts = np.empty(2048, dtype=np.int32)
    # digits found so far; rank among the magnitudes that begin with them
    prefix, rank = np.int64(0), np.int64(k)
    for above, shift, bins in ((31, 20, 2048), (20, 10, 1024), (10, 0, 1024)):
        counts[:bins] = 0
        for i in range(bits.size):
            x = np.int64(bits[i] & np.uint32(_MAGNITUDE))
            if x >> above == prefix:
                counts[(x >> shift) & (bins - 1)] += 1
        place = bins - 1
        # from the highest digit down, as larger magnitudes use up the rank
        while counts[place] < rank:
            rank -= counts[place]
            place -= 1
        prefix = prefix * bins + place
    return prefix, rank


@loop
def _least_first_bits(bits, k):
    """Return the first eleven bits of the k-th largest magnitude, and how many reach them."""
    counts = np.zeros(2048, dtype=np.int32)
    for i in range(bits.size):
        counts[(bits[i] >> np.uint32(20)) & np.uint32(2047)] += 1
    least, reached = 2048, 0
    while reached < k:
        least -= 1
        reached += counts[least]
    return least, reached


@loop
def _take_sorted(bits, k, places) -> bool:
    sizes, largest = np.zeros(k + 1, dtype=np.int64), np.empty(k + 1, dtype=np.int64)
    held = 0
    for i in range(bits.size):
        size = np.int64(bits[i] & np.uint32(_MAGNITUDE))
        # strictly larger, so of equals the first stays; a full list drops its last
        if held < k or size > sizes[k - 1]:
            at = min(held, k - 1)
            while at > 0 and sizes[at - 1] < size:
                sizes[at], largest[at] = sizes[at - 1], largest[at - 1]
                at -= 1
            sizes[at], largest[at] = size, i
            held = min(held + 1, k)
    for i in range(k):  # sort; `np.sort` takes three seconds to compile
        at = i
        while at > 0 and places[at - 1] > largest[i]:
            places[at] = places[at - 1]
            at -= 1
        places[at] = largest[i]
    # only NaN exceeds the bits of infinity, and is then the largest
    return bool(sizes[0] <= 0x7F800000)


@loop
def take_few(bits, k, places) -> bool:
    """List the places of the k largest magnitudes, the first among equals; False if there is a NaN.
    Up to 16 are kept sorted in one pass; for more, the first eleven bits pick candidates."""
    if k <= _SORTED:
        return _take_sorted(bits, k, places)
    least, reached = _least_first_bits(bits, k)
    found = np.empty(reached + 1, dtype=np.int32)
    at = 0
    for i in range(bits.size):
        # no branch: a place that does not qualify is overwritten, hence room for one more
        found[at] = i
        at += ((bits[i] >> np.uint32(20)) & np.uint32(2047)) >= np.uint32(least)
    sizes = np.empty(reached, dtype=np.uint32)
    numbers = True
    for j in range(reached):
        sizes[j] = bits[found[j]] & np.uint32(_MAGNITUDE)
        # a NaN is always among these, as numbers have no higher first bits
        numbers &= sizes[j] <= np.uint32(0x7F800000)
    limit, ties = kth_of_few(sizes, k)
    at = 0
    for j in range(reached):
        if sizes[j] > limit or (sizes[j] == limit and ties > 0):
            ties -= sizes[j] == limit
            places[at] = found[j]
            at += 1
    return numbers
