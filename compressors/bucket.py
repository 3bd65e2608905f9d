"""The input of a compressor: one DDP bucket of one worker's gradient, and its layout."""

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
"""Most elements of a model: far more than any device holds."""
Shape = tuple[Annotated[int, Limits(least=1, most=MOST_ELEMENTS)], ...]


@dataclass(frozen=True, kw_only=True)
class TensorSlice:
    """One parameter's place in a flat bucket."""

    name: Text
    shape: Shape
    offset: Whole
    """First element in the flat bucket."""
    index: Whole
    """Number of the parameter in `model.parameters()`: the tensor's identity in random keys."""

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    def of(self, flat: Tensor) -> Tensor:
        """The parameter's part of a flat vector of the bucket, flat, sharing its memory."""
        return flat[self.offset : self.offset + self.numel]


@dataclass(frozen=True, kw_only=True)
class BucketLayout:
    """Parameters of a bucket, in the order in which their gradients become ready."""

    index: Whole
    slices: Annotated[tuple[TensorSlice, ...], Limits(least=1)]

    @classmethod
    def behind(cls, index: int, pieces: Iterable[tuple[str, int, Shape]]) -> BucketLayout:
        """A bucket of consecutive parameters (name, number, shape)."""
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
        """Index of each parameter."""
        return tuple(piece.index for piece in self.slices)

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """Offset and number of elements of each parameter, for loops: int64 `[parameters, 2]`."""
        rows = [(piece.offset, piece.numel) for piece in self.slices]
        return np.array(rows, dtype=np.int64)

    @cached_property
    def facts(self) -> dict[Any, Any]:
        """Values that methods derive from this layout and need at each step, by kind."""
        return {}

    @cached_property
    def alone(self) -> dict[int, BucketLayout]:
        """Bucket of each parameter alone, by the parameter's index, which it keeps."""
        return {
            piece.index: BucketLayout(index=piece.index, slices=(replace(piece, offset=0),))
            for piece in self.slices
        }

    def views(self, flat: Tensor) -> Iterator[tuple[TensorSlice, Tensor]]:
        """Each parameter's part of a flat `[numel]` tensor, flat, sharing its memory."""
        for piece in self.slices:
            yield piece, piece.of(flat)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """One worker's gradient of one bucket in one iteration."""

    layout: BucketLayout
    gradient: Tensor
    """Mean over the worker's mini-batch: float32, shape `[layout.numel]`. Not to be modified."""
    second_moment: Tensor | None = None
    """Sum over the mini-batch's samples z of (g_z / B)^2, float32 `[layout.numel]`; present when
    the compressor's `requires` holds "second_moments"."""
    loss: float | None = None
    """Mean over the worker's mini-batch at the gradient's weights; None where unknown: synthetic
    gradients, recordings without losses, a DDP hook without a loss."""
    rate: float = 1.0
    """Learning rate of the step, above zero, for methods whose replicas move on their own; 1 where
    unknown: an optimiser of a constant rate."""


def bucket_state(store: dict[int, Tensor], bucket: Bucket) -> Tensor:
    """The bucket's flat vector in `store`: float32 `[n]`, zeros the first time. Raises
    `InternalError` when the bucket's length has changed."""
    index = bucket.layout.index
    if index not in store:
        store[index] = torch.zeros_like(bucket.gradient)
    if store[index].numel() != bucket.gradient.numel():
        raise InternalError(
            f"bucket {index} had {store[index].numel()} elements, now {bucket.gradient.numel()}"
        )
    return store[index]
