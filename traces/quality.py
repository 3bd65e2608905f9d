"""How near is an update to what dense training would have applied?

NMSE = |update - dense|^2 / |dense|^2 and the cosine between the two, over all buckets of a step.
`dense` is the mean of the workers' gradients, under the momentum that the algorithm itself
applies (if any). For methods whose replicas move on their own between synchronisations, both
are summed over a window of steps first, and the update is the mean over the replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lazy_torch import torch
from gcsim.errors import InternalError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Score:
    """Squared lengths of update, dense update and their difference, summed over buckets."""

    update: float = 0.0
    dense: float = 0.0
    difference: float = 0.0

    @property
    def nmse(self) -> float:
        """0 when an all-zero gradient was delivered as such."""
        return self.difference / self.dense if self.dense else float(self.difference > 0)

    @property
    def cosine(self) -> float:
        """By the law of cosines from the three lengths."""
        product = (self.update + self.dense - self.difference) / 2
        scale = (self.update * self.dense) ** 0.5
        return product / scale if scale else float(self.update == self.dense)


class Judge:
    """Compares what was delivered with what dense training would have applied."""

    def __init__(self, numel: int, momentum: tuple[float, bool]) -> None:
        self._coefficient, self._nesterov = momentum
        self._buffer = torch.zeros(numel) if self._coefficient else None
        self._update: Tensor | None = None
        self._dense: Tensor | None = None

    def add(self, buckets: Sequence[Bucket], updates: Sequence[Tensor]) -> None:
        """One more step of the window."""
        dense = _mean([bucket.gradient for bucket in buckets])
        if self._buffer is not None:
            self._buffer.mul_(self._coefficient).add_(dense)
            if self._nesterov:
                dense.add_(self._buffer, alpha=self._coefficient)
            else:
                dense.copy_(self._buffer)
        for update, bucket in zip(updates, buckets, strict=True):
            if update.shape != bucket.gradient.shape or update.dtype != torch.float32:
                raise InternalError(
                    f"update has shape {tuple(update.shape)} and dtype {update.dtype}; the "
                    f"bucket has {tuple(bucket.gradient.shape)} and torch.float32"
                )
        update = _mean(updates)
        self._update = update if self._update is None else self._update.add_(update)
        self._dense = dense if self._dense is None else self._dense.add_(dense)

    def settle(self, score: Score) -> None:
        """Close the window and add this bucket's part to its score."""
        assert self._update is not None
        assert self._dense is not None
        score.update += _squared_length(self._update)
        score.dense += _squared_length(self._dense)
        score.difference += _squared_length(self._update.sub_(self._dense))
        self._update = self._dense = None


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result.add_(tensor)
    return result.div_(len(tensors))


def _squared_length(tensor: Tensor) -> float:
    norm = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return float(norm) ** 2
