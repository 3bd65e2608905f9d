"""BinGrad: one bit per element, and two levels per bucket chosen for the least error.

BinGrad-b. Per bucket: b0 = mean, low = mean of the elements below b0, high = mean of the others;
the bit of v is v >= b0. The means are the best levels for this b0, and the decoded bucket keeps its
mean. The error is the variance within the two classes: at most the bucket's variance, and 1 - 2 /
pi = .363 of the energy for N(0, 1). Deterministic, so each element is biased. Payload: 1 bit per
element and 64 per bucket.

BinGrad-pb: two symmetric levels ±b with the least error, unbiased between them. An element with |v|
<= b becomes b with probability (v + b) / 2b, else -b; larger elements saturate, hence a bias. The
error, the sum of b^2 - v^2 inside and (|v| - b)^2 outside, is least for

    b D = sum of |v| over the elements with |v| >= b          (D elements in the bucket),

whose left side grows with b and whose right side falls: for N(0, 1), b = .647 and the error is .454
of the energy. Bisection finds b: a lower end moves up to (right side) / D, an upper end down to it,
in at most 24 passes over a bucket. Payload: 1 bit per element and 32 per bucket.

With `clip` = c elements are first clipped to c standard deviations of their bucket. No state.

b0 is the mean, as the paper has it "for ease of implementation", although its condition asks for
the middle of the two levels; the level of an empty class is b0. BinGrad-pb assumes elements
symmetric about zero, as in the paper; if the sum jumps across b D, b is the place of the jump, to
2^-22. Frames: `coding/one_bit/binary.py`.

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, Algorithm 2 and equations 14 (whose
last case is read as b_-1 < v < b_1) to 17.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.one_bit.binary import class_means, clip_to_spread, optimal_bounds
from gcsim.compressors.coding.one_bit.bits import Stripes, add_levels, put_bits
from gcsim.compressors.coding.rounding.bucket_levels import Clip
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Cells, Segments, keys_of

TWO_LEVELS, SYMMETRIC = 0, 1


class BinGradParameters(CompressorParameters):
    bucket: int = Field(2048, ge=1, le=65535, description="elements that share two levels")
    clip: Clip = None


class BinGradB(Compressor[BinGradParameters]):
    about = About(
        title="BinGrad-b",
        family="quantization",
        collective="all-gather",
        bits="1 + 64 / bucket",
        paper="Xu et al., arXiv:2002.11082",
    )

    @classmethod
    def properties(cls, parameters: BinGradParameters) -> Properties:
        """Return the properties; the error is exactly that of the levels."""

        def error(values: Tensor) -> float:
            cells = Segments.alone(values.numel()).cells(parameters.bucket)
            at = torch.arange(values.numel()) // parameters.bucket
            return cls._error(values, _clipped(values, cells, parameters.clip), cells, at)

        return Properties(error_bound=error, error_is_exact=True)

    @classmethod
    def _error(cls, values: Tensor, coded: Tensor, cells: Cells, at: Tensor) -> float:
        """Return the sum of squared distances to the levels of each element's cell `at`."""
        thresholds, lows, highs = class_means(coded, cells)
        decoded = torch.where(coded >= thresholds[at], highs[at], lows[at])
        return float((values.double() - decoded.double()).square().sum())

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        cells = Segments.of(bucket.layout).cells(self.parameters.bucket)
        gradient = _clipped(bucket.gradient, cells, self.parameters.clip)
        payloads = yield AllGather(payload=self._encode(gradient, cells, bucket.layout, step))
        return self.mean_of(payloads, bucket, add_decoded)

    def _encode(self, values: Tensor, cells: Cells, layout: BucketLayout, step: int) -> Tensor:
        lines = class_means(values, cells)  # [3, cells]
        return message_of(values, cells, TWO_LEVELS, lines, lines[1:])


class BinGradPb(BinGradB):
    about = replace(BinGradB.about, title="BinGrad-pb", bits="1 + 32 / bucket")

    @classmethod
    def _error(cls, values: Tensor, coded: Tensor, cells: Cells, at: Tensor) -> float:
        """Return the sum of b^2 - v^2 inside and (|v| - b)^2 outside, plus the clipping error."""
        bounds = optimal_bounds(coded, cells)[at].double()
        means = torch.minimum(torch.maximum(coded.double(), -bounds), bounds)
        return float((bounds.square() - means.square() + (means - values).square()).sum())

    def _encode(self, values: Tensor, cells: Cells, layout: BucketLayout, step: int) -> Tensor:
        bounds = optimal_bounds(values, cells)[None]  # [1, cells]
        keys = keys_of(layout, self.worker.seed, step, "bingrad_pb rounding", self.worker.rank)
        return message_of(values, cells, SYMMETRIC, bounds, bounds, keys)


def _clipped(values: Tensor, cells: Cells, clip: float | None) -> Tensor:
    """Return the values, or a copy whose cells are clipped to `clip` standard deviations."""
    if clip is not None:
        clip_to_spread(values := values.clone(), cells, clip)
    return values


def message_of(
    values: Tensor, cells: Cells, flags: int, lines: Tensor, levels: Tensor,
    keys: NDArray[np.uint64] | None = None,
) -> Tensor:  # fmt: skip
    """Encode `levels`, float32 `[1 or 2, cells]`, of kind `flags`, followed by `put_bits`."""
    segments, head = cells.segments, 4 * cells.count
    many = len(levels)
    sizes = many * head + packed_bytes(segments.length, 1)
    message, at = frames(
        values, Codec.BINARY, segments, sizes, flags=flags, params=cells.size, fixed=True
    )
    places = np.concatenate([at + number * head for number in range(many)])
    put(message, places, levels.reshape(-1), np.tile(head, many))
    put_bits(values, Stripes.of(cells), lines, message, at + many * head, keys=keys)
    return seal(message, at, sizes)


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * decoded message to `out`, float32 `[layout.numel]`, in place. Raises
    `InputError` if the message is damaged or has another layout."""
    segments, found = Segments.of(layout), read(message, layout, Codec.BINARY)
    flags, size = found.alike("flags"), found.alike("params")
    if size < 1 or flags not in (TWO_LEVELS, SYMMETRIC):
        raise damaged(f"kind {flags}, buckets of {size} elements")
    cells, at = segments.cells(size), found.at
    head, many = 4 * cells.count, 2 - flags
    found.demand_sizes(many * head + packed_bytes(segments.length, 1))
    places = at, at + (many - 1) * head
    weights = -weight if flags == SYMMETRIC else weight, weight
    add_levels(out, Stripes.of(cells), message, at + many * head, message, places, weights)
