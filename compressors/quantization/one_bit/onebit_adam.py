"""1-bit Adam: after a warm-up Adam's variance is frozen, and its momentum is sent as signs.

Warm-up, steps before `freeze_step`: the float32 gradients are all-reduced, m = b1 m + (1 - b1) g, v
= b2 v + (1 - b2) g^2, update m / (sqrt(v) + eps).

Afterwards v is frozen. m is the same on all workers; with N workers and n elements in the bucket:

1. worker: a = b1 m + (1 - b1) g + e; signs and one scale of a; e = a - decoded;
2. all-to-all: the signs are cut into N chunks of whole bytes; the owner of a chunk averages what it
   receives, adds its own error, and codes the sum in the same way (one scale a chunk);
3. all-gather of the N coded chunks: together they are the new m; update m / (sqrt(v) + eps).

Scale: the root mean square of a (`rms`, as in the authors' code), or mean |a|. |Q(a) - a|^2 is
exactly 2 |a|^2 - 2 |a| |a|_1 / sqrt(n) for the first and |a|^2 - |a|_1^2 / n for the second: .404
and .363 of |a|^2 for N(0, 1), .842 and .665 for log-normal a. Biased. State: m, v and the worker's
error (n each), the owned chunk's error (n / N). A worker sends n + 32 N bits to the owners
(including itself) and, as an owner, n / N + 32 bits to all; chunks are rounded up to a multiple of
8 elements.

The update is m / (1 - b1), which corresponds to SGD's momentum buffer (`momentum`), so that its
quality shows only the compression; the optimiser then divides by its frozen sqrt(v) + eps. With
`update` "adam" it is Adam's direction; only its cosine is comparable with dense SGD.

A run that starts at `freeze_step` (`warmup_steps`, as simulations do) has no v; it then uses the
square of the first delivered mean gradient, m / (1 - b1), which is equal on all workers at no cost.

Assumes one scale per bucket (the authors' code: one per flattened parameter group) and no bias
correction, as in their code and algorithm. The padding of the last chunks affects neither scale nor
error, unlike theirs. Zero is sent as positive: a momentum that is always zero (unused rows of an
embedding) does not stay zero without their code's mask. Errors re-enter through the momentum, so
the sum of the updates is not conserved.

Source: H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
Convergence Speed", ICML 2021, arXiv:2102.02888, Algorithm 1; DeepSpeed, runtime/fp16/onebit/adam.py
and runtime/comm/nccl.py (scale, chunks, mask, defaults).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, joined, read
from gcsim.compressors.coding.one_bit.bits import Stripes, add_levels
from gcsim.compressors.coding.one_bit.signs import Norm
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.quantization.one_bit.scaled_sign import SignMemory, sign_error
from gcsim.compressors.requests import AllGather, AllReduce, AllToAll, Exchange
from gcsim.compressors.segments import Cells, Segments
from gcsim.compressors.sharing import fill_once


class OneBitAdamParameters(CompressorParameters):
    freeze_step: int = Field(
        100_000, ge=0, description="steps of uncompressed Adam, after which the variance is frozen"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam's beta1, decay of the momentum")
    beta2: float = Field(0.999, ge=0, lt=1, description="Adam's beta2, decay of the variance")
    epsilon: float = Field(1e-8, gt=0, description="added to the square root of the variance")
    scale: Norm = Field(
        "rms", description="magnitude that the signs share: mean magnitude or root mean square"
    )
    update: Literal["adam", "momentum"] = Field(
        "momentum",
        description="update returned: Adam's (momentum over root of variance), or the momentum "
        "alone, in units of SGD's momentum buffer",
    )


class OneBitAdam(Compressor[OneBitAdamParameters]):
    about = About(
        title="1-bit Adam",
        family="quantization",
        collective="all-to-all of sign chunks, then all-gather (warm-up: all-reduce)",
        bits="1 + 1 / workers (to the owners, and as owner to all); warm-up: 32",
        state="momentum, variance, error (n each), error of the owned chunk (n / workers)",
        paper="Tang et al., ICML 2021, arXiv:2102.02888",
    )

    def __init__(self, worker: Worker, parameters: OneBitAdamParameters) -> None:
        super().__init__(worker, parameters)
        self.sent, self.owned = SignMemory(), SignMemory()

    @classmethod
    def warmup_steps(cls, parameters: OneBitAdamParameters) -> int:
        return parameters.freeze_step

    @classmethod
    def phase(cls, parameters: OneBitAdamParameters, step: int) -> str:
        return "warm-up" if step < parameters.freeze_step else "compressed"

    @classmethod
    def momentum(cls, parameters: OneBitAdamParameters) -> tuple[float, bool]:
        return parameters.beta1, False

    @classmethod
    def properties(cls, parameters: OneBitAdamParameters) -> Properties:
        """Return the properties; Adam's direction cannot be compared with a gradient."""
        if parameters.update == "adam":
            return Properties(scale_free=True)
        norm = parameters.scale
        return Properties(error_bound=lambda v: sign_error(v, norm=norm), error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if step < self.parameters.freeze_step:
            mean = yield AllReduce(tensor=bucket.gradient.clone())
            return self._warm_up(bucket, mean.div_(self.worker.count))

        m, beta, rank = self.kept("momentum", bucket), self.parameters.beta1, self.worker.rank
        chunks = self._chunks(bucket)
        own = chunks.alone[rank]
        index, norm, part = bucket.layout.index, self.parameters.scale, Segments.of(own)
        message = self.sent.encode(
            index, bucket.gradient, Segments.alone(m.numel()).whole, Segments.of(chunks), part=part,
            mixed=m, factors=(beta, 1.0 - beta, 0.0, 1.0), norm=norm,  # b1 m + (1 - b1) g is coded
        )  # fmt: skip
        received = yield AllToAll(payloads=list(message.chunk(self.worker.count)))
        mean = torch.empty_like(chunks.slices[rank].of(bucket.gradient))
        for number, message in enumerate(received):
            add_chunks(message, own, mean, 1.0 / self.worker.count, overwrite=number == 0)
        cells = Segments.alone(mean.numel()).whole
        answer = self.owned.encode(index, mean, cells, part, part=part, norm=norm)
        parts = yield AllGather(payload=answer, part=True)
        fill_once(_write_chunks, parts, m, chunks)
        return self._compressed(bucket, m)

    def _warm_up(self, bucket: Bucket, mean: Tensor) -> Tensor:
        p = self.parameters
        m = self.kept("momentum", bucket).mul_(p.beta1).add_(mean, alpha=1 - p.beta1)
        v = self.kept("variance", bucket).mul_(p.beta2)
        v.addcmul_(mean, mean, value=1 - p.beta2)
        if p.update == "momentum":
            return m / (1 - p.beta1)
        return m / v.sqrt().add_(p.epsilon)

    def _compressed(self, bucket: Bucket, m: Tensor) -> Tensor:
        """Return the update, given `m` after its exchange."""
        p, index, divisors = self.parameters, bucket.layout.index, self.state["divisor"]
        if p.update == "momentum":
            return m / (1 - p.beta1)
        if index not in divisors:  # sqrt(v) + eps replaces the variance
            v = self.state["variance"].pop(index, None)
            root = m.abs().div_(1 - p.beta1) if v is None else v.sqrt_()
            divisors[index] = root.add_(p.epsilon)
        return m / divisors[index]

    def _chunks(self, bucket: Bucket) -> BucketLayout:
        count, facts = self.worker.count, bucket.layout.facts
        if (key := (OneBitAdam, count)) not in facts:
            facts[key] = chunks_of(bucket.gradient.numel(), count)
        chunks: BucketLayout = facts[key]
        return chunks


def chunks_of(n: int, count: int) -> BucketLayout:
    """Return `count` equal chunks of whole bytes of signs that cover at least n elements."""
    size = 8 * -(-n // (8 * count))
    return BucketLayout.behind(0, ((f"chunk {rank}", rank, (size,)) for rank in range(count)))


def _write_chunks(parts: Iterable[Tensor], out: Tensor, chunks: BucketLayout) -> None:
    """Overwrite the whole vector, float32 `[n]`, with the decoded chunks."""
    add_chunks(joined(parts), chunks, out, 1.0, overwrite=True)


def add_chunks(
    message: Tensor, chunks: BucketLayout, out: Tensor, weight: float, *, overwrite: bool = False
) -> None:
    """Add weight * scale * sign to `out` in place, or `overwrite` it; `out` is float32 `[n]` and
    may be shorter than the chunks. Raises `InputError` if the message is damaged or is not one
    frame per chunk (a scale, float32, and bits)."""
    found, whole = read(message, chunks, Codec.SIGN_BLOCK), Segments.of(chunks)
    size = whole.length // 8
    found.demand_sizes(4 + size)
    at, n = found.at, out.numel()
    if n not in chunks.facts:
        length = np.clip(n - whole.begin, 0, whole.length)
        chunks.facts[n] = Segments(np.stack((whole.begin, length), axis=1)).whole
    cells: Cells = chunks.facts[n]
    given = message, at + 4, message, (at, at), (weight, -weight)
    add_levels(out, Stripes.of(cells), *given, overwrite=overwrite, scales=True, room=size)
