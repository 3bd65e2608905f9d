"""What if momentum is kept on the worker, and only its accumulated large elements are sent? DGC.

For each tensor with more than one dimension, with momentum u and velocity v:
    u = m u + g,  v = v + u               (Nesterov: u = m (u + g),  v = v + u + g)
    send { i : |v_i| >= threshold };  v = 0 there and, with momentum factor masking, u = 0
The threshold is the k-th largest of a strided sample of |v| (from a random start). When more
than 1.3 k elements pass it, an exact selection among them follows (`resample`) or it is raised by
1.3 and tried again (`rescale`); when fewer than 0.8 k pass, it is lowered by 0.8 and tried again;
up to ten times. What is then more than k is cut to the first k by position, as in the authors'
code, so a message never holds more than k elements; that the largest are among them is not
certain, and |Q(v) - v|^2 <= |v|^2 is all that holds for any v.

Tensors with one dimension (biases, normalisation) are all-reduced densely, and momentum is
applied to their mean: u = m u + mean, update u (Nesterov: u = m (u + mean), update u + mean).
The optimiser must then apply no momentum of its own; weight decay is the optimiser's matter.

In epoch i of E warm-up epochs the kept fraction is ratio^((i+1)/(E+1)) (the authors' code) or
25, 6.25, 1.5625, 0.4 % (`warmup: paper`). k (32 + bits per index) bits a tensor at most.

Without factor masking (or without momentum) the sum of the updates and of v is the sum of dense
SGD's momentum; masking gives momentum up.

Assumes that local clipping, when on, limits each tensor's norm to clip_norm / sqrt(N).

Its price on a GPU is that of kernels over all tensors of a bucket (`meter.batched`); the authors'
code launches its own for each parameter, from the parameter's hook.

Source: Y. Lin et al., "Deep gradient compression", ICLR 2018, arXiv:1712.01887;
sampling, bounds and warm-up as in the authors' code (github.com/synxlin/deep-gradient-compression),
with 32-bit indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import (
    About,
    Compressor,
    CompressorParameters,
    Ratio,
    Worker,
    add_all,
)
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.coding.frame import of_bucket
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.selecting.marks import (
    BLOCK,
    Marks,
    mark,
    mark_block,
    new_marks,
    take,
)
from gcsim.compressors.coding.selecting.selection import count_kept, kth_magnitude, take_largest
from gcsim.compressors.coding.sparse import (
    ValueFormat,
    add_message,
    energy,
    pack_sparse,
    travelling,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import stream
from gcsim.compressors.requests import AllReduce, Exchange, gather_variable
from gcsim.compressors.sharing import fill_once

UPPER, LOWER = 1.3, 0.8
"""Counts beyond these multiples of k are corrected."""
ROUNDS = 10
PAPER_WARMUP = (0.25, 0.0625, 0.015625, 0.004)
"""Kept fractions of the first epochs; the ratio itself follows."""


class DgcParameters(CompressorParameters):
    ratio: Ratio = Field(0.001, description="kept fraction of each tensor, after warm-up")
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="momentum coefficient")
    nesterov: bool = Field(False, description="Nesterov's form of the momentum")
    factor_masking: bool = Field(True, description="clear the momentum of sent elements")
    clip_norm: float | None = Field(
        None, gt=0.0, description="clip each local gradient to this norm / sqrt(workers)"
    )
    sample_ratio: Ratio = Field(0.01, description="fraction sampled for the threshold")
    too_many: Literal["resample", "rescale"] = Field(
        "resample",
        description="when more than 1.3 k pass: select the k largest of them, or raise the "
        "threshold by 1.3 and try again",
    )
    warmup: Literal["geometric", "paper"] = Field(
        "geometric", description="kept fractions: ratio^((i+1)/(E+1)), or 25, 6.25, 1.56, 0.4 %"
    )
    warmup_epochs: int = Field(0, ge=0, description="E, epochs with a larger ratio")
    steps_per_epoch: int = Field(1, ge=1, description="steps in an epoch of the warm-up")
    values: ValueFormat = Field("fp32", description="format of the values on the wire")
    indices: IndexCoding = Field("raw", description="how indices travel: raw is 32 bits each")


class DeepGradientCompression(Compressor[DgcParameters]):
    """Momentum-corrected sparse accumulation with a sampled threshold."""

    about = About(
        title="Deep Gradient Compression",
        family="sparsification",
        collective="all-gather of unequal messages; all-reduce for one-dimensional tensors",
        bits="ratio * (32 + bits per index)",
        state="momentum (n), velocity (n)",
        paper="Lin et al., Deep Gradient Compression, ICLR 2018",
    )

    def __init__(self, worker: Worker, parameters: DgcParameters) -> None:
        super().__init__(worker, parameters)
        self.u: dict[int, Tensor] = {}
        """Momentum by tensor, float32, flat."""
        self.v: dict[int, Tensor] = {}
        """Velocity: momentum accumulated since an element was last sent."""

    @classmethod
    def momentum(cls, parameters: DgcParameters) -> tuple[float, bool]:
        return parameters.momentum, parameters.nesterov

    @classmethod
    def warmup_steps(cls, parameters: DgcParameters) -> int:
        """See `Compressor.warmup_steps`: the warm-up is over."""
        return parameters.warmup_epochs * parameters.steps_per_epoch

    def ratio(self, step: int) -> float:
        """The kept fraction at a step."""
        final, epochs = self.parameters.ratio, self.parameters.warmup_epochs
        epoch = step // self.parameters.steps_per_epoch
        if epoch >= epochs:
            return final
        if self.parameters.warmup == "geometric":
            return float(final ** ((epoch + 1) / (epochs + 1)))
        return max(final, PAPER_WARMUP[epoch]) if epoch < len(PAPER_WARMUP) else final

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Mean over workers of the velocity that each sent, float32 `[n]`."""
        pieces = list(bucket.layout.views(bucket.gradient))
        dense = [(piece, part) for piece, part in pieces if len(piece.shape) <= 1]
        sparse = [(piece, part) for piece, part in pieces if len(piece.shape) > 1]
        update = torch.zeros_like(bucket.gradient)
        scale = 1.0 / self.worker.count

        if dense:  # biases and the like: one all-reduce of all of them
            small = torch.cat([self._clipped(part) for _, part in dense])
            total: Tensor = yield AllReduce(tensor=small)
            means = torch.split(total.mul_(scale), [piece.numel for piece, _ in dense])
            for (piece, _), mean in batched(zip(dense, means, strict=True)):
                piece.of(update).copy_(self._momentum(piece, mean))
        if sparse:
            layout = replace(bucket.layout, slices=tuple(piece for piece, _ in sparse))
            message = encoded([part for _, part in sparse], layout, step, self)
            payloads = yield from gather_variable(message)
            fill_once(add_all, payloads, update, add_message, layout, scale, {})
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

    def states_of(self, piece: TensorSlice, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """u and v of a tensor, zeros before its first step."""
        for state in (self.u, self.v):
            if piece.index not in state:
                state[piece.index] = torch.zeros_like(gradient)
        return self.u[piece.index], self.v[piece.index]

    def encode(self, piece: TensorSlice, gradient: Tensor, step: int) -> Tensor:
        """A tensor's frame; its states are brought on."""
        u, v = self.states_of(piece, gradient)
        indices, values = self._select(piece, self._clipped(gradient), step)
        sent = travelling(values, self.parameters.values)
        if sent.dtype == values.dtype:  # u, v are [n], values and sent [k]
            v.index_fill_(0, indices, 0.0)
        else:
            v.index_copy_(0, indices, values - sent.float())
        if self.parameters.factor_masking:
            u.index_fill_(0, indices, 0.0)
        return pack_sparse(sent, indices, piece.numel, self.parameters.indices)

    def _clipped(self, gradient: Tensor) -> Tensor:
        if self.parameters.clip_norm is None:
            return gradient
        limit = self.parameters.clip_norm / math.sqrt(self.worker.count)
        norm: Tensor = torch.linalg.vector_norm(gradient)
        return gradient * (limit / norm.clamp_min(limit))

    def _select(self, piece: TensorSlice, gradient: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Add the gradient to momentum and velocity; (ascending indices, values) of at most k
        elements, about the k largest |v|."""
        chosen = self.parameters
        u, v = self.u[piece.index], self.v[piece.index]
        ratio = self.ratio(step)
        k = count_kept(piece.numel, ratio)
        sampled = self.sample_of(piece, step)
        if sampled is None:
            add_momentum(u, v, gradient, chosen.momentum, chosen.nesterov, math.inf)
            return take_largest(v, k, clear=False)
        parts = [whole[sampled] for whole in (u, v, gradient)]
        sample = _next_velocity(parts, chosen.momentum, chosen.nesterov)  # [about n / stride]
        top = math.ceil(sample.numel() * ratio)
        threshold = kth_magnitude(sample, min(sample.numel(), top))
        marks = add_momentum(u, v, gradient, chosen.momentum, chosen.nesterov, threshold)
        for _ in range(ROUNDS):  # of a sample's threshold that lets too many pass, or too few
            factor = self.another(threshold, marks.total, k)
            if factor is None:
                break
            threshold *= factor
            marks = mark(v, threshold)
        if chosen.too_many == "resample" and marks.total > UPPER * k:
            return take_largest(v, k, marks, clear=False)
        indices, values = take(v, marks)
        return indices[:k], values[:k]

    def sample_of(self, piece: TensorSlice, step: int) -> slice | None:
        """Which elements of a tensor are sampled; None where all are looked at."""
        n, ratio = piece.numel, self.ratio(step)
        stride = sample_stride(n, ratio, self.parameters.sample_ratio)
        if stride == 1 or count_kept(n, ratio) == n:
            return None
        rng = stream(self.worker.seed, step, piece.index, "dgc", self.worker.rank)
        return slice(int(rng.integers(stride)), None, stride)

    def another(self, threshold: float, passed: int, k: int) -> float | None:
        """What a threshold that so many pass, where k are wanted, is multiplied by; None: it stays
        as it is."""
        many = passed > UPPER * k
        if threshold == 0.0 or not (many or passed < LOWER * k):
            return None
        if many and self.parameters.too_many == "resample":
            return None
        return UPPER if many else LOWER

    @classmethod
    def properties(cls, parameters: DgcParameters) -> Properties:
        plain = parameters.clip_norm is None and not parameters.nesterov
        return Properties(
            error_bound=energy if plain else None,
            conserves=parameters.clip_norm is None
            and (parameters.momentum == 0 or not parameters.factor_masking),
        )

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        """See `Compressor.residual_of`: the velocity of the tensors that are compressed."""
        held = torch.zeros_like(bucket.gradient)
        for piece, part in bucket.layout.views(held):
            if (v := self.v.get(piece.index)) is not None:
                part.copy_(v)
        return held


@of_bucket(file="messages.sampled")
def encoded(
    gradients: list[Tensor], layout: BucketLayout, step: int, method: DeepGradientCompression
) -> Tensor:
    """The message of tensors, which are those of the layout; their states are brought on."""
    pairs = list(zip(layout.slices, gradients, strict=True))
    # Samples and candidates are short: one selection for all tensors.
    return torch.cat([method.encode(*pair, step) for pair in batched(pairs, "selection")])


@kernel("streaming", updates=("u", "v"))
@on_device("methods.momentum")
def add_momentum(
    u: Tensor, v: Tensor, gradient: Tensor, momentum: float, nesterov: bool, threshold: float
) -> Marks:
    """u and v of one step, in place; marks |v| >= threshold in the same pass. float32 `[n]`."""
    marks = new_marks(v.numel(), threshold)
    with written_back(u) as direction, written_back(v) as velocity:
        in_parallel(
            _add_momentum, velocity.size, direction, velocity, array(gradient),
            np.float32(momentum), nesterov, marks.up, marks.down, marks.counts, marks.places,
        )  # fmt: skip
    return marks


@kernel("gather_scatter")
@on_device("methods.momentum")
def _next_velocity(parts: Sequence[Tensor], momentum: float, nesterov: bool) -> Tensor:
    """What `add_momentum` will make of parts of (u, v, gradient), for these elements only."""
    u, v, gradient = (array(part) for part in parts)  # numpy: too short for torch's threads
    m = np.float32(momentum)
    with np.errstate(over="ignore", under="ignore"):
        step = (u + gradient) * m + gradient if nesterov else u * m + gradient
        return tensor(v + step, parts[0])


@loop
def _add_momentum(
    start: int, stop: int, u: Any, v: Any, gradient: Any, momentum: Any, nesterov: bool,
    up: Any, down: Any, counts: Any, places: Any,
) -> None:  # fmt: skip
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    for first in range(start, stop, BLOCK):
        last = min(first + BLOCK, stop)
        direction, velocity, added = u[first:last], v[first:last], gradient[first:last]
        if nesterov:
            for i in range(added.size):
                step = (direction[i] + added[i]) * momentum
                direction[i] = step
                velocity[i] += step + added[i]
        else:
            for i in range(added.size):
                step = direction[i] * momentum + added[i]
                direction[i] = step
                velocity[i] += step
        row = places[first // BLOCK]
        counts[first // BLOCK] = mark_block(velocity, up, down, mask, words, row)


def sample_stride(n: int, ratio: float, sample_ratio: float) -> int:
    """The largest odd stride that yields max(sample_ratio * n, 2 / ratio) samples; 1 takes all.

    Odd, so that it is not in step with the rows of a weight matrix.
    """
    wanted = max(math.ceil(n * sample_ratio), math.ceil(2 / ratio))
    return max(1, (n // wanted - 1) | 1)
