"""Wangni et al.'s sparsification: the sparsest unbiased message with a given variance.

Element i is sent with probability p_i = min(1, lambda |g_i|), independently on each worker, as g_i
/ p_i. Elements with p = 1 (A) send their value; all others that are sent (B) have the same
magnitude 1/lambda, so a sign is enough. Unbiased; E|Q(g) - g|^2 = sum_B g_i^2 (1/p_i - 1).

lambda is chosen for one of
- a density: sum(p) = ratio * n, by at most `rounds` rounds (greedy; two are nearly always enough);
- a bound eps: E|Q(g)|^2 = (1 + eps) |g|^2 exactly, with the smallest A of the closed form
  |g_(k+1)| sum_{j>k} |g_(j)| <= eps |g|^2 + sum_{j>k} g_(j)^2 (magnitudes in falling order),
  lambda = sum_{j>k} |g_(j)| / (eps |g|^2 + sum_{j>k} g_(j)^2); found without sorting.

Bits per tensor: |A| (32 + index) + |B| (1 + index) + 96 for 1/lambda, |A|, and the length of A's
index code. 1/lambda is rounded to float32 before the probabilities are computed, so the receiver
has it exactly.

The bound applies to each tensor. There is no state.

Source: J. Wangni, J. Wang, J. Liu, T. Zhang, "Gradient Sparsification for Communication-Efficient
Distributed Optimization", NeurIPS 2018, arXiv:1710.09854: the greedy algorithm and the closed form.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Ratio
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.apart import add_apart, apart_message
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.selecting.sampling import Weights, draw_poisson
from gcsim.compressors.coding.selecting.scales import (
    exact_scales,
    scales_for_count,
    scales_for_variance,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments, keys_of


class VarianceBoundedParameters(CompressorParameters):
    ratio: Ratio = Field(0.02, description="expected fraction of a tensor's elements to send")
    bound: float | None = Field(
        None, gt=0.0, description="variance of the message / |g|^2 (eps); null: use ratio"
    )
    rounds: int = Field(2, ge=1, description="maximum rounds to reach the ratio")
    indices: IndexCoding = Field(
        "packed", description="index coding (raw: 32 bits, auto: shortest)"
    )


class VarianceBounded(Compressor[VarianceBoundedParameters]):
    """Unbiased sampling in proportion to magnitudes, independently on each worker."""

    about = About(
        title="Variance-bounded sparsification",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="certain * (32 + bits per index) + others * (1 + bits per index) + 96 / n",
        unbiased=True,
        paper="Wangni et al., Gradient Sparsification, NeurIPS 2018, arXiv:1710.09854",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket, step))
        return self.mean_of(payloads, bucket, add_apart)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """Encode a bucket's gradient: uint8, one frame per tensor."""
        me, chosen, layout = self.worker, self.parameters, bucket.layout
        segments = Segments.of(layout)
        keys = keys_of(layout, me.seed, step, "variance-bounded", me.rank)
        weights = Weights.of(bucket.gradient, segments)
        scales, magnitudes = multipliers(weights, chosen)  # [tensors]
        places, values, k = draw_poisson(
            weights.values, weights.sums, segments, scales, keys,
            expected=np.rint(chosen.ratio * segments.length).astype(np.int64), apart=True,
        )  # fmt: skip
        return apart_message(segments, places, values, k, magnitudes, chosen.indices)

    @classmethod
    def properties(cls, parameters: VarianceBoundedParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            found = multipliers(Weights.of(vector, Segments.alone(vector.numel())), parameters)
            scale, magnitude = (float(each) for each in found)
            sizes = vector.double().abs()
            uncertain = sizes[sizes * scale < 1.0]
            return float((uncertain * magnitude - uncertain.square()).sum())

        return Properties(unbiased=True, error_bound=bound, error_is_exact=True)


def multipliers(weights: Weights, parameters: VarianceBoundedParameters) -> tuple[Tensor, Tensor]:
    """Return (lambda, float64; 1/lambda, float32; both `[tensors]`); 0 for an all-zero tensor."""
    if parameters.bound is not None:
        found = scales_for_variance(weights, parameters.bound)
        return exact_scales(torch.from_numpy(found).to(weights.values.device))
    k = np.maximum(1.0, parameters.ratio * weights.segments.length)
    given = weights.values, weights.sums, weights.segments
    return exact_scales(scales_for_count(*given, k, parameters.rounds)[0])
