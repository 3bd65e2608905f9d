"""TernGrad: what if a gradient's element is only -1, 0 or +1 times one scalar a tensor?

Each worker clips a tensor to c sigma, c standard deviations (population, about the mean); its
scalar s is the largest magnitude that is left. An element v becomes sign(v) with probability
|v| / s, else 0: the decoded value is unbiased for the clipped vector, with variance
sum |v| (s - |v|) over the clipped elements.

The workers agree on the largest scalar of all (an all-reduce of one float32 a tensor, maximum), or
each keeps its own. Ternary digits travel five in a byte (1.6 bits) or in two bits each, and are
gathered; with a shared scalar they may also be summed on the way as int8 (8 bits, at most 127
workers). A gathered frame holds its scalar, so that it decodes on its own. No state.

Assumes that a tensor without spread (one element, or all equal) is not clipped: c * 0 would delete
it. The published code quantises to c sigma instead of the largest clipped magnitude, which differs
when no element reaches c sigma (`scalar`).

Source: W. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
Learning", NIPS 2017, arXiv:1705.07878, Algorithm 1 (with layer-wise scalars that workers share,
clipping, c = 2.5); code: wenwei202/terngrad.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker, add_all
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, of_bucket, pack_frame
from gcsim.compressors.coding.integers.digits import digit_bytes, pack_digits, unpack_digits
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.messages import decoder, split_body
from gcsim.compressors.coding.rounding.levels import add_packed_levels, encode_levels
from gcsim.compressors.coding.scans import greatest_magnitude, moments
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    FLOAT32_MAX,
    SUM_BLOCK,
    array,
    in_parallel,
    loop,
    partial_sums,
    total_of,
)
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.compressors.sharing import fill_once
from gcsim.errors import InputError

Scalar = Literal["largest", "clip"]
BASE3, TWO_BIT = 0, 1  # the frame's flags
_MOST_WORKERS = 127
"""Their digits add up within int8."""


class TernGradParameters(CompressorParameters):
    clip: float | None = Field(
        2.5, gt=0, description="c: clip to c standard deviations of the tensor; null: never clip"
    )
    packing: Literal["base3", "two_bit", "all_reduce"] = Field(
        "base3",
        description="five digits in a byte (1.6 bits an element) or two bits each, gathered; or "
        "summed by an all-reduce as int8 (at most 127 workers)",
    )
    shared: bool = Field(
        True, description="all workers use the largest of their scalars; else each its own"
    )
    scalar: Scalar = Field(
        "largest",
        description="the scalar: the largest clipped magnitude, or the clipping bound itself",
    )

    @model_validator(mode="after")
    def _sums_need_one_scalar(self) -> TernGradParameters:
        if self.packing == "all_reduce" and not self.shared:
            raise ValueError("packing: all_reduce adds up digits, so it needs shared: true")
        return self


class TernGrad(Compressor[TernGradParameters]):
    """Random ternary digits times a scalar that the workers share."""

    about = About(
        title="TernGrad",
        family="quantization",
        collective="all-reduce of one maximum a tensor, then all-gather (or all-reduce of int8)",
        bits="1.6 (base3), 2 (two_bit) or 8 (all_reduce), + 64 a tensor",
        paper="Wen et al., NIPS 2017, arXiv:1705.07878",
    )

    def __init__(self, worker: Worker, parameters: TernGradParameters) -> None:
        super().__init__(worker, parameters)
        if parameters.packing == "all_reduce" and worker.count > _MOST_WORKERS:
            raise InputError(
                f"terngrad.packing = all_reduce: the sums of {worker.count} workers' digits do "
                f"not fit int8, {_MOST_WORKERS} do"
            )

    @classmethod
    def properties(cls, parameters: TernGradParameters) -> Properties:
        """Unbiased only without clipping; the error is known exactly, clipping included."""
        chosen = parameters

        def error(values: Tensor) -> float:
            bound, scalar = bound_and_scalar(values, chosen.clip, chosen.scalar)
            exact = values.double()
            clipped = exact.clamp(-bound, bound)
            magnitude = clipped.abs()
            return float(((exact - clipped).square() + magnitude * (scalar - magnitude)).sum())

        return Properties(unbiased=chosen.clip is None, error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen = self.parameters
        found = bounds_and_scalars(bucket.gradient, bucket.layout, chosen.clip, chosen.scalar)
        bounds = [bound for bound, _ in found]
        scalars = bucket.gradient.new_tensor([scalar for _, scalar in found])
        if chosen.shared:
            scalars = yield AllReduce(tensor=scalars, op="max")
        update = torch.zeros_like(bucket.gradient)
        weight = 1.0 / self.worker.count
        if chosen.packing == "all_reduce":
            digits = torch.empty_like(bucket.gradient, dtype=torch.int8)
            keys = self._keys(bucket.layout, step)
            parts = digits_of(bucket.gradient, bucket.layout, keys, bounds, scalars, 8)
            for (_, part), codes in zip(bucket.layout.views(digits), parts, strict=True):
                torch.sub(codes.view(torch.int8), 1, out=part)
            sums = yield AllReduce(tensor=digits)
            for scalar, (piece, part) in zip(scalars, bucket.layout.views(update), strict=True):
                torch.mul(piece.of(sums), scalar * weight, out=part)
            return update
        payloads = yield AllGather(payload=self.encode(bucket, step, bounds, scalars))
        return fill_once(add_all, payloads, update, add_decoded, bucket.layout, weight, {})

    def encode(self, bucket: Bucket, step: int, bounds: list[float], scalars: Tensor) -> Tensor:
        """The message: uint8, one frame a tensor.

        `bounds` are this worker's clipping bounds, `scalars` float32 `[tensors]` the scalars, which
        are at least as large as what is left by clipping.
        """
        two_bit = self.parameters.packing == "two_bit"
        keys = self._keys(bucket.layout, step)
        return encoded(bucket.gradient, bucket.layout, keys, bounds, scalars, two_bit)

    def _keys(self, layout: BucketLayout, step: int) -> list[np.uint64]:
        me, purpose = self.worker, "terngrad rounding"
        return [random_key(me.seed, step, p.index, purpose, me.rank) for p in layout.slices]


@of_bucket("terngrad")
def encoded(
    gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], bounds: list[float],
    scalars: Tensor, two_bit: bool,
) -> Tensor:  # fmt: skip
    """See `TernGrad.encode`."""
    frames = []
    parts = digits_of(gradient, layout, keys, bounds, scalars, 2 if two_bit else 8)
    for position, (piece, codes) in enumerate(zip(layout.slices, parts, strict=True)):
        packed = codes if two_bit else pack_digits(codes, 3)
        body = torch.cat((as_bytes(scalars[position : position + 1]), packed))
        flags = TWO_BIT if two_bit else BASE3
        frames.append(pack_frame(Codec.TERNGRAD, body, numel=piece.numel, flags=flags))
    return torch.cat(frames)


def digits_of(
    gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], bounds: list[float],
    scalars: Tensor, bits: int,
) -> Iterable[Tensor]:  # fmt: skip
    """Each tensor's digits plus one, packed in `bits` bits."""
    for position, (piece, values) in enumerate(layout.views(gradient)):
        scalar, size = scalars[position : position + 1], max(1, piece.numel)
        yield encode_levels(
            values, scalar, keys[position], size=size, steps=1, bits=bits, bound=bounds[position]
        )


@of_bucket()
def bounds_and_scalars(
    gradient: Tensor, layout: BucketLayout, clip: float | None, scalar: Scalar
) -> list[tuple[float, float]]:
    """`bound_and_scalar` of each tensor of a gradient, float32 `[layout.numel]`."""
    views = batched(layout.views(gradient))
    return [bound_and_scalar(values, clip, scalar) for _, values in views]


def bound_and_scalar(
    values: Tensor, clip: float | None, scalar: Scalar = "largest"
) -> tuple[float, float]:
    """Where to clip float32 `[n]`, and its scalar: both float32 numbers, in the gradient's unit.

    The bound is `clip` standard deviations, infinite when there is no spread; the scalar is the
    largest |v| after clipping or, with scalar = "clip", the bound where it is finite.
    """
    return clipping(*magnitude_and_spread(values), clip, scalar)


def clipping(
    largest: float, spread: float, clip: float | None, scalar: Scalar
) -> tuple[float, float]:
    """`bound_and_scalar` from the largest |v| and the standard deviation."""
    bound = math.inf
    if clip is not None and spread > 0:
        bound = float(np.float32(min(clip * spread, FLOAT32_MAX)))
    if scalar == "clip" and bound < math.inf:
        return bound, bound
    return bound, min(largest, bound)


@kernel("reduction")
@on_device("reductions")
def magnitude_and_spread(values: Tensor) -> tuple[float, float]:
    """Largest |v| and population standard deviation of float32 `[n]`; zeros when n is 0.

    The deviation is exactly zero when all elements are equal; it is NaN when one is not finite.
    """
    data = np.ascontiguousarray(array(values))
    if not data.size:
        return 0.0, 0.0
    largest = np.zeros(-(-data.size // SUM_BLOCK), dtype=np.uint32)
    sums, squares = partial_sums(data.size), partial_sums(data.size)
    # About the first element, not about zero: nothing is lost when all are nearly equal.
    in_parallel(_moments, data.size, data, np.float64(data[0]), largest, sums, squares)
    mean = float(total_of(sums)) / data.size
    variance = float(total_of(squares)) / data.size - mean**2
    return float(largest.max().view(np.float32)), math.sqrt(max(variance, 0.0))


@of_bucket("add_terngrad")
@decoder(Codec.TERNGRAD)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add a frame's scalar times its digits."""
    n = frame.numel
    if frame.flags not in (BASE3, TWO_BIT):
        raise InputError(f"damaged payload: unknown packing {frame.flags} of ternary digits")
    two_bit = frame.flags == TWO_BIT
    head, tail = split_body(frame, 4, packed_bytes(n, 2) if two_bit else digit_bytes(n, 3))
    codes, bits = (tail, 2) if two_bit else (unpack_digits(tail, n, 3), 8)
    scalar = from_bytes(head, torch.float32, 1)
    add_packed_levels(part, codes, scalar, size=max(1, n), steps=1, bits=bits, weight=weight)


@loop
def _moments(
    start: int, stop: int, values: Any, pivot: float, largest: Any, sums: Any, squares: Any
) -> None:
    for first in range(start, stop, SUM_BLOCK):
        part = values[first : min(first + SUM_BLOCK, stop)]
        largest[first // SUM_BLOCK] = greatest_magnitude(part)
        sums[first // SUM_BLOCK], squares[first // SUM_BLOCK] = moments(part, pivot)
