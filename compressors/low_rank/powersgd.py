"""PowerSGD: a gradient matrix is replaced by a product of two thin ones.

One step of subspace iteration a training step: with M = gradient + error (a x b) and Q (b x r) from
the step before, P = M Q is averaged over workers and orthonormalised, Q = M^T P is averaged, and P
Q^T is the update; each worker keeps its own error M - P Q^T. Sums commute with both products, so
two all-reduces of thin matrices replace one of the whole: 32 r (a + b) bits.

`alternate` takes half an iteration a step: Q is orthonormalised, P = M Q averaged and P Q^T the
update; at the next step P is orthonormalised and Q = M^T P averaged. One all-reduce of 32 r a or
32 r b bits per step.

A lone worker's update is an orthogonal projection of M on r columns (or rows): the error is the
energy outside the subspace, at most |M|^2 (no smaller constant holds for every matrix), and once
warm start has converged the least possible, that of the truncated singular value decomposition.

All P of a bucket travel as one flat tensor, all Q as another. Tensors not worth compressing
(one-dimensional, or r (a + b) * min_compression_rate >= a b) are averaged in the first all-reduce,
in front of the P; PyTorch's hook sends them in a third.

Assumes a tensor is the matrix shape[0] x (all the rest). Q starts as a Gaussian from a stream that
all workers share, keyed by the parameter. Householder QR gives orthonormal columns even of a zero
or rank-deficient P, so that a zero gradient does no harm.

Source: T. Vogels, S. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019, arXiv:1905.13727, Algorithms 1 and 2; the rate rule and
`start` are those of torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook, `alternate` the
authors' current code's (epfml/powersgd).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice, bucket_state
from gcsim.compressors.coding.one_bit.columns import matrix_shape
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import kernel
from gcsim.compressors.random import stream
from gcsim.compressors.requests import AllReduce, Exchange


class PowerSgdParameters(CompressorParameters):
    rank: int = Field(4, ge=1, description="r, columns of P and Q")
    min_compression_rate: float = Field(
        2.0, ge=1, description="compress a matrix only when it shrinks by more than this"
    )
    warm_start: bool = Field(
        True, description="start from the last step's Q; else a new Gaussian at each step"
    )
    error_feedback: bool = Field(True, description="add what was left out to the next gradient")
    start: int = Field(0, ge=0, description="steps of dense all-reduce before compression begins")
    alternate: bool = Field(
        False, description="send P at one step and Q at the next: half the bits"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    key: int
    """Key of the factors that are kept: the parameter's index."""
    offset: int
    rows: int
    columns: int

    def of(self, flat: Tensor) -> Tensor:
        end = self.offset + self.rows * self.columns
        return flat[self.offset : end].view(self.rows, self.columns)


class PowerSgd(ErrorFeedback[PowerSgdParameters]):
    about = About(
        title="PowerSGD",
        family="low rank",
        collective="all-reduce twice (P with everything uncompressed, then Q)",
        bits="32 rank (a + b) / (a b) for an a x b matrix; alternate: half",
        state="error (n), Q (rank b for each matrix)",
        paper="Vogels et al., NeurIPS 2019, arXiv:1905.13727",
    )

    def __init__(self, worker: Worker, parameters: PowerSgdParameters) -> None:
        super().__init__(worker, parameters)
        self._query: dict[int, Tensor] = {}
        """Q of each matrix, float32 `[b, r]`, equal on all workers."""
        self._left: dict[int, Tensor] = {}
        """P of each matrix, float32 `[a, r]`, where P and Q alternate."""

    @classmethod
    def properties(cls, parameters: PowerSgdParameters) -> Properties:
        """The update is a projection; the rest is kept as error."""
        return Properties(conserves=parameters.error_feedback, error_bound=energy)

    @classmethod
    def warmup_steps(cls, parameters: PowerSgdParameters) -> int:
        return parameters.start

    @classmethod
    def period(cls, parameters: PowerSgdParameters) -> int:
        return 2 if parameters.alternate else 1

    @classmethod
    def phase(cls, parameters: PowerSgdParameters, step: int) -> str:
        if step < parameters.start:
            return "dense"
        if not parameters.alternate:
            return "step"
        return "Q" if (step - parameters.start) % 2 else "P"

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        count, gradient = self.worker.count, bucket.gradient
        matrices, others = self.split(bucket.layout)
        if step < self.parameters.start or not matrices:
            total: Tensor = yield AllReduce(tensor=gradient.clone())
            return total.div_(count)
        corrected, update = self._corrected(bucket, matrices), torch.empty_like(gradient)
        phase = self.phase(self.parameters, step)
        # Q [b, r] of each matrix [a, b]; where factors alternate and P was sent last, P [a, r].
        given = [self._start_factor(m, step, corrected, left=phase == "Q") for m in matrices]
        if phase != "step":
            given = [torch.linalg.qr(factor).Q for factor in given]
        products = self._products(corrected, matrices, given, transposed=phase == "Q")
        if others:
            # One flat vector of what is not compressed, and the factors of all matrices behind it.
            plain = torch.cat([piece.of(gradient) for piece in others])
            products = torch.cat((plain, products))
        first: Tensor = yield AllReduce(tensor=products)
        first.div_(count)
        at = 0
        for piece in others:
            piece.of(update).copy_(first[at : at + piece.numel])
            at += piece.numel

        heights = [m.columns if phase == "Q" else m.rows for m in matrices]
        averaged = list(thin(first[at:].clone(), heights, [f.shape[1] for f in given]))
        if phase == "step":
            left = [torch.linalg.qr(factor).Q for factor in averaged]  # P, orthonormal
            products = self._products(corrected, matrices, left, transposed=True)
            second: Tensor = yield AllReduce(tensor=products)
            widths = [m.columns for m in matrices]
            right = list(thin(second.div_(count), widths, [f.shape[1] for f in left]))
        else:
            left, right = (given, averaged) if phase == "Q" else (averaged, given)
        for matrix, p, q in zip(matrices, left, right, strict=True):
            self._query[matrix.key], target = q, matrix.of(update)
            if self.parameters.alternate:
                self._left[matrix.key] = p
            torch.mm(p, q.T, out=target)  # [a, r] times [r, b]
            if self.parameters.error_feedback:
                matrix.of(corrected).sub_(target)
        return update

    def split(self, layout: BucketLayout) -> tuple[list[Matrix], list[TensorSlice]]:
        """(matrices that are compressed, everything else)."""
        matrices: list[Matrix] = []
        others: list[TensorSlice] = []
        for piece in layout.slices:
            a, b = matrix_shape(piece)
            if len(piece.shape) > 1 and self._pays(a, b):
                matrices.append(Matrix(key=piece.index, offset=piece.offset, rows=a, columns=b))
            else:
                others.append(piece)
        return matrices, others

    def _pays(self, rows: int, columns: int) -> bool:
        thin_size = (rows + columns) * self.parameters.rank
        return thin_size * self.parameters.min_compression_rate < rows * columns

    def _corrected(self, bucket: Bucket, matrices: Sequence[Matrix]) -> Tensor:
        """Gradient + error of the matrices; the error's own memory where there is one."""
        if not self.parameters.error_feedback:
            return bucket.gradient
        known = bucket_state(self.residual, bucket)
        for matrix in matrices:
            matrix.of(known).add_(matrix.of(bucket.gradient))
        return known

    def _products(
        self, corrected: Tensor, matrices: Sequence[Matrix], factors: Sequence[Tensor], *,
        transposed: bool,
    ) -> Tensor:  # fmt: skip
        """M Q of each matrix, or M^T P, concatenated: flat float32."""
        heights = [m.columns if transposed else m.rows for m in matrices]
        ranks = [factor.shape[1] for factor in factors]
        out = corrected.new_empty(sum(h * r for h, r in zip(heights, ranks, strict=True)))
        for matrix, factor, place in zip(matrices, factors, thin(out, heights, ranks), strict=True):
            m = matrix.of(corrected)
            torch.mm(m.T if transposed else m, factor, out=place)
        return out

    def _start_factor(self, matrix: Matrix, step: int, like: Tensor, *, left: bool) -> Tensor:
        """Initial Q (P where `left`): the last step's, or a Gaussian; `[b, r]` (`[a, r]`)."""
        known = (self._left if left else self._query).get(matrix.key)
        if known is not None and self.parameters.warm_start:
            return known
        generator = stream(self.worker.seed, step, matrix.key, "powersgd query")
        height = matrix.rows if left else matrix.columns
        return gaussian(generator, (height, self.parameters.rank), like)


@kernel("random")
def gaussian(generator: np.random.Generator, shape: tuple[int, int], like: Tensor) -> Tensor:
    """Standard normal float32 of the given shape on the device of `like`."""
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(like.device)


def thin(flat: Tensor, heights: Sequence[int], ranks: Sequence[int]) -> Iterator[Tensor]:
    """Consecutive `[height, rank]` matrices of a flat tensor, as views."""
    at = 0
    for height, rank in zip(heights, ranks, strict=True):
        yield flat[at : at + height * rank].view(height, rank)
        at += height * rank
