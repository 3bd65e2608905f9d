"""Top-k: each worker sends its k largest elements, and remembers the rest.

a = e + g; the k = max(1, round(n * ratio)) largest |a| of each tensor are sent with their indices;
e = a - what was sent. Messages are all-gathered and averaged. Without error feedback e stays zero.
Among equal magnitudes the lowest index wins.

Biased: |Q(a) - a|^2 <= (1 - k/n) |a|^2, with equality when all magnitudes are equal; N(0, 1) at 1 %
loses .916 |a|^2. Rounding to float16 is also fed back. A tensor's message has k (32 + bits per
index) bits. Messages have the same length on all workers unless the index coder's output depends on
the positions (rice): then lengths are exchanged first.

Source: A. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
error feedback and the bound as in S. Stich, J. Cordonnier, M. Jaggi, "Sparsified SGD with memory",
NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties, Ratio
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding import sparse
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import counts_kept
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import AllGather, Exchange, gather_variable
from gcsim.compressors.segments import Segments


class TopKParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="fraction of a tensor's elements to send")
    error_feedback: bool = Field(True, description="add the compression error to the next gradient")
    values: sparse.ValueFormat = Field("fp32", description="format of the values on the wire")
    indices: IndexCoding = Field("raw", description="index coding (raw: 32 bits, auto: shortest)")


class TopK(ErrorFeedback[TopKParameters]):
    about = About(
        title="Top-k with error feedback",
        family="sparsification",
        collective="all-gather",
        bits="ratio * (32 + bits per index)",
        state="residual (n)",
        paper="Aji & Heafield, Sparse communication, EMNLP 2017",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen, segments = self.parameters, Segments.of(bucket.layout)
        memory = bucket_state(self.residual, bucket) if chosen.error_feedback else None  # [numel]
        k = counts_kept(segments.length, chosen.ratio)  # [tensors]
        indices, values = largest(bucket.gradient, segments, k, memory=memory)  # [sum of k]
        message, fixed_length = sparse.sparse_message(
            segments, k, indices, values, values_as=chosen.values, coding=chosen.indices,
            memory=memory, alike=True,
        )  # fmt: skip
        if fixed_length:
            payloads = yield AllGather(payload=message)
        else:
            payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, sparse.add_message)

    @classmethod
    def properties(cls, parameters: TopKParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            lost = sparse.lost_by_selection(vector, parameters.ratio)
            return lost + sparse.lost_in_transit(vector, parameters.values)

        return Properties(error_bound=bound, conserves=parameters.error_feedback)
