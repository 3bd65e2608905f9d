"""Random-k: all workers send the same k random elements of each tensor.

Positions come from the workers' shared random stream, so no index is sent and the short vectors are
all-reduced: 32 k bits. k = max(1, round(n * ratio)) of each tensor.

- Unscaled: biased, E = k/n of the gradient; E|Q(g) - g|^2 = (1 - k/n) |g|^2; other elements are
  lost.
- `scaled` by n/k: unbiased, E|Q(g) - g|^2 = (n/k - 1) |g|^2.
- `error_feedback` (unscaled): a = e + g, a_S travels, e = a but 0 on S.

Source: S. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018,
arXiv:1809.07599; the unscaled form without memory is that of GRACE (Xu et al., ICDCS 2021).
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties, Ratio
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.selecting.selection import counts_kept, share_kept
from gcsim.compressors.coding.selecting.subsets import draw_subset
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.compressors.segments import Segments, spread


class RandomKParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="fraction of a tensor's elements to send")
    scaled: bool = Field(False, description="scale by about 1 / ratio: unbiased, high variance")
    error_feedback: bool = Field(
        False, description="add the compression error to the next gradient"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.scaled and self.error_feedback:
            raise ValueError("scaled and error_feedback exclude each other: errors would grow")
        return self


class RandomK(ErrorFeedback[RandomKParameters]):
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
        """Return the mean gradient at the drawn positions (times n/k if scaled), zero elsewhere."""
        chosen, me, segments = self.parameters, self.worker, Segments.of(bucket.layout)
        k = counts_kept(segments.length, chosen.ratio)  # [tensors]
        streams = [(me.seed, step, piece.index, "randomk") for piece in bucket.layout.slices]
        positions = draw_subset(bucket.gradient, segments, k, streams)  # [sum of k]
        source = self.corrected(bucket)
        own = source[positions]
        if chosen.error_feedback:
            source.index_fill_(0, positions, 0.0)
        total: Tensor = yield AllReduce(tensor=own)

        if chosen.scaled:
            factors = (segments.length / np.maximum(1, k) / me.count).astype(np.float32)
            total.mul_(spread(torch.from_numpy(factors).to(total.device), k))
        else:
            total.div_(me.count)
        update = torch.zeros_like(bucket.gradient)
        update[positions] = total
        return update

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
