"""DeepReduce: the indices of a sparse gradient travel as a Bloom filter, its values as a curve.

a = e + g; the k = max(1, round(n * ratio)) largest |a| of each tensor are to be sent; e = a - what
receivers decode, from the decoded values themselves.

Indices: a Bloom filter of m = 1.44 k log2(1/f) bits, f = false_positives * k / n, which the sender
asks for all n positions as the receivers do. Of the positives, P of them, all travel (p0), or the
first k (leftmost), or k at random (random; every worker draws the same). The values sent are those
of a at the positions that the receivers will take, so a false positive carries a true value. P is
k (1 + false_positives) on average, more for filters of less than some hundred bits.

Values (polynomial): the sorted values as piecewise polynomials of degree 5 and a rank each, see
`coding/indices/curve.py`.

Tensors of at most 1000 elements travel uncoded: k values and k indices of 32 bits.

Bits, n = 1e6, k = 1e4: the filter takes 14.4 an index (a Rice code 8.1), a curve 14.4 a value.

Readings. The filter's hash functions change from step to step; were they fixed, the same elements
would be sent by mistake each time. Leftmost starves the end of each tensor: with P - k false
positives, the last P - k positives are never sent. The coders combine freely; a permutation is
sent with every curve, also where indices could travel in the order of the values. Messages differ
in length with p0, polynomial and some index coders: lengths are then exchanged first.

Filters and curves are made and read in host memory, tensor by tensor.

Biased. |a - decoded|^2 <= (1 - k/n) |a|^2 with p0 or exact indices, on average over hash functions
(1 - k^2 / (n E[P])) |a|^2 with random; with leftmost, polynomial or short filters no less than
|a|^2 is certain.

Source: K. Kostopoulou, H. Xu, A. Dutta, X. Li, A. Ntoulas, P. Kalnis, "DeepReduce: A
Sparse-tensor Communication Framework for Distributed Deep Learning", NeurIPS 2021,
arXiv:2102.03112; rates, skipped tensors and fractions as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice, bucket_state
from gcsim.compressors.coding.frames import (
    Codec,
    Frame,
    as_bytes,
    frames_of,
    from_bytes,
    pack_frame,
)
from gcsim.compressors.coding.indices.bloom import bloom_filter, bloom_positives, bloom_size
from gcsim.compressors.coding.indices.coded import coded_positions, decoded_positions
from gcsim.compressors.coding.indices.curve import fit_curve, read_curve
from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    IndexCoding,
    choose_coder,
)
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import count_kept, counts_kept, share_kept
from gcsim.compressors.coding.selecting.subsets import distinct_positions
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, tensor
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key, stream
from gcsim.compressors.requests import AllGather, Exchange, gather_variable
from gcsim.compressors.segments import Segments
from gcsim.compressors.sharing import fill_once

_BLOOM = 15
"""In the frame's flags, in the place of an index coder."""
_CURVE = 1 << 4


class DeepReduceParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="kept fraction of each tensor")
    indices: Literal["bloom"] | IndexCoding = Field(
        "bloom", description="how indices travel: a Bloom filter, or exactly"
    )
    policy: Literal["random", "leftmost", "p0"] = Field(
        "random", description="which of the filter's positives are sent: k of them, or all (p0)"
    )
    false_positives: float = Field(
        0.1, gt=0, le=1, description="expected wrong positives of the filter for each kept element"
    )
    values: Literal["raw", "polynomial"] = Field(
        "raw", description="float32 values, or curves fitted to the sorted values and their ranks"
    )
    degree: int = Field(5, ge=0, le=9, description="of the polynomials that are fitted")
    skip: int = Field(1000, ge=0, description="largest tensor, elements, that travels uncoded")
    error_feedback: bool = Field(True, description="add what was not sent to the next step")


class DeepReduce(ErrorFeedback[DeepReduceParameters]):
    """Bloom filter and fitted curves around top-k."""

    about = About(
        title="DeepReduce (top-k)",
        family="sparsification",
        collective="all-gather",
        bits="ratio * (32 + 1.44 log2(10 / ratio))",
        state="residual (n)",
        paper="Kostopoulou et al., NeurIPS 2021, arXiv:2102.03112",
    )

    def __init__(self, worker: Worker, parameters: DeepReduceParameters) -> None:
        super().__init__(worker, parameters)
        self.coding = _Coding(parameters, worker.seed)

    @classmethod
    def properties(cls, parameters: DeepReduceParameters) -> Properties:
        def bound(v: Tensor) -> float:
            n = v.numel()
            certain = share_kept(n, parameters.ratio)
            if n > parameters.skip:
                certain *= _certain_share(parameters, n)
            return (1 - certain) * energy(v)

        return Properties(error_bound=bound, conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        message, fixed_length = self.encode(bucket, step)
        if fixed_length:
            payloads = yield AllGather(payload=message)
        else:
            payloads = yield from gather_variable(message)
        update = torch.zeros_like(bucket.gradient)
        given = self.coding, bucket.layout, step, self.worker.count
        return fill_once(_add_all, payloads, update, *given)

    def encode(self, bucket: Bucket, step: int) -> tuple[Tensor, bool]:
        """(message, whether all workers' messages are as long); the residual is brought on."""
        feedback, segments = self.parameters.error_feedback, Segments.of(bucket.layout)
        sums = bucket_state(self.residual, bucket) if feedback else bucket.gradient
        if feedback:
            sums.add_(bucket.gradient)
        many = counts_kept(segments.length, self.parameters.ratio)
        selected = torch.split(largest(sums, segments, many)[0], many.tolist())
        frames = []
        fixed_length = True
        for (piece, part), indices in zip(bucket.layout.views(sums), selected, strict=True):
            way, chosen = self.coding.way(piece), indices
            coded = self.coding.encode_indices(piece, way, indices, step)
            if way.bloom:
                chosen = self.coding.chosen(piece, way, coded, len(indices), step)
            values = part[chosen]
            if way.curve:
                coded_values, decoded = fit_curve(values, self.parameters.degree)
            else:
                coded_values, decoded = as_bytes(values), values
            if feedback:
                part[chosen] = values - decoded
            body, sent = torch.cat((coded_values, coded)), chosen.numel()
            frames.append(
                pack_frame(Codec.BLOOM, body, numel=piece.numel, nonzero=sent, flags=way.flags)
            )
            fixed_length = fixed_length and way.fixed_length
        return torch.cat(frames), fixed_length


@dataclass(frozen=True, slots=True)
class _Coding:
    """How indices and values travel, for senders and receivers alike."""

    parameters: DeepReduceParameters
    seed: int

    def way(self, piece: TensorSlice) -> _Way:
        """How this tensor travels: the same on all workers."""
        given = self.parameters
        k = count_kept(piece.numel, given.ratio)
        if piece.numel <= given.skip:
            return _Way(bloom=False, coder=Coder.RAW, curve=False, fixed_length=True)
        curve = given.values == "polynomial"
        if given.indices == "bloom":
            fixed = given.policy != "p0" and not curve
            return _Way(bloom=True, coder=Coder.RAW, curve=curve, fixed_length=fixed)
        coder = choose_coder(given.indices, piece.numel, k)
        fixed = coder.fixed_length and not curve
        return _Way(bloom=False, coder=coder, curve=curve, fixed_length=fixed)

    def encode_indices(self, piece: TensorSlice, way: _Way, indices: Tensor, step: int) -> Tensor:
        if not way.bloom:
            k, coder = np.array([[indices.numel()], [way.coder]])
            return coded_positions(indices, Segments.alone(piece.numel), k, coder)[0]
        size = bloom_size(indices.numel(), _rate(self.parameters, piece.numel, indices.numel()))
        return bloom_filter(indices, size, self._key(piece, step))

    def chosen(self, piece: TensorSlice, way: _Way, coded: Tensor, count: int, step: int) -> Tensor:
        """The `count` positions that a receiver makes of the coded indices (p0: or more)."""
        if not way.bloom:
            size, k, coder = np.array([[coded.numel()], [count], [way.coder]])
            return decoded_positions(coded, Segments.alone(piece.numel), size, k, coder)
        k = count_kept(piece.numel, self.parameters.ratio)
        size = bloom_size(k, _rate(self.parameters, piece.numel, k))
        positives = bloom_positives(coded, piece.numel, size, self._key(piece, step))
        if positives.numel() < k:
            raise damaged(f"a Bloom filter of {positives.numel()} positions instead of {k}")
        if self.parameters.policy == "p0":
            return positives
        if self.parameters.policy == "leftmost":
            return positives[:k]
        generator = stream(self.seed, step, piece.index, "policy")
        n = positives.numel()
        kept = np.ones(n, dtype=np.bool_)
        kept[array(distinct_positions(positives, generator, n, n - k))] = False
        return tensor(array(positives)[kept], positives)

    def decode(self, piece: TensorSlice, frame: Frame, step: int) -> tuple[Tensor, Tensor]:
        """(indices int64 `[k]`, values float32 `[k]`) of one frame; `InputError` when damaged."""
        way, count = self.way(piece), frame.nonzero
        if frame.flags != way.flags:
            raise damaged(f"coded by way {frame.flags}, expected {way.flags}")
        if way.curve:
            values, used = read_curve(frame.body, count, self.parameters.degree)
        else:
            used = 4 * count
            values = from_bytes(frame.body[:used], torch.float32, count)
        indices = self.chosen(piece, way, frame.body[used:], count, step)
        if indices.numel() != count:
            raise damaged(f"{indices.numel()} positions for {count} values")
        return indices, values

    def _key(self, piece: TensorSlice, step: int) -> np.uint64:
        return random_key(self.seed, step, piece.index, "Bloom filter")


def _add_all(
    payloads: Iterable[Tensor], out: Tensor, coding: _Coding, layout: BucketLayout, step: int,
    count: int,
) -> None:  # fmt: skip
    for payload in payloads:
        for piece, frame in frames_of(payload, layout, Codec.BLOOM):
            indices, values = coding.decode(piece, frame, step)
            piece.of(out).index_add_(0, indices, values / count)


def _rate(parameters: DeepReduceParameters, n: int, k: int) -> float:
    """f, the fraction of wrong positives that the filter is made for."""
    return min(0.5, parameters.false_positives * k / n)


def _certain_share(parameters: DeepReduceParameters, n: int) -> float:
    """Of the energy of the k largest, what is sent at least, on average over hash functions."""
    if parameters.values == "polynomial":
        return 0.0
    if parameters.indices != "bloom" or parameters.policy == "p0":
        return 1.0
    k = count_kept(n, parameters.ratio)
    rate = _rate(parameters, n, k)
    # A filter of a thousand bits exceeds its rate by 6 %, short ones by far more.
    if parameters.policy == "leftmost" or bloom_size(k, rate).bits < 900:
        return 0.0
    return k / (k + 1.1 * rate * (n - k))


class _Way(NamedTuple):
    """How a tensor travels."""

    bloom: bool
    coder: Coder
    curve: bool
    fixed_length: bool

    @property
    def flags(self) -> int:
        return (_BLOOM if self.bloom else int(self.coder)) | (_CURVE if self.curve else 0)
