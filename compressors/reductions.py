"""Order in which the workers' tensors are added up; rounding depends on it.

`in_rank_order` is the plain sum, and what lockstep uses where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from gcsim.compressors.lazy_torch import Tensor, torch

Operation = Literal["sum", "max"]
Reduction = Callable[[Sequence["Tensor"], Operation], "Tensor"]
"""Makes one new tensor of the workers' tensors of equal shape and dtype, in rank order."""


def in_rank_order(tensors: Sequence[Tensor], op: Operation) -> Tensor:
    """((t0 + t1) + t2) + …, each sum rounded to the tensors' dtype; or the maximum."""
    reduced = tensors[0].clone()
    for tensor in tensors[1:]:
        _add(reduced, tensor, op)
    return reduced


def _add(total: Tensor, tensor: Tensor, op: Operation) -> None:
    if op == "sum":
        total += tensor
    else:
        torch.maximum(total, tensor, out=total)
