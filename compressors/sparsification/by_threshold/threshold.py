"""Threshold-v: exactly the elements above a fixed magnitude are sent.

a = e + g; the elements with |a| > v are sent as (value, index); e = a - what was sent ("hard
threshold"). Without error feedback e stays zero. Messages have unequal lengths, m (32 + bits per
index) bits for m elements. Biased: |Q(a)_i - a_i| <= v, so |Q(a) - a|^2 <= min(n v^2, |a|^2).

v is in the gradients' units, and a v far below their magnitude costs more than sending all of them;
`indices: auto` then uses one bit per position. The default, .01, is that of GRACE's code.

Source: A. Dutta et al., "On the discrepancy between the theoretical analysis and practical
implementations of compressed communication for distributed deep learning", AAAI 2020,
arXiv:1911.08250 (threshold-v); with error feedback A. Sahu et al., "Rethinking gradient
sparsification as total error minimization", NeurIPS 2021, arXiv:2108.00951.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding import sparse
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.selecting.marks import passing
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments


class ThresholdParameters(CompressorParameters):
    threshold: float = Field(
        0.01, ge=0, le=3e38, description="threshold to send, in gradient units (v)"
    )
    error_feedback: bool = Field(True, description="add the compression error to the next gradient")
    values: sparse.ValueFormat = Field("fp32", description="format of the values on the wire")
    indices: IndexCoding = Field("auto", description="index coding (raw: 32 bits, auto: shortest)")


class Threshold(ErrorFeedback[ThresholdParameters]):
    about = About(
        title="Threshold-v (hard threshold)",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="sent / n * (32 + bits per index)",
        state="residual (n)",
        paper="Dutta et al., AAAI 2020; Sahu et al., NeurIPS 2021, arXiv:2108.00951",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, sparse.add_message)

    def encode(self, bucket: Bucket) -> Tensor:
        """Encode a bucket: uint8. The selection is freed before other messages are decoded."""
        chosen, segments = self.parameters, Segments.of(bucket.layout)
        memory = bucket_state(self.residual, bucket) if chosen.error_feedback else None  # [numel]
        limit = just_above(chosen.threshold)
        indices, values, k = passing(bucket.gradient, segments, limit, memory=memory)
        return sparse.sparse_message(
            segments, k, indices, values, values_as=chosen.values, coding=chosen.indices,
            memory=memory,
        )[0]  # fmt: skip

    @classmethod
    def properties(cls, parameters: ThresholdParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            most = vector.numel() * parameters.threshold**2
            return min(sparse.energy(vector), most) + sparse.lost_in_transit(
                vector, parameters.values
            )

        return Properties(error_bound=bound, conserves=parameters.error_feedback)


@cache
def just_above(threshold: float) -> np.float32:
    """Return the next larger float32: elements that reach it are strictly above the threshold."""
    return np.float32(np.nextafter(np.float32(threshold), np.float32(np.inf)))
