"""TernGrad: what if a gradient's element is only -1, 0 or +1 times one scalar a tensor?

Each worker clips a tensor to c standard deviations (population, about the mean), the scalar is
its largest remaining magnitude, and the workers agree on the largest scalar (an all-reduce of
one float32 a tensor, maximum). An element v becomes sign(v) with probability |v| / scalar, else
0: the decoded value is unbiased for the clipped vector, with variance sum |v| (scalar - |v|).

Ternary digits travel five in a byte (1.6 bits) or in two bits each. The scalar travels again in
each frame, so that a payload decodes on its own. No state.

Assumes that a tensor without spread (one element, all equal, or so small that its variance
vanishes in float32) is not clipped: c * 0 would delete it.

Source: W. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
Learning", NIPS 2017, arXiv:1705.07878, Algorithm 1, section 3.3 (layer-wise, clipping, c = 2.5;
scaler sharing). Their code shares c sigma instead of the largest clipped magnitude, which differ
only when no element reaches c sigma.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.digits import pack_trits, trit_bytes, unpack_trits
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.levels import add_levels, round_to_levels
from gcsim.compressors.coding.messages import frames_of, split_body
from gcsim.compressors.coding.packing import pack_bits, packed_bytes, unpack_bits
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.random import random_bits16, stream
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_BASE3, _TWO_BIT = 0, 1  # the frame's flags


class TernGradParameters(CompressorParameters):
    """Hyper-parameters of `TernGrad`."""

    clip: float | None = Field(
        2.5, gt=0, description="c: clip to c standard deviations of the tensor; null: never clip"
    )
    packing: Literal["base3", "two_bit"] = Field(
        "base3", description="five digits in a byte (1.6 bits an element), or two bits each"
    )


class TernGrad(Compressor):
    """Random ternary digits times a scalar that the workers share."""

    Parameters = TernGradParameters
    about = About(
        title="TernGrad",
        family="quantization",
        collective="all-reduce of one maximum a tensor, then all-gather",
        bits="1.6 (base3) or 2 (two_bit), + 64 a tensor",
        unbiased=False,
        state="none",
        paper="Wen et al., NIPS 2017, arXiv:1705.07878",
    )

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, TernGradParameters)
        self.parameters = parameters

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        own = [
            clipped_maximum(values, self.parameters.clip)
            for _, values in bucket.layout.views(bucket.gradient)
        ]
        scalars = yield AllReduce(tensor=torch.stack(own), op="max")
        payloads = yield AllGather(payload=self.encode(bucket, step, torch.stack(own), scalars))
        update = torch.zeros_like(bucket.gradient)
        for payload in payloads:
            add_decoded(payload, bucket.layout, update, 1.0 / self.worker.count)
        return update

    def encode(self, bucket: Bucket, step: int, own: Tensor, scalars: Tensor) -> Tensor:
        """The message: uint8, one frame a tensor.

        `own` and `scalars` are float32 `[tensors]`: this worker's clipping bound (the largest
        magnitude that is left) and the shared scalar, which is at least as large.
        """
        two_bit = self.parameters.packing == "two_bit"
        frames = []
        for position, (piece, values) in enumerate(bucket.layout.views(bucket.gradient)):
            bound, scalar = own[position], scalars[position : position + 1]
            generator = stream(
                self.worker.seed, step, piece.index, "terngrad rounding", self.worker.rank
            )
            digits = round_to_levels(
                values if self.parameters.clip is None else values.clamp(-bound, bound),
                scalar,
                random_bits16(generator, piece.numel, values.device),
                size=piece.numel,
                steps=1,
            )
            packed = pack_bits(digits, 2) if two_bit else pack_trits(digits)
            frames.append(
                pack_frame(
                    Codec.TERNGRAD,
                    torch.cat((as_bytes(scalar), packed)),
                    numel=piece.numel,
                    nonzero=piece.numel,
                    flags=_TWO_BIT if two_bit else _BASE3,
                )
            )
        return torch.cat(frames)


def clipped_maximum(values: Tensor, clip: float | None) -> Tensor:
    """Largest |v| after clipping to `clip` standard deviations: float32 scalar, on the device."""
    largest = torch.maximum(values.amax(), -values.amin())
    if clip is None:
        return largest
    spread = torch.var(values, correction=0).sqrt()
    return torch.where(spread > 0, torch.minimum(largest, clip * spread), largest)


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * scalar * digits, in place; `out` is float32 `[layout.numel]`.

    Raises `InputError` when the message is damaged or of another layout.
    """
    for piece, frame in frames_of(message, layout, Codec.TERNGRAD):
        scalar, digits = _read(frame)
        part = out[piece.offset : piece.offset + piece.numel]
        add_levels(part, digits, scalar, size=piece.numel, steps=1, weight=weight)


def _read(frame: Frame) -> tuple[Tensor, Tensor]:
    """(scalar float32 `[1]`, digits uint8 `[n]`, each 0, 1 or 2) of one frame."""
    if frame.flags not in (_BASE3, _TWO_BIT):
        raise InputError(f"damaged payload: unknown packing {frame.flags} of ternary digits")
    n = frame.numel
    if frame.flags == _BASE3:
        head, tail = split_body(frame, 4, trit_bytes(n))
        digits = unpack_trits(tail, n)
    else:
        head, tail = split_body(frame, 4, packed_bytes(n, 2))
        digits = unpack_bits(tail, n, 2)
        if bool((digits > 2).any()):
            raise InputError("damaged payload: a two-bit code is not a ternary digit")
    return from_bytes(head, torch.float32, 1), digits
