"""Qsparse-local-SGD: workers train on their own and exchange only the largest changes.

H local steps of momentum SGD (heavy ball, u = m u + g), then one exchange: with a = e + the sum
of the H local directions, each worker sends Q(TopK(a)), keeps e = a - decoded, and every replica
moves to x_sync - lr * mean(decoded). Steps between exchange nothing.

In gradient space: a local step returns u, which the optimiser applies; the synchronising step
returns mean(decoded) minus the directions that were already applied in this round, so that all
replicas meet again (up to float32 rounding). **The learning rate must be constant within a
round**, and the optimiser plain SGD without a momentum of its own.

Q: the kept values in buckets of 512 (in order of their index), each with its maximum as norm (or
the Euclidean norm), rounded at random to 127 levels: one byte of sign and magnitude. `bucket: null`
is the paper's single norm a tensor, which rounds nearly everything of a large tensor to zero: with
beta = min(d / s^2, sqrt(d) / s) for d values of a norm and s levels, 4.9 M kept values have d / s^2
= 302, sqrt(d) / s = 17; the default .032. The paper's SignTopK, and its division by 1 + beta, are
left out.

With T = the energy of the k largest, for one tensor without memory:
    E|v - Q|^2 <= |v|^2 - (1 - beta) T,   T >= k/n |v|^2.

Bits of a tensor and round: k (8 + index) + 32 ceil(k / 512). With
ratio .08 and Rice-coded gaps (5.05 bits) that is 1.049 bits an element, 3.28 % of float32.
`interval: payload` is the H that comes nearest to 1 % of float32 overall: 3 (1.09 %) with Rice, 5
with a bitmap, 9 with packed indices of 26 bits, 10 with raw ones. `interval: values` counts the
values alone, as comparisons in the literature do: 2.

Source: D. Basu, D. Data, C. Karakus, S. Diggavi, "Qsparse-local-SGD: Distributed SGD with
Quantization, Sparsification, and Local Computations", NeurIPS 2019, arXiv:1906.02367.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.indices.index_coding import IndexCoding, choose_coder, expected_bits
from gcsim.compressors.coding.momentum import local_step
from gcsim.compressors.coding.rounding.norms import Norm
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import count_kept, counts_kept
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.local_updates.qsparse_messages import (
    VALUE_BUCKET,
    add_decoded,
    beta,
    decoded,
    encoded,
)
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments, keys_of
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
    norm: Norm = Field("max", description="norm of a bucket of kept values: max |v|, or l2")
    bucket: int | None = Field(
        VALUE_BUCKET, ge=1, le=65535, description="kept values that share a norm; null: all"
    )
    indices: IndexCoding = Field("rice", description="how the positions of kept values are coded")

    @property
    def steps(self) -> int:
        """H as a number."""
        if isinstance(self.interval, int):
            return self.interval
        bits = 8.0
        if self.interval == "payload":
            if self.bucket is not None:
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
        """Kind of step: the last step of each round synchronises."""
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
        update = local_step(bucket.gradient, momentum, applied, m, error=error)  # is a now
        message = self.encode(error, bucket.layout, step)
        add_decoded(message, bucket.layout, error, -1.0)
        payloads = yield from gather_variable(message)
        weight = 1.0 / self.worker.count
        if is_shared(payloads):  # each worker adds, to another vector, what was decoded once
            for indices, values in once(decoded, payloads, bucket.layout, weight):
                update.index_add_(0, indices, values)
            return update
        for payload in payloads:  # -applied + the mean of all messages
            add_decoded(payload, bucket.layout, update, weight)
        return update

    def encode(self, vector: Tensor, layout: BucketLayout, step: int) -> Tensor:
        """Q(TopK(v)) of each tensor of a float32 `[layout.numel]`: uint8, one frame a tensor."""
        chosen, worker, segments = self.parameters, self.worker, Segments.of(layout)
        k = counts_kept(segments.length, chosen.ratio)
        indices, values = largest(vector, segments, k)  # [sum of k]
        keys = keys_of(layout, worker.seed, step, "qsparse rounding", worker.rank)
        given = chosen.indices, chosen.norm, chosen.bucket
        return encoded(values, indices, segments, k, *given, keys)

    @classmethod
    def properties(cls, parameters: QsparseLocalSgdParameters) -> Properties:
        """Properties for the checker: a first step that is local applies the gradient as it is."""

        def bound(vector: Tensor) -> float:
            if parameters.steps > 1:
                return 0.0
            sizes = vector.double().abs()
            k = count_kept(vector.numel(), parameters.ratio)
            top = sizes.topk(k).values
            kept = (1.0 - beta(min(parameters.bucket or k, k))) * float(top.square().sum())
            return float(sizes.square().sum()) - kept

        return Properties(error_bound=bound, conserves=True, replicas="meet")
