"""PowerSGD: what if a gradient matrix is replaced by a product of two thin ones?

One step of subspace iteration a training step: with M = gradient + error (a x b) and Q (b x r)
from the step before, P = M Q is averaged over workers and orthonormalised, Q = M^T P is averaged,
and P Q^T is the update; each worker keeps its own error M - P Q^T. Sums commute with both
products, so two all-reduces of thin matrices replace one of the whole: 32 r (a + b) bits.

All P of a bucket travel as one flat tensor, all Q as another. What is not worth compressing
(one-dimensional tensors, and matrices with r (a + b) * min_compression_rate >= a b) is averaged
uncompressed in the first all-reduce, in front of the P; PyTorch's hook sends it in a third.

Assumes a tensor is the matrix shape[0] x (all the rest). Q starts as a Gaussian from a stream
that all workers share, keyed by the parameter. Orthonormalised by Householder QR, which gives
orthonormal columns even of a zero or rank-deficient P, so that a zero gradient does no harm.

Source: T. Vogels, S. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression
for Distributed Optimization", NeurIPS 2019, arXiv:1905.13727, Algorithms 1 and 2; the rate rule
and `start` are those of torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.coding.messages import bucket_state
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.meter import kernel
from gcsim.compressors.random import stream
from gcsim.compressors.requests import AllReduce, Exchange

if TYPE_CHECKING:
    from torch import Tensor


class PowerSgdParameters(CompressorParameters):
    """Hyper-parameters of `PowerSgd`."""

    rank: int = Field(4, ge=1, description="r, columns of P and Q")
    min_compression_rate: float = Field(
        2.0, ge=1, description="compress a matrix only when it shrinks by more than this"
    )
    warm_start: bool = Field(
        True, description="start from the last step's Q; else a new Gaussian at each step"
    )
    error_feedback: bool = Field(True, description="add what was left out to the next gradient")
    start: int = Field(0, ge=0, description="steps of dense all-reduce before compression begins")


class PowerSgd(Compressor):
    """Low-rank approximation by one warm-started power iteration."""

    Parameters = PowerSgdParameters
    about = About(
        title="PowerSGD",
        family="low rank",
        collective="all-reduce twice (P with everything uncompressed, then Q)",
        bits="32 rank (a + b) / (a b) for an a x b matrix",
        unbiased=False,
        state="error (n), Q (rank b for each matrix)",
        paper="Vogels et al., NeurIPS 2019, arXiv:1905.13727",
    )

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, PowerSgdParameters)
        self.parameters = parameters
        self._error: dict[int, Tensor] = {}
        self._query: dict[int, Tensor] = {}
        """By parameter: Q, float32 `[b, r]`, equal on all workers."""

    @classmethod
    def settled(cls, parameters: CompressorParameters) -> int:
        """See `Compressor.settled`."""
        assert isinstance(parameters, PowerSgdParameters)
        return parameters.start

    @classmethod
    def phase(cls, parameters: CompressorParameters, step: int) -> str:
        """See `Compressor.phase`: "dense" before `start`, then "step"."""
        assert isinstance(parameters, PowerSgdParameters)
        return "dense" if step < parameters.start else "step"

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        count = self.worker.count
        if step < self.parameters.start:
            total: Tensor = yield AllReduce(tensor=bucket.gradient.clone())
            return total.div_(count)
        matrices, others = self.split(bucket.layout)
        corrected = bucket.gradient
        if self.parameters.error_feedback and matrices:
            corrected = bucket_state(self._error, bucket)
            for piece in matrices:
                part(corrected, piece).add_(part(bucket.gradient, piece))

        rank = self.parameters.rank
        rows = [matrix_shape(piece)[0] for piece in matrices]
        first = self._first_message(bucket, corrected, matrices, others, step)
        first = (yield AllReduce(tensor=first)).div_(count)
        update = torch.empty_like(bucket.gradient)
        at = 0
        for piece in others:
            part(update, piece).copy_(first[at : at + piece.numel])
            at += piece.numel
        if not matrices:
            return update

        bases = [torch.linalg.qr(p).Q for p in thin(first[at:], rows, rank)]
        columns = [matrix_shape(piece)[1] for piece in matrices]
        second = first.new_empty(rank * sum(columns))
        for piece, base, q in zip(matrices, bases, thin(second, columns, rank), strict=True):
            torch.mm(part(corrected, piece).view(matrix_shape(piece)).T, base, out=q)
        second = (yield AllReduce(tensor=second)).div_(count)
        for piece, base, q in zip(matrices, bases, thin(second, columns, rank), strict=True):
            self._query[piece.index] = q
            torch.mm(base, q.T, out=part(update, piece).view(matrix_shape(piece)))
            if self.parameters.error_feedback:
                part(corrected, piece).sub_(part(update, piece))
        return update

    def split(self, layout: BucketLayout) -> tuple[list[TensorSlice], list[TensorSlice]]:
        """(matrices that are compressed, everything else)."""
        matrices: list[TensorSlice] = []
        others: list[TensorSlice] = []
        for piece in layout.slices:
            a, b = matrix_shape(piece)
            thin_size = (a + b) * self.parameters.rank
            pays = thin_size * self.parameters.min_compression_rate < a * b
            (matrices if len(piece.shape) > 1 and pays else others).append(piece)
        return matrices, others

    def _first_message(
        self,
        bucket: Bucket,
        corrected: Tensor,
        matrices: list[TensorSlice],
        others: list[TensorSlice],
        step: int,
    ) -> Tensor:
        """What is averaged first: the uncompressed tensors, then P = M Q of each matrix."""
        rank = self.parameters.rank
        rows = [matrix_shape(piece)[0] for piece in matrices]
        plain = sum(piece.numel for piece in others)
        message = bucket.gradient.new_empty(plain + rank * sum(rows))
        at = 0
        for piece in others:
            message[at : at + piece.numel].copy_(part(bucket.gradient, piece))
            at += piece.numel
        for piece, p in zip(matrices, thin(message[plain:], rows, rank), strict=True):
            matrix = part(corrected, piece).view(matrix_shape(piece))
            torch.mm(matrix, self._start_query(piece, step, matrix), out=p)
        return message

    def _start_query(self, piece: TensorSlice, step: int, like: Tensor) -> Tensor:
        """Q to begin with: the last step's, or a Gaussian; float32 `[b, r]`."""
        known = self._query.get(piece.index)
        if known is not None and self.parameters.warm_start:
            return known
        generator = stream(self.worker.seed, step, piece.index, "powersgd query")
        return gaussian(generator, (matrix_shape(piece)[1], self.parameters.rank), like)


@kernel("random")
def gaussian(generator: np.random.Generator, shape: tuple[int, int], like: Tensor) -> Tensor:
    """Standard normal float32 of the given shape on the device of `like`."""
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(like.device)


def matrix_shape(piece: TensorSlice) -> tuple[int, int]:
    """(rows, columns): the first dimension and the product of the others."""
    rows = piece.shape[0] if piece.shape else 1
    return rows, math.prod(piece.shape[1:])


def part(flat: Tensor, piece: TensorSlice) -> Tensor:
    """One parameter's elements of a flat bucket, as a view."""
    return flat[piece.offset : piece.offset + piece.numel]


def thin(flat: Tensor, heights: list[int], rank: int) -> Iterator[Tensor]:
    """Consecutive `[height, rank]` matrices of a flat tensor, as views."""
    at = 0
    for height in heights:
        yield flat[at : at + height * rank].view(height, rank)
        at += height * rank
