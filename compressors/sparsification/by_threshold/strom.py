"""Strom: an element waits until it exceeds a threshold, and then only its sign travels.

r += g; an element with r_i > tau is sent as +tau, one with r_i < -tau as -tau, once a step however
large it is; r -= what was sent. A sent element is one word of 32 bits: its index in 31 bits and
its sign. `mxnet` is the dense form of that library's 2-bit compression: every element travels in
two bits (0: zero, 2: -tau, 3: +tau) and |r_i| = tau is sent too.

Bits: 32 m / n for m sent elements; 2 for `mxnet`. Biased with memory: what a step loses is
sum over sent (|r_i| - tau)^2 + sum over others r_i^2, the next residual.

Assumes that tau is known to all workers: it does not travel. Messages are all-gathered and
averaged, where MXNet's server adds them up.

Source: N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
Interspeech 2015; MXNet's kvstore gradient compression type "2bit".
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.frames import Codec, frames, read, seal
from gcsim.compressors.coding.indices.words import add_signed, signed_message, signed_words
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.integers.two_bits import add_two_bits, two_bits
from gcsim.compressors.coding.selecting.marks import passing
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange, gather_variable
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_threshold.threshold import just_above

_DEFAULT = {"words": 0.1, "mxnet": 0.5}


class StromParameters(CompressorParameters):
    threshold: float | None = Field(
        None, gt=0, le=1e38, description="tau, in units of the gradient; null: 0.1 (mxnet: 0.5)"
    )
    variant: Literal["words", "mxnet"] = Field(
        "words", description="32 bits a sent element, or 2 bits every element"
    )

    @property
    def tau(self) -> float:
        """The threshold as float32."""
        chosen = _DEFAULT[self.variant] if self.threshold is None else self.threshold
        return float(np.float32(chosen))


class Strom(ErrorFeedback[StromParameters]):
    """Signs of what has grown beyond a threshold."""

    about = About(
        title="Strom's threshold quantisation",
        family="sparsification",
        collective="all-gather of unequal messages (mxnet: equal)",
        bits="32 sent / n (mxnet: 2)",
        state="residual (n)",
        paper="Strom, Interspeech 2015",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        tau, message = self.parameters.tau, self.encode(bucket)
        if self.parameters.variant == "mxnet":
            payloads = yield AllGather(payload=message)
            return self.mean_of(payloads, bucket, add_codes, tau=tau)
        payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_signed, levels=(tau, -tau))

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient to the residual and take out the signs: uint8, one frame a tensor."""
        tau, segments = self.parameters.tau, Segments.of(bucket.layout)
        residual = bucket_state(self.residual, bucket)
        if self.parameters.variant == "mxnet":
            sizes = packed_bytes(segments.length, 2)
            message, at = frames(residual, Codec.TABLE, segments, sizes, fixed=True)
            two_bits(residual, bucket.gradient, segments, tau, message, at)
            return seal(message, at, sizes)
        indices, values, k = passing(bucket.gradient, segments, just_above(tau), memory=residual)
        levels = np.array([(tau, -tau)])
        words = signed_words(residual, segments, indices, values, k, levels)
        return signed_message(words, segments, k)

    @classmethod
    def properties(cls, parameters: StromParameters) -> Properties:
        tau = parameters.tau

        def lost(vector: Tensor) -> float:
            magnitudes = vector.double().abs()
            words = parameters.variant == "words"
            sent = magnitudes > tau if words else magnitudes >= tau
            return energy(torch.where(sent, magnitudes - tau, magnitudes))

        return Properties(error_bound=lost, error_is_exact=True, conserves=True)


def add_codes(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, tau: float
) -> None:
    """out += weight * tau * {0, -1, 1}; `InputError` for a damaged or another message."""
    segments, found = Segments.of(layout), read(message, layout, Codec.TABLE)
    found.demand_sizes(packed_bytes(segments.length, 2))
    add_two_bits(out, segments, message, found.at, weight * tau)
