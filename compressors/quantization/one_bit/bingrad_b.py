"""BinGrad-b: what if each element travels as one bit, and a bucket's two levels are class means?

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

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, of_bucket
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.one_bit.binary import (
    KNOWN_LEVELS,
    TWO_LEVELS,
    add_chosen,
    bits_above,
    pack_binary,
    read_binary,
)
from gcsim.compressors.coding.rounding.bucket_levels import Clip, clip_to_spread, clipped
from gcsim.compressors.coding.rounding.levels import bucket_count, bucket_grain
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, summing_loop, tensor
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, Request


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
            coded = values.clone()
            clip_to_spread(coded, size, parameters.clip)
            thresholds, lows, highs = class_means(coded, size, iterations)
            at = torch.arange(values.numel()) // size
            decoded = torch.where(coded >= thresholds[at], highs[at], lows[at])
            return float((values.double() - decoded.double()).square().sum())

        return Properties(error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        size = self.parameters.bucket
        bucket = clipped(bucket, size, self.parameters.clip)
        known = None
        if self.parameters.levels == "own":
            given = bucket.layout, size, self.parameters.lloyd_iterations
            message = encoded(bucket.gradient, *given)
        else:
            thresholds, lows, highs = yield from self._agree(bucket)
            message = self._encode_bits(bucket, thresholds)
            known = lows, highs, size
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded, known=known)

    def _encode_bits(self, bucket: Bucket, thresholds: Tensor) -> Tensor:
        """The message without levels; thresholds are float32 `[buckets of all tensors]`."""
        size, frames, at = self.parameters.bucket, [], 0
        for piece, values in batched(bucket.layout.views(bucket.gradient)):
            end = at + bucket_count(piece.numel, size)
            bits = bits_above(values, thresholds[at:end], size)
            frames.append(pack_binary(bits, None, numel=piece.numel, flags=KNOWN_LEVELS, size=size))
            at = end
        return torch.cat(frames)

    def _agree(self, bucket: Bucket) -> Generator[Request, Any, tuple[Tensor, Tensor, Tensor]]:
        """(thresholds, lower, upper levels) of all workers' elements, float32 `[buckets]` each."""
        lengths = bucket_lengths(bucket.layout, self.parameters.bucket).to(bucket.gradient.device)
        total = lengths * float(self.worker.count)
        below, above, _ = self._sums_about(bucket, torch.zeros_like(lengths))
        thresholds = (yield AllReduce(tensor=below + above)) / total
        lows, highs = thresholds, thresholds
        for iteration in range(self.parameters.lloyd_iterations + 1):
            if iteration:
                thresholds = (lows + highs) / 2
            below, above, count = yield AllReduce(tensor=self._sums_about(bucket, thresholds))
            lows = torch.where(count < total, below / (total - count).clamp(min=1), thresholds)
            highs = torch.where(count > 0, above / count.clamp(min=1), thresholds)
        return thresholds, lows, highs

    def _sums_about(self, bucket: Bucket, thresholds: Tensor) -> Tensor:
        """This worker's sums below and from the thresholds on, and number of the latter.

        float32 `[3, buckets of all tensors]`.
        """
        size, parts, at = self.parameters.bucket, [], 0
        for piece, values in batched(bucket.layout.views(bucket.gradient)):
            end = at + bucket_count(piece.numel, size)
            parts.append(class_sums(values, thresholds[at:end], size))
            at = end
        return torch.cat(parts, dim=1)


@of_bucket("bingrad_b")
def encoded(gradient: Tensor, layout: BucketLayout, size: int, iterations: int) -> Tensor:
    """The message of a gradient with its own levels: uint8, one frame a tensor."""
    frames = []
    for piece, values in batched(layout.views(gradient)):
        thresholds, *levels = class_means(values, size, iterations)
        bits = bits_above(values, thresholds, size)
        both = torch.cat(levels)
        frames.append(pack_binary(bits, both, numel=piece.numel, flags=TWO_LEVELS, size=size))
    return torch.cat(frames)


@of_bucket("add_two_levels")
def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float,
    known: tuple[Tensor, Tensor, int] | None = None,
) -> None:  # fmt: skip
    """out += weight * decoded message, in place; `out` is float32 `[layout.numel]`.

    `known` are coherent levels (lower, upper, float32 `[buckets of all tensors]`) and the bucket
    length; the message then holds no levels. Raises `InputError` when the message is damaged or
    of another layout.
    """
    at = 0
    for piece, frame in frames_of(message, layout, Codec.BINARY):
        levels = None
        if known is not None:
            end = at + bucket_count(piece.numel, known[2])
            levels = known[0][at:end], known[1][at:end], known[2]
            at = end
        bits, lows, highs, size = read_binary(frame, levels)
        add_chosen(piece.of(out), bits, lows, highs, size=size, weight=weight)


def bucket_lengths(layout: BucketLayout, size: int) -> Tensor:
    """Elements of each bucket of all tensors: float32 `[buckets]`."""
    lengths = []
    for piece in batched(layout.slices):
        lengths += [float(size)] * (piece.numel // size)
        lengths += [float(piece.numel % size)] * (piece.numel % size > 0)
    return torch.tensor(lengths)


@kernel("reduction")
@on_device("one_bit.binary")
def class_means(values: Tensor, size: int, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """(thresholds, lower, upper levels) of a float32 `[n]`: float32 `[ceil(n / size)]` each."""
    data = array(values)
    found = np.empty((3, bucket_count(data.size, size)), dtype=np.float32)
    in_parallel(_class_means, data.size, data, size, iterations, found, grain=bucket_grain(size))
    return tensor(found[0], values), tensor(found[1], values), tensor(found[2], values)


@kernel("reduction")
@on_device("one_bit.binary")
def class_sums(values: Tensor, thresholds: Tensor, size: int) -> Tensor:
    """By bucket: sum below the threshold, sum from it on, number of the latter.

    `values` is float32 `[n]`, `thresholds` float32 `[buckets]`; float32 `[3, buckets]`.
    """
    data, found = array(values), np.empty((3, thresholds.numel()), dtype=np.float32)
    limits = array(thresholds)
    in_parallel(_class_sums, data.size, data, limits, size, found, grain=bucket_grain(size))
    return tensor(found, values)


@loop
def _class_means(
    start: int, stop: int, values: Any, size: int, iterations: int, found: Any
) -> None:
    for at in range(start, stop, size):
        part = values[at : min(at + size, stop)]
        total, _, _ = _sums_about(part, np.float32(0))
        threshold = np.float32(total / part.size)
        low, high = threshold, threshold
        for iteration in range(iterations + 1):
            total, magnitude, count = _sums_about(part, threshold)
            low, high = threshold, threshold
            if count < part.size:
                low = np.float32(threshold + 0.5 * (total - magnitude) / (part.size - count))
            if count > 0:
                high = np.float32(threshold + 0.5 * (total + magnitude) / count)
            between = np.float32(0.5 * (np.float64(low) + np.float64(high)))
            if iteration == iterations or between == threshold:
                break
            threshold = between
        bucket = at // size
        found[0, bucket], found[1, bucket], found[2, bucket] = threshold, low, high


@loop
def _class_sums(start: int, stop: int, values: Any, thresholds: Any, size: int, found: Any) -> None:
    for at in range(start, stop, size):
        bucket = at // size
        part, threshold = values[at : min(at + size, stop)], thresholds[bucket]
        total, magnitude, count = _sums_about(part, threshold)
        found[0, bucket] = threshold * (part.size - count) + 0.5 * (total - magnitude)
        found[1, bucket] = threshold * count + 0.5 * (total + magnitude)
        found[2, bucket] = count


@summing_loop
def _sums_about(part: Any, centre: Any) -> tuple[float, float, float]:
    """Sum of d = v - centre, sum of |d|, number of elements with d >= 0; part is one bucket.

    Half the sum or difference of the first two are the sums over the two classes: a loop without
    a condition, which is vectorised.
    """
    total, magnitude, count = 0.0, 0.0, 0.0
    for i in range(part.size):
        distance = np.float64(part[i]) - np.float64(centre)
        total += distance
        magnitude += abs(distance)
        count += np.float64(part[i] >= centre)
    return total, magnitude, count
