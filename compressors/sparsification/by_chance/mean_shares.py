"""Values whose sum is to be a mean travel as shares, value / workers, in either format."""

from __future__ import annotations

from collections.abc import Callable

from gcsim.compressors.coding.floats.narrow_floats import FLOAT16, narrow
from gcsim.compressors.coding.sparse import ValueFormat
from gcsim.compressors.lazy_torch import Tensor, torch


def share_of_mean(values: Tensor, workers: int, values_as: ValueFormat) -> Tensor:
    """values / workers as they travel: float32 or float16, of the shape of `values` (float32)."""
    if values_as == "fp32":
        return values / workers
    return narrow(values, FLOAT16, 1.0 / workers).view(torch.float16)


def rounding_error(values_as: ValueFormat) -> Callable[[Tensor], float]:
    """Most squared error of one worker's share: a bound for `Properties.error_bound`."""
    return FLOAT16.error_bound if values_as == "fp16" else lambda _: 0.0
