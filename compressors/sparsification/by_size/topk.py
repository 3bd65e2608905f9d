"""What if each worker sends only its k largest elements, and remembers the rest? Top-k.

a = e + g; the k = max(1, round(n * ratio)) largest |a| of each tensor travel with their indices;
e = a - what was sent. Everybody receives everybody's message and averages. Without error
feedback e stays zero. Among equal magnitudes the lowest index wins.

Biased: |Q(a) - a|^2 <= (1 - k/n) |a|^2, with equality when all magnitudes are equal; N(0, 1) at
1 % loses .916 |a|^2. What float16 values round off is fed back too. A tensor's message takes
k (32 + bits per index) bits. Messages have the same length on all workers unless the index coder's
output depends on the positions (rice): then lengths are exchanged first.

Source: A. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
error feedback and the bound as in S. Stich, J. Cordonnier, M. Jaggi, "Sparsified SGD with memory",
NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.frame import of_bucket
from gcsim.compressors.coding.indices.index_coding import IndexCoding, choose_coder
from gcsim.compressors.coding.selecting.selection import (
    add_and_take_largest,
    count_kept,
    take_largest,
)
from gcsim.compressors.coding.sparse import (
    ValueFormat,
    add_message,
    lost_by_selection,
    lost_in_transit,
    pack_sparse,
    sent_of,
)
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import batched
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange, gather_variable


class TopKParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="kept fraction of each tensor")
    error_feedback: bool = Field(True, description="add what was not sent to the next step")
    values: ValueFormat = Field("fp32", description="format of the values on the wire")
    indices: IndexCoding = Field("raw", description="how indices travel: raw is 32 bits each")


class TopK(ErrorFeedback[TopKParameters]):
    """The k largest magnitudes of each tensor, with error feedback."""

    about = About(
        title="Top-k with error feedback",
        family="sparsification",
        collective="all-gather",
        bits="ratio * (32 + bits per index)",
        state="residual (n)",
        paper="Aji & Heafield, Sparse communication, EMNLP 2017",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen = self.parameters
        residual = bucket_state(self.residual, bucket) if chosen.error_feedback else None
        message, fixed_length = encoded(bucket.gradient, residual, bucket.layout, chosen)
        if fixed_length:
            payloads = yield AllGather(payload=message)
        else:
            payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_message)

    @classmethod
    def properties(cls, parameters: TopKParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            lost = lost_by_selection(vector, parameters.ratio)
            return lost + lost_in_transit(vector, parameters.values)

        return Properties(error_bound=bound, conserves=parameters.error_feedback)


@of_bucket("largest")
def encoded(
    gradient: Tensor, residual: Tensor | None, layout: BucketLayout, chosen: TopKParameters
) -> tuple[Tensor, bool]:
    """(the message of a gradient, float32 `[layout.numel]`; whether all are as long).

    The gradient is added to the residual, if there is one, and what is sent is taken out of it.
    """
    frames = []
    fixed_length = True
    for piece, part in batched(layout.views(gradient)):
        k = count_kept(piece.numel, chosen.ratio)
        coder = choose_coder(chosen.indices, piece.numel, k)
        fixed_length = fixed_length and coder.fixed_length
        memory = None if residual is None else piece.of(residual)  # [piece.numel]
        if memory is None:
            indices, values = take_largest(part, k, clear=False)  # [k] each
        else:
            indices, values = add_and_take_largest(memory, part, k)
        sent = sent_of(memory, indices, values, chosen.values)
        frames.append(pack_sparse(sent, indices, piece.numel, coder))
    return torch.cat(frames), fixed_length
