"""What if the indices of a sparse gradient travel as a Bloom filter, its values as a curve?
DeepReduce.

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
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice, bucket_state
from gcsim.compressors.coding.frame import (
    HEADER_BYTES,
    Codec,
    Frame,
    as_bytes,
    find_frames,
    from_bytes,
    pack_frame,
    put_words,
    together,
    words_at,
    write_frame,
)
from gcsim.compressors.coding.indices.bloom import (
    BloomSize,
    asked,
    bloom_filter,
    bloom_positives,
    bloom_size,
    filled,
)
from gcsim.compressors.coding.indices.curve import fit_curve, read_curve
from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    IndexCoding,
    ascends_below,
    choose_coder,
    decode_indices,
    encode_indices,
)
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.selecting.selection import (
    NO_NUMBER,
    add_and_take_largest,
    count_kept,
    scatter_add,
    share_kept,
    take_each,
    take_largest,
)
from gcsim.compressors.coding.selecting.subsets import distinct_positions, mark_and_list, parts_of
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop, tensor
from gcsim.compressors.meter import batched
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key, stream
from gcsim.compressors.requests import AllGather, Exchange, gather_variable
from gcsim.compressors.sharing import fill_once
from gcsim.errors import InputError

_BLOOM = 15
"""In the frame's flags, in the place of an index coder."""
_CURVE = 1 << 4
_POLICIES = ("random", "leftmost", "p0")
_RANDOM, _LEFTMOST = range(2)


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
        feedback = self.parameters.error_feedback
        sums = bucket_state(self.residual, bucket) if feedback else bucket.gradient
        if together(sums) and self.coding.plain:
            if feedback:
                sums.add_(bucket.gradient)
            return self.coding.encoded_together(sums, bucket.layout, step, clear=feedback)
        frames = []
        fixed_length = True
        for piece, part in batched(bucket.layout.views(sums)):
            k = count_kept(piece.numel, self.parameters.ratio)
            if feedback:
                indices, values = add_and_take_largest(part, piece.of(bucket.gradient), k)
                part[indices] = values  # others may be sent in their place
            else:
                indices, values = take_largest(part, k, clear=False)
            way = self.coding.way(piece)
            coded = self.coding.encode_indices(piece, way, indices, step)
            chosen = self.coding.chosen(piece, way, coded, k, step) if way.bloom else indices
            values = part[chosen]
            if way.curve:
                coded_values, decoded = fit_curve(values, self.parameters.degree)
                values = values - decoded
            else:
                coded_values, values = as_bytes(values), torch.zeros_like(values)
            if feedback:
                part[chosen] = values
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
            return encode_indices(indices, piece.numel, way.coder)
        size = bloom_size(indices.numel(), _rate(self.parameters, piece.numel, indices.numel()))
        return bloom_filter(indices, size, self._key(piece, step))

    def chosen(self, piece: TensorSlice, way: _Way, coded: Tensor, count: int, step: int) -> Tensor:
        """The `count` positions that a receiver makes of the coded indices (p0: or more)."""
        if not way.bloom:
            return decode_indices(coded, piece.numel, count, way.coder)
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
        return _without(positives, distinct_positions(positives, generator, n, n - k))

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

    # --- all tensors of a bucket in one loop, where they are short ---

    @property
    def plain(self) -> bool:
        """Whether the loops below know how tensors travel: not as curves, nor coded otherwise."""
        return self.parameters.values == "raw" and self.parameters.indices in ("bloom", "raw")

    def encoded_together(
        self, sums: Tensor, layout: BucketLayout, step: int, *, clear: bool
    ) -> tuple[Tensor, bool]:
        """`DeepReduce.encode` of what is added up already; with `clear`, what is sent is zeroed."""
        data, given = array(sums), self._given(layout, step)
        counts = given[1][:, 0].copy()
        places = np.empty(counts.sum(), dtype=np.int64)
        if not take_each(data, layout.table, counts, places):
            raise InputError(NO_NUMBER)
        message = torch.from_numpy(_encode_short(data, *given, places, clear, int(Codec.BLOOM)))
        return message, all(self.way(piece).fixed_length for piece in layout.slices)

    def add_together(
        self, payload: Tensor, out: Tensor, layout: BucketLayout, step: int, count: int
    ) -> bool:
        """out += decoded payload / count, in place; False for what is damaged."""
        data, found = array(payload), np.empty((len(layout.slices), 5), dtype=np.int64)
        if not find_frames(data, layout.table, int(Codec.BLOOM), -1, found):
            return False
        given = self._given(layout, step)
        return bool(_add_short(data, found, *given, array(out), np.float32(count)))

    def _given(
        self, layout: BucketLayout, step: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64], int]:
        """What the loops ask for: the tensors, how each travels, its keys, the policy's number."""
        numels = tuple(piece.numel for piece in layout.slices)
        keys = [_keys(self.seed, step, piece.index) for piece in layout.slices]
        policy = _POLICIES.index(self.parameters.policy)
        return layout.table, _sizes(self.parameters, numels), np.array(keys), policy


@lru_cache(maxsize=1 << 8)
def _sizes(parameters: DeepReduceParameters, numels: tuple[int, ...]) -> NDArray[np.int64]:
    """Of each tensor: elements kept, bits of its filter or 0 where there is none, hashes."""
    rows = []
    for n in numels:
        k = count_kept(n, parameters.ratio)
        coded = parameters.indices == "bloom" and n > parameters.skip
        size = bloom_size(k, _rate(parameters, n, k)) if coded else BloomSize(bits=0, hashes=0)
        rows.append((k, size.bits, size.hashes))
    return np.array(rows)


@lru_cache(maxsize=1 << 10)
def _keys(seed: int, step: int, tensor: int) -> tuple[np.uint64, np.uint64]:
    """That of a tensor's filter, and that of `distinct_positions`; all workers ask for them."""
    _, policy = parts_of(stream(seed, step, tensor, "policy"), 0, 0)
    return random_key(seed, step, tensor, "Bloom filter"), policy


def _add_all(
    payloads: Iterable[Tensor], out: Tensor, coding: _Coding, layout: BucketLayout, step: int,
    count: int,
) -> None:  # fmt: skip
    short = together(out) and coding.plain
    for payload in payloads:
        if short and coding.add_together(payload, out, layout, step, count):
            continue  # else it is damaged, and what follows says how
        for piece, frame in frames_of(payload, layout, Codec.BLOOM):
            indices, values = coding.decode(piece, frame, step)
            scatter_add(piece.of(out), indices, values / count)


@on_device("indices.bloom")
def _without(positions: Tensor, dropped: Tensor) -> Tensor:
    """All but some, which are given by their numbers."""
    kept = np.ones(positions.numel(), dtype=np.bool_)
    kept[array(dropped)] = False
    return tensor(array(positions)[kept], positions)


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


# --- loops ------------------------------------------------------------------------------------


@loop
def _encode_short(
    sums: Any, table: Any, sizes: Any, keys: Any, policy: int, places: Any, clear: bool, codec: int
) -> Any:
    """The frames of all tensors, of whose largest elements the `places` are known: uint8."""
    message = np.empty(
        (HEADER_BYTES + 4) * table.shape[0] + sizes[:, 1].sum() // 8 + 8 * sums.size, dtype=np.uint8
    )
    at, before = 0, 0
    for t in range(table.shape[0]):
        first, n = table[t]
        k, bits, hashes = sizes[t]
        own, part, frame = places[before : before + k], sums[first : first + n], message[at:]
        before += k
        if bits:
            coded = filled(own, bits, hashes, keys[t, 0])
            positives = asked(coded, n, bits, hashes, keys[t, 0])
            chosen, length = _followed(positives, k, policy, keys[t, 1]), (bits + 7) // 8
        else:
            coded = own.astype(np.uint32).view(np.uint8)
            chosen, length = own, 4 * k
        values = np.empty(chosen.size, dtype=np.float32)
        for i in range(chosen.size):
            values[i] = part[chosen[i]]
            if clear:
                part[chosen[i]] = np.float32(0)
        end = put_words(frame, put_words(frame, HEADER_BYTES, values), coded[:length])
        write_frame(frame[:end], codec, _BLOOM if bits else 0, 0, n, chosen.size)
        at += end
    return message[:at].copy()


@loop
def _followed(positives: Any, k: int, policy: int, key: Any) -> Any:
    """Which of the positives travel; see `_Coding.chosen`."""
    kept = positives
    if policy == _RANDOM:
        dropped = np.empty(positives.size - k, dtype=np.int64)
        words = np.empty((positives.size + 63) // 64, dtype=np.uint64)
        mark_and_list(0, positives.size, key, words, dropped)
        kept = np.empty(k, dtype=np.int64)
        at = 0
        for i in range(positives.size):
            if i - at < dropped.size and dropped[i - at] == i:
                continue
            kept[at] = positives[i]
            at += 1
    elif policy == _LEFTMOST:
        kept = positives[:k]
    return kept


@loop
def _add_short(
    data: Any, found: Any, table: Any, sizes: Any, keys: Any, policy: int, out: Any, count: Any
) -> bool:
    """out += decoded frames / count; False, and nothing done, where one is damaged."""
    places = np.empty(found[:, 2].sum(), dtype=np.int64)
    at = 0
    for t in range(table.shape[0]):
        sent, start = found[t, 2], found[t, 3] + 4 * found[t, 2]
        if start > found[t, 4] or found[t, 0] != (_BLOOM if sizes[t, 1] else 0):
            return False
        coded = data[start : found[t, 4]]
        right, chosen = _positions(coded, table[t, 1], sent, sizes[t], keys[t], policy)
        if not right or chosen.size != sent:
            return False
        for i in range(sent):
            places[at + i] = table[t, 0] + chosen[i]
        at += sent
    at = 0
    for t in range(table.shape[0]):
        values = words_at(data, found[t, 3], found[t, 2]).view(np.float32)
        for i in range(values.size):
            out[places[at + i]] += values[i] / count
        at += values.size
    return True


@loop
def _positions(coded: Any, n: int, sent: int, size: Any, keys: Any, policy: int) -> Any:
    """(whether they can have been coded so, positions of one tensor's elements)."""
    k, bits, hashes = size
    if not bits:
        places = words_at(coded, 0, min(sent, coded.size // 4)).astype(np.int64)
        return coded.size == 4 * sent and ascends_below(places, n), places
    padded = np.zeros((bits + 31) // 32 * 4, dtype=np.uint8)
    for i in range(min(coded.size, padded.size)):
        padded[i] = coded[i]
    places = asked(padded, n, bits, hashes, keys[0])
    right = coded.size == (bits + 7) // 8 and places.size >= k
    if right and bits % 8:
        right = coded[coded.size - 1] >> np.uint8(bits % 8) == 0
    return right, _followed(places, k, policy, keys[1]) if right else places
