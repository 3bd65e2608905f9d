"""Qsparse-local-SGD: what if workers train on their own and exchange only the largest changes?

H local steps of momentum SGD (heavy ball, u = m u + g), then one exchange: with a = e + the sum
of the H local directions, each worker sends Q(TopK(a)), keeps e = a - decoded, and every replica
moves to x_sync - lr * mean(decoded). Steps between exchange nothing.

In gradient space: a local step returns u, which the optimiser applies; the synchronising step
returns mean(decoded) minus the directions that were already applied in this round, so that all
replicas meet again (up to float32 rounding). **The learning rate must be constant within a
round**, and the optimiser plain SGD without a momentum of its own.

Q: the kept values in buckets of 512 (in order of their index), each with its maximum as norm (or
the Euclidean norm), rounded at random to 127 levels: one byte of sign and magnitude. `scaled`
divides by 1 + beta, beta = min(d / s^2, sqrt(d) / s) for buckets of d values and s levels, .032
here. `bucket: null` is the paper's single norm a tensor, which rounds nearly everything of a large
tensor to zero (of 4.9 M kept values, at s = 127: d / s^2 = 302, sqrt(d) / s = 17). `quantiser:
sign` is SignTopK: all kept values have the magnitude |top k|_1 / k.

With T = the energy of the k largest, for one tensor without memory:
    E|v - Q|^2 <= |v|^2 - (1 - beta) T     (levels; T >= k/n |v|^2)
                  |v|^2 - T / (1 + beta)   (levels, scaled)
                = |v|^2 - |top k|_1^2 / k  (signs)

Bits of a tensor and round: k (8 + index) + 32 ceil(k / 512), or k (1 + index) + 32 for signs. With
ratio .08 and Rice-coded gaps (5.05 bits) that is 1.049 bits an element, 3.28 % of float32.
`interval: payload` is the H that comes nearest to 1 % of float32 overall: 3 (1.09 %) with Rice, 5
with a bitmap, 9 with packed indices of 26 bits, 10 with raw ones. `interval: values` counts the
values alone, as comparisons in the literature do: 2.

Source: D. Basu, D. Data, C. Karakus, S. Diggavi, "Qsparse-local-SGD: Distributed SGD with
Quantization, Sparsification, and Local Computations", NeurIPS 2019, arXiv:1906.02367.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.indices.index_coding import IndexCoding, choose_coder, expected_bits
from gcsim.compressors.coding.rounding.levels import Norm
from gcsim.compressors.coding.selecting.selection import count_kept, scatter_add, take_largest
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.local_updates.qsparse_messages import (
    VALUE_BUCKET,
    Rounding,
    add_decoded,
    beta,
    decoded,
    pack_levels_kept,
    pack_signed_kept,
)
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.sharing import is_shared, once

_LARGE = 1 << 26
"""Elements of the network for which presets of the interval are made (AlexNet: 61 M)."""


class QsparseLocalSgdParameters(CompressorParameters):
    ratio: Ratio = Field(0.08, description="kept fraction of each tensor at a synchronisation")
    interval: Annotated[int, Field(ge=1)] | Literal["payload", "values"] = Field(
        "payload",
        description="H, steps from one synchronisation to the next; payload: 1 % of float32 "
        "overall (3 by default); values: the same, without counting indices (2)",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="m, heavy-ball momentum of local steps")
    quantiser: Literal["levels", "sign"] = Field(
        "levels", description="127 levels of a norm, or signs of the mean magnitude (SignTopK)"
    )
    norm: Norm = Field("max", description="norm of a bucket of kept values: max |v|, or l2")
    bucket: int | None = Field(
        VALUE_BUCKET, ge=1, le=65535, description="kept values that share a norm; null: all"
    )
    scaled: bool = Field(False, description="divide levels by 1 + beta, as the paper does")
    indices: IndexCoding = Field("rice", description="how the positions of kept values are coded")

    @property
    def steps(self) -> int:
        """H as a number."""
        if isinstance(self.interval, int):
            return self.interval
        bits = 1.0 if self.quantiser == "sign" else 8.0
        if self.interval == "payload":
            if self.quantiser == "levels" and self.bucket is not None:
                bits += 32 / self.bucket
            k = count_kept(_LARGE, self.ratio)
            bits += expected_bits(choose_coder(self.indices, _LARGE, k), _LARGE, k) / k
        return max(1, round(self.ratio * bits / 0.32))


class QsparseLocalSgd(ErrorFeedback[QsparseLocalSgdParameters]):
    """Local steps; sparsified and quantised model differences with memory between rounds."""

    about = About(
        title="Qsparse-local-SGD",
        family="local updates",
        collective="all-gather of unequal messages every interval steps, nothing between",
        bits="ratio (8 + 32 / 512 + index bits) / interval",
        state="momentum (n), error (n), directions of the round (n)",
        paper="Basu et al., NeurIPS 2019, arXiv:1906.02367",
    )

    @classmethod
    def period(cls, parameters: QsparseLocalSgdParameters) -> int:
        return parameters.steps

    @classmethod
    def window(cls, parameters: QsparseLocalSgdParameters) -> int:
        return cls.period(parameters)

    @classmethod
    def phase(cls, parameters: QsparseLocalSgdParameters, step: int) -> str:
        """See `Compressor.phase`: the last step of each round synchronises."""
        last = (step + 1) % cls.period(parameters) == 0
        return "synchronisation" if last else "local"

    @classmethod
    def momentum(cls, parameters: QsparseLocalSgdParameters) -> tuple[float, bool]:
        return parameters.momentum, False

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        momentum = self.kept("momentum", bucket)
        applied = self.kept("applied", bucket)
        m = self.parameters.momentum
        if self.phase(self.parameters, step) == "local":
            return local_step(bucket.gradient, momentum, applied, m)

        error = bucket_state(self.residual, bucket)
        update = last_step(bucket.gradient, momentum, applied, error, m)  # error is a now
        message = self.encode(error, bucket.layout, step)
        add_decoded(message, bucket.layout, error, -1.0)
        payloads = yield from gather_variable(message)
        weight = 1.0 / self.worker.count
        if is_shared(payloads):  # each worker adds, to another vector, what was decoded once
            for indices, values in once(decoded, payloads, bucket.layout, weight):
                scatter_add(update, indices, values)
            return update
        for payload in payloads:  # -applied + the mean of all messages
            add_decoded(payload, bucket.layout, update, weight)
        return update

    def encode(self, vector: Tensor, layout: BucketLayout, step: int) -> Tensor:
        """Q(TopK(v)) of each tensor of a float32 `[layout.numel]`: uint8, one frame a tensor."""
        chosen, worker = self.parameters, self.worker
        frames = []
        for piece, part in batched(layout.views(vector)):
            k = count_kept(piece.numel, chosen.ratio)
            indices, values = take_largest(part, k, clear=False)
            coder = choose_coder(chosen.indices, piece.numel, k)
            if chosen.quantiser == "sign":
                frames.append(pack_signed_kept(values, indices, piece.numel, coder))
                continue
            key = random_key(worker.seed, step, piece.index, "qsparse rounding", worker.rank)
            rounding = Rounding(norm=chosen.norm, bucket=chosen.bucket, scaled=chosen.scaled)
            frames.append(pack_levels_kept(values, indices, piece.numel, coder, rounding, key))
        return torch.cat(frames)

    @classmethod
    def properties(cls, parameters: QsparseLocalSgdParameters) -> Properties:
        """See `Compressor.properties`; a first step that is local applies the gradient as it is."""

        def bound(vector: Tensor) -> float:
            if parameters.steps > 1:
                return 0.0
            sizes = vector.double().abs()
            k = count_kept(vector.numel(), parameters.ratio)
            top = sizes.topk(k).values
            if parameters.quantiser == "sign":
                kept = float(top.sum()) ** 2 / max(1, k)
            else:
                loss = beta(min(parameters.bucket or k, k))
                share = 1.0 / (1.0 + loss) if parameters.scaled else 1.0 - loss
                kept = share * float(top.square().sum())
            return float(sizes.square().sum()) - kept

        return Properties(error_bound=bound, conserves=True, replicas="meet")


@kernel("streaming", updates=("momentum", "applied"))
@on_device("methods.momentum")
def local_step(gradient: Tensor, momentum: Tensor, applied: Tensor, m: float) -> Tensor:
    """u = m u + g and applied += u, in place; returns u, float32 `[n]`."""
    direction = np.empty(gradient.numel(), dtype=np.float32)
    with written_back(momentum) as u, written_back(applied) as sums:
        in_parallel(_local_step, u.size, array(gradient), u, sums, np.float32(m), direction)
    return tensor(direction, gradient)


@kernel("streaming", updates=("momentum", "applied", "error"))
@on_device("methods.momentum")
def last_step(
    gradient: Tensor, momentum: Tensor, applied: Tensor, error: Tensor, m: float
) -> Tensor:
    """u = m u + g, error += applied + u, in place; takes `applied` out: returns -applied."""
    taken = np.empty(gradient.numel(), dtype=np.float32)
    with written_back(momentum) as u, written_back(applied) as sums, written_back(error) as e:
        in_parallel(_last_step, u.size, array(gradient), u, sums, e, np.float32(m), taken)
    return tensor(taken, gradient)


@loop
def _local_step(
    start: int, stop: int, gradient: Any, momentum: Any, applied: Any, m: Any, direction: Any
) -> None:
    gradient, momentum = gradient[start:stop], momentum[start:stop]
    applied, direction = applied[start:stop], direction[start:stop]
    for i in range(gradient.size):
        u = m * momentum[i] + gradient[i]
        momentum[i] = u
        applied[i] += u
        direction[i] = u


@loop
def _last_step(
    start: int, stop: int, gradient: Any, momentum: Any, applied: Any, error: Any, m: Any,
    taken: Any,
) -> None:  # fmt: skip
    gradient, momentum = gradient[start:stop], momentum[start:stop]
    applied, error, taken = applied[start:stop], error[start:stop], taken[start:stop]
    for i in range(gradient.size):
        u = m * momentum[i] + gradient[i]
        momentum[i] = u
        error[i] += applied[i] + u
        taken[i] = -applied[i]
        applied[i] = np.float32(0)
