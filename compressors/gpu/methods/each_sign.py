"""Which are the largest of each sign on a GPU, and what is their mean? Dryden's quantisation.

Twins of what stands in `dryden.py`: marks, the k-th magnitude and ranks by the kernels of
`selecting.py`, counts and sums by torch's operators.
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.selecting.marks import Marks
from gcsim.compressors.coding.selecting.selection import (
    kth_magnitude,
    safe_rank,
    strided_sample,
)
from gcsim.compressors.gpu.selecting.selection import add_and_mark, take_largest_of
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.sparsification.by_threshold.dryden import ANYTHING, stride_of


def _bounds(memory: Tensor, gradient: Tensor, proportion: float) -> tuple[float, float]:
    """See `dryden._bounds`."""
    stride = stride_of(memory.numel(), proportion)
    if not stride:
        return ANYTHING, -ANYTHING
    sample = strided_sample(0, stride, memory, gradient)
    found = []
    for side in (sample[sample > 0], sample[sample < 0]):
        rank = safe_rank(side.numel() * proportion)
        found.append(kth_magnitude(side, rank) if rank <= side.numel() else ANYTHING)
    return found[0], -found[1]


def _add_and_count(
    memory: Tensor, gradient: Tensor, up: float, down: float
) -> tuple[Marks, tuple[int, int]]:
    """See `dryden._add_and_count`."""
    marks = add_and_mark(memory, gradient, up, down)
    positive, negative = torch.stack(((memory > 0).sum(), (memory < 0).sum())).tolist()
    return marks, (positive, negative)


def _enough(values: Tensor, wanted: list[int]) -> bool:
    """See `dryden._enough`."""
    positive = int((values > 0).sum())
    return positive >= wanted[0] and values.numel() - positive >= wanted[1]


def _largest_of_each_sign(
    indices: Tensor, values: Tensor, wanted: list[int]
) -> tuple[Tensor, Tensor]:
    """See `dryden._largest_of_each_sign`."""
    n = values.numel()
    chosen = torch.zeros_like(values, dtype=torch.bool)
    for side, k in ((values > 0, wanted[0]), (values < 0, wanted[1])):
        own = torch.where(side, values, 0.0)
        chosen[take_largest_of(own, [n], [0], [k], clear=False)[0]] = True
    places = chosen.nonzero().view(-1)
    return indices[places], values[places]


def _means(values: Tensor) -> tuple[float, float]:
    """See `dryden._means`."""
    wide = values.double()
    sides = values > 0, values < 0
    rows = [(side.sum(), torch.where(side, wide, 0.0).sum()) for side in sides]
    found = torch.stack([torch.stack(row) for row in rows]).tolist()
    positive, negative = (float(np.float32(total / max(1, count))) for count, total in found)
    return positive, negative
