"""PowerSGD: the gradient matrix is replaced by a product of two thin matrices.

Each training step does one step of subspace iteration: with M = gradient + error (a x b) and the
previous Q (b x r), P = M Q is averaged over workers and orthonormalised, Q = M^T P is averaged, and
P Q^T is the update; each worker keeps its own error M - P Q^T. Both products are linear in M, so
two all-reduces of thin matrices replace one of the whole: 32 r (a + b) bits.

With `alternate` a step does half an iteration: Q is orthonormalised, P = M Q is averaged, and P Q^T
is the update; the next step orthonormalises P and averages Q = M^T P. One all-reduce of 32 r a or
32 r b bits per step.

A single worker's update is an orthogonal projection of M on r columns (or rows): its error is the
energy outside the subspace, at most |M|^2 (no smaller constant holds for every matrix). Once the
warm start has converged, it is the least possible error: that of the truncated SVD.

All P of a bucket are sent as one flat tensor, and so are all Q. Tensors not worth compressing
(one-dimensional, or r (a + b) * min_compression_rate >= a b) are averaged in the first all-reduce,
before the P; PyTorch's hook uses a third all-reduce.

A tensor is taken as the matrix shape[0] x (all other dimensions). Q starts as a Gaussian from a
stream that all workers share, keyed by the parameter. Householder QR gives orthonormal columns even
for a zero or rank-deficient P, so a zero gradient is harmless.

Source: T. Vogels, S. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019, arXiv:1905.13727, Algorithms 1 and 2; the rate rule and
`start` are those of torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook, `alternate` is from
the authors' current code (epfml/powersgd).
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
    rank: int = Field(4, ge=1, description="columns of the factors P and Q (r)")
    min_compression_rate: float = Field(
        2.0, ge=1, description="compress a matrix only if it shrinks by more than this factor"
    )
    warm_start: bool = Field(True, description="start from the previous step's Q; else a random Q")
    error_feedback: bool = Field(True, description="add the compression error to the next gradient")
    start: int = Field(0, ge=0, description="steps of dense all-reduce before compression")
    alternate: bool = Field(
        False, description="send P at one step and Q at the next: half the bits"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    key: int
    """Key under which the factors are kept: the parameter's index."""
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
        """Q of each matrix: float32 `[b, r]`, equal on all workers."""
        self._left: dict[int, Tensor] = {}
        """P of each matrix: float32 `[a, r]`, if P and Q alternate."""

    @classmethod
    def properties(cls, parameters: PowerSgdParameters) -> Properties:
        """Return the properties: the update is a projection, the rest is kept as error."""
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
        # Q [b, r] of each matrix [a, b]; P [a, r] if factors alternate and P was sent last
        given = [self._start_factor(m, step, corrected, left=phase == "Q") for m in matrices]
        if phase != "step":
            given = [torch.linalg.qr(factor).Q for factor in given]
        products = self._products(corrected, matrices, given, transposed=phase == "Q")
        if others:
            # one flat vector: first the uncompressed tensors, then the factors of all matrices
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
        """Return (the matrices to compress, all other tensors)."""
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
        """Return gradient + error on the matrices, in the error's memory if there is one."""
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
        """Return M Q of each matrix, or M^T P, concatenated: flat float32."""
        heights = [m.columns if transposed else m.rows for m in matrices]
        ranks = [factor.shape[1] for factor in factors]
        out = corrected.new_empty(sum(h * r for h, r in zip(heights, ranks, strict=True)))
        for matrix, factor, place in zip(matrices, factors, thin(out, heights, ranks), strict=True):
            m = matrix.of(corrected)
            torch.mm(m.T if transposed else m, factor, out=place)
        return out

    def _start_factor(self, matrix: Matrix, step: int, like: Tensor, *, left: bool) -> Tensor:
        """Return the initial Q (`left`: P): the last step's, or a Gaussian; `[b, r]` (`[a, r]`)."""
        known = (self._left if left else self._query).get(matrix.key)
        if known is not None and self.parameters.warm_start:
            return known
        generator = stream(self.worker.seed, step, matrix.key, "powersgd query")
        height = matrix.rows if left else matrix.columns
        return gaussian(generator, (height, self.parameters.rank), like)


@kernel("random")
def gaussian(generator: np.random.Generator, shape: tuple[int, int], like: Tensor) -> Tensor:
    """Draw standard normal float32 of the given shape on the device of `like`."""
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(like.device)


def thin(flat: Tensor, heights: Sequence[int], ranks: Sequence[int]) -> Iterator[Tensor]:
    """Yield consecutive `[height, rank]` matrices of a flat tensor, as views."""
    at = 0
    for height, rank in zip(heights, ranks, strict=True):
        yield flat[at : at + height * rank].view(height, rank)
        at += height * rank
