"""Distance of an update from dense training's.

NMSE = |update - dense|^2 / |dense|^2 and the cosine between the two, over all buckets of a step.
`dense` is the mean of the workers' gradients, under the algorithm's own momentum (if any). Where
replicas move on their own between synchronisations, both are first summed over a window of steps.
Where replicas stay apart, squared lengths are means over the replicas: their mean may be exact when
none of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.scans import squared_length
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel
from gcsim.errors import InternalError

_PART = 1 << 15
"""Elements added at a time, so that means over workers stay in the processor's cache."""


@dataclass(slots=True)
class ErrorMetrics:
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
        """Cosine from the three lengths, by the law of cosines."""
        product = (self.update + self.dense - self.difference) / 2
        scale = (self.update * self.dense) ** 0.5
        return product / scale if scale else float(self.update == self.dense)


class ErrorMeter:
    """Compares applied updates with dense training's."""

    def __init__(self, numel: int, momentum: tuple[float, bool], *, apart: bool = False) -> None:
        """`apart`: judge each replica, not their mean."""
        self._coefficient, self._nesterov = momentum
        self._apart = apart
        self._buffer = torch.zeros(numel) if self._coefficient else None
        self._updates: list[Tensor] = []
        self._dense: Tensor | None = None

    def add(self, buckets: Sequence[Bucket], updates: Sequence[Tensor]) -> None:
        """One more step of the window."""
        for update, bucket in zip(updates, buckets, strict=True):
            if update.shape != bucket.gradient.shape or update.dtype != torch.float32:
                raise InternalError(
                    f"update has shape {tuple(update.shape)} and dtype {update.dtype}; the "
                    f"bucket has {tuple(bucket.gradient.shape)} and torch.float32"
                )
        gradients = [bucket.gradient for bucket in buckets]
        if self._buffer is not None:
            dense = _mean(gradients)
            self._buffer.mul_(self._coefficient).add_(dense)
            if self._nesterov:
                dense.add_(self._buffer, alpha=self._coefficient)
            else:
                dense.copy_(self._buffer)
            gradients = [dense]
        judged = [[update] for update in updates] if self._apart else [updates]
        if self._dense is None:
            self._dense, self._updates = _mean(gradients), [_mean(each) for each in judged]
            return
        for total, each in zip([self._dense, *self._updates], [gradients, *judged], strict=True):
            _mean(each, total)

    def settle(self, score: ErrorMetrics, weight: float = 1.0) -> None:
        """Close the window and add this bucket's part to its score, as often as `weight`."""
        assert self._dense is not None
        share = weight / len(self._updates)
        score.dense += weight * squared_length(self._dense)
        for update in self._updates:
            score.update += share * squared_length(update)
            score.difference += share * squared_length(update.sub_(self._dense))
        self._updates, self._dense = [], None


def _mean(tensors: Sequence[Tensor], total: Tensor | None = None) -> Tensor:
    """Mean of the tensors, added to `total` where there is one."""
    target = torch.empty_like(tensors[0]) if total is None else total
    arrays = [array(each) for each in tensors]
    in_parallel(_put_mean, target.numel(), array(target), arrays, total is not None)
    return target


def _put_mean(
    start: int,
    stop: int,
    target: NDArray[np.float32],
    arrays: Sequence[NDArray[np.float32]],
    adds: bool,
) -> None:
    with np.errstate(all="ignore"):  # `_require_finite` looks at the sums
        for at in range(start, stop, _PART):
            part = slice(at, min(at + _PART, stop))
            mean = arrays[0][part]
            if len(arrays) > 1:
                mean = mean + arrays[1][part]
                for other in arrays[2:]:
                    mean += other[part]
                mean /= len(arrays)
            if adds:
                target[part] += mean
            else:
                target[part] = mean
