"""DeepReduce: the indices of a sparse gradient travel as a Bloom filter.

a = e + g; the k = max(1, round(n * ratio)) largest |a| of each tensor are to be sent; e = a - what
receivers decode. Tensors of at most 1000 elements travel uncoded: k values, k indices of 32 bits.

A Bloom filter has m = ceil(k log2(1/f) / ln 2) bits, f = false_positives * k / n; each of the k
positions sets h = ceil(log2(1/f)) of them. Sender and receivers ask the filter for all n positions:
it seems to hold the k and about a fraction f of the others. Of these positives, P of them, all
travel (p0), or the first k (leftmost), or k at random (random; every worker draws the same). The
values sent are those of a at the positions that the receivers will take, so a false positive
carries a true value. P is k (1 + false_positives) on average, more for filters of less than some
hundred bits. n = 1e6, k = 1e4: the filter takes 14.4 bits an index (a Rice code 8.1).

The hash functions are the 32-bit numbers a + j b + c_j, scaled to 0 … m-1, where a and b are
mixtures of the position's bits with a key and c_j is a cubic in j (enhanced double hashing; without
the cubic short filters have a fifth more false positives).

Readings. The hash functions change from step to step; were they fixed, the same elements would be
sent by mistake each time. Leftmost starves the end of each tensor: with P - k false positives, the
last P - k positives are never sent. The paper's fitted curves in the place of values are left out.
Filters are made and read in host memory, tensor by tensor.

Biased. |a - decoded|^2 <= (1 - k/n) |a|^2 with p0, on average over hash functions
(1 - k^2 / (n E[P])) |a|^2 with random; with leftmost or short filters only |a|^2 is certain.

Sources: K. Kostopoulou, H. Xu, A. Dutta, X. Li, A. Ntoulas, P. Kalnis, "DeepReduce: A
Sparse-tensor Communication Framework for Distributed Deep Learning", NeurIPS 2021,
arXiv:2102.03112, rates and skipped tensors as in the authors' code; P. Dillinger, P. Manolios,
"Bloom filters in probabilistic verification", FMCAD 2004.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.indices.coded import coded_positions, decoded_positions
from gcsim.compressors.coding.indices.index_coding import Coder
from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import (
    count_kept,
    counts_kept,
    flat_places,
    share_kept,
)
from gcsim.compressors.coding.selecting.subsets import draw_subset
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key, stream
from gcsim.compressors.requests import AllGather, Exchange, gather_variable
from gcsim.compressors.segments import Column, Segments
from gcsim.compressors.sharing import fill_once

_BLOOM = 15
_RAW = np.array([Coder.RAW])
"""In the frame's flags, in the place of an index coder."""
_TOGETHER = 1 << 12
"""Positions that are asked for together."""
_LARGE = 900
"""Bits of filters that exceed their rate by a few per cent at most, short ones by far more."""


class DeepReduceParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="kept fraction of each tensor")
    policy: Literal["random", "leftmost", "p0"] = Field(
        "random", description="which of the filter's positives are sent: k of them, or all (p0)"
    )
    false_positives: float = Field(
        0.1, gt=0, le=1, description="expected wrong positives of the filter for each kept element"
    )
    skip: int = Field(1000, ge=0, description="largest tensor, elements, that travels uncoded")
    error_feedback: bool = Field(True, description="add what was not sent to the next step")

    def rate(self, n: int) -> float:
        """f of n elements."""
        return min(0.5, self.false_positives * count_kept(n, self.ratio) / n)

    def size(self, n: int) -> tuple[int, int]:
        """(m, h) of n elements."""
        doublings = math.log2(1 / self.rate(n))
        bits = count_kept(n, self.ratio) * doublings / math.log(2)
        return max(1, math.ceil(bits)), max(1, math.ceil(doublings))


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
            if n > parameters.skip and parameters.policy != "p0":
                k = count_kept(n, parameters.ratio)
                short = parameters.policy == "leftmost" or parameters.size(n)[0] < _LARGE
                certain *= 0.0 if short else k / (k + 1.1 * parameters.rate(n) * (n - k))
            return (1 - certain) * energy(v)

        return Properties(error_bound=bound, conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        p, layout, segments = self.parameters, bucket.layout, Segments.of(bucket.layout)
        sums, k = self.corrected(bucket), counts_kept(segments.length, self.parameters.ratio)
        place, selected = (
            (self.worker.seed, step),
            torch.split(largest(sums, segments, k)[0], k.tolist()),
        )
        coded = [
            _coded(own, piece, p, place) for own, piece in zip(selected, layout.slices, strict=True)
        ]
        chosen, sent = positions(coded, layout, p, place)
        tail, places = np.array([len(each) for each in coded]), flat_places(chosen, segments, sent)
        flags, sizes = np.where(segments.length > p.skip, _BLOOM, 0), 4 * sent + tail
        message, at = frames(sums, Codec.BLOOM, segments, sizes, nonzero=sent, flags=flags)
        put(message, at, sums[places], 4 * sent)
        put(message, at + 4 * sent, torch.cat(coded), tail)
        if p.error_feedback:
            sums[places] = 0.0
        if p.policy == "p0":
            payloads = yield from gather_variable(seal(message, at, sizes))
        else:
            payloads = yield AllGather(payload=seal(message, at, sizes))
        given = torch.zeros_like(bucket.gradient), layout, p, place
        return fill_once(_add_all, payloads, *given, self.worker.count)


def _add_all(
    payloads: Iterable[Tensor], out: Tensor, layout: BucketLayout, parameters: DeepReduceParameters,
    place: tuple[int, int], count: int,
) -> None:  # fmt: skip
    segments = Segments.of(layout)
    flags = np.where(segments.length > parameters.skip, _BLOOM, 0)
    for payload in payloads:
        found = read(payload, layout, Codec.BLOOM)
        k, tail = found.nonzero, found.size - 4 * found.nonzero
        if (found.flags != flags).any() or (tail < 0).any():
            raise damaged(f"coded by ways {found.flags}, expected {flags}, in {found.size} bytes")
        bodies = taken(payload, found.at + 4 * k, tail, torch.uint8)
        coded = torch.split(bodies, tail.tolist())
        chosen, many = positions(coded, layout, parameters, place)
        if (many != k).any():
            raise damaged(f"{many} positions for {k} values")
        values = taken(payload, found.at, 4 * k, torch.float32)
        out.index_add_(0, flat_places(chosen, segments, k), values / count)


def _coded(
    indices: Tensor, piece: TensorSlice, parameters: DeepReduceParameters, place: tuple[int, int]
) -> Tensor:
    if piece.numel <= parameters.skip:
        k = np.array([len(indices)])
        return coded_positions(indices, Segments.alone(piece.numel), k, _RAW)[0]
    key = random_key(*place, piece.index, "Bloom filter")
    return bloom_filter(indices, *parameters.size(piece.numel), key)


def positions(
    coded: Sequence[Tensor], layout: BucketLayout, parameters: DeepReduceParameters,
    place: tuple[int, int],
) -> tuple[Tensor, Column]:  # fmt: skip
    """(positions that a receiver makes of coded indices, int64, ascending; how many a tensor).

    `place` is seed and step. Raises `InputError` when they are damaged.
    """
    k, found = counts_kept(Segments.of(layout).length, parameters.ratio), []
    for own, piece, kept in zip(coded, layout.slices, k.tolist(), strict=True):
        if (n := piece.numel) <= parameters.skip:
            size, many = np.array([[len(own)], [kept]])
            found.append(decoded_positions(own, Segments.alone(n), size, many, _RAW))
        else:
            key = random_key(*place, piece.index, "Bloom filter")
            found.append(bloom_positives(own, n, *parameters.size(n), key))
    if parameters.policy == "leftmost":
        found = [each[:kept] for each, kept in zip(found, k.tolist(), strict=True)]
    many, every = np.array([len(each) for each in found]), torch.cat(found)
    if (many < k).any():
        raise damaged(f"Bloom filters of {many} positions instead of {k}")
    rows = np.flatnonzero(many > k)
    if parameters.policy != "random" or not rows.size:
        return every, many
    draws = [stream(*place, layout.slices[t].index, "policy") for t in rows]
    more = Segments.behind(many).rows(rows)
    left_out = draw_subset(every, more, (many - k)[rows], draws)
    return tensor(np.delete(array(every), array(left_out)), every), k


@kernel("gather_scatter", name="bloom.bloom_filter")
def bloom_filter(indices: Tensor, bits: int, hashes: int, key: np.uint64) -> Tensor:
    """The filter that holds `indices`, int64 `[k]`: uint8 `[ceil(m / 8)]`."""
    filled = np.zeros(packed_bytes(bits, 1), dtype=np.uint8)
    _fill(array(indices), bits, hashes, key, filled)
    return tensor(filled, indices)


@kernel("gather_scatter", name="bloom.bloom_positives")
def bloom_positives(filled: Tensor, n: int, bits: int, hashes: int, key: np.uint64) -> Tensor:
    """All positions in 0 … n-1 that the filter seems to hold, int64, ascending.

    Raises `InputError` when the filter has not its length, or its padding is not zero.
    """
    packed, passed = array(filled), np.zeros(n, dtype=np.bool_)
    check_packed(packed, bits, 1)
    in_parallel(_ask, n, packed, bits, hashes, key, passed)
    return tensor(np.flatnonzero(passed), filled)


@loop
def _mixed(x: Any) -> Any:
    """32 bits that are another number for each 32 bits."""
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@loop
def _place(first: Any, key: Any, number: int, bits: int) -> Any:
    """The bit that hash function `number` gives a position whose a is `first`."""
    step = _mixed(first ^ np.uint32(key >> np.uint64(32))) | np.uint32(1)  # b
    # (j^3 - j) / 6 of enhanced double hashing, in the highest bits, which decide on the place
    cubic = ((number**3 - number) // 6) << 20
    drawn = np.uint32(np.int64(first) + number * np.int64(step) + cubic)
    return np.int64((np.uint64(drawn) * np.uint64(bits)) >> np.uint64(32))


@loop
def _fill(positions: Any, bits: int, hashes: int, key: Any, filled: Any) -> None:
    for position in positions:
        first = _mixed(np.uint32(position) ^ np.uint32(key & np.uint64(0xFFFFFFFF)))
        for number in range(hashes):
            place = _place(first, key, number, bits)
            filled[place >> 3] |= np.uint8(1 << (place & 7))


@loop
def _ask(start: int, stop: int, filled: Any, bits: int, hashes: int, key: Any, passed: Any) -> None:
    """Positions that a hash function rules out are not asked for by the next one; no branches."""
    firsts, left = np.empty(_TOGETHER, dtype=np.uint32), np.empty(_TOGETHER, dtype=np.int64)
    for begin in range(start, stop, _TOGETHER):
        count = min(_TOGETHER, stop - begin)
        for i in range(count):
            firsts[i] = _mixed(np.uint32(begin + i) ^ np.uint32(key & np.uint64(0xFFFFFFFF)))
            left[i] = i
        for number in range(hashes):
            many, count = count, 0
            for j in range(many):
                i = left[j]
                place = _place(firsts[i], key, number, bits)
                left[count] = i
                count += (filled[place >> 3] >> np.uint8(place & 7)) & np.uint8(1)
        for j in range(count):
            passed[begin + left[j]] = True
