"""What if all workers send the same k random elements of each tensor? Random-k.

The positions come from the random stream that workers share, so no index travels and the short
vectors are summed by an all-reduce: 32 k bits. k = max(1, round(n * ratio)) of each tensor.

- Unscaled: biased, E = k/n of the gradient; E|Q(g) - g|^2 = (1 - k/n) |g|^2.
- `scaled` by n/k: unbiased, E|Q(g) - g|^2 = (n/k - 1) |g|^2.
- `error_feedback` (unscaled): a = e + g, a_S travels, e = a but 0 on S.

Without error feedback, elements that are not drawn are lost.

Source: S. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018,
arXiv:1809.07599; the unscaled form without memory is that of GRACE
(Xu et al., ICDCS 2021).
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.selecting.selection import count_kept, share_kept
from gcsim.compressors.coding.selecting.subsets import distinct_positions
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import batched
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import stream
from gcsim.compressors.requests import AllReduce, Exchange


class RandomKParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="kept fraction of each tensor")
    scaled: bool = Field(False, description="multiply by n/k: unbiased, but of high variance")
    error_feedback: bool = Field(False, description="add what was not drawn to the next step")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.scaled and self.error_feedback:
            raise ValueError("scaled and error_feedback exclude each other: errors would grow")
        return self


class RandomK(ErrorFeedback[RandomKParameters]):
    """Keep a uniformly random k-subset of each tensor, the same on every worker."""

    about = About(
        title="Random-k with a shared mask",
        family="sparsification",
        collective="all-reduce",
        bits="32 * ratio",
        unbiased=False,  # unless `scaled`
        state="none; with error feedback: residual (n)",
        paper="Stich et al., Sparsified SGD with memory, NeurIPS 2018",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """The mean gradient at the drawn positions (times n/k when scaled), else zero."""
        positions, factors = self._draw(bucket, step)
        source = self.corrected(bucket)
        own = source[positions]
        if self.parameters.error_feedback:
            source.index_fill_(0, positions, 0.0)
        total: Tensor = yield AllReduce(tensor=own)

        if self.parameters.scaled:
            at = 0
            for k, factor in factors:
                total[at : at + k].mul_(factor / self.worker.count)
                at += k
        else:
            total.div_(self.worker.count)
        update = torch.zeros_like(bucket.gradient)
        update[positions] = total
        return update

    def _draw(self, bucket: Bucket, step: int) -> tuple[Tensor, list[tuple[int, float]]]:
        """Positions in the bucket, and each tensor's (k, n/k)."""
        drawn, factors = [], []
        for piece in batched(bucket.layout.slices):
            k = count_kept(piece.numel, self.parameters.ratio)
            generator = stream(self.worker.seed, step, piece.index, "randomk")
            positions = distinct_positions(bucket.gradient, generator, piece.numel, k)
            drawn.append(positions.add_(piece.offset))
            factors.append((k, piece.numel / max(1, k)))
        return torch.cat(drawn) if len(drawn) > 1 else drawn[0], factors

    @classmethod
    def memory(cls, parameters: RandomKParameters) -> str:
        return "residual (n)" if parameters.error_feedback else "none"

    @classmethod
    def properties(cls, parameters: RandomKParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            kept = share_kept(vector.numel(), parameters.ratio)
            lost = 1.0 / kept - 1.0 if parameters.scaled else 1.0 - kept
            return lost * energy(vector)

        return Properties(
            unbiased=parameters.scaled,
            error_bound=bound,
            error_is_exact=True,
            conserves=parameters.error_feedback,
        )
