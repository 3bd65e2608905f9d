"""BinGrad-pb: how wide should two symmetric levels ±b be, if all between them stays unbiased?

An element with |v| <= b becomes b with probability (v + b) / 2b, else -b: right on average.
Larger ones saturate. The cost, the sum of b^2 - v^2 inside and (|v| - b)^2 outside, is least for

    b D = sum of |v| over the elements with |v| >= b          (D elements in the bucket),

whose left side grows with b and whose right side falls: N(0, 1) has b = .647 and an error of .454
of its energy. The zero is bracketed by halving: a lower end moves up to (right side) / D, an upper
end down to it, for at most `MAX_HALVINGS` passes over a bucket, which stays in the cache.

With `clip` = c elements are clipped to c standard deviations of their bucket before anything else.

Payload: 1 bit an element and 32 a bucket. No state. Biased, because of what saturates.

Assumes that elements are symmetric about zero, as the paper does; where the sum jumps across b D,
b is the place of the jump, to 2^-22.

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, equations 14 (whose last case is
read as b_-1 < v < b_1) and 15.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, Frame, of_bucket
from gcsim.compressors.coding.messages import decoder
from gcsim.compressors.coding.one_bit.binary import (
    SYMMETRIC,
    add_chosen,
    pack_binary,
    random_bits,
    read_binary,
)
from gcsim.compressors.coding.rounding.bucket_levels import Clip, clip_to_spread, clipped
from gcsim.compressors.coding.rounding.levels import bucket_count, bucket_grain
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_parallel, loop, summing_loop, tensor
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather, Exchange

MAX_HALVINGS = 24


class BinGradPbParameters(CompressorParameters):
    bucket: int = Field(
        2048, ge=1, le=65535, description="elements that share the levels (32 bits a bucket)"
    )
    clip: Clip = None


class BinGradPb(Compressor[BinGradPbParameters]):
    """One random bit an element: ±b, unbiased between the two."""

    about = About(
        title="BinGrad-pb",
        family="quantization",
        collective="all-gather",
        bits="1 + 32 / bucket",
        paper="Xu et al., arXiv:2002.11082",
    )

    @classmethod
    def properties(cls, parameters: BinGradPbParameters) -> Properties:
        """See `Compressor.properties`: b^2 - v^2 inside, (|v| - b)^2 outside, and clipping."""

        def error(values: Tensor) -> float:
            size = parameters.bucket
            at = torch.arange(values.numel()) // size
            coded = values.clone()
            clip_to_spread(coded, size, parameters.clip)
            bounds = optimal_bounds(coded, size)[at].double()
            means = torch.minimum(torch.maximum(coded.double(), -bounds), bounds)
            return float((bounds.square() - means.square() + (means - values).square()).sum())

        return Properties(error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen = self.parameters
        message = self.encode(clipped(bucket, chosen.bucket, chosen.clip), step)
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """The message of a bucket's gradient, as it is: uint8, one frame a tensor."""
        me = self.worker
        keys = [
            random_key(me.seed, step, piece.index, "bingrad_pb rounding", me.rank)
            for piece in bucket.layout.slices
        ]
        return encoded(bucket.gradient, bucket.layout, keys, self.parameters.bucket)


@of_bucket("bingrad_pb")
def encoded(gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], size: int) -> Tensor:
    """The message of a gradient, with a key for each tensor."""
    frames = []
    for (piece, values), key in zip(batched(layout.views(gradient)), keys, strict=True):
        bounds = optimal_bounds(values, size)
        bits = random_bits(values, bounds, size, key)
        frames.append(pack_binary(bits, bounds, numel=piece.numel, flags=SYMMETRIC, size=size))
    return torch.cat(frames)


@of_bucket("add_symmetric")
@decoder(Codec.BINARY)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add -b or b of each element's bucket."""
    bits, lows, highs, size = read_binary(frame)
    add_chosen(part, bits, lows, highs, size=size, weight=weight)


@kernel("reduction")
@on_device("one_bit.binary")
def optimal_bounds(values: Tensor, size: int) -> Tensor:
    """The best b of each bucket of a float32 `[n]`: float32 `[ceil(n / size)]`."""
    data = array(values)
    bounds = np.empty(bucket_count(data.size, size), dtype=np.float32)
    in_parallel(_optimal_bounds, data.size, data, size, bounds, grain=bucket_grain(size))
    return tensor(bounds, values)


@loop
def _optimal_bounds(start: int, stop: int, values: Any, size: int, bounds: Any) -> None:
    for at in range(start, stop, size):
        part = values[at : min(at + size, stop)]
        low, high = 0.0, _mean_from(part, np.float32(0))
        for _ in range(MAX_HALVINGS):
            if high - low <= 2.0**-22 * high:
                break
            middle = 0.5 * (low + high)
            reached = _mean_from(part, np.float32(middle))
            if reached >= middle:
                low, high = middle, min(high, reached)
            else:
                low, high = max(low, reached), middle
        bounds[at // size] = np.float32(high)


@loop
def _mean_from(part: Any, bound: Any) -> float:
    """Sum of |v| over the elements with |v| >= bound, over the number of all elements."""
    total = 0.0
    for first in range(0, part.size, SUM_BLOCK):
        total += _sum_from(part[first : first + SUM_BLOCK], bound)
    mean: float = total / part.size
    return mean


@summing_loop
def _sum_from(block: Any, bound: Any) -> Any:
    total = np.float32(0)
    for i in range(block.size):
        magnitude = abs(block[i])
        total += magnitude if magnitude >= bound else np.float32(0)
    return total
