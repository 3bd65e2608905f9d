"""Which scale turns weights into sampling probabilities that add up to k?

    p_i = min(1, scale * w_i)   with   sum(p) = k

Elements that would exceed 1 are saturated: they count one each, and the remaining k - |F| is
spread over the rest in proportion to the weights. That lifts others over 1, so the saturated set
F grows over a few rounds until it stays (or `rounds` are used up: then sum(p) is a little below
k). When fewer than k weights are positive, all of them are saturated.

Source: Song et al., "Communication Efficient SGD via Gradient Sampling with Bayes Prior", CVPR
2021, Alg. 1, with the saturated set read cumulatively;
the same greedy as in Wangni et al., "Gradient sparsification", NeurIPS 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcsim.compressors.coding.selection import at_least
from gcsim.compressors.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor

_ROW = 4096
_LARGEST = 3e38
"""About the largest float32; a scale beyond it would saturate every positive weight anyway."""


def normalising_scale(weight: Tensor, k: int, rounds: int = 5) -> float:
    """The scale for float32 weights `[n]`: non-negative, the largest not above about 1.

    It is 0 when no weight is positive. At most `rounds` passes look for saturated elements.
    """
    total = precise_sum(weight)
    if total <= 0.0:
        return 0.0
    scale = k / total
    saturated = 0
    for _ in range(rounds):
        over = at_least(weight, 1.0 / scale)
        count = over.numel()
        if count == saturated or count >= k:
            break  # in exact arithmetic count < k unless nothing positive is left
        rest = total - float(weight[over].sum(dtype=torch.float64))
        if rest < 0.01 * total:  # the difference has lost digits: add up what is left
            rest = precise_sum(weight.index_fill(0, over, 0.0))
            if rest <= 0.0:
                return _LARGEST
        saturated = count
        scale = (k - count) / rest
    return min(scale, _LARGEST)


def precise_sum(values: Tensor) -> float:
    """The sum of float32 values to about 1e-9 of itself: short sums in float32, then float64."""
    whole = values.numel() // _ROW * _ROW
    rows = values[:whole].view(-1, _ROW).sum(dim=1)
    tail = values[whole:]
    return float(rows.sum(dtype=torch.float64) + tail.sum(dtype=torch.float64))
