"""ORQ: where should the levels of an unbiased quantiser lie, so that its error is smallest?

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

from typing import Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import loop, summing_loop
from gcsim.compressors.on_device import on_device
from gcsim.compressors.quantization.rounding.bucket_tables import (
    BucketTableParameters,
    BucketTables,
)

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
    def tables(cls, values: Tensor, parameters: OrqParameters) -> Tensor:
        sweeps = MAX_SWEEPS if parameters.refine else 0

        def search(rows: Any, levels: Any) -> None:
            optimal_levels(rows, levels, sweeps)

        return cls.searched(values, parameters, search)


@on_device("rounding.tables")
def optimal_levels(rows: Any, levels: Any, sweeps: int) -> None:
    """Levels `[buckets, s]` of sorted rows `[buckets, length]`: greedy, then `sweeps` sweeps.

    Arrays, or tensors that kernels work on.
    """
    _optimal_levels(rows, levels, sweeps)


@loop
def _optimal_levels(rows: Any, levels: Any, sweeps: int) -> None:
    last = levels.shape[1] - 1
    for r in range(rows.shape[0]):
        row, found = rows[r], levels[r]
        found[0], found[last] = row[0], row[row.size - 1]
        stride = last // 2
        while stride:
            for k in range(stride, last, 2 * stride):
                low, high = found[k - stride], found[k + stride]
                middle = np.float32(0.5 * (np.float64(low) + np.float64(high)))
                found[k] = _best_between(row, low, high, middle)
            stride //= 2
        for _ in range(sweeps):
            changed = False
            for k in range(1, last):
                better = _best_between(row, found[k - 1], found[k + 1], found[k])
                changed |= better != found[k]
                found[k] = better
            if not changed:
                break


@loop
def _best_between(row: Any, low: Any, high: Any, otherwise: Any) -> Any:
    """The best level between `low` and `high`; `otherwise` when no element lies between them."""
    first = np.searchsorted(row, low, side="right")
    between = row[first : max(first, np.searchsorted(row, high, side="left"))]
    if not between.size:
        return otherwise
    above = _sum_above(between, np.float64(low)) / (np.float64(high) - np.float64(low))
    rank = min(max(int(above), 0), between.size - 1)  # of NaN nothing is known
    return between[between.size - 1 - rank]


@summing_loop
def _sum_above(part: Any, low: float) -> float:
    """The sum of v - low: without it, the other elements' sums would cancel to nothing."""
    total = 0.0
    for i in range(part.size):
        total += np.float64(part[i]) - low
    return total
