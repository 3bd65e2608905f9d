"""Signs times a magnitude: scaled sign, EF-signSGD, and dist-EF-blockSGDM.

    Q(v) = (|v|_1 / n) sign(v),    |Q(v) - v|^2 = |v|^2 - |v|_1^2 / n    exactly.

The scale, mean |v| of a tensor or of a block of it, is optimal for given signs. Q is a contraction
with |v|_1^2 / (n |v|^2), between 1 / n and 1 (N(0, 1): 2 / pi, an error of .363; less even
magnitudes give a larger error). Biased. A payload holds one float32 per tensor or block, and n
bits. Zero is sent as positive: an all-zero tensor has scale zero; a zero among other values
changes.

`ScaledSign` sends Q(g). `EfSignSgd` adds the last error: p = g + e, sends Q(p), e = p - Q(p);
state: n floats (p, from which e follows). The update is the mean of the all-gathered messages.

`EfBlockSgdm` codes both directions alike. Worker: momentum u = m u + g, Nesterov direction plus
error p = g + m u + e; it sends Q(p). Server: q, the mean of the messages plus the server's error,
is coded in the same way, e_s = q - Q(q), and every worker applies Q(q) in place of a momentum-SGD
direction. Without a server each worker serves a stripe of the elements, as in DeepSpeed's 1-bit
Adam; if a stripe ends inside a block, the additional scale is not counted. In the authors' code
rank 0 serves, with broadcasts (`servers: 1`). Worker 0's object holds the server's error.

Errors are those of gradients; the papers' are those of learning rate times gradient (rescaled by
lr_{t-1} / lr_t in the second one). With a constant rate the two are the same. Weight decay is the
optimiser's. Blocks are whole tensors unless `block_elements` cuts them.

Source: S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other
Gradient Compression Schemes", ICML 2019, arXiv:1901.09847 (EF-signSGD and the contraction); S.
Zheng, Z. Huang, J. Kwok, "Communication-Efficient Distributed Blockwise Momentum SGD with
Error-Feedback", NeurIPS 2019, arXiv:1905.10936 (the variant with blocks and Nesterov's momentum);
code: ZiyueHuang/dist-ef-sgdm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, read, seal
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.one_bit.bits import Stripes, add_levels
from gcsim.compressors.coding.one_bit.signs import Norm, fold_signs, lost_by, nesterov
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.requests import AllGather, Exchange, PushPull
from gcsim.compressors.segments import Cells, Segments
from gcsim.compressors.sharing import fill_once


class ScaledSign(Compressor):
    about = About(
        title="Scaled sign",
        family="quantization",
        collective="all-gather",
        bits="1 + 32 / n",
        paper="Karimireddy et al., ICML 2019, arXiv:1901.09847",
    )

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(error_bound=sign_error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=self._encode(bucket))
        return mean_of(payloads, bucket, self.worker.count)

    def _encode(self, bucket: Bucket) -> Tensor:
        return encode(bucket.gradient, bucket.layout)


class EfSignSgd(ScaledSign):
    about = replace(ScaledSign.about, title="EF-signSGD", state="error (n)")

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        self._memory = SignMemory()

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(error_bound=sign_error, error_is_exact=True, conserves=True)

    def residual_of(self, bucket: Bucket) -> Tensor:
        return self._memory.error(bucket, cells_of(bucket))

    def _encode(self, bucket: Bucket) -> Tensor:
        return self._memory.encode(bucket.layout.index, bucket.gradient, cells_of(bucket))


class EfBlockSgdmParameters(CompressorParameters):
    momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum on each worker (m)")
    block_elements: int | None = Field(
        None, ge=1, description="maximum elements that share a scale; null: one scale per tensor"
    )


class EfBlockSgdm(Compressor[EfBlockSgdmParameters]):
    about = About(
        title="dist-EF-blockSGDM",
        family="quantization",
        collective="push-pull, one bit both ways",
        without_server="alltoall_allgather",
        bits="1 + 32 blocks / n, each way",
        state="momentum (n), error (n); server: error (n)",
        paper="Zheng et al., NeurIPS 2019, arXiv:1905.10936",
    )

    def __init__(self, worker: Worker, parameters: EfBlockSgdmParameters) -> None:
        super().__init__(worker, parameters)
        self._memory, self._server = SignMemory(), SignMemory()

    @classmethod
    def properties(cls, parameters: EfBlockSgdmParameters) -> Properties:
        """Return the properties; the first direction has 1 + m times the gradient's length."""
        most, gain = parameters.block_elements, 1.0 + parameters.momentum
        return Properties(
            error_bound=lambda v: sign_error(v, most, gain), error_is_exact=True, conserves=True
        )

    @classmethod
    def momentum(cls, parameters: EfBlockSgdmParameters) -> tuple[float, bool]:
        return parameters.momentum, True

    def residual_of(self, bucket: Bucket) -> Tensor:
        """Return the worker's error plus its share of the server's."""
        cells = cells_of(bucket, self.parameters.block_elements)
        error = self._memory.error(bucket, cells)
        return error.add_(self._server.error(bucket, cells), alpha=self.worker.count)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        p, index = self.parameters, bucket.layout.index
        cells, velocity = cells_of(bucket, p.block_elements), self.kept("momentum", bucket)
        factors = nesterov(p.momentum)
        message = self._memory.encode(
            index, bucket.gradient, cells, mixed=velocity, factors=factors, keep=True
        )

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            """Encode the mean plus the server's error; keep the new error."""
            return self._server.encode(index, mean_of(payloads, bucket, self.worker.count), cells)

        answer = yield PushPull(payload=message, server=serve, without_server="alltoall_allgather")
        return mean_of(answer, bucket, 1)


class SignMemory:
    """Sign coding with error memory, by bucket: it keeps the last coded vector p and its scales,
    from which the error p - Q(p) follows (`coding.one_bit.signs`)."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        """Vector p of each bucket and its scales."""

    def encode(
        self, index: int, values: Tensor, cells: Cells, tensors: Segments | None = None, *,
        part: Segments | None = None, **mixing: Any,
    ) -> Tensor:  # fmt: skip
        """Encode a bucket's values plus the last error. A single tensor may be cut into equal
        pieces, the frames of `tensors`; `part` as in `frames`, `mixing` as in `fold_signs`."""
        if index not in self.kept:
            self.kept[index] = torch.zeros_like(values), _no_scales(values, cells)
        coded, scales = self.kept[index]
        mixing |= {"coded": coded, "scales": scales}
        message, scales = _message(values, cells, tensors, part, **mixing)
        self.kept[index] = coded, scales
        return message

    def error(self, bucket: Bucket, cells: Cells) -> Tensor:
        """Return the current error: float32 `[n]`, a new tensor."""
        if kept := self.kept.get(bucket.layout.index):
            return lost_by(*kept, cells)
        return torch.zeros_like(bucket.gradient)


def cells_of(bucket: Bucket, most: int | None = None) -> Cells:
    """Return the cells that share a scale: blocks of at most `most` elements, or tensors."""
    return Segments.of(bucket.layout).even_cells(most)


@counted_as(
    lambda _, like, cells: [launch("streaming", "aten.new_zeros", cells.count, 4 * cells.count)]
)
def _no_scales(like: Tensor, cells: Cells) -> Tensor:
    return like.new_zeros(cells.total)


# --- messages: one frame per tensor, float32 scales and then bits ----------------------------


def encode(vector: Tensor, layout: BucketLayout, most: int | None = None) -> Tensor:
    """Encode a float32 `[layout.numel]` in blocks of at most `most` elements: uint8."""
    return _message(vector, Segments.of(layout).even_cells(most))[0]


def _message(
    values: Tensor, cells: Cells, tensors: Segments | None = None, part: Segments | None = None,
    **memory: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (the message; the scales of all blocks, float32); `memory` as in `fold_signs`."""
    pieces, head = tensors is not None, 4 * cells.count
    tensors = tensors or cells.segments
    head = tensors.column(4) if pieces else head
    sizes = head + packed_bytes(tensors.length, 1)
    message, at = frames(values, Codec.SIGN_BLOCK, tensors, sizes, fixed=True, part=part)
    scales = fold_signs(values, cells, message, at + head, head=at, pieces=pieces, **memory)
    return seal(message, at, sizes), scales


def mean_of(received: Iterable[Tensor], bucket: Bucket, count: int) -> Tensor:
    """Return the mean of `count` messages, or of the only one: float32 `[n]`."""
    return fill_once(_write_mean, received, torch.empty_like(bucket.gradient), bucket.layout, count)


def _write_mean(received: Iterable[Tensor], out: Tensor, layout: BucketLayout, count: int) -> None:
    payloads = [received] if isinstance(received, torch.Tensor) else received
    for number, payload in enumerate(payloads):
        add_decoded(payload, layout, out, 1.0 / count, overwrite=number == 0)


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, *, overwrite: bool = False
) -> None:
    """Add weight * scale * sign to `out`, float32 `[layout.numel]`, in place, or `overwrite` it.
    Blocks follow from the number of scales. Raises `InputError` if the message is damaged or has
    another layout."""
    segments, found = Segments.of(layout), read(message, layout, Codec.SIGN_BLOCK)
    n, sign_bytes = segments.length, packed_bytes(segments.length, 1)
    blocks = (found.size - sign_bytes) // 4
    size = -(-n // np.maximum(1, blocks))
    if (
        (blocks < np.minimum(n, 1)) | (blocks > n) | ((blocks - 1) * size >= np.maximum(1, n))
    ).any():
        raise damaged(f"{blocks.tolist()} blocks for {n.tolist()} elements")
    found.demand_sizes(4 * blocks + sign_bytes)
    whole = segments.cells(None)
    cells = whole if (blocks <= 1).all() else Cells(segments, np.maximum(1, size), blocks)
    given = message, found.at + 4 * blocks, message, (found.at, found.at), (weight, -weight)
    add_levels(out, Stripes.of(cells), *given, overwrite=overwrite, scales=True)


def sign_error(
    vector: Tensor, most: int | None = None, gain: float = 1.0, norm: Norm = "mean_abs"
) -> float:
    """Return |gain Q(v) - v|^2 of one float32 `[n]` in blocks of at most `most` elements: |v|^2 + n
    s^2 - 2 s |v|_1 per block, where s is the scale times the gain."""
    error = 0.0
    for _, begin, end in Segments.alone(vector.numel()).even_cells(most).spans.tolist():
        block, n = vector[begin:end].double(), end - begin
        energy, magnitude = float(block.square().sum()), float(block.abs().sum())
        scale = gain * (magnitude / n if norm == "mean_abs" else math.sqrt(energy / n))
        error += energy + n * scale**2 - 2 * scale * magnitude
    return error
