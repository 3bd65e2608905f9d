"""BinGrad-pb: two symmetric levels ±b of least error, if all between them stays unbiased.

An element with |v| <= b becomes b with probability (v + b) / 2b, else -b: right on average.
Larger ones saturate. The cost, the sum of b^2 - v^2 inside and (|v| - b)^2 outside, is least for

    b D = sum of |v| over the elements with |v| >= b          (D elements in the bucket),

whose left side grows with b and whose right side falls: N(0, 1) has b = .647 and an error of .454
of its energy. The zero is bracketed by halving: a lower end moves up to (right side) / D, an upper
end down to it, for at most 24 passes over a bucket, which stays in the cache.

With `clip` = c elements are clipped to c standard deviations of their bucket before anything else.

Payload: 1 bit an element and 32 a bucket. No state. Biased, because of what saturates.

Assumes that elements are symmetric about zero, as the paper does; where the sum jumps across b D,
b is the place of the jump, to 2^-22.

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, equations 14 (whose last case is
read as b_-1 < v < b_1) and 15.
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.one_bit.binary import (
    SYMMETRIC,
    add_decoded,
    clip_to_spread,
    clipped,
    message_of,
    optimal_bounds,
)
from gcsim.compressors.coding.rounding.bucket_levels import Clip
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Segments, keys_of


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
        """Properties for the checker: b^2 - v^2 inside, (|v| - b)^2 outside, and clipping."""

        def error(values: Tensor) -> float:
            size = parameters.bucket
            at = torch.arange(values.numel()) // size
            coded, cells = values.clone(), Segments.alone(values.numel()).cells(size)
            if parameters.clip is not None:
                clip_to_spread(coded, cells, parameters.clip)
            bounds = optimal_bounds(coded, cells)[at].double()
            means = torch.minimum(torch.maximum(coded.double(), -bounds), bounds)
            return float((bounds.square() - means.square() + (means - values).square()).sum())

        return Properties(error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        size, me = self.parameters.bucket, self.worker
        gradient = clipped(bucket, size, self.parameters.clip)
        cells = Segments.of(bucket.layout).cells(size)
        bounds = optimal_bounds(gradient, cells)[None]  # [1, cells]
        keys = keys_of(bucket.layout, me.seed, step, "bingrad_pb rounding", me.rank)
        message = message_of(gradient, cells, SYMMETRIC, bounds, bounds, keys)
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded)
