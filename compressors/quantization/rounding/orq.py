"""ORQ and Linear: random rounding to levels that are fitted to each bucket and sent with it.

A bucket has s ascending levels; an element is rounded at random to a neighbouring one, without
bias. Payload: 1.6, 2.33 or 3.2 bits per element and s float32 per bucket. A frame's body holds the
levels, float32 `[buckets, s]`, then the codes as base-s digits. No state. Error: `rounding_error`.

Linear: the quantiles 0, 1/(s-1), …, 1 of the bucket's elements, the naive baseline of the ORQ
paper: most levels crowd around zero, where they reduce the error least.

ORQ: the levels of least error. Random rounding between neighbours l_{k-1} <= v <= l_k has the error
(v - l_{k-1}) (l_k - v). Between fixed levels lo and hi, the best level b satisfies

    number of elements above b = T = sum of (v - lo) / (hi - lo) over the elements in [lo, hi].

The error is convex in b, so the element with exactly floor(T) elements above it is a minimiser. A
bucket's outer levels are its minimum and maximum; s = 2^K + 1 levels are found greedily, first the
middle one, then the middles of the halves, and so on. Each bucket is sorted once.

With `refine` the condition is then applied to all levels in turn until none changes (at most
`MAX_SWEEPS` times): coordinate descent on the total error, which the greedy search does not
minimise.

Optionally elements are clipped to c standard deviations of their bucket first (the paper: c = 2.5,
also 1.7, and not at all on CIFAR), which bounds the levels and makes the methods biased.

Choices where the paper is open: the integral's condition is read for discrete elements as above
(the printed one counts elements on both edges and cannot always hold); a level without elements
between its neighbours is their midpoint; a bucket of equal elements has equal levels and codes 0; a
bucket without spread is not clipped. A quantile between two elements is interpolated linearly (the
paper: the cumulative distribution is divided linearly).

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, equations 7, 11 and 12, Algorithm
1, and section 5, "Linear-s"; refinement as in F. Faghri et al., "Adaptive Gradient Quantization for
Data-Parallel SGD", NeurIPS 2020 (coordinate descent of ALQ).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, read
from gcsim.compressors.coding.integers.digits import digits
from gcsim.compressors.coding.rounding.bucket_levels import (
    LEVEL_COUNTS,
    MAX_BUCKET,
    Clip,
    optimal_levels,
    quantiles,
    rounding_error,
)
from gcsim.compressors.coding.rounding.levels import add_encoded, encoded, own
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Cells, Segments, keys_of
from gcsim.errors import InputError

MAX_SWEEPS = 100


class LinearParameters(CompressorParameters):
    levels: Literal[3, 5, 9] = Field(5, description="levels per bucket (s)")
    bucket: int = Field(
        2048, ge=1, le=MAX_BUCKET, description="elements that share levels (32 s bits per bucket)"
    )
    clip: Clip = None


P = TypeVar("P", bound=LinearParameters)


class BucketTables(Compressor[P]):
    """Random rounding to levels that are sent with each bucket."""

    purpose: ClassVar[str]
    """Part of the random numbers' key."""

    @classmethod
    @abstractmethod
    def tables(cls, values: Tensor, cells: Cells, parameters: P) -> Tensor:
        """Return ascending levels of each cell of a flat float32: float32 `[cells, levels]`."""

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        def error(values: Tensor) -> float:
            cells = Segments.alone(values.numel()).cells(parameters.bucket)
            return rounding_error(values, cls.tables(values, cells, parameters), parameters.bucket)

        return Properties(unbiased=parameters.clip is None, error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=self.encode(bucket, step))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """Encode a bucket's gradient: uint8, one frame per tensor."""
        me, layout, size = self.worker, bucket.layout, self.parameters.bucket
        cells = Segments.of(layout).cells(size)
        keys = keys_of(layout, me.seed, step, self.purpose, me.rank)
        tables = self.tables(bucket.gradient, cells, self.parameters)
        count = tables.shape[1]
        return encoded(
            bucket.gradient, own(cells, tables, count), keys, Codec.LEVELS, digits(count),
            flags=count, params=size, fixed=True,
        )  # fmt: skip


class Linear(BucketTables[LinearParameters]):
    about = About(
        title="Linear quantile quantisation",
        family="quantization",
        collective="all-gather",
        bits="1.6, 2.33 or 3.2 (levels = 3, 5, 9) + 32 levels / bucket",
        unbiased=True,
        paper="Xu et al., arXiv:2002.11082 (as its baseline Linear-s)",
    )

    purpose = "linear rounding"

    @classmethod
    def tables(cls, values: Tensor, cells: Cells, parameters: LinearParameters) -> Tensor:
        return quantiles(values, cells, parameters.levels, parameters.clip)


class OrqParameters(LinearParameters):
    refine: bool = Field(
        False, description="refit all levels in turn until none changes, instead of once each"
    )


class Orq(BucketTables[OrqParameters]):
    about = replace(
        Linear.about, title="ORQ, optimal random quantisation", paper="Xu et al., arXiv:2002.11082"
    )

    purpose = "orq rounding"

    @classmethod
    def tables(cls, values: Tensor, cells: Cells, parameters: OrqParameters) -> Tensor:
        sweeps = MAX_SWEEPS if parameters.refine else 0
        return optimal_levels(values, cells, parameters.levels, parameters.clip, sweeps)


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * level to `out` in place; `InputError` for a damaged or foreign message."""
    found = read(message, layout, Codec.LEVELS)
    count, size = found.alike("flags"), found.alike("params")
    if count not in LEVEL_COUNTS or size < 1:
        raise InputError(f"damaged payload: {count} levels, buckets of {size} elements")
    levels = own(Segments.of(layout).cells(size), message, count, found.at)
    add_encoded(out, levels, found, digits(count), weight)
