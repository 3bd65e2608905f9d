"""Strom: elements accumulate until they exceed a threshold, and then only their sign is sent.

r += g; an element with r_i > tau is sent as +tau, one with r_i < -tau as -tau, once per step
however large it is; r -= what was sent. A sent element is one word of 32 bits: its index in 31 bits
and its sign: 32 m / n bits for m sent elements. Messages are all-gathered and averaged.

Biased, with memory: a step's error is sum over sent (|r_i| - tau)^2 + sum over others r_i^2, the
next residual. All workers know tau: it is not sent.

Source: N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
Interspeech 2015.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding.indices.words import add_signed, signed_message, signed_words
from gcsim.compressors.coding.selecting.marks import passing
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_threshold.threshold import just_above


class StromParameters(CompressorParameters):
    threshold: float | None = Field(
        None, gt=0, le=1e38, description="threshold and sent value, in gradient units; null: 0.1"
    )

    @property
    def tau(self) -> float:
        return float(np.float32(0.1 if self.threshold is None else self.threshold))


class Strom(ErrorFeedback[StromParameters]):
    about = About(
        title="Strom's threshold quantisation",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="32 sent / n",
        state="residual (n)",
        paper="Strom, Interspeech 2015",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        tau = self.parameters.tau
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, add_signed, levels=(tau, -tau))

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient to the residual and encode the signs: uint8, one frame per tensor."""
        tau, segments = self.parameters.tau, Segments.of(bucket.layout)
        residual = bucket_state(self.residual, bucket)
        indices, values, k = passing(bucket.gradient, segments, just_above(tau), memory=residual)
        levels = np.array([(tau, -tau)])
        words = signed_words(residual, segments, indices, values, k, levels)
        return signed_message(words, segments, k)

    @classmethod
    def properties(cls, parameters: StromParameters) -> Properties:
        tau = parameters.tau

        def lost(vector: Tensor) -> float:
            magnitudes = vector.double().abs()
            sent = magnitudes > tau
            return energy(torch.where(sent, magnitudes - tau, magnitudes))

        return Properties(error_bound=lost, error_is_exact=True, conserves=True)
