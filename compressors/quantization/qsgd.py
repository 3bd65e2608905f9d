"""QSGD: what if every element travels as one of a few levels, rounded so that the mean is right?

Each tensor is cut into buckets; a bucket sends its norm (float32) and for each element a level
-s … s, rounded at random, in ceil(log2(2s + 1)) bits. Workers all-gather and average what they
decode. No state: the method is unbiased, E[Q(g)] = g, with variance at most
min(d / s^2, sqrt(d) / s) |g|^2 for the Euclidean norm and d max^2 / (4 s^2) a bucket for the
maximum.

Assumes a fixed code width instead of the paper's Elias code: at four bits the two are equal on
Gaussian gradients, and a fixed width is what accelerators pack. The maximum is the default norm:
with buckets of 512 and s = 7 its error is 40 times smaller than with the Euclidean norm.

Source: D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NIPS 2017, arXiv:1610.02132; section 3.1 and, for bucket and maximum, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.levels import (
    MAX_STEPS,
    Norm,
    add_levels,
    bucket_count,
    bucket_norms,
    round_to_levels,
)
from gcsim.compressors.coding.messages import frames_of, split_body
from gcsim.compressors.coding.packing import pack_bits, packed_bytes, unpack_bits
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.random import random_bits16, stream
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


class QsgdParameters(CompressorParameters):
    """Hyper-parameters of `Qsgd`."""

    steps: int = Field(
        7,
        ge=1,
        le=MAX_STEPS,
        description="s, levels above zero: 2s + 1 values in ceil(log2(2s + 1)) bits (7: 4 bits)",
    )
    bucket: int = Field(
        512, ge=1, le=65535, description="elements that share one norm (32 bits a bucket)"
    )
    norm: Norm = Field("max", description="a bucket's norm: its maximum |v|, or l2 (the paper's)")


def code_bits(steps: int) -> int:
    """Bits of a code with 2s + 1 values: ceil(log2(2s + 1))."""
    return (2 * steps).bit_length()


class Qsgd(Compressor):
    """Stochastic quantisation to evenly spaced levels, bucket by bucket."""

    Parameters = QsgdParameters
    about = About(
        title="QSGD",
        family="quantization",
        collective="all-gather",
        bits="ceil(log2(2 steps + 1)) + 32 / bucket",
        unbiased=True,
        state="none",
        paper="Alistarh et al., NIPS 2017, arXiv:1610.02132",
    )

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, QsgdParameters)
        self.parameters = parameters

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        payloads = yield AllGather(payload=self.encode(bucket, step))
        update = torch.zeros_like(bucket.gradient)
        for payload in payloads:
            add_decoded(payload, bucket.layout, update, 1.0 / self.worker.count)
        return update

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """The message of a bucket's gradient: uint8, one frame a tensor."""
        chosen = self.parameters
        frames = []
        for piece, values in bucket.layout.views(bucket.gradient):
            generator = stream(
                self.worker.seed, step, piece.index, "qsgd rounding", self.worker.rank
            )
            norms = bucket_norms(values, chosen.bucket, chosen.norm)
            codes = round_to_levels(
                values,
                norms,
                random_bits16(generator, piece.numel, values.device),
                size=chosen.bucket,
                steps=chosen.steps,
            )
            body = torch.cat((as_bytes(norms), pack_bits(codes, code_bits(chosen.steps))))
            frames.append(
                pack_frame(
                    Codec.QSGD,
                    body,
                    numel=piece.numel,
                    nonzero=piece.numel,
                    flags=chosen.steps,
                    params=chosen.bucket,
                )
            )
        return torch.cat(frames)


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * decoded message, in place; `out` is float32 `[layout.numel]`.

    Raises `InputError` when the message is damaged or of another layout.
    """
    for piece, frame in frames_of(message, layout, Codec.QSGD):
        steps, size = frame.flags, frame.params
        if not 1 <= steps <= MAX_STEPS or size < 1:
            raise InputError(f"damaged payload: {steps} steps, buckets of {size} elements")
        buckets = bucket_count(piece.numel, size)
        bits = code_bits(steps)
        head, tail = split_body(frame, 4 * buckets, packed_bytes(piece.numel, bits))
        add_levels(
            out[piece.offset : piece.offset + piece.numel],
            unpack_bits(tail, piece.numel, bits),
            from_bytes(head, torch.float32, buckets),
            size=size,
            steps=steps,
            weight=weight,
        )
