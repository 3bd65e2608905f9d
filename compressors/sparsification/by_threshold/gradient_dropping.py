"""Gradient dropping: what if a share of the smallest elements is dropped, by a sampled threshold?

a = r + g; t is the R-quantile of |a| in a strided sample of at most 100,000 elements; what is
strictly above t travels, and r = a without it. With a momentum m, in Nesterov's form and on the
worker: u = m (u + g), a = r + g + u, and u is cleared where an element was sent.

One threshold serves the whole bucket (`scope: tensor`: each tensor has its own). Of s sampled
elements s - floor(R s) are larger than t, so at R = 0.99 about 1 % is sent; where a larger share
than R is exactly zero, t = 0 and all others are sent. m (32 + bits per index) bits for m elements.

Biased: |Q(a) - a|^2 <= |a|^2; with all elements in the sample (`samples: null`) and no ties,
(1 - k/n) |a|^2, k = n - floor(R n). With a momentum that is masked, momentum is given up;
otherwise the sum of the updates and the residual is the sum of the gradients.

Assumes that in a sample of less than 1 / (1 - R) elements the largest is to be sent; the
published code then sends none, ever.

Source: A. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
sample, strictness and momentum as in Marian's code (gradient_dropping).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.messages import bucket_state
from gcsim.compressors.coding.selecting.marks import Marks, add_and_mark, mark, take
from gcsim.compressors.coding.selecting.selection import kth_magnitude, strided_sample
from gcsim.compressors.coding.sparse import (
    ValueFormat,
    add_message,
    energy,
    pack_sparse,
    sent_of,
)
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.laws import Laws
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import batched
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.sparsification.by_threshold.threshold import just_above


class GradientDroppingParameters(CompressorParameters):
    drop_rate: float = Field(0.99, ge=0, lt=1, description="R, the fraction that is not sent")
    samples: int | None = Field(
        100_000, ge=1, description="most elements that the threshold is taken from; null: all"
    )
    scope: Literal["bucket", "tensor"] = Field(
        "bucket", description="what shares a threshold: all of a bucket, or one tensor"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="m, on the worker; 0: none")
    factor_masking: bool = Field(True, description="clear the momentum of sent elements")
    values: ValueFormat = Field("fp32", description="format of the values on the wire")
    indices: IndexCoding = Field("raw", description="how indices travel: raw is 32 bits each")


class GradientDropping(ErrorFeedback[GradientDroppingParameters]):
    """The largest share of the elements, by a sampled quantile, with a residual."""

    about = About(
        title="Gradient dropping",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="(1 - drop_rate) * (32 + bits per index)",
        state="residual (n); with a momentum (n) more",
        paper="Aji & Heafield, Sparse communication, EMNLP 2017",
    )

    def __init__(self, worker: Worker, parameters: GradientDroppingParameters) -> None:
        super().__init__(worker, parameters)
        self._momentum: dict[int, Tensor] = {}

    @classmethod
    def momentum(cls, parameters: GradientDroppingParameters) -> tuple[float, bool]:
        return parameters.momentum, parameters.momentum > 0

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, add_message)

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient and take out what is above the threshold: uint8, a frame a tensor."""
        m = self.parameters.momentum
        residual = bucket_state(self.residual, bucket)
        added, velocity = bucket.gradient, None
        if m:
            velocity = bucket_state(self._momentum, bucket).add_(bucket.gradient).mul_(m)
            added = bucket.gradient + velocity
        if self.parameters.scope == "bucket":
            return torch.cat(self._send_bucket(bucket, residual, added, velocity))
        frames = []
        for piece, memory in batched(bucket.layout.views(residual)):
            part = slice(piece.offset, piece.offset + piece.numel)
            indices, sent = self._send(
                memory, added[part], None if velocity is None else velocity[part]
            )
            frames.append(pack_sparse(sent, indices, piece.numel, self.parameters.indices))
        return torch.cat(frames)

    def _send_bucket(
        self, bucket: Bucket, residual: Tensor, added: Tensor, velocity: Tensor | None
    ) -> list[Tensor]:
        """One selection from the whole bucket, as one frame a tensor."""
        indices, sent = self._send(residual, added, velocity)
        pieces = bucket.layout.slices
        edges = torch.tensor([[p.offset, p.offset + p.numel] for p in pieces])
        cuts = torch.searchsorted(indices, edges.to(indices.device)).tolist()
        frames = []
        for piece, (first, last) in zip(pieces, cuts, strict=True):
            own, values = indices[first:last] - piece.offset, sent[first:last]
            frames.append(pack_sparse(values, own, piece.numel, self.parameters.indices))
        return frames

    def _send(
        self, memory: Tensor, added: Tensor, velocity: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """memory += added, without what is large: (its indices, its values as they travel)."""
        marks = self._add(memory, added)
        indices, values = take(memory, marks, clear=True)
        sent = sent_of(memory, indices, values, self.parameters.values)
        if velocity is not None and self.parameters.factor_masking:
            velocity.index_fill_(0, indices, 0.0)
        return indices, sent

    def _add(self, memory: Tensor, added: Tensor) -> Marks:
        n, samples = memory.numel(), self.parameters.samples
        if n == 0:
            return mark(memory, np.float32(np.inf))
        if samples is None or samples >= n:
            memory.add_(added)
            return mark(memory, just_above(self._quantile(memory)))
        sample = strided_sample(0, n // samples, memory, added)[:samples]
        return add_and_mark(memory, added, just_above(self._quantile(sample)))

    def _quantile(self, values: Tensor) -> float:
        """The magnitude that s - floor(R s) of the s values exceed (if there are no ties)."""
        sent = values.numel() - int(values.numel() * self.parameters.drop_rate)
        return 0.0 if sent == values.numel() else kth_magnitude(values, sent + 1)

    @classmethod
    def laws(cls, parameters: GradientDroppingParameters) -> Laws:
        m = parameters.momentum
        return Laws(
            error_bound=None if m else energy,
            conserves=m == 0 or not parameters.factor_masking,
        )
