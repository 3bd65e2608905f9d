"""Scaled sign and EF-signSGD: an element is its sign, times one magnitude per tensor.

    Q(v) = (|v|_1 / n) sign(v),    |Q(v) - v|^2 = |v|^2 - |v|_1^2 / n    exactly.

The scale, mean |v|, is the best for given signs. Q contracts by |v|_1^2 / (n |v|^2), between 1 / n
and 1 (N(0, 1): 2 / pi, an error of .363; the more uneven the magnitudes, the larger the error).

`ScaledSign` sends Q(g). `EfSignSgd` adds what earlier steps lost: p = g + e, Q(p) travels,
e = p - Q(p); state: n floats (p, from which e follows). The update is the mean of what the workers
sent, from an all-gather. (`ef_block_sgdm` has a server that codes the mean in the same way.)

Biased. A payload holds one float32 and n bits a tensor. The bit of zero says positive: an all-zero
tensor has the scale zero, a zero among others does not stay zero.

Assumes that the error is kept of gradients, where the paper keeps it of learning rate times
gradient: with a constant rate the two are the same.

Source: S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other
Gradient Compression Schemes", ICML 2019, arXiv:1901.09847 (EF-signSGD and the contraction).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, read, seal
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.one_bit.signs import Norm, add_scaled_signs, fold_signs, lost_by
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Cells, Segments
from gcsim.compressors.sharing import fill_once


class ScaledSign(Compressor):
    """Signs times the mean magnitude of each tensor, without memory."""

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
        """This worker's message."""
        return encode(bucket.gradient, bucket.layout)


class EfSignSgd(ScaledSign):
    """Scaled signs with error feedback."""

    about = About(
        title="EF-signSGD",
        family="quantization",
        collective="all-gather",
        bits="1 + 32 / n",
        state="error (n)",
        paper="Karimireddy et al., ICML 2019, arXiv:1901.09847",
    )

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


class SignMemory:
    """Sign coding with a memory of what it has lost, bucket by bucket.

    Kept are the vector p that was coded last and its scales: the error p - Q(p) follows from them
    (see `coding.one_bit.signs`).
    """

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def encode(
        self, index: int, values: Tensor, cells: Cells, tensors: Segments | None = None, *,
        part: Segments | None = None, **mixing: Any,
    ) -> Tensor:  # fmt: skip
        """The message of a bucket's values plus what the last one lost.

        One tensor may be cut into equal pieces, the frames of `tensors`; for `part` see `frames`,
        for `mixing` `fold_signs`.
        """
        if index not in self.kept:
            self.kept[index] = torch.zeros_like(values), _no_scales(values, cells)
        coded, scales = self.kept[index]
        mixing |= {"coded": coded, "scales": scales}
        message, scales = _message(values, cells, tensors, part, **mixing)
        self.kept[index] = coded, scales
        return message

    def error(self, bucket: Bucket, cells: Cells) -> Tensor:
        """Error that is lost and not made up for: float32 `[n]`, a fresh tensor."""
        if kept := self.kept.get(bucket.layout.index):
            return lost_by(*kept, cells)
        return torch.zeros_like(bucket.gradient)


def cells_of(bucket: Bucket, most: int | None = None) -> Cells:
    """Elements of a bucket's tensors that share a scale: blocks of at most `most`, or tensors."""
    return Segments.of(bucket.layout).even_cells(most)


@counted_as(
    lambda _, like, cells: [launch("streaming", "aten.new_zeros", cells.count, 4 * cells.count)]
)
def _no_scales(like: Tensor, cells: Cells) -> Tensor:
    return like.new_zeros(cells.total)


# --- messages: one frame a tensor, float32 scales and then bits ------------------------------


def encode(vector: Tensor, layout: BucketLayout, most: int | None = None) -> Tensor:
    """The message of a float32 `[layout.numel]`: uint8; blocks of at most `most` elements."""
    return _message(vector, Segments.of(layout).even_cells(most))[0]


def _message(
    values: Tensor, cells: Cells, tensors: Segments | None = None, part: Segments | None = None,
    **memory: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(the message; the scales of all blocks, float32); for `memory` see `fold_signs`."""
    pieces, head = tensors is not None, 4 * cells.count
    tensors = tensors or cells.segments
    head = tensors.column(4) if pieces else head
    sizes = head + packed_bytes(tensors.length, 1)
    message, at = frames(values, Codec.SIGN_BLOCK, tensors, sizes, fixed=True, part=part)
    scales = fold_signs(values, cells, message, at + head, head=at, pieces=pieces, **memory)
    return seal(message, at, sizes), scales


def mean_of(received: Iterable[Tensor], bucket: Bucket, count: int) -> Tensor:
    """Mean of `count` messages, or of the one: float32 `[n]`; decoded when iterated over."""
    return fill_once(_write_mean, received, torch.empty_like(bucket.gradient), bucket.layout, count)


def _write_mean(received: Iterable[Tensor], out: Tensor, layout: BucketLayout, count: int) -> None:
    payloads = [received] if isinstance(received, torch.Tensor) else received
    for number, payload in enumerate(payloads):
        add_decoded(payload, layout, out, 1.0 / count, overwrite=number == 0)


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, *, overwrite: bool = False
) -> None:
    """out += weight * scale * sign, in place; `out` is float32 `[layout.numel]`.

    With `overwrite`, out = weight * scale * sign. The number of scales says how long blocks are.
    Raises `InputError` when the message is damaged or of another layout.
    """
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
    at = found.at + 4 * blocks
    add_scaled_signs(out, cells, message, at, found.at, weight, overwrite=overwrite)


def sign_error(
    vector: Tensor, most: int | None = None, gain: float = 1.0, norm: Norm = "mean_abs"
) -> float:
    """|gain Q(v) - v|^2 of one float32 `[n]` in blocks of at most `most` elements, units of v^2.

    |v|^2 + n s^2 - 2 s |v|_1 of each block, with the scale s times the gain.
    """
    error = 0.0
    for _, begin, end in Segments.alone(vector.numel()).even_cells(most).spans.tolist():
        block, n = vector[begin:end].double(), end - begin
        energy, magnitude = float(block.square().sum()), float(block.abs().sum())
        scale = gain * (magnitude / n if norm == "mean_abs" else math.sqrt(energy / n))
        error += energy + n * scale**2 - 2 * scale * magnitude
    return error
