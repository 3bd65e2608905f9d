"""Qsparse-local-SGD: workers take local steps and exchange only the largest changes.

H local steps of momentum SGD (heavy ball, u = m u + g), then one exchange: with a = e + the sum of
the H local directions, each worker sends Q(TopK(a)), keeps e = a - decoded, and every replica moves
to x_sync - lr * mean(decoded). Other steps exchange nothing.

A local step returns u; the synchronising step returns mean(decoded) minus the directions applied in
the round, so that replicas are equal again (up to float32 rounding). **The learning rate must be
constant within a round**, and the optimiser plain SGD without momentum.

Q: the kept values, in order of their index, form buckets of 512, each with its maximum (or
Euclidean norm) as norm; they are rounded at random to 127 levels: one byte of sign and magnitude.
`bucket: null` is the paper's single norm per tensor, which rounds nearly all of a large tensor to
zero: beta = min(d / s^2, sqrt(d) / s), for d values per norm and s levels, is 17 for 4.9 M kept
values and .032 by default. The paper's SignTopK, and its division by 1 + beta, are left out.

With T = the energy of the k largest values, for one tensor without memory:
    E|v - Q|^2 <= |v|^2 - (1 - beta) T,   T >= k/n |v|^2.

Bits per tensor and round: k (8 + index) + 32 ceil(k / 512), for norms, a byte per value and coded
indices; the frame's params hold the bucket. With ratio .08 and Rice-coded gaps (5.05 bits) that is
1.049 bits per element, 3.28 % of float32. `interval: payload` is the H nearest to 1 % of float32
overall: 3 (1.09 %) with Rice, 5 with a bitmap, 9 with packed indices of 26 bits, 10 with raw ones.
`interval: values` counts only the values, as comparisons in the literature do: 2.

Source: D. Basu, D. Data, C. Karakus, S. Diggavi, "Qsparse-local-SGD: Distributed SGD with
Quantization, Sparsification, and Local Computations", NeurIPS 2019, arXiv:1906.02367.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.frames import Codec, packed, read
from gcsim.compressors.coding.indices.index_coding import (
    IndexCoding,
    choose_coder,
    chosen_coders,
    coded_positions,
    decoded_positions,
    expected_bits,
)
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.momentum import local_step
from gcsim.compressors.coding.rounding.levels import add_rounded, even, round_levels
from gcsim.compressors.coding.rounding.norms import Norm, cell_norms
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import count_kept, counts_kept, flat_places
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import kernel
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments, keys_of
from gcsim.compressors.sharing import is_shared, once

STEPS = 127
VALUE_BUCKET = 512
"""Number of kept values that share a norm."""
_LEVELS = np.arange(256) - STEPS
SIGN_MAGNITUDE = (np.abs(_LEVELS) | (_LEVELS < 0) << 7).astype(np.uint8)
CODES = (STEPS + np.where(_LEVELS <= 0, 1, -1) * (np.arange(256) & STEPS)).astype(np.uint8)
_LARGE = 1 << 26
"""Elements of the network that the interval presets assume (AlexNet: 61 M)."""


class QsparseLocalSgdParameters(CompressorParameters):
    ratio: Ratio = Field(0.08, description="fraction of a tensor's elements to send")
    interval: Annotated[int, Field(ge=1)] | Literal["payload", "values"] = Field(
        "payload",
        description="steps between synchronisations (H); payload: as many as send about 1 % of "
        "float32's bits (3 by default); values: the same, without counting indices (2)",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="heavy-ball momentum on each worker (m)")
    norm: Norm = Field("max", description="norm of a bucket: largest magnitude or l2")
    bucket: int | None = Field(
        VALUE_BUCKET, ge=1, le=65535, description="sent values per norm; null: one norm per tensor"
    )
    indices: IndexCoding = Field("rice", description="index coding (raw: 32 bits, auto: shortest)")

    @property
    def steps(self) -> int:
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
    def phase(cls, parameters: QsparseLocalSgdParameters, step: int) -> str:
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
        update = local_step(bucket.gradient, momentum, applied, m, error=error)  # `error` is a now
        message = self.encode(error, bucket.layout, step)
        add_decoded(message, bucket.layout, error, -1.0)
        payloads = yield from gather_variable(message)
        weight = 1.0 / self.worker.count
        if is_shared(payloads):  # decode once for all workers, then add to each worker's vector
            for indices, values in once(decoded, payloads, bucket.layout, weight):
                update.index_add_(0, indices, values)
            return update
        for payload in payloads:  # -applied + the mean of all messages
            add_decoded(payload, bucket.layout, update, weight)
        return update

    def encode(self, vector: Tensor, layout: BucketLayout, step: int) -> Tensor:
        """Encode Q(TopK(v)) of a float32 `[layout.numel]`: uint8, one frame per tensor."""
        chosen, worker, segments = self.parameters, self.worker, Segments.of(layout)
        k = counts_kept(segments.length, chosen.ratio)
        indices, values = largest(vector, segments, k)  # [sum of k]
        keys = keys_of(layout, worker.seed, step, "qsparse rounding", worker.rank)
        coders, kept = chosen_coders(chosen.indices, segments, k), Segments.behind(k)
        coded, tail = coded_positions(indices, segments, k, coders)
        cells = kept.cells(chosen.bucket)
        norms, codes = (
            cell_norms(values, cells, chosen.norm),
            torch.empty_like(values, dtype=torch.uint8),
        )
        round_levels(values, even(cells, norms, STEPS), keys, codes, kept.begin, fixed(8))
        parts = (norms, 4 * cells.count), (to_sign_magnitude(codes), k), (coded, tail)
        row: dict[str, Any] = {"nonzero": k, "flags": coders, "params": chosen.bucket or 0}
        return packed(values, Codec.QSPARSE, segments, *parts, **row)

    @classmethod
    def properties(cls, parameters: QsparseLocalSgdParameters) -> Properties:
        """Return the properties; a local first step applies the gradient unchanged."""

        def bound(vector: Tensor) -> float:
            if parameters.steps > 1:
                return 0.0
            sizes = vector.double().abs()
            k = count_kept(vector.numel(), parameters.ratio)
            top = sizes.topk(k).values
            kept = (1.0 - beta(min(parameters.bucket or k, k))) * float(top.square().sum())
            return float(sizes.square().sum()) - kept

        return Properties(error_bound=bound, conserves=True, replicas="meet")


def beta(d: int) -> float:
    """Return the bound on the quantiser's variance relative to |v|^2, for d values per norm."""
    return min(d / STEPS**2, math.sqrt(d) / STEPS)


@kernel("streaming", name="qsparse_messages.to_sign_magnitude")
def to_sign_magnitude(codes: Tensor) -> Tensor:
    """Convert codes q + 127 to bytes with the sign in bit 7 (1 = negative) and |q| below it."""
    return _looked_up(SIGN_MAGNITUDE, codes)


@kernel("streaming", name="qsparse_messages.from_sign_magnitude")
def from_sign_magnitude(stored: Tensor) -> Tensor:
    """Undo `to_sign_magnitude`: return uint8 q + 127."""
    return _looked_up(CODES, stored)


def _looked_up(table: NDArray[np.uint8], codes: Tensor) -> Tensor:
    return torch.from_numpy(table).to(codes.device)[codes.int()]


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * kept values to `out` in place; `InputError` for a damaged or foreign message."""
    places, values = _read(message, layout, weight)
    out.index_add_(0, places, values)


def decoded(
    payloads: Iterable[Tensor], layout: BucketLayout, weight: float
) -> list[tuple[Tensor, Tensor]]:
    """Return (positions in the bucket, int64; weight * values, float32) of each message."""
    return [_read(payload, layout, weight) for payload in payloads]


def _read(message: Tensor, layout: BucketLayout, weight: float) -> tuple[Tensor, Tensor]:
    segments, found = Segments.of(layout), read(message, layout, Codec.QSPARSE)
    k = found.nonzero
    kept = Segments.behind(k)
    cells = kept.cells(found.alike("params") or None)
    head = 4 * cells.count
    tail = found.size - head - k
    if (tail < 0).any():
        raise damaged(f"bodies of {found.size.tolist()} bytes for {k.tolist()} kept values")
    parts = (head, torch.float32), (k, torch.uint8), (tail, torch.uint8)
    norms, stored, coded = found.parts(message, *parts)
    values = torch.zeros(int(k.sum()), device=message.device)
    codes = from_sign_magnitude(stored)
    add_rounded(values, even(cells, norms, STEPS), codes, kept.begin, fixed(8), weight)
    indices = decoded_positions(coded, segments, tail, k, found.flags)
    return flat_places(indices, segments, k), values
