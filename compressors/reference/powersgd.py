"""PyTorch's PowerSGD hook: PowerSGD with three all-reduces and a sum of P that is not divided.

The torch operators are those of `powerSGD_hook` in the same order: dense steps before `start`; then
one all-reduce for uncompressed tensors, a second for all P, a third for all Q. P is summed, not
averaged, since it is orthonormalised anyway: by Gram-Schmidt up to rank 2, by QR above. Q is
orthonormalised too before it is used. Tensors of the same shape are adjacent in P and Q. The error
memory covers uncompressed tensors too (gradient - mean: their sum is zero).

There are three differences. The bucket is copied first, with one more operator. The hook draws Q
from torch's generator, seeded by a numpy generator that counts the draws of all buckets; here the
stream is keyed by seed, step and bucket, so the order of buckets does not matter. With the same Q,
results are equal to the last bit as far as the matrix products are. A column of zeros, which the
hook divides by its norm of zero, stays zero instead of becoming NaN (with `epsilon` above zero it
stays zero in both).

Source: torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook, PyTorch 2.13; T. Vogels et al.,
NeurIPS 2019, arXiv:1905.13727.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties, Worker
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding.one_bit.columns import matrix_shape
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.low_rank.powersgd import gaussian
from gcsim.compressors.random import stream
from gcsim.compressors.requests import AllReduce, Exchange


class TorchPowerSgdParameters(CompressorParameters):
    rank: int = Field(
        1, ge=1, description="columns of the factors P and Q (matrix_approximation_rank)"
    )
    start: int = Field(
        1000, ge=0, description="steps of dense all-reduce before compression (start_powerSGD_iter)"
    )
    min_compression_rate: float = Field(
        2.0, gt=0, description="compress a matrix only if it shrinks by more than this factor"
    )
    error_feedback: bool = Field(True, description="add the compression error to the next gradient")
    warm_start: bool = Field(True, description="start from the previous step's Q; else a random Q")
    epsilon: float = Field(
        0.0, ge=0, description="added to the norm of each column (orthogonalization_epsilon)"
    )


class TorchPowerSgd(ErrorFeedback[TorchPowerSgdParameters]):
    about = About(
        title="PyTorch powerSGD_hook",
        family="reference",
        collective="all-reduce three times (uncompressed, P, Q); dense before start",
        bits="32 rank (a + b) / (a b) for an a x b matrix",
        state="error (n), P and Q (rank (a + b) for each matrix)",
        paper="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    )

    def __init__(self, worker: Worker, parameters: TorchPowerSgdParameters) -> None:
        super().__init__(worker, parameters)
        self._query: dict[int, list[Tensor]] = {}
        """Q of each matrix, by bucket: float32 `[1, b, r]`."""

    @classmethod
    def properties(cls, parameters: TorchPowerSgdParameters) -> Properties:
        """Return the properties: one worker's update is a projection of its matrices."""
        return Properties(conserves=parameters.error_feedback, error_bound=energy)

    @classmethod
    def warmup_steps(cls, parameters: TorchPowerSgdParameters) -> int:
        return parameters.start

    @classmethod
    def phase(cls, parameters: TorchPowerSgdParameters, step: int) -> str:
        return "dense" if step < parameters.start else "step"

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if step < self.parameters.start:
            mean: Tensor = yield AllReduce(tensor=bucket.gradient / self.worker.count)
            return mean
        update: Tensor = yield from self._compressed(bucket, step)
        return update

    def _compressed(self, bucket: Bucket, step: int) -> Exchange:
        chosen, index = self.parameters, bucket.layout.index
        buffer, matrices, others = self._divide(bucket)
        if chosen.error_feedback:
            buffer.add_(bucket_state(self.residual, bucket))
        corrected = buffer.clone() if chosen.error_feedback else None

        plain = torch.cat([tensor.reshape(-1) for tensor in others] or [buffer[:0]])
        plain = (yield AllReduce(tensor=plain)).div_(self.worker.count)
        for tensor, mean in zip(others, plain.split([t.numel() for t in others]), strict=True):
            tensor.copy_(mean)

        queries = self._queries(index, step, matrices)
        for q in queries:
            orthogonalise(q, chosen.epsilon)
        sides = [(m.shape[1], q.shape[2]) for m, q in zip(matrices, queries, strict=True)]
        flat, lefts = _factors(buffer, sides)
        for m, q, p in zip(matrices, queries, lefts, strict=True):
            torch.bmm(m, q, out=p)
        lefts = _views((yield AllReduce(tensor=flat)), sides)
        for p in lefts:
            orthogonalise(p, chosen.epsilon)
        sides = [(q.shape[1], q.shape[2]) for q in queries]
        flat, queries = _factors(buffer, sides)
        for m, p, q in zip(matrices, lefts, queries, strict=True):
            torch.bmm(m.transpose(1, 2), p, out=q)
        queries = _views((yield AllReduce(tensor=flat)).div_(self.worker.count), sides)
        for m, p, q in zip(matrices, lefts, queries, strict=True):
            torch.bmm(p, q.transpose(1, 2), out=m)
        if chosen.warm_start:
            self._query[index] = queries
        if corrected is not None:
            self.residual[index] = corrected.sub_(buffer)
        return buffer

    def _divide(self, bucket: Bucket) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return a copy of the gradient, and views: matrices `[1, a, b]`, uncompressed tensors."""
        buffer = bucket.gradient.clone()
        by_shape: dict[tuple[int, int], list[Tensor]] = {}
        others = []
        for piece in bucket.layout.slices:
            tensor = piece.of(buffer)
            a, b = matrix_shape(piece)
            r = min(a, b, self.parameters.rank)
            if (a + b) * r * self.parameters.min_compression_rate < a * b:
                by_shape.setdefault((a, b), []).append(tensor.view(1, a, b))
            else:
                others.append(tensor)
        return buffer, [tensor for group in by_shape.values() for tensor in group], others

    def _queries(self, index: int, step: int, matrices: list[Tensor]) -> list[Tensor]:
        """Return the initial Q of each matrix: the last step's, or normal random numbers."""
        if self.parameters.warm_start and index in self._query:
            return self._query[index]
        generator = stream(self.worker.seed, step, index, "torch powersgd query")
        return [
            gaussian(generator, (b, min(a, b, self.parameters.rank)), matrix).view(1, b, -1)
            for matrix in matrices
            for a, b in [matrix.shape[1:]]
        ]


def _factors(like: Tensor, sides: Sequence[tuple[int, int]]) -> tuple[Tensor, list[Tensor]]:
    """Allocate factors of these rows and ranks: the memory, and each factor `[1, rows, r]`."""
    flat = like.new_empty(sum(rows * rank for rows, rank in sides))
    return flat, _views(flat, sides)


def _views(flat: Tensor, sides: Sequence[tuple[int, int]]) -> list[Tensor]:
    parts = torch.split(flat, [rows * rank for rows, rank in sides])
    return [part.view(1, *side) for part, side in zip(parts, sides, strict=True)]


def orthogonalise(matrices: Tensor, epsilon: float) -> None:
    """Orthonormalise the columns in place, as the hook does: float32 `[batch, rows, rank]`."""
    rank = matrices.shape[2]
    if rank > 2:
        torch.linalg.qr(matrices, out=(matrices, matrices.new_empty(len(matrices), rank, rank)))
        return
    for i in range(rank):
        column = matrices[:, :, i : i + 1]
        norm = torch.norm(column, dim=1, keepdim=True)
        column /= norm + epsilon if epsilon else norm.masked_fill_(norm == 0, 1.0)
        if i + 1 < rank:
            rest = matrices[:, :, i + 1 :]
            rest -= torch.sum(column * rest, dim=1, keepdim=True) * column
