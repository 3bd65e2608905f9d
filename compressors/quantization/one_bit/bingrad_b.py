"""BinGrad-b: each element travels as one bit, and a bucket's two levels are class means.

Per bucket: b0 = mean, low = mean of the elements below b0, high = mean of the others; the bit of
v says v >= b0. Both means are the best levels for this b0, and what is decoded has the bucket's
mean. The error is the variance within the two classes, at most the bucket's variance, for N(0, 1)
1 - 2 / pi = .363 of the energy. Deterministic, so biased element by element. No state.

`lloyd_iterations` repeats b0 = (low + high) / 2 and the class means: the paper's condition is its
fixed point, which the mean alone meets for symmetric buckets only.

With `levels` = coherent all workers use the same levels: an all-reduce of the buckets' means
gives b0, one of the class sums and counts gives the means over all workers' elements (again for
each Lloyd iteration). Then the bits alone travel, and only their number an element matters to
whoever adds them up. What is decoded has the mean bucket's mean.

With `clip` = c elements are clipped to c standard deviations of their bucket before anything else.

Payload: 1 bit an element and 64 a bucket; coherent: 1 bit, and 32 + 96 a bucket are all-reduced.

Assumes b0 = mean, as the paper does "for ease of implementation"; an empty class's level is b0.
The paper says only that coherent levels are possible, not how: pooled means are the counterpart.

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, equations 16 and 17, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.one_bit.binary import (
    KNOWN_LEVELS,
    TWO_LEVELS,
    add_decoded,
    class_means,
    class_sums,
    clip_to_spread,
    clipped,
    message_of,
)
from gcsim.compressors.coding.rounding.bucket_levels import Clip
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, Request
from gcsim.compressors.segments import Cells, Segments


class BinGradBParameters(CompressorParameters):
    bucket: int = Field(
        2048, ge=1, le=65535, description="elements that share two levels (64 bits a bucket)"
    )
    lloyd_iterations: int = Field(
        0, ge=0, le=50, description="times that threshold and class means are improved in turn"
    )
    levels: Literal["own", "coherent"] = Field(
        "own", description="each worker's own levels, or the same on all (two small all-reduces)"
    )
    clip: Clip = None


class BinGradB(Compressor[BinGradBParameters]):
    """One bit an element; a bucket's two levels are the means of its two classes."""

    about = About(
        title="BinGrad-b",
        family="quantization",
        collective="all-gather (coherent: small all-reduces before)",
        bits="1 + 64 / bucket",
        paper="Xu et al., arXiv:2002.11082",
    )

    @classmethod
    def properties(cls, parameters: BinGradBParameters) -> Properties:
        """See `Compressor.properties`: the error is the sum of squares within the classes."""
        size, iterations = parameters.bucket, parameters.lloyd_iterations

        def error(values: Tensor) -> float:
            coded, cells = values.clone(), Segments.alone(values.numel()).cells(size)
            if parameters.clip is not None:
                clip_to_spread(coded, cells, parameters.clip)
            thresholds, lows, highs = class_means(coded, cells, iterations)
            at = torch.arange(values.numel()) // size
            decoded = torch.where(coded >= thresholds[at], highs[at], lows[at])
            return float((values.double() - decoded.double()).square().sum())

        return Properties(error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        size = self.parameters.bucket
        gradient = clipped(bucket, size, self.parameters.clip)
        cells = Segments.of(bucket.layout).cells(size)
        if self.parameters.levels == "own":
            lines = class_means(gradient, cells, self.parameters.lloyd_iterations)  # [3, cells]
            message, known = message_of(gradient, cells, TWO_LEVELS, lines, lines[1:]), None
        else:
            lines = yield from self._agree(gradient, cells)
            message = message_of(gradient, cells, KNOWN_LEVELS, lines, lines[:0])
            known = lines[1:], size
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded, known=known)

    def _agree(self, gradient: Tensor, cells: Cells) -> Generator[Request, Any, Tensor]:
        """Thresholds, lower and upper levels of all workers' elements: float32 `[3, cells]`."""
        lengths = torch.from_numpy(cells.length).to(gradient)
        total = lengths * float(self.worker.count)
        below, above, _ = class_sums(gradient, cells, torch.zeros_like(lengths))
        thresholds = (yield AllReduce(tensor=below + above)) / total
        lows, highs = thresholds, thresholds
        for iteration in range(self.parameters.lloyd_iterations + 1):
            if iteration:
                thresholds = (lows + highs) / 2
            sums = class_sums(gradient, cells, thresholds)
            below, above, count = yield AllReduce(tensor=sums)
            lows = torch.where(count < total, below / (total - count).clamp(min=1), thresholds)
            highs = torch.where(count > 0, above / count.clamp(min=1), thresholds)
        return torch.stack((thresholds, lows, highs))
