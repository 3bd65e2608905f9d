"""What is the sparsest unbiased message of a given variance? Wangni et al.'s sparsification.

Element i is sent with probability p_i = min(1, lambda |g_i|), independently on each worker, as
g_i / p_i. Elements with p = 1 (A) send their value; all others that are sent (B) have the same
magnitude 1/lambda, so that a sign is enough. Unbiased; E|Q(g) - g|^2 = sum_B g_i^2 (1/p_i - 1).

lambda is found for one of
- a density: sum(p) = ratio * n, by at most `rounds` rounds (greedy; two are nearly always enough);
- a bound eps: E|Q(g)|^2 = (1 + eps) |g|^2 exactly, with the smallest A of the closed form
  |g_(k+1)| sum_{j>k} |g_(j)| <= eps |g|^2 + sum_{j>k} g_(j)^2 (magnitudes in falling order),
  lambda = sum_{j>k} |g_(j)| / (eps |g|^2 + sum_{j>k} g_(j)^2); found without sorting.

Bits of a tensor: |A| (32 + index) + |B| (1 + index) + 96: 1/lambda, |A|, and the length of A's
index code. 1/lambda is rounded to float32 before the probabilities are formed, so that it is
exact on arrival.

Assumes that a bound is meant for each tensor. Nothing is kept between steps.

Source: J. Wangni, J. Wang, J. Liu, T. Zhang, "Gradient Sparsification for Communication-Efficient
Distributed Optimization", NeurIPS 2018, arXiv:1710.09854: the greedy algorithm and the closed form.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.checksum import number_at
from gcsim.compressors.coding.frame import (
    HEADER_BYTES,
    Codec,
    Frame,
    as_bytes,
    from_bytes,
    pack_frame,
    read_frame,
    together,
)
from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    IndexCoding,
    ascends_below,
    choose_coder,
    decode_indices,
    encode_indices,
)
from gcsim.compressors.coding.integers.packing import (
    damaged,
    pack_signs,
    packed_bytes,
    unpack_narrow,
    unpack_signs,
    unpack_wide,
)
from gcsim.compressors.coding.messages import decoder
from gcsim.compressors.coding.selecting.sampling import Weights, draw_poisson
from gcsim.compressors.coding.selecting.scales import scales_for_count, scales_for_variance
from gcsim.compressors.coding.selecting.selection import scatter_add
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device, within_reach
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments

_HEAD = struct.Struct("<fII")
"""1/lambda, |A|, bytes of A's index code."""
_HEAD_BYTES = _HEAD.size


class VarianceBoundedParameters(CompressorParameters):
    ratio: Ratio = Field(0.02, description="expected fraction sent of each tensor")
    bound: float | None = Field(
        None, gt=0.0, description="eps: E|Q|^2 = (1 + eps)|g|^2; when given, ratio is not used"
    )
    rounds: int = Field(2, ge=1, description="at most so many rounds to reach the ratio")
    indices: IndexCoding = Field("packed", description="how indices travel: ceil(log2 n) bits")


class VarianceBounded(Compressor[VarianceBoundedParameters]):
    """Unbiased sampling in proportion to the magnitude, independently on each worker."""

    about = About(
        title="Variance-bounded sparsification",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="certain * (32 + bits per index) + others * (1 + bits per index) + 96 / n",
        unbiased=True,
        paper="Wangni et al., Gradient Sparsification, NeurIPS 2018, arXiv:1710.09854",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket, step))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """The message of a bucket's gradient: uint8, one frame a tensor."""
        me, pieces = self.worker, bucket.layout.slices
        keys = [random_key(me.seed, step, p.index, "variance-bounded", me.rank) for p in pieces]
        views = batched(zip(bucket.layout.views(bucket.gradient), keys, strict=True))
        return torch.cat([self._encode_tensor(values, key) for (_, values), key in views])

    def _encode_tensor(self, values: Tensor, key: np.uint64) -> Tensor:
        n = values.numel()
        weights = Weights.of(within_reach(values), Segments.alone(n))
        scale, magnitude = multiplier(weights, self.parameters)
        expected = np.array([round(self.parameters.ratio * n)])
        scales = torch.tensor([scale], dtype=torch.float64, device=values.device)
        given = weights.values, weights.sums, weights.segments, scales
        positions, _ = draw_poisson(*given, np.array([key]), expected=expected)
        (a, certain), (b, others) = split_certain(weights.values, positions, scale)
        coders = [choose_coder(self.parameters.indices, n, part.numel()) for part in (a, b)]
        index_a, index_b = (
            encode_indices(part, n, coder) for part, coder in zip((a, b), coders, strict=True)
        )
        head = _HEAD.pack(magnitude, a.numel(), index_a.numel())
        first = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        first = first.to(certain.device)
        body = torch.cat((first, as_bytes(certain), pack_signs(others), index_a, index_b))
        sent, flags = positions.numel(), coders[0] | coders[1] << 4
        return pack_frame(
            Codec.VARIANCE_BOUNDED, body.to(values.device), numel=n, nonzero=sent, flags=flags
        )

    @classmethod
    def properties(cls, parameters: VarianceBoundedParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            scale, magnitude = multiplier(
                Weights.of(vector, Segments.alone(vector.numel())), parameters
            )
            sizes = vector.double().abs()
            uncertain = sizes[sizes * scale < 1.0]
            return float((uncertain * magnitude - uncertain.square()).sum())

        return Properties(unbiased=True, error_bound=bound, error_is_exact=True)


def multiplier(weights: Weights, parameters: VarianceBoundedParameters) -> tuple[float, float]:
    """(lambda, 1/lambda), the latter a float32; both 0 when all elements are zero."""
    if parameters.bound is None:
        k = np.array([max(1.0, parameters.ratio * weights.values.numel())])
        given = weights.values, weights.sums, weights.segments
        scale = float(scales_for_count(*given, k, parameters.rounds)[0])
    else:
        scale = float(scales_for_variance(weights, parameters.bound)[0])
    if not scale:
        return 0.0, 0.0
    magnitude = min(float(np.float32(min(1.0 / scale, 3e38))), 3e38)
    return (1.0 / magnitude if magnitude else scale), magnitude


@kernel("gather_scatter")
@on_device("selecting.sampling")
def split_certain(
    values: Tensor, positions: Tensor, scale: float
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(positions, values) of A, where scale |v| >= 1, and of B."""
    numbers, places = array(values), array(positions)
    order, picked = np.empty_like(places), np.empty(places.size, dtype=np.float32)
    a = _split(numbers, places, float(scale), order, picked)
    # B was filled from the end
    parts = (order[:a], picked[:a]), (order[a:][::-1].copy(), picked[a:][::-1].copy())
    first, second = ((torch.from_numpy(place), torch.from_numpy(value)) for place, value in parts)
    return first, second


@loop
def _split(values: Any, positions: Any, scale: float, order: Any, picked: Any) -> int:
    front, back = 0, positions.size - 1
    for i in range(positions.size):
        value = values[positions[i]]
        certain = abs(np.float64(value)) * scale >= 1.0
        at = front if certain else back
        order[at] = positions[i]
        picked[at] = value
        front += int(certain)
        back -= int(not certain)
    return front


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * decoded message, in place; see `decoder`."""
    if together(out):
        given = array(message), layout.table, array(out), np.float32(weight)
        if _add_message(*given, int(Codec.VARIANCE_BOUNDED), int(Coder.PACKED)):
            return  # else other index coders were chosen, or it is damaged
    _add_frames(message, layout, out, weight)


@loop
def _add_message(
    data: Any, table: Any, out: Any, weight: np.float32, codec: int, coder: int
) -> bool:
    """`_add_frames` of short tensors with indices by `coder`; False if it cannot.

    All frames are looked at before anything is added; their indices are then what may be wrong.
    """
    for adding in range(2):
        at = 0
        for t in range(table.shape[0]):
            if data.size - at < HEADER_BYTES + _HEAD_BYTES:
                return False
            offset, n = table[t]
            kind, flags, params, numel, nonzero, length, intact = read_frame(data, at)
            body = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
            if kind != codec or flags != coder * 17 or params or numel != n or not intact:
                return False
            if length < _HEAD_BYTES:
                return False
            if not _add_body(body, n, nonzero, out[offset : offset + n], weight, adding == 1):
                return False
            at += HEADER_BYTES + length
        if at != data.size:
            return False
    return True


@loop
def _add_body(body: Any, n: int, nonzero: int, out: Any, weight: np.float32, adding: bool) -> Any:
    """One frame's elements, or whether they can be read."""
    head = np.empty(3, dtype=np.uint32)
    for i in range(3):
        head[i] = number_at(body, 4 * i, 4)
    magnitude = head.view(np.float32)[0]
    a, index_bytes = np.int64(head[1]), np.int64(head[2])
    b = nonzero - a
    width = 0
    while (1 << width) < n:
        width += 1
    signs = _HEAD_BYTES + 4 * a
    first = signs + (b + 7) // 8
    whole = (a * width + 7) // 8 == index_bytes
    whole &= first + index_bytes + (b * width + 7) // 8 == body.size
    if b < 0 or not whole or not (magnitude >= 0 and magnitude < np.float32(np.inf)):
        return False
    if b % 8 and body[first - 1] >> np.uint8(b % 8):
        return False
    right_a, places_a = _places(body[first : first + index_bytes], a, width, n)
    right_b, places_b = _places(body[first + index_bytes :], b, width, n)
    if not adding:
        return right_a and right_b
    word = np.empty(1, dtype=np.uint32)
    for i in range(a):
        word[0] = number_at(body, _HEAD_BYTES + 4 * i, 4)
        out[places_a[i]] += word.view(np.float32)[0] * weight
    for i in range(b):
        negative = (body[signs + i // 8] >> np.uint8(i % 8)) & np.uint8(1)
        out[places_b[i]] += (-magnitude if negative else magnitude) * weight
    return True


@loop
def _places(packed: Any, count: Any, width: int, n: int) -> Any:
    """(whether they can have been packed, positions int64 `[count]`)."""
    places = np.zeros(count, dtype=np.int64)
    if width <= 8:
        unpack_narrow(0, count, packed, places, width)
    else:
        unpack_wide(0, count, packed, places, width)
    used = count * width % 8
    return (used == 0 or packed[-1] >> np.uint8(used) == 0) and ascends_below(places, n), places


@decoder(Codec.VARIANCE_BOUNDED)
def _add_frames(frame: Frame, part: Tensor, weight: float) -> None:
    """Add the elements of A and of B."""
    for positions, values in _read(frame):
        scatter_add(part, positions, values * weight)


def _read(frame: Frame) -> Iterator[tuple[Tensor, Tensor]]:
    """(positions int64, values float32) of A, then of B."""
    if frame.body.numel() < _HEAD.size:
        raise damaged(f"a body of {frame.body.numel()} bytes")
    magnitude, a, index_bytes = _HEAD.unpack(bytes(frame.body[: _HEAD.size].tolist()))
    b = frame.nonzero - a
    if b < 0 or not 0.0 <= magnitude < float("inf"):
        raise damaged(f"{a} certain elements of {frame.nonzero}, others of size {magnitude}")
    cuts = list(itertools.accumulate((_HEAD.size, 4 * a, packed_bytes(b, 1), index_bytes)))
    if cuts[-1] > frame.body.numel():
        raise damaged(f"a body of {frame.body.numel()} bytes, not of {cuts[-1]} or more")
    values, signs, index_a, index_b = torch.tensor_split(frame.body, cuts)[1:]
    positions_a = decode_indices(index_a, frame.numel, a, frame.flags & 0xF)
    positions_b = decode_indices(index_b, frame.numel, b, frame.flags >> 4)
    yield positions_a, from_bytes(values, torch.float32, a)
    yield positions_b, unpack_signs(signs, b).mul_(magnitude)
