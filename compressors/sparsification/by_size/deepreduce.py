"""DeepReduce: the indices of a sparse gradient travel as a Bloom filter.

a = e + g; the k = max(1, round(n * ratio)) largest |a| of each tensor are to be sent; e = a - what
receivers decode. Tensors of at most 1000 elements travel uncoded: k values, k indices of 32 bits.

A filter has m = ceil(k log2(1/f) / ln 2) bits, f = false_positives * k / n; each of the k positions
sets h = ceil(log2(1/f)) of them. Sender and receivers ask it for all n positions: it seems to hold
the k and about a fraction f of the others. k of these positives at random travel (every worker
draws the same), with the values of a there. n = 1e6, k = 1e4: 14.4 bits an index (a Rice code 8.1).

Hash functions are the 32-bit numbers a + j b + c_j, scaled to 0 … m-1; a and b mix the position's
bits with a key of the step, c_j is a cubic in j (enhanced double hashing). The paper's other
policies and its fitted curves are left out. Works in host memory.

Biased. |a - decoded|^2 <= (1 - k^2 / (n E[P])) |a|^2 on average over hash functions for P
positives, E[P] = k (1 + false_positives) but for filters of less than some hundred bits, where only
|a|^2 is certain.

Sources: K. Kostopoulou et al., "DeepReduce: A Sparse-tensor Communication Framework for Distributed
Deep Learning", NeurIPS 2021, arXiv:2102.03112, rates and skipped tensors as in the authors' code;
P. Dillinger, P. Manolios, "Bloom filters in probabilistic verification", FMCAD 2004.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.checksum import number_at, put_number
from gcsim.compressors.coding.frames import Codec, packed, read
from gcsim.compressors.coding.indices.index_coding import demand_ascending
from gcsim.compressors.coding.integers.packing import damaged, demand_no_stray, packed_bytes
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import count_kept, share_kept
from gcsim.compressors.coding.selecting.subsets import draw_subset
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, inlined, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Column, Segments, keys_of, starts

_BLOOM = 15
_TOGETHER = 1 << 12
"""Positions that are asked for together."""
_LARGE = 900
"""Bits of filters that exceed their rate by a few per cent at most, short ones by far more."""


class DeepReduceParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="kept fraction of each tensor")
    false_positives: float = Field(
        0.1, gt=0, le=1, description="expected wrong positives of the filter for each kept element"
    )
    skip: int = Field(1000, ge=0, description="largest tensor, elements, that travels uncoded")
    error_feedback: bool = Field(True, description="add what was not sent to the next step")

    def size(self, n: int) -> tuple[int, int, int, float]:
        """(k, m, h, f) of n elements; m and h are 0 where indices travel uncoded."""
        k = count_kept(n, self.ratio)
        if n <= self.skip:
            return k, 0, 0, 0.0
        rate = min(0.5, self.false_positives * k / n)
        doublings = math.log2(1 / rate)
        return k, max(1, math.ceil(k * doublings / math.log(2))), math.ceil(doublings), rate


@lru_cache(maxsize=1 << 6)
def _sizes(p: DeepReduceParameters, lengths: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array([p.size(n)[:3] for n in lengths], dtype=np.int64).T.copy()


class Filters:
    """The filters of a bucket's tensors in one step, the same on all workers."""

    def __init__(self, layout: BucketLayout, p: DeepReduceParameters, seed: int, step: int) -> None:
        self.layout, self.keys = layout, keys_of(layout, seed, step, "Bloom filter", None)
        self.draws = [(seed, step, piece.index, "policy") for piece in layout.slices]
        self.sizes = k, bits, _ = _sizes(p, tuple(layout.table[:, 1].tolist()))
        """k, m and h of each tensor, m = 0 where indices travel uncoded: `[3, tensors]`."""
        self.flags = np.where(bits > 0, _BLOOM, 0)
        self.nbytes = np.where(bits > 0, packed_bytes(bits, 1), 4 * k)

    def positions(self, coded: Tensor, at: Column) -> Tensor:
        """Places in the bucket that receivers make of coded indices: int64 `[sum of k]`.

        Those of a tensor begin at byte `at`. Raises `InputError` when they are damaged.
        """
        (every, many), k = bloom_positives(coded, at, self), self.sizes[0]
        if (many < k).any():
            raise damaged(f"Bloom filters of {many} positions instead of {k}")
        if (many == k).all():
            return every
        left_out = draw_subset(every, Segments.behind(many), many - k, self.draws)
        return tensor(np.delete(array(every), array(left_out)), every)


class DeepReduce(ErrorFeedback[DeepReduceParameters]):
    """Top-k whose indices are a Bloom filter."""

    about = About(
        title="DeepReduce (top-k)",
        family="sparsification",
        collective="all-gather",
        bits="ratio * (32 + 1.44 log2(10 / ratio))",
        state="residual (n)",
        paper="Kostopoulou et al., NeurIPS 2021, arXiv:2102.03112",
    )

    @classmethod
    def properties(cls, parameters: DeepReduceParameters) -> Properties:
        def bound(v: Tensor) -> float:
            n, certain = v.numel(), share_kept(v.numel(), parameters.ratio)
            k, bits, _, rate = parameters.size(n)
            if bits:
                certain *= k / (k + 1.1 * rate * (n - k)) if bits >= _LARGE else 0.0
            return (1 - certain) * energy(v)

        return Properties(error_bound=bound, conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        p, segments, sums = self.parameters, Segments.of(bucket.layout), self.corrected(bucket)
        filters = Filters(bucket.layout, p, self.worker.seed, step)
        k, size = filters.sizes[0], filters.nbytes
        coded = bloom_filter(largest(sums, segments, k)[0], filters)
        chosen = filters.positions(coded, starts(size))
        parts = (sums[chosen], 4 * k), (coded, size)
        message = packed(sums, Codec.BLOOM, segments, *parts, nonzero=k, flags=filters.flags)
        if p.error_feedback:
            sums[chosen] = 0.0
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded, filters=filters)


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, *, filters: Filters
) -> None:
    """out += weight * values at their positions, in place; `out` is float32 `[layout.numel]`.

    Raises `InputError` for a damaged message, or one of another layout.
    """
    found, k = read(message, layout, Codec.BLOOM), filters.sizes[0]
    if (found.flags != filters.flags).any() or (found.nonzero != k).any():
        raise damaged(f"{found.nonzero} values, coded by ways {found.flags}")
    found.demand_sizes(4 * k + filters.nbytes)
    chosen = filters.positions(message, found.at + 4 * k)
    (values,) = found.parts(message, (4 * k, torch.float32))
    out.index_add_(0, chosen, values / (1 / weight))  # the number of workers: rounded once


@kernel("gather_scatter", name="bloom.bloom_filter")
def bloom_filter(indices: Tensor, filters: Filters) -> Tensor:
    """Filters of indices, int64 `[sum of k]`, one behind the other: uint8."""
    out = np.zeros(int(filters.nbytes.sum()), dtype=np.uint8)
    _fill(array(indices), filters.sizes, filters.keys, starts(filters.nbytes), out)
    return tensor(out, indices)


@kernel("gather_scatter", name="bloom.bloom_positives")
def bloom_positives(coded: Tensor, at: Column, filters: Filters) -> tuple[Tensor, Column]:
    """Places in the bucket that filters, each from byte `at` on, seem to hold, and how many each.

    int64, ascending. Raises `InputError` when padding is not zero, or uncoded indices do not
    ascend.
    """
    data, sizes, segments = array(coded), filters.sizes, Segments.of(filters.layout)
    demand_no_stray(data, at, sizes[1], 1)
    passed, owners = np.zeros(filters.layout.numel, dtype=np.bool_), segments.tiles[:, 0]
    many = np.zeros_like(owners)
    in_tiles(_ask, segments.tiles, segments.table, data, at, sizes, filters.keys, passed, many)
    demand_ascending(bool((many < 0).any()))
    return tensor(np.flatnonzero(passed), coded), np.bincount(owners, many, len(at)).astype(int)


@inlined
def _mixed(x: Any) -> Any:
    """32 bits that are another number for each 32 bits."""
    # numba widens products to 64 bits; each step can be undone, so no two numbers meet
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@inlined
def _hashes(position: Any, key: Any) -> Any:
    """a and b of a position."""
    first = _mixed(np.uint32(position) ^ np.uint32(key & np.uint64(0xFFFFFFFF)))
    # b is odd: its multiples modulo 2^32 all differ
    return first, _mixed(first ^ np.uint32(key >> np.uint64(32))) | np.uint32(1)


@inlined
def _place(first: Any, step: Any, number: int, bits: int) -> Any:
    """The bit that hash function `number` gives a position whose a and b these are."""
    # (j^3 - j) / 6 of enhanced double hashing, in the highest bits, which decide on the place
    cubic = np.uint32((number * (number - 1) * (number + 1) // 6) << 20)
    drawn = np.uint32(np.uint32(first + np.uint32(np.uint32(number) * step)) + cubic)
    return np.uint32((np.uint64(drawn) * np.uint64(bits)) >> np.uint64(32))


@loop
def _fill(indices: Any, sizes: Any, keys: Any, at: Any, out: Any) -> None:
    begin = 0
    for t in range(keys.size):
        (k, bits, hashes), filled = sizes[:, t], out[at[t] :]
        for j in range(k):
            position = indices[begin + j]
            # uncoded: there are no hash functions either
            if not bits:
                put_number(filled, 4 * j, 4, np.uint64(position))
            first, step = _hashes(position, keys[t])
            for number in range(hashes):
                place = _place(first, step, number, bits)
                filled[place >> 3] |= np.uint8(1 << (place & 7))
        begin += k


@loop
def _ask(
    start: int, stop: int, tiles: Any, table: Any, coded: Any, at: Any, sizes: Any, keys: Any,
    passed: Any, many: Any,
) -> None:  # fmt: skip
    """Positions that a hash function rules out are not asked for by the next one; no branches."""
    firsts, steps = np.empty((2, _TOGETHER), dtype=np.uint32)
    left = np.empty(_TOGETHER, dtype=np.int32)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        (k, bits, hashes), filled, key = sizes[:, t], coded[at[t] :], keys[t]
        own, before = passed[table[t, 0] : table[t, 0] + table[t, 1]], np.int64(-1)
        # the tensor's first tile reads all of them, and checks what the sender wrote
        for j in range(0 if bits or first else k):  # uncoded indices
            position = np.int64(number_at(filled, 4 * j, 4))
            if not before < position < own.size:
                many[tile] = -1
                break
            own[position], before = True, position
            many[tile] += 1
        for begin in range(first, last if bits else first, _TOGETHER):
            count = min(_TOGETHER, last - begin)
            for i in range(count):
                firsts[i], steps[i] = _hashes(begin + i, key)
                left[i] = i
            for number in range(hashes):
                asked, count = count, 0
                for j in range(asked):
                    i = left[j]
                    place = _place(firsts[i], steps[i], number, bits)
                    # in place: `count` never passes j
                    left[count] = i
                    count += (filled[place >> 3] >> np.uint8(place & 7)) & np.uint8(1)
            for j in range(count):
                own[begin + left[j]] = True
            many[tile] += count
