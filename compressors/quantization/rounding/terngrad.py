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
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker, add_all
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.digits import digit_bytes
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.rounding.level_codes import coded_levels, decoded_levels
from gcsim.compressors.coding.rounding.levels import add_coded_levels, round_levels
from gcsim.compressors.coding.rounding.spreads import magnitudes_and_spreads
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import FLOAT32_MAX
from gcsim.compressors.meter import kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.compressors.segments import Column, Segments, keys_of, starts
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
        found = magnitudes_and_spreads(bucket.gradient, Segments.of(bucket.layout))
        pairs = [
            clipping(largest, spread, chosen.clip, chosen.scalar)
            for largest, spread in found.tolist()
        ]
        bounds = np.array([bound for bound, _ in pairs], dtype=np.float32)
        scalars = bucket.gradient.new_tensor([scalar for _, scalar in pairs])
        if chosen.shared:
            scalars = yield AllReduce(tensor=scalars, op="max")
        update = torch.zeros_like(bucket.gradient)
        weight = 1.0 / self.worker.count
        if chosen.packing == "all_reduce":
            codes = torch.empty_like(bucket.gradient, dtype=torch.uint8)
            begin = Segments.of(bucket.layout).begin
            self._round(bucket, step, bounds, scalars, codes, begin, 8)
            digits = torch.empty_like(codes, dtype=torch.int8)
            for piece, part in bucket.layout.views(digits):
                torch.sub(piece.of(codes).view(torch.int8), 1, out=part)
            sums = yield AllReduce(tensor=digits)
            for scalar, (piece, part) in zip(scalars, bucket.layout.views(update), strict=True):
                torch.mul(piece.of(sums), scalar * weight, out=part)
            return update
        payloads = yield AllGather(payload=self.encode(bucket, step, bounds, scalars))
        return fill_once(add_all, payloads, update, add_decoded, bucket.layout, weight, {})

    def encode(
        self, bucket: Bucket, step: int, bounds: NDArray[np.float32], scalars: Tensor
    ) -> Tensor:
        """The message: uint8, one frame a tensor.

        `bounds` are this worker's clipping bounds, `scalars` float32 `[tensors]` the scalars, which
        are at least as large as what is left by clipping.
        """
        segments, two_bit = Segments.of(bucket.layout), self.parameters.packing == "two_bit"
        length, head = segments.length, segments.column(4)
        if two_bit:
            tail = packed_bytes(length, 2)
        else:
            codes = torch.empty_like(bucket.gradient, dtype=torch.uint8)
            self._round(bucket, step, bounds, scalars, codes, starts(length), 8)
            coded, tail, _ = coded_levels(codes, segments, 1, "digits")
        flags = TWO_BIT if two_bit else BASE3
        message, at = frames(
            scalars, Codec.TERNGRAD, segments, head + tail, flags=flags, fixed=True
        )
        put(message, at, scalars, head)
        if two_bit:
            self._round(bucket, step, bounds, scalars, message, at + head, 2)
        else:
            put(message, at + head, coded, tail)
        return seal(message, at, head + tail)

    def _round(
        self, bucket: Bucket, step: int, bounds: NDArray[np.float32], scalars: Tensor,
        out: Tensor, at: Column, bits: int,
    ) -> None:  # fmt: skip
        """Write the digits plus one, in `bits` bits each."""
        me, cells = self.worker, Segments.of(bucket.layout).whole
        keys = keys_of(bucket.layout, me.seed, step, "terngrad rounding", me.rank)
        round_levels(
            bucket.gradient, cells, scalars, keys, out, at, steps=1, bits=bits, bounds=bounds
        )


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
def magnitude_and_spread(values: Tensor) -> tuple[float, float]:
    """`magnitudes_and_spreads` of a tensor alone, float32 `[n]`."""
    ((largest, spread),) = magnitudes_and_spreads(values, Segments.alone(values.numel())).tolist()
    return largest, spread


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * scalar * digit, in place; `InputError` for a damaged or another message."""
    segments, found = Segments.of(layout), read(message, layout, Codec.TERNGRAD)
    length, flags = segments.length, found.alike("flags")
    if flags not in (BASE3, TWO_BIT):
        raise InputError(f"damaged payload: unknown packing {flags} of ternary digits")
    head = segments.column(4)
    tail = packed_bytes(length, 2) if flags == TWO_BIT else digit_bytes(length, 3)
    found.demand_sizes(head + tail)
    scalars = taken(message, found.at, head, torch.float32)  # [tensors]
    codes, at, bits = message, found.at + head, 2
    if flags == BASE3:
        body = taken(message, at, tail, torch.uint8)
        codes = decoded_levels(body, tail, segments, length, 1, "digits")
        at, bits = starts(length), 8
    add_coded_levels(out, segments.whole, scalars, codes, at, steps=1, bits=bits, weight=weight)
