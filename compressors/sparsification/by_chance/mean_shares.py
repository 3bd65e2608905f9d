"""Shares of a mean (value / workers) in float32 or float16, for workers to all-reduce."""

from __future__ import annotations

from collections.abc import Callable

from gcsim.compressors.coding.floats.narrow_floats import FLOAT16, narrow
from gcsim.compressors.coding.sparse import ValueFormat
from gcsim.compressors.lazy_torch import Tensor, torch


def share_of_mean(values: Tensor, workers: int, values_as: ValueFormat) -> Tensor:
    """Return value / workers as it is sent: float32 or float16, in the shape of `values`."""
    if values_as == "fp32":
        return values / workers
    return narrow(values, FLOAT16, 1.0 / workers).view(torch.float16)


def rounding_error(values_as: ValueFormat) -> Callable[[Tensor], float]:
    """Return a bound on the squared error of one worker's share, for `Properties.error_bound`."""
    return FLOAT16.error_bound if values_as == "fp16" else lambda _: 0.0
