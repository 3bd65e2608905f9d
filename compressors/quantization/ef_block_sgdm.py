"""dist-EF-blockSGDM: what if both directions carry one sign an element and one scale a block?

Worker: momentum u = m u + g, Nesterov direction plus error p = g + m u + rho e; for each block
the scale mean |p| and the signs of p travel; e = p - decoded. Server: the mean of what the
workers sent plus its own error is coded in the same way, e_s = q - decoded, and every worker
applies the decoded answer in the place of a momentum-SGD direction.

A block's error is a contraction: |p - Q(p)|^2 = |p|^2 - |p|_1^2 / n_b (Gaussian: .363 |p|^2).

Assumes rho = 1: the paper's rho = lr_{t-1} / lr_t rescales the errors when the learning rate
changes, which a compressor is not told; with a constant rate the two are the same. Weight decay
is the optimiser's. Blocks are whole tensors unless `block_elements` cuts them. The bit of zero
says positive. The server's error lives in the object whose callable the driver runs: worker 0's.

Source: S. Zheng, Z. Huang, J. Kwok, "Communication-Efficient Distributed Blockwise Momentum SGD
with Error-Feedback", NeurIPS 2019, arXiv:1905.10936, Algorithm 2 and section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.levels import bucket_parts
from gcsim.compressors.coding.messages import bucket_state, frames_of, split_body
from gcsim.compressors.coding.packing import pack_signs, packed_bytes, unpack_signs
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.requests import Exchange, PushPull
from gcsim.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


class EfBlockSgdmParameters(CompressorParameters):
    """Hyper-parameters of `EfBlockSgdm`."""

    momentum: float = Field(0.9, ge=0, lt=1, description="m, Nesterov momentum on each worker")
    block_elements: int | None = Field(
        None, ge=1, description="most elements that share a scale; null: one scale a tensor"
    )


class EfBlockSgdm(Compressor):
    """Signs with block scales, error feedback on workers and server, Nesterov momentum."""

    Parameters = EfBlockSgdmParameters
    about = About(
        title="dist-EF-blockSGDM",
        family="quantization",
        collective="push-pull (parameter server), one bit both ways",
        bits="1 + 32 blocks / n, each way",
        unbiased=False,
        state="momentum (n), error (n); server: error (n)",
        paper="Zheng et al., NeurIPS 2019, arXiv:1905.10936",
    )

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, EfBlockSgdmParameters)
        self.parameters = parameters
        self._momentum: dict[int, Tensor] = {}
        self._error: dict[int, Tensor] = {}
        self._server_error: dict[int, Tensor] = {}

    @classmethod
    def momentum(cls, parameters: CompressorParameters) -> tuple[float, bool]:
        """See `Compressor.momentum`."""
        assert isinstance(parameters, EfBlockSgdmParameters)
        return parameters.momentum, True

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        m = self.parameters.momentum
        direction = bucket_state(self._momentum, bucket).mul_(m).add_(bucket.gradient)
        error = bucket_state(self._error, bucket)
        error.add_(bucket.gradient).add_(direction, alpha=m)  # p, in the error's memory
        message = self.encode(error, bucket.layout)
        add_decoded(message, bucket.layout, error, -1.0)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            return self._serve(bucket, payloads)

        answer = yield PushPull(payload=message, server=serve)
        update = torch.zeros_like(bucket.gradient)
        add_decoded(answer, bucket.layout, update, 1.0)
        return update

    def _serve(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        """The server's step: the mean plus the server's error, coded; keeps what was lost."""
        error = bucket_state(self._server_error, bucket)
        for payload in payloads:
            add_decoded(payload, bucket.layout, error, 1.0 / self.worker.count)
        answer = self.encode(error, bucket.layout)
        add_decoded(answer, bucket.layout, error, -1.0)
        return answer

    def encode(self, vector: Tensor, layout: BucketLayout) -> Tensor:
        """Scales and signs of a float32 `[layout.numel]`: uint8, one frame a tensor."""
        frames = []
        for piece, values in layout.views(vector):
            scales = block_scales(values, block_length(piece.numel, self.parameters.block_elements))
            frames.append(
                pack_frame(
                    Codec.SIGN_BLOCK,
                    torch.cat((as_bytes(scales), pack_signs(values))),
                    numel=piece.numel,
                    nonzero=piece.numel,
                )
            )
        return torch.cat(frames)


def block_length(n: int, most: int | None) -> int:
    """Length of all blocks but the last: as equal as can be, at most `most`.

    With B = ceil(n / length) blocks, length = ceil(n / B): a receiver knows it from B.
    """
    blocks = 1 if most is None else -(-n // most)
    return -(-n // blocks)


def block_scales(values: Tensor, length: int) -> Tensor:
    """Mean |v| of each block: float32 `[ceil(n / length)]`."""
    magnitudes = values.abs()
    scales = values.new_empty(-(-values.numel() // length))
    for elements, blocks, size in bucket_parts(values.numel(), length):
        # torch.linalg.vector_norm(ord=1) would be one pass, but is 2 % low on 4e7 elements on
        # the CPU: it adds up in float32, one long sum for each vector lane. mean() sums in pairs.
        scales[blocks] = magnitudes[elements].view(-1, size).mean(1)
    return scales


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * scale * sign, in place; `out` is float32 `[layout.numel]`.

    Raises `InputError` when the message is damaged or of another layout.
    """
    for piece, frame in frames_of(message, layout, Codec.SIGN_BLOCK):
        n = piece.numel
        sign_bytes = packed_bytes(n, 1)
        blocks = (frame.body.numel() - sign_bytes) // 4
        if not 1 <= blocks <= n:
            raise InputError(f"damaged payload: {blocks} blocks for {n} elements")
        head, tail = split_body(frame, 4 * blocks, sign_bytes)
        scales = from_bytes(head, torch.float32, blocks)
        signs = unpack_signs(tail, n)
        part = out[piece.offset : piece.offset + n]
        length = -(-n // blocks)
        if -(-n // length) != blocks:
            raise InputError(f"damaged payload: {n} elements do not make {blocks} equal blocks")
        for elements, rows, size in bucket_parts(n, length):
            part[elements].view(-1, size).addcmul_(
                signs[elements].view(-1, size), scales[rows, None], value=weight
            )
