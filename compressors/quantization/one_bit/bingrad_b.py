"""BinGrad-b: each element travels as one bit, and a bucket's two levels are class means.

Per bucket: b0 = mean, low = mean of the elements below b0, high = mean of the others; the bit of
v says v >= b0. Both means are the best levels for this b0, and what is decoded has the bucket's
mean. The error is the variance within the two classes, at most the bucket's variance, for N(0, 1)
1 - 2 / pi = .363 of the energy. Deterministic, so biased element by element. No state.

With `clip` = c elements are clipped to c standard deviations of their bucket before anything else.

Payload: 1 bit an element and 64 a bucket.

Assumes b0 = mean, as the paper does "for ease of implementation", where its condition asks for the
middle of the two levels; an empty class's level is b0.

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, equations 16 and 17, Algorithm 2.
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.one_bit.binary import (
    TWO_LEVELS,
    add_decoded,
    class_means,
    clip_to_spread,
    clipped,
    message_of,
)
from gcsim.compressors.coding.rounding.bucket_levels import Clip
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Segments


class BinGradBParameters(CompressorParameters):
    bucket: int = Field(
        2048, ge=1, le=65535, description="elements that share two levels (64 bits a bucket)"
    )
    clip: Clip = None


class BinGradB(Compressor[BinGradBParameters]):
    """One bit an element; a bucket's two levels are the means of its two classes."""

    about = About(
        title="BinGrad-b",
        family="quantization",
        collective="all-gather",
        bits="1 + 64 / bucket",
        paper="Xu et al., arXiv:2002.11082",
    )

    @classmethod
    def properties(cls, parameters: BinGradBParameters) -> Properties:
        """Properties for the checker: the error is the sum of squares within the classes."""
        size = parameters.bucket

        def error(values: Tensor) -> float:
            coded, cells = values.clone(), Segments.alone(values.numel()).cells(size)
            if parameters.clip is not None:
                clip_to_spread(coded, cells, parameters.clip)
            thresholds, lows, highs = class_means(coded, cells)
            at = torch.arange(values.numel()) // size
            decoded = torch.where(coded >= thresholds[at], highs[at], lows[at])
            return float((values.double() - decoded.double()).square().sum())

        return Properties(error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        size = self.parameters.bucket
        gradient = clipped(bucket, size, self.parameters.clip)
        cells = Segments.of(bucket.layout).cells(size)
        lines = class_means(gradient, cells)  # [3, cells]
        message = message_of(gradient, cells, TWO_LEVELS, lines, lines[1:])
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded)
