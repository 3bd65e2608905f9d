"""Gradient dropping: elements below a sampled quantile of the magnitudes are dropped.

a = r + g; t is the R-quantile of |a| in a strided sample of at most 100,000 elements; elements
strictly above t are sent, and r = a without them. With momentum m, in Nesterov form and on the
worker: u = m (u + g), a = r + g + u, and u is cleared for sent elements.

One threshold serves the whole bucket (`scope: tensor`: each tensor has its own). Of s sampled
elements s - floor(R s) are larger than t, so at R = 0.99 about 1 % is sent; if more than a share R
is exactly zero, t = 0 and all others are sent. m (32 + bits per index) bits for m elements.

Biased: |Q(a) - a|^2 <= |a|^2; with all elements in the sample (`samples: null`) and no ties, (1 -
k/n) |a|^2, k = n - floor(R n). Masking discards momentum; without it the sum of the updates and the
residual is the sum of the gradients.

In a sample of fewer than 1 / (1 - R) elements the largest is sent; the published code sends none.

Source: A. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
sample, strictness and momentum as in Marian's code (gradient_dropping).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.selecting.marks import passing
from gcsim.compressors.coding.selecting.selection import flat_places, kth_magnitude, sampled
from gcsim.compressors.coding.sparse import ValueFormat, add_message, energy, sparse_message
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments


class GradientDroppingParameters(CompressorParameters):
    drop_rate: float = Field(0.99, ge=0, lt=1, description="fraction of elements not to send (R)")
    samples: int | None = Field(
        100_000, ge=1, description="maximum elements sampled for the threshold; null: all"
    )
    scope: Literal["bucket", "tensor"] = Field(
        "bucket", description="elements that share a threshold: a whole DDP bucket, or one tensor"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Nesterov momentum on each worker (m)")
    factor_masking: bool = Field(True, description="clear the momentum of sent elements")
    values: ValueFormat = Field("fp32", description="format of the values on the wire")
    indices: IndexCoding = Field("raw", description="index coding (raw: 32 bits, auto: shortest)")


class GradientDropping(ErrorFeedback[GradientDroppingParameters]):
    about = About(
        title="Gradient dropping",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="(1 - drop_rate) * (32 + bits per index)",
        state="residual (n); with a momentum (n) more",
        paper="Aji & Heafield, Sparse communication, EMNLP 2017",
    )

    @classmethod
    def momentum(cls, parameters: GradientDroppingParameters) -> tuple[float, bool]:
        return parameters.momentum, parameters.momentum > 0

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen, segments = self.parameters, Segments.of(bucket.layout)
        residual, added = bucket_state(self.residual, bucket), bucket.gradient  # [numel]
        if chosen.momentum:
            velocity = self.kept("momentum", bucket).add_(bucket.gradient).mul_(chosen.momentum)
            added = bucket.gradient + velocity
        shared = Segments.alone(bucket.layout.numel) if chosen.scope == "bucket" else segments
        limits = self._quantiles(residual, added, shared)
        above = limits.nextafter(torch.full_like(limits, np.inf)).expand(len(segments.table))
        indices, values, k = passing(added, segments, above.contiguous(), memory=residual)
        if chosen.momentum and chosen.factor_masking:
            velocity.index_fill_(0, flat_places(indices, segments, k), 0.0)
        message, _ = sparse_message(
            segments, k, indices, values, values_as=chosen.values, coding=chosen.indices,
            memory=residual,
        )  # fmt: skip
        payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_message)

    def _quantiles(self, memory: Tensor, added: Tensor, segments: Segments) -> Tensor:
        """Return, for each row of the table, the magnitude that s - floor(R s) of s samples of
        memory + added exceed (without ties): float32 `[rows]`."""
        n, most = segments.length, self.parameters.samples
        count = n if most is None else np.minimum(n, most)
        stride = n // np.maximum(1, count)
        sample = sampled(memory, added, segments, segments.column(0), stride, count)
        sent = count - (count * self.parameters.drop_rate).astype(np.int64)
        found = kth_magnitude(sample, Segments.behind(count), np.where(sent < count, sent + 1, 0))
        if (all_sent := sent == count).any():
            found[torch.from_numpy(all_sent).to(found.device)] = 0.0
        return found

    @classmethod
    def properties(cls, parameters: GradientDroppingParameters) -> Properties:
        m = parameters.momentum
        return Properties(
            error_bound=None if m else energy, conserves=m == 0 or not parameters.factor_masking
        )
