"""What if all workers send the same k random elements of each tensor? Random-k.

The positions come from the random stream that workers share, so no index travels and the short
vectors are summed by an all-reduce. Unscaled, the update is biased (E = k/n of the gradient);
scaled by n/k it is unbiased with variance (n/k - 1) |g|^2.

k = max(1, round(n * ratio)) of each tensor. Elements that are not drawn are lost (no residual).

Source: S. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018; the
unscaled form is that of GRACE (Xu et al., ICDCS 2021).
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.selection import count_kept
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.random import distinct_indices, stream
from gcsim.compressors.requests import AllReduce, Exchange


class RandomK(Compressor):
    """Keep a uniformly random k-subset of each tensor, the same on every worker."""

    class Parameters(CompressorParameters):
        """Hyper-parameters of random-k."""

        ratio: Ratio = Field(0.01, description="kept fraction of each tensor")
        scaled: bool = Field(False, description="multiply by n/k: unbiased, but of high variance")

    about = About(
        title="Random-k with a shared mask",
        family="sparsification",
        collective="all-reduce",
        bits="32 * ratio",
        unbiased=False,  # unless `scaled`
        state="none",
        paper="Stich et al., Sparsified SGD with memory, NeurIPS 2018",
    )

    def __init__(self, worker: Worker, parameters: RandomK.Parameters) -> None:
        super().__init__(worker, parameters)
        self.parameters = parameters

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """The mean gradient at the drawn positions (times n/k when scaled), else zero."""
        drawn = []
        factors = []
        for piece in bucket.layout.slices:
            k = count_kept(piece.numel, self.parameters.ratio)
            generator = stream(self.worker.seed, step, piece.index, "randomk")
            indices = distinct_indices(generator, piece.numel, k, bucket.gradient.device)
            drawn.append(indices + piece.offset)
            factors.append(piece.numel / max(1, k))
        positions = torch.cat(drawn)
        total = yield AllReduce(tensor=bucket.gradient[positions])

        total.div_(self.worker.count)
        if self.parameters.scaled:
            at = 0
            for indices, factor in zip(drawn, factors, strict=True):
                total[at : at + indices.numel()].mul_(factor)
                at += indices.numel()
        update = torch.zeros_like(bucket.gradient)
        update[positions] = total
        return update
