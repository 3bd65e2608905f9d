"""The input of a compressor: one worker's gradient of a DDP bucket, and the bucket's layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InternalError
from gcsim.fields import Limits, Text, Whole

MOST_ELEMENTS = 1 << 40
"""Upper limit on a model's elements, far above what a device holds."""
Shape = tuple[Annotated[int, Limits(least=1, most=MOST_ELEMENTS)], ...]


@dataclass(frozen=True, kw_only=True)
class TensorSlice:
    """The position of one parameter in a flat bucket."""

    name: Text
    shape: Shape
    offset: Whole
    """Index of the parameter's first element in the flat bucket."""
    index: Whole
    """Index in `model.parameters()`, which identifies the tensor in random keys."""

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    def of(self, flat: Tensor) -> Tensor:
        """Return the parameter's part of a flat vector of the bucket: a one-dimensional view."""
        return flat[self.offset : self.offset + self.numel]


@dataclass(frozen=True, kw_only=True)
class BucketLayout:
    """Parameters of a bucket, in the order in which their gradients become ready."""

    index: Whole
    slices: Annotated[tuple[TensorSlice, ...], Limits(least=1)]

    @classmethod
    def behind(cls, index: int, pieces: Iterable[tuple[str, int, Shape]]) -> BucketLayout:
        """Lay out consecutive parameters, each given as (name, index, shape)."""
        slices, offset = [], 0
        for name, number, shape in pieces:
            slices.append(TensorSlice(name=name, shape=shape, offset=offset, index=number))
            offset += slices[-1].numel
        return cls(index=index, slices=tuple(slices))

    @cached_property
    def numel(self) -> int:
        return sum(piece.numel for piece in self.slices)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Index of each parameter in `model.parameters()`."""
        return tuple(piece.index for piece in self.slices)

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """Offset and length of each parameter, for compiled loops: int64 `[parameters, 2]`."""
        rows = [(piece.offset, piece.numel) for piece in self.slices]
        return np.array(rows, dtype=np.int64)

    @cached_property
    def facts(self) -> dict[Any, Any]:
        """Cache of values that methods derive from this layout, by kind."""
        return {}

    @cached_property
    def alone(self) -> dict[int, BucketLayout]:
        """Layouts that hold a single parameter, by the parameter's index (which stays the same)."""
        return {
            piece.index: BucketLayout(index=piece.index, slices=(replace(piece, offset=0),))
            for piece in self.slices
        }

    def views(self, flat: Tensor) -> Iterator[tuple[TensorSlice, Tensor]]:
        """Yield each parameter with its part of a flat `[numel]` tensor: a one-dimensional view."""
        for piece in self.slices:
            yield piece, piece.of(flat)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """The gradient of one bucket on one worker in one iteration."""

    layout: BucketLayout
    gradient: Tensor
    """Mean over the worker's mini-batch: float32 `[layout.numel]`. Must not be modified."""
    second_moment: Tensor | None = None
    """Sum over the mini-batch's samples z of (g_z / B)^2, float32 `[layout.numel]`; present if the
    compressor's `requires` contains "second_moments"."""
    loss: float | None = None
    """Mean loss of the worker's mini-batch at the weights of the gradient; None if unknown:
    synthetic gradients, recordings without losses, a DDP hook that is not given the loss."""
    rate: float = 1.0
    """Learning rate of the step (> 0), for methods whose replicas take local steps; 1 if unknown,
    which stands for an optimiser with a constant rate."""


def bucket_state(store: dict[int, Tensor], bucket: Bucket) -> Tensor:
    """Return the bucket's flat vector in `store`: float32 `[n]`, zeros at first use. Raises
    `InternalError` if the bucket's length has changed."""
    index = bucket.layout.index
    if index not in store:
        store[index] = torch.zeros_like(bucket.gradient)
    if store[index].numel() != bucket.gradient.numel():
        raise InternalError(
            f"bucket {index} had {store[index].numel()} elements, now {bucket.gradient.numel()}"
        )
    return store[index]
