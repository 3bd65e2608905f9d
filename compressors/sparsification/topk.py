"""What if each worker sends only its k largest elements, and remembers the rest? Top-k.

a = e + g; the k = max(1, round(n * ratio)) largest |a| of each tensor travel with their indices;
e = a - what was sent. Everybody receives everybody's message and averages. Without error
feedback e stays zero. Among equal magnitudes the lowest index wins.

Messages have the same length on all workers unless the index coder's output depends on the
positions (rice): then lengths are exchanged first.

Source: A. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
error feedback as analysed by Stich et al., NeurIPS 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.index_coding import Coder, IndexCoding, choose_coder
from gcsim.compressors.coding.selection import count_kept, largest
from gcsim.compressors.coding.sparse import ValueFormat, add_message, pack_sparse, travelling
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.requests import AllGather, Exchange, gather_variable

if TYPE_CHECKING:
    from torch import Tensor


class TopK(Compressor):
    """The k largest magnitudes of each tensor, with error feedback."""

    class Parameters(CompressorParameters):
        """Hyper-parameters of top-k."""

        ratio: Ratio = Field(0.01, description="kept fraction of each tensor")
        error_feedback: bool = Field(True, description="add what was not sent to the next step")
        values: ValueFormat = Field("fp32", description="format of the values on the wire")
        indices: IndexCoding = Field("raw", description="how indices travel: raw is 32 bits each")

    about = About(
        title="Top-k with error feedback",
        family="sparsification",
        collective="all-gather",
        bits="ratio * (32 + bits per index)",
        unbiased=False,
        state="residual (n)",
        paper="Aji & Heafield, Sparse communication, EMNLP 2017",
    )

    def __init__(self, worker: Worker, parameters: TopK.Parameters) -> None:
        super().__init__(worker, parameters)
        self.parameters = parameters
        self.residual: dict[int, Tensor] = {}
        """By bucket: float32 `[n]`, all that was not sent."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """The mean over workers of what each sent, float32 `[n]`."""
        message, fixed_length = self._encode(bucket)
        if fixed_length:
            payloads = yield AllGather(payload=message)
        else:
            payloads = yield from gather_variable(message)
        update = torch.zeros_like(bucket.gradient)
        scale = 1.0 / self.worker.count
        for payload in payloads:
            add_message(update, bucket.layout, payload, scale)
        return update

    def _encode(self, bucket: Bucket) -> tuple[Tensor, bool]:
        corrected = self._corrected(bucket)
        frames = []
        fixed_length = True
        for piece, part in bucket.layout.views(corrected):
            k = count_kept(piece.numel, self.parameters.ratio)
            coder = choose_coder(self.parameters.indices, piece.numel, k)
            fixed_length = fixed_length and coder is not Coder.RICE
            indices = largest(part, k)
            values = part[indices]
            sent = travelling(values, self.parameters.values)
            if self.parameters.error_feedback:
                part[indices] = values - sent.float()
            frames.append(pack_sparse(sent, indices, piece.numel, coder))
        return torch.cat(frames), fixed_length

    def _corrected(self, bucket: Bucket) -> Tensor:
        """e + g, in the residual's own memory: what is sent is taken out of it afterwards."""
        if not self.parameters.error_feedback:
            return bucket.gradient
        residual = self.residual.get(bucket.layout.index)
        if residual is None:
            residual = self.residual[bucket.layout.index] = bucket.gradient.clone()
            return residual
        return residual.add_(bucket.gradient)
