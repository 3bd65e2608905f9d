"""Linear: random rounding to the quantiles of each bucket.

The s levels of a bucket are the quantiles 0, 1/(s-1), …, 1 of its elements, so that equally many
elements lie between any two neighbours; an element is rounded to a neighbour at random such that
the mean is right. This is the naive alternative that ORQ is compared with: most levels crowd
around zero, where they save least error.

Payload as ORQ's: 1.6, 2.33 or 3.2 bits an element and s float32 a bucket; optional clipping to
c standard deviations of the bucket, with which the method is biased. No state. The error is
exactly `rounding_error`.

Assumes that a quantile between two elements is interpolated linearly (the paper only says that
the cumulative distribution is divided linearly).

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, section 5, "Linear-s".
"""

from __future__ import annotations

from gcsim.compressors.base import About
from gcsim.compressors.coding.rounding.bucket_levels import quantiles
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.quantization.rounding.bucket_tables import (
    BucketTableParameters,
    BucketTables,
)
from gcsim.compressors.segments import Cells


class LinearParameters(BucketTableParameters):
    """Hyper-parameters of `Linear`."""


class Linear(BucketTables[LinearParameters]):
    """Random rounding to the quantiles of the bucket."""

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
