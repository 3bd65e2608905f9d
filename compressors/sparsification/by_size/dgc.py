"""DGC: workers accumulate momentum locally and send only its largest elements.

For each tensor with more than one dimension, with momentum u and velocity v:
    u = m u + g,  v = v + u               (Nesterov: u = m (u + g),  v = v + u + g)
    send { i : |v_i| >= threshold };  v = 0 there and, with momentum factor masking, u = 0
The threshold is estimated from a strided sample of |v| (from a random start). If more than 1.3 k
elements pass it, an exact selection among them follows (`resample`), or it is raised by a factor of
1.3 and tried again (`rescale`); if fewer than 0.8 k pass, it is lowered by a factor of 0.8 and
tried again; up to ten times. A larger number is then cut to the first k by position, as in the
authors' code: a message never holds more than k elements, but may lack the largest, and for any v
only |Q(v) - v|^2 <= |v|^2 holds.

Tensors with one dimension (biases, normalisation) are all-reduced densely, and momentum is applied
to their mean: u = m u + mean, update u (Nesterov: u = m (u + mean), update u + mean). The optimiser
must then apply no momentum, but still applies weight decay.

In epoch i of E warm-up epochs the kept fraction is ratio^((i+1)/(E+1)) (the authors' code) or 25,
6.25, 1.5625, 0.4 % (`warmup: paper`). Bits per tensor: k (32 + bits per index). Without factor
masking (or without momentum) the sum of the updates and of v is the sum of dense SGD's momentum;
masking discards momentum.

Local clipping, if on, limits each tensor's norm to clip_norm / sqrt(N). Kernels process a bucket;
the authors' code launches them per parameter.

Source: Y. Lin et al., "Deep gradient compression", ICLR 2018, arXiv:1712.01887; sampling, bounds
and warm-up as in the authors' code (github.com/synxlin/deep-gradient-compression), with 32-bit
indices.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import (
    About,
    Compressor,
    CompressorParameters,
    Properties,
    Ratio,
    add_all,
)
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.coding.frames import put
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.momentum import add_momentum
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.marks import UPPER, Limits, adjust
from gcsim.compressors.coding.selecting.selection import counts_kept, kth_magnitude, sampled
from gcsim.compressors.coding.sparse import ValueFormat, add_message, energy, sparse_message
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.compressors.requests import AllReduce, Exchange, gather_variable
from gcsim.compressors.segments import Column, Segments
from gcsim.compressors.sharing import fill_once

PAPER_WARMUP = (0.25, 0.0625, 0.015625, 0.004)
"""Kept fractions of the first epochs, before the final ratio."""


class DgcParameters(CompressorParameters):
    ratio: Ratio = Field(0.001, description="fraction of a tensor's elements to send after warm-up")
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="momentum on each worker (m)")
    nesterov: bool = Field(False, description="use Nesterov instead of heavy-ball momentum")
    factor_masking: bool = Field(True, description="clear the momentum of sent elements")
    clip_norm: float | None = Field(
        None, gt=0.0, description="clip each tensor to this norm / sqrt(workers); null: never clip"
    )
    sample_ratio: Ratio = Field(0.01, description="fraction of elements sampled for the threshold")
    too_many: Literal["resample", "rescale"] = Field(
        "resample",
        description="when more than 1.3 k elements pass: select the k largest of them, or raise "
        "the threshold by a factor of 1.3 and retry",
    )
    warmup: Literal["geometric", "paper"] = Field(
        "geometric", description="ratio in epoch i: ratio^((i+1)/(E+1)), or 25, 6.25, 1.56, 0.4 %"
    )
    warmup_epochs: int = Field(0, ge=0, description="warm-up epochs, with a larger ratio (E)")
    steps_per_epoch: int = Field(1, ge=1, description="steps per warm-up epoch")
    values: ValueFormat = Field("fp32", description="format of the values on the wire")
    indices: IndexCoding = Field("raw", description="index coding (raw: 32 bits, auto: shortest)")


class DeepGradientCompression(Compressor[DgcParameters]):
    about = About(
        title="Deep Gradient Compression",
        family="sparsification",
        collective="all-gather of unequal messages; all-reduce for one-dimensional tensors",
        bits="ratio * (32 + bits per index)",
        state="momentum (n), velocity (n)",
        paper="Lin et al., Deep Gradient Compression, ICLR 2018",
    )

    @classmethod
    def momentum(cls, parameters: DgcParameters) -> tuple[float, bool]:
        return parameters.momentum, parameters.nesterov

    @classmethod
    def warmup_steps(cls, parameters: DgcParameters) -> int:
        return parameters.warmup_epochs * parameters.steps_per_epoch

    def ratio(self, step: int) -> float:
        """Return the kept fraction at a step."""
        final, epochs = self.parameters.ratio, self.parameters.warmup_epochs
        epoch = step // self.parameters.steps_per_epoch
        if epoch >= epochs:
            return final
        if self.parameters.warmup == "geometric":
            return float(final ** ((epoch + 1) / (epochs + 1)))
        return max(final, PAPER_WARMUP[epoch]) if epoch < len(PAPER_WARMUP) else final

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Return the mean over workers of the velocities that they sent: float32 `[n]`."""
        dense, sparse = _by_dimensions(bucket.layout)
        gradient, update = self._clipped(bucket), torch.zeros_like(bucket.gradient)
        scale = 1.0 / self.worker.count
        if dense:  # biases and the like share one all-reduce
            parts = [piece.of(gradient) for piece in dense.slices]
            total: Tensor = yield AllReduce(tensor=torch.cat(parts))
            mean, own = self._momentum(bucket, total.mul_(scale)), Segments.of(dense)
            put(update.view(torch.uint8), 4 * own.begin, mean, 4 * own.length)
        if sparse:
            # momentum, and velocity: the momentum accumulated since an element was last sent
            u, v = self.kept("momentum", bucket), self.kept("velocity", bucket)
            message = self._encode(u, v, gradient, sparse, step)
            payloads = yield from gather_variable(message)
            fill_once(add_all, payloads, update, add_message, sparse, scale, {})
        return update

    def _clipped(self, bucket: Bucket) -> Tensor:
        if self.parameters.clip_norm is None:
            return bucket.gradient
        limit = self.parameters.clip_norm / math.sqrt(self.worker.count)
        gradient = bucket.gradient.clone()
        parts = [part for _, part in bucket.layout.views(gradient)]
        norms = torch._foreach_norm(parts)
        torch._foreach_mul_(parts, [limit / norm.clamp_min(limit) for norm in norms])
        return gradient

    def _momentum(self, bucket: Bucket, mean: Tensor) -> Tensor:
        """Apply momentum to the one-dimensional tensors; return their part of the update."""
        m = self.parameters.momentum
        u = self.state["dense"].setdefault(bucket.layout.index, torch.zeros_like(mean))
        if self.parameters.nesterov:
            return u.add_(mean).mul_(m) + mean
        return u.mul_(m).add_(mean)

    def _encode(
        self, u: Tensor, v: Tensor, gradient: Tensor, layout: BucketLayout, step: int
    ) -> Tensor:
        """Update u and v; encode about the k largest |v| of each tensor."""
        chosen, segments = self.parameters, Segments.of(layout)
        k = counts_kept(segments.length, self.ratio(step))  # [tensors]
        limits = self._limits(u, v, gradient, layout, step, k)
        marks = add_momentum(u, v, gradient, segments, chosen.momentum, chosen.nesterov, limits)
        adjust(v, segments, marks, k, raised=chosen.too_many == "rescale")
        ranked = np.isinf(marks.up)  # those without a sample
        if chosen.too_many == "resample":
            ranked |= marks.passed > UPPER * k
        sent = np.where(ranked, k, np.minimum(marks.passed, k))
        cleared = [v] * (chosen.values == "fp32") + [u] * chosen.factor_masking
        indices, values = largest(v, segments, sent, marks=marks, ranked=ranked, cleared=cleared)
        return sparse_message(
            segments, sent, indices, values, values_as=chosen.values, coding=chosen.indices,
            memory=v,
        )[0]  # fmt: skip

    def _limits(
        self, u: Tensor, v: Tensor, gradient: Tensor, layout: BucketLayout, step: int, k: Column
    ) -> Limits:
        """Return thresholds from samples of the next velocity; infinite to rank all elements."""
        chosen, segments, ratio = self.parameters, Segments.of(layout), self.ratio(step)
        lengths, me = segments.length.tolist(), self.worker
        strides = np.array([sample_stride(n, ratio, chosen.sample_ratio) for n in lengths])
        some = (strides > 1) & (k < segments.length)
        if not some.any():
            return np.inf
        start = segments.column(0).copy()
        for t in np.flatnonzero(some):
            rng = stream(me.seed, step, layout.slices[t].index, "dgc", me.rank)
            start[t] = rng.integers(strides[t])
        count = np.where(some, -(-(segments.length - start) // strides), 0)
        given = v, gradient, segments, start, strides, count
        sample = sampled(*given, momentum=u, m=chosen.momentum, nesterov=chosen.nesterov)
        top = np.minimum(count, np.ceil(count * ratio).astype(np.int64))
        return kth_magnitude(sample, Segments.behind(count), top)

    @classmethod
    def properties(cls, parameters: DgcParameters) -> Properties:
        plain = parameters.clip_norm is None and not parameters.nesterov
        return Properties(
            error_bound=energy if plain else None,
            conserves=parameters.clip_norm is None
            and (parameters.momentum == 0 or not parameters.factor_masking),
        )

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self.kept("velocity", bucket).clone()


def sample_stride(n: int, ratio: float, sample_ratio: float) -> int:
    """Return the largest odd stride with max(sample_ratio * n, 2 / ratio) samples; 1 takes all. It
    is odd so that it does not align with the rows of a weight matrix."""
    wanted = max(math.ceil(n * sample_ratio), math.ceil(2 / ratio))
    return max(1, (n // wanted - 1) | 1)


def _by_dimensions(layout: BucketLayout) -> tuple[BucketLayout | None, BucketLayout | None]:
    """Return layouts of the tensors with at most one dimension and of the others, if any."""
    if _by_dimensions not in layout.facts:
        found: list[list[TensorSlice]] = [[], []]
        for piece in layout.slices:
            found[len(piece.shape) > 1].append(piece)
        both = [replace(layout, slices=tuple(own)) if own else None for own in found]
        layout.facts[_by_dimensions] = tuple(both)
    pair: tuple[BucketLayout | None, BucketLayout | None] = layout.facts[_by_dimensions]
    return pair
