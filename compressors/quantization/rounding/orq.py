"""ORQ: random rounding to the levels of least error of each bucket.

Random rounding between neighbours l_{k-1} <= v <= l_k costs (v - l_{k-1}) (l_k - v). Between two
levels lo and hi that stay, the best level b in the middle fulfils

    number of elements above b = T = sum of (v - lo) / (hi - lo) over the elements in [lo, hi].

The cost is convex in b, so the element with exactly floor(T) elements above it is a minimiser.
A bucket's outer levels are its minimum and maximum; s = 2^K + 1 levels are found greedily, first
the middle one, then the middles of the halves, and so on. Each bucket is sorted once.

With `refine` the condition is then applied to all levels in turn until none changes (at most
`MAX_SWEEPS` times): coordinate descent on the whole error, which greedy halving does not minimise.

Optionally elements are clipped to c standard deviations of their bucket first (the paper: c = 2.5,
also 1.7, and not at all on CIFAR), which bounds the levels and makes the method biased. Payload:
1.6, 2.33 or 3.2 bits an element and s float32 a bucket. No state. Unbiased without clipping; the
error is exactly `rounding_error`.

Assumes, where the paper leaves it open: the counterpart of the integral's condition for discrete
elements as above (the printed one counts elements on both edges and cannot always hold); a level
between which and its neighbours there are no elements is their midpoint; a bucket of equal
elements has equal levels and all codes 0; a bucket without spread is not clipped.

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, equations 7, 11 and 12,
Algorithm 1; refinement as in F. Faghri et al., "Adaptive Gradient Quantization for Data-Parallel
SGD", NeurIPS 2020 (coordinate descent of ALQ).
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About
from gcsim.compressors.coding.rounding.bucket_levels import optimal_levels
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.quantization.rounding.bucket_tables import (
    BucketTableParameters,
    BucketTables,
)
from gcsim.compressors.segments import Cells

MAX_SWEEPS = 100


class OrqParameters(BucketTableParameters):
    refine: bool = Field(
        False, description="improve all levels in turn until none moves, not only once each"
    )


class Orq(BucketTables[OrqParameters]):
    """Random rounding to levels that minimise the bucket's error."""

    about = About(
        title="ORQ, optimal random quantisation",
        family="quantization",
        collective="all-gather",
        bits="1.6, 2.33 or 3.2 (levels = 3, 5, 9) + 32 levels / bucket",
        unbiased=True,
        paper="Xu et al., arXiv:2002.11082",
    )

    purpose = "orq rounding"

    @classmethod
    def tables(cls, values: Tensor, cells: Cells, parameters: OrqParameters) -> Tensor:
        sweeps = MAX_SWEEPS if parameters.refine else 0
        return optimal_levels(values, cells, parameters.levels, parameters.clip, sweeps)
