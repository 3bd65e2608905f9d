"""Distance of an update from dense training's.

NMSE = |update - dense|^2 / |dense|^2 and the cosine between the two, over all buckets of a step.
`dense` is the mean of the workers' gradients, with the algorithm's own momentum (if any). If
replicas take local steps between synchronisations, both are first summed over a window of steps. If
replicas stay different, squared lengths are means over them: their mean may be exact when none of
them is. All of this runs on the gradients' device, in one pass over them and the updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gcsim.compressors.base import Replicas
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.scans import squared_lengths
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import in_parallel
from gcsim.compressors.streams import has_streams
from gcsim.errors import InternalError

_PART = 1 << 15
"""Elements processed at a time in host memory: all intermediates stay in the cache."""


@dataclass(slots=True)
class ErrorMetrics:
    """Squared lengths of update, dense update and their difference, summed over buckets."""

    update: float = 0.0
    dense: float = 0.0
    difference: float = 0.0

    def plus(self, other: ErrorMetrics, weight: float = 1.0) -> ErrorMetrics:
        """Return the sum with another bucket's metrics, which count `weight` times."""
        return ErrorMetrics(
            update=self.update + weight * other.update,
            dense=self.dense + weight * other.dense,
            difference=self.difference + weight * other.difference,
        )

    @property
    def nmse(self) -> float:
        """NMSE; 0 if an all-zero gradient was delivered as such."""
        return self.difference / self.dense if self.dense else float(self.difference > 0)

    @property
    def cosine(self) -> float:
        """Cosine from the three lengths, by the law of cosines."""
        product = (self.update + self.dense - self.difference) / 2
        scale = (self.update * self.dense) ** 0.5
        return product / scale if scale else float(self.update == self.dense)


class ErrorMeter:
    """Compares applied updates with those of dense training."""

    def __init__(
        self, momentum: tuple[float, bool], replicas: Replicas = "meet", *, compares: bool = True
    ) -> None:
        """Judge updates that `differ` separately, not their mean; of `identical` ones judge the
        first, and let `add` compare them if it `compares`."""
        self._momentum, self._replicas, self._compares = momentum, replicas, compares
        self._buffer: Tensor | None = None
        self._totals: list[Tensor] = []

    def add(
        self, buckets: Sequence[Bucket], updates: Sequence[Tensor], score: ErrorMetrics | None
    ) -> bool:
        """Process one more step of the window; the last one adds this bucket's part to its score.
        Return whether updates that must be equal are."""
        for update, bucket in zip(updates, buckets, strict=True):
            if update.shape != bucket.gradient.shape or update.dtype != torch.float32:
                raise InternalError(
                    f"update has shape {tuple(update.shape)} and dtype {update.dtype}; the "
                    f"bucket has {tuple(bucket.gradient.shape)} and torch.float32"
                )
        apart, alike = self._replicas == "differ", self._replicas == "identical"
        judged: list[Sequence[Tensor]] = [[one] for one in (updates if apart else updates[:alike])]
        judged = judged or [updates]
        gradients, like = [bucket.gradient for bucket in buckets], buckets[0].gradient
        if self._momentum[0] and self._buffer is None:
            self._buffer = torch.zeros_like(like)
        if score is None and not self._totals:  # kept: new ones would come in pieces
            self._totals = [torch.zeros_like(like) for _ in range(1 + len(judged))]
        size = max(1, like.numel()) if has_streams(like.device) else _PART
        sums = np.zeros((-(-like.numel() // size), len(judged), 3))
        equal = np.ones(len(sums), dtype=np.bool_)

        def judge(start: int, stop: int) -> None:
            for at in range(start, stop, size):
                part, row = slice(at, min(at + size, stop)), at // size
                means = [self._dense(gradients, part), *(_mean(each, part) for each in judged)]
                for number, total in enumerate(self._totals):
                    means[number] = total[part].add_(means[number])
                first, *others = updates if alike and self._compares else updates[:1]
                equal[row] = all(torch.equal(first[part], other[part]) for other in others)
                if score is not None:
                    sums[row] = [squared_lengths(each, means[0]) for each in means[1:]]

        in_parallel(judge, like.numel(), grain=size)
        if score is not None:
            update, dense, difference = sums.sum(axis=0).mean(axis=0).tolist()
            score.update += update
            score.dense += dense
            score.difference += difference
            for total in self._totals:
                total.zero_()
        return bool(equal.all())

    def _dense(self, gradients: Sequence[Tensor], part: slice) -> Tensor:
        mean, (coefficient, nesterov) = _mean(gradients, part), self._momentum
        if self._buffer is None:
            return mean
        velocity = self._buffer[part].mul_(coefficient).add_(mean)
        return torch.add(mean, velocity, alpha=coefficient) if nesterov else velocity


def _mean(tensors: Sequence[Tensor], part: slice) -> Tensor:
    mean = tensors[0][part]
    if len(tensors) > 1:
        mean = mean + tensors[1][part]
        for other in tensors[2:]:
            mean += other[part]
        mean /= len(tensors)
    return mean
