"""Dense steps and dense tensors around a method: the rest is the method's, as if it were alone.

`DenseSteps` exchanges a number of steps uncompressed and then starts the method: its step 0 is the
first one after them, with an empty memory. `DenseTensors` exchanges some tensors of each bucket
uncompressed and gives the method a bucket of the others; requests of a kind travel as one
(`controllers/fusing.py`), so a method that all-reduces needs no more collectives than before.

The dense update is the mean gradient. Of a method that applies a momentum of its own it is the
momentum buffer of the mean gradient (`Compressor.momentum`), since the optimiser then has none; a
method that starts after dense steps does not take that buffer over.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from gcsim.compressors.base import CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice, bucket_state
from gcsim.compressors.controllers.fusing import fused
from gcsim.compressors.dense import Dense
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import Exchange

_NOTHING = CompressorParameters()


class Member(Protocol):
    """One worker's side of a method, or of a method with options."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange: ...

    def residual_of(self, bucket: Bucket) -> Tensor | None: ...


class DenseUpdate:
    """The uncompressed update, under a momentum (coefficient, Nesterov)."""

    def __init__(self, worker: Worker, momentum: tuple[float, bool]) -> None:
        self._mean = Dense(worker, _NOTHING)
        self._coefficient, self._nesterov = momentum
        self._buffers: dict[int, Tensor] = {}
        """Momentum buffer by bucket."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        mean: Tensor = yield from self._mean.exchange(bucket, step)
        if not self._coefficient:
            return mean
        buffer = bucket_state(self._buffers, bucket).mul_(self._coefficient).add_(mean)
        return mean.add_(buffer, alpha=self._coefficient) if self._nesterov else buffer.clone()

    def forget(self, bucket: Bucket) -> None:
        """Free the bucket's momentum buffer."""
        self._buffers.pop(bucket.layout.index, None)


class DenseSteps:
    """A method that starts after `steps` dense ones."""

    def __init__(self, inner: Member, dense: DenseUpdate, steps: int) -> None:
        self._inner, self._dense, self._steps = inner, dense, steps

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if step < self._steps:
            return (yield from self._dense.exchange(bucket, step))
        self._dense.forget(bucket)
        return (yield from self._inner.exchange(bucket, step - self._steps))

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self._inner.residual_of(bucket)


class DenseTensors:
    """A method beside tensors that stay dense: those whose name matches a pattern, and those of
    fewer than `below` elements."""

    def __init__(self, inner: Member, dense: DenseUpdate, names: Sequence[str], below: int) -> None:
        self._inner, self._dense, self._names, self._below = inner, dense, tuple(names), below

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        dense, rest = self._divided(bucket)
        if dense is None or rest is None:
            member = self._inner if dense is None else self._dense
            return (yield from member.exchange(bucket, step))
        updates = yield from fused(
            [self._dense.exchange(dense, step), self._inner.exchange(rest, step)]
        )
        return _together(bucket, (dense, updates[0]), (rest, updates[1]))

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        dense, rest = self._divided(bucket)
        if rest is None:
            return torch.zeros_like(bucket.gradient)
        held = self._inner.residual_of(rest)
        if dense is None or held is None:
            return held
        return _together(bucket, (dense, torch.zeros_like(dense.gradient)), (rest, held))

    def _divided(self, bucket: Bucket) -> tuple[Bucket | None, Bucket | None]:
        """Buckets of the dense tensors and of the others; None for none."""
        facts, key = bucket.layout.facts, ("dense tensors", self._names, self._below)
        if key not in facts:
            dense = [p for p in bucket.layout.slices if matches(p, self._names, self._below)]
            others = [p for p in bucket.layout.slices if p not in dense]
            facts[key] = [_layout(bucket.layout.index, part) for part in (dense, others)]
        first, second = (_part(bucket, layout) for layout in facts[key])
        return first, second


def matches(piece: TensorSlice, names: Sequence[str], below: int) -> bool:
    """Whether a tensor stays dense."""
    return piece.numel < below or any(fnmatchcase(piece.name, pattern) for pattern in names)


def _layout(index: int, slices: Sequence[TensorSlice]) -> BucketLayout | None:
    """A bucket's layout with some of its tensors, one behind the other; None for none."""
    pieces = ((piece.name, piece.index, piece.shape) for piece in slices)
    return BucketLayout.behind(index, pieces) if slices else None


def _part(bucket: Bucket, layout: BucketLayout | None) -> Bucket | None:
    """The bucket's tensors that a layout has; None for none."""
    if layout is None or len(layout.slices) == len(bucket.layout.slices):
        return None if layout is None else bucket
    taken = {piece.index for piece in layout.slices}
    pieces = [piece for piece in bucket.layout.slices if piece.index in taken]
    moment = bucket.second_moment
    return Bucket(
        layout=layout,
        gradient=torch.cat([piece.of(bucket.gradient) for piece in pieces]),
        second_moment=None if moment is None else torch.cat([p.of(moment) for p in pieces]),
        loss=bucket.loss,
    )


def _together(bucket: Bucket, *parts: tuple[Bucket, Tensor]) -> Tensor:
    """A vector of the bucket from vectors of its parts: float32 `[n]`."""
    found = {
        piece.index: values for part, flat in parts for piece, values in part.layout.views(flat)
    }
    return torch.cat([found[piece.index] for piece in bucket.layout.slices])
