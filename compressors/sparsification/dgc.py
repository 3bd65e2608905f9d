"""What if momentum is kept on the worker, and only its accumulated large elements are sent? DGC.

For each tensor with more than one dimension, with momentum u and velocity v:
    u = m u + g,  v = v + u               (Nesterov: u = m (u + g),  v = v + u + g)
    send { i : |v_i| >= threshold };  v = 0 there and, with momentum factor masking, u = 0
The threshold is the k-th largest of a strided sample of |v| (from a random start). When more
than 1.3 k elements pass it, an exact selection among them follows; when fewer than 0.8 k pass,
it is lowered by 0.8 and tried again, up to ten times. What is then more than k is cut to the
first k by position, so a message never holds more than k elements.

Tensors with one dimension (biases, normalisation) are all-reduced densely, and momentum is
applied to their mean: u = m u + mean, update u (Nesterov: u = m (u + mean), update u + mean).
The optimiser must then apply no momentum of its own; weight decay is the optimiser's matter.

Assumes that local clipping, when on, limits each tensor's norm to clip_norm / sqrt(N).

Source: Y. Lin et al., "Deep gradient compression", ICLR 2018; sampling, bounds and warm-up as in
the authors' code (github.com/synxlin/deep-gradient-compression), with 32-bit indices.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket, TensorSlice
from gcsim.compressors.coding.index_coding import IndexCoding, choose_coder
from gcsim.compressors.coding.selection import at_least, count_kept, largest
from gcsim.compressors.coding.sparse import ValueFormat, add_message, pack_sparse, travelling
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.random import stream
from gcsim.compressors.requests import AllReduce, Exchange, gather_variable

if TYPE_CHECKING:
    from torch import Tensor

UPPER, LOWER = 1.3, 0.8
"""Counts beyond these multiples of k are corrected."""
ROUNDS = 10


class DeepGradientCompression(Compressor):
    """Momentum-corrected sparse accumulation with a sampled threshold."""

    class Parameters(CompressorParameters):
        """Hyper-parameters of DGC."""

        ratio: Ratio = Field(0.001, description="kept fraction of each tensor, after warm-up")
        momentum: float = Field(0.9, ge=0.0, lt=1.0, description="momentum coefficient")
        nesterov: bool = Field(False, description="Nesterov's form of the momentum")
        factor_masking: bool = Field(True, description="clear the momentum of sent elements")
        clip_norm: float | None = Field(
            None, gt=0.0, description="clip each local gradient to this norm / sqrt(workers)"
        )
        sample_ratio: Ratio = Field(0.01, description="fraction sampled for the threshold")
        warmup_epochs: int = Field(0, ge=0, description="epochs with a larger ratio")
        steps_per_epoch: int = Field(1, ge=1, description="steps in an epoch of the warm-up")
        values: ValueFormat = Field("fp32", description="format of the values on the wire")
        indices: IndexCoding = Field("raw", description="how indices travel: raw is 32 bits each")

    about = About(
        title="Deep Gradient Compression",
        family="sparsification",
        collective="all-gather of unequal messages; all-reduce for one-dimensional tensors",
        bits="ratio * (32 + bits per index)",
        unbiased=False,
        state="momentum (n), velocity (n)",
        paper="Lin et al., Deep Gradient Compression, ICLR 2018",
    )

    def __init__(self, worker: Worker, parameters: DeepGradientCompression.Parameters) -> None:
        super().__init__(worker, parameters)
        self.parameters = parameters
        self.u: dict[int, Tensor] = {}
        """Momentum by tensor, float32, flat."""
        self.v: dict[int, Tensor] = {}
        """Velocity: momentum accumulated since an element was last sent."""

    @classmethod
    def momentum(cls, parameters: CompressorParameters) -> tuple[float, bool]:
        """See `Compressor.momentum`."""
        assert isinstance(parameters, cls.Parameters)
        return parameters.momentum, parameters.nesterov

    @classmethod
    def settled(cls, parameters: CompressorParameters) -> int:
        """See `Compressor.settled`: the warm-up is over."""
        assert isinstance(parameters, cls.Parameters)
        return parameters.warmup_epochs * parameters.steps_per_epoch

    def ratio(self, step: int) -> float:
        """The kept fraction at a step: ratio^((i+1)/(E+1)) in epoch i of E warm-up epochs."""
        epochs = self.parameters.warmup_epochs
        epoch = step // self.parameters.steps_per_epoch
        final = self.parameters.ratio
        return float(final if epoch >= epochs else final ** ((epoch + 1) / (epochs + 1)))

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Mean over workers of the velocity that each sent, float32 `[n]`."""
        pieces = list(bucket.layout.views(bucket.gradient))
        dense = [(piece, part) for piece, part in pieces if len(piece.shape) <= 1]
        sparse = [(piece, part) for piece, part in pieces if len(piece.shape) > 1]
        update = torch.zeros_like(bucket.gradient)
        scale = 1.0 / self.worker.count

        if dense:
            small = torch.cat([self._clipped(part) for _, part in dense])
            total: Tensor = yield AllReduce(tensor=small)
            means = torch.split(total.mul_(scale), [piece.numel for piece, _ in dense])
            for (piece, _), mean in zip(dense, means, strict=True):
                part = update[piece.offset : piece.offset + piece.numel]
                part.copy_(self._momentum(piece, mean))
        if sparse:
            frames = [self._encode(piece, part, step) for piece, part in sparse]
            payloads = yield from gather_variable(torch.cat(frames))
            layout = replace(bucket.layout, slices=tuple(piece for piece, _ in sparse))
            for payload in payloads:
                add_message(update, layout, payload, scale)
        return update

    def _momentum(self, piece: TensorSlice, gradient: Tensor) -> Tensor:
        """Dense SGD's momentum, in place; what it adds to the update (or to the velocity)."""
        m = self.parameters.momentum
        u = self.u.get(piece.index)
        if u is None:
            u = self.u[piece.index] = torch.zeros_like(gradient)
        if self.parameters.nesterov:
            return u.add_(gradient).mul_(m) + gradient
        return u.mul_(m).add_(gradient)

    def _encode(self, piece: TensorSlice, gradient: Tensor, step: int) -> Tensor:
        accumulated = self._momentum(piece, self._clipped(gradient))
        v = self.v.get(piece.index)
        if v is None:
            v = self.v[piece.index] = accumulated.clone()
        else:
            v.add_(accumulated)
        ratio = self.ratio(step)
        indices = self._select(v, piece, step, ratio)
        values = v[indices]
        sent = travelling(values, self.parameters.values)
        v[indices] = values - sent.float()
        if self.parameters.factor_masking:
            self.u[piece.index].index_fill_(0, indices, 0.0)
        coder = choose_coder(self.parameters.indices, piece.numel, indices.numel())
        return pack_sparse(sent, indices, piece.numel, coder)

    def _clipped(self, gradient: Tensor) -> Tensor:
        if self.parameters.clip_norm is None:
            return gradient
        limit = self.parameters.clip_norm / math.sqrt(self.worker.count)
        norm: Tensor = torch.linalg.vector_norm(gradient)
        return gradient * (limit / norm.clamp_min(limit))

    def _select(self, v: Tensor, piece: TensorSlice, step: int, ratio: float) -> Tensor:
        """Ascending indices of at most k elements, about the k largest |v|."""
        n = v.numel()
        k = count_kept(n, ratio)
        stride = sample_stride(n, ratio, self.parameters.sample_ratio)
        if stride == 1 or k == n:
            return largest(v, k)
        start = int(
            stream(self.worker.seed, step, piece.index, "dgc", self.worker.rank).integers(stride)
        )
        sample = v[start::stride].contiguous()
        top = largest(sample, min(sample.numel(), math.ceil(sample.numel() * ratio)))
        threshold = float(sample[top].abs().min())
        for _ in range(ROUNDS):
            indices = at_least(v, threshold)
            if indices.numel() >= LOWER * k:
                break
            threshold *= LOWER
        if indices.numel() > UPPER * k:
            indices = indices[largest(v[indices], k)]
        return indices[:k]


def sample_stride(n: int, ratio: float, sample_ratio: float) -> int:
    """The largest odd stride that yields max(sample_ratio * n, 2 / ratio) samples; 1 takes all.

    Odd, so that it is not in step with the rows of a weight matrix.
    """
    wanted = max(math.ceil(n * sample_ratio), math.ceil(2 / ratio))
    return max(1, (n // wanted - 1) | 1)
