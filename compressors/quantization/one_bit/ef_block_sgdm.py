"""dist-EF-blockSGDM: both directions carry one sign per element and one scale per block.

Worker: momentum u = m u + g, Nesterov direction plus error p = g + m u + rho e; for each block
the scale mean |p| and the signs of p travel; e = p - decoded. Server: the mean of what the
workers sent plus its own error is coded in the same way, e_s = q - decoded, and every worker
applies the decoded answer in the place of a momentum-SGD direction.

A block's error is a contraction: |p - Q(p)|^2 = |p|^2 - |p|_1^2 / n_b (Gaussian: .363 |p|^2).

Without a server each worker serves a stripe of the elements, as in DeepSpeed's 1-bit Adam. Where a
stripe's end cuts a block, that is one scale more, which is not counted; the authors' code has rank
0 serve, over broadcasts (`servers: 1`).

Assumes rho = 1: the paper's rho = lr_{t-1} / lr_t rescales the errors when the learning rate
changes, which a compressor is not told; with a constant rate the two are the same. Weight decay
is the optimiser's. Blocks are whole tensors unless `block_elements` cuts them. The bit of zero
says positive. The server's error lives in the object whose callable the driver runs: worker 0's.
Messages and memories are those of EF-signSGD (`scaled_sign.py`), which this method extends.

Source: S. Zheng, Z. Huang, J. Kwok, "Communication-Efficient Distributed Blockwise Momentum SGD
with Error-Feedback", NeurIPS 2019, arXiv:1905.10936 (the variant with blocks and Nesterov's
momentum); code: ZiyueHuang/dist-ef-sgdm.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.one_bit.signs import nesterov
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.properties import Properties
from gcsim.compressors.quantization.one_bit.scaled_sign import (
    SignMemory,
    cells_of,
    mean_of,
    sign_error,
)
from gcsim.compressors.requests import Exchange, PushPull


class EfBlockSgdmParameters(CompressorParameters):
    momentum: float = Field(0.9, ge=0, lt=1, description="m, Nesterov momentum on each worker")
    block_elements: int | None = Field(
        None, ge=1, description="most elements that share a scale; null: one scale a tensor"
    )


class EfBlockSgdm(Compressor[EfBlockSgdmParameters]):
    """Signs with block scales, error feedback on workers and server, Nesterov momentum."""

    about = About(
        title="dist-EF-blockSGDM",
        family="quantization",
        collective="push-pull, one bit both ways",
        without_server="alltoall_allgather",
        bits="1 + 32 blocks / n, each way",
        state="momentum (n), error (n); server: error (n)",
        paper="Zheng et al., NeurIPS 2019, arXiv:1905.10936",
    )

    def __init__(self, worker: Worker, parameters: EfBlockSgdmParameters) -> None:
        super().__init__(worker, parameters)
        self._memory, self._server = SignMemory(), SignMemory()

    @classmethod
    def properties(cls, parameters: EfBlockSgdmParameters) -> Properties:
        """Properties for the checker: the first direction is 1 + m gradients long."""
        most, gain = parameters.block_elements, 1.0 + parameters.momentum
        return Properties(
            error_bound=lambda v: sign_error(v, most, gain), error_is_exact=True, conserves=True
        )

    @classmethod
    def momentum(cls, parameters: EfBlockSgdmParameters) -> tuple[float, bool]:
        return parameters.momentum, True

    def residual_of(self, bucket: Bucket) -> Tensor:
        """Residual: the server's error counts for all workers."""
        cells = cells_of(bucket, self.parameters.block_elements)
        error = self._memory.error(bucket, cells)
        return error.add_(self._server.error(bucket, cells), alpha=self.worker.count)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        p, index = self.parameters, bucket.layout.index
        cells, velocity = cells_of(bucket, p.block_elements), self.kept("momentum", bucket)
        factors = nesterov(p.momentum)
        message = self._memory.encode(
            index, bucket.gradient, cells, mixed=velocity, factors=factors, keep=True
        )

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            """The mean plus the server's error, coded; what was lost is kept."""
            return self._server.encode(index, mean_of(payloads, bucket, self.worker.count), cells)

        answer = yield PushPull(payload=message, server=serve, without_server="alltoall_allgather")
        return mean_of(answer, bucket, 1)
