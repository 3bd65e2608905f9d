"""QSGD: what if every element travels as one of a few levels, rounded so that the mean is right?

Each tensor is cut into buckets; a bucket sends its norm (float32) and for each element a level
q = -s … s, rounded at random; q stands for norm * q / s. Workers all-gather and average what they
decode. No state: the method is unbiased, E[Q(g)] = g, and of a bucket of d elements
E|Q(g) - g|^2 <= min(d / s^2, sqrt(d) / s) |g|^2 with the Euclidean norm,
E|Q(g) - g|^2 <= d max|g|^2 / (4 s^2) with the maximum.

| coding       | bits of the levels                                                           |
|--------------|------------------------------------------------------------------------------|
| fixed        | ceil(log2(2s + 1)) an element                                                |
| digits       | digits of base 2s + 1 in groups: 1.6 (s = 1), 2.333 (2), 3.2 (4), else fixed |
| elias_dense  | omega(|q| + 1), then a sign unless q = 0; every element                      |
| elias_sparse | omega(gap), sign, omega(|q|) of the elements with q != 0; gap: the distance  |
|              | to the one before in the tensor, from 1                                      |

omega(x) is Elias' code of x >= 1. The Elias codings have messages of variable length, whose
lengths are exchanged first; with the Euclidean norm nearly all levels are 0 and they are short.

Assumes a fixed width by default: at four bits it and the Elias code are equally long on Gaussian
gradients, and a fixed width is what accelerators pack. The maximum is the default norm: with
buckets of 512 and s = 7 its error is 40 times smaller than with the Euclidean norm. s counts
steps from 0 to the norm, as in the paper. Elsewhere a number may mean something else: with ORQ,
QSGD-3, -5 and -9 have that many levels in all, so s = 1, 2 and 4 (and the maximum norm); in
variance-based compression, QSGD of b bits without the sign has s = 2^b - 1.

Source: D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NIPS 2017, arXiv:1610.02132 (both Elias codings, buckets and the maximum norm too).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, of_bucket, pack_frame
from gcsim.compressors.coding.integers.digits import digit_bytes, pack_digits, unpack_digits
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.messages import decoder, split_body
from gcsim.compressors.coding.rounding.level_words import (
    decode_dense,
    decode_sparse,
    encode_dense,
    encode_sparse,
)
from gcsim.compressors.coding.rounding.levels import (
    MAX_STEPS,
    Norm,
    add_levels,
    add_packed_levels,
    bucket_count,
    bucket_norms,
    bucket_parts,
    encode_levels,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import batched
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather, Exchange, gather_variable
from gcsim.errors import InputError

Coding = Literal["fixed", "digits", "elias_dense", "elias_sparse"]
CODECS: dict[Coding, Codec] = {
    "fixed": Codec.QSGD,
    "digits": Codec.QSGD_DIGITS,
    "elias_dense": Codec.QSGD_ELIAS_DENSE,
    "elias_sparse": Codec.QSGD_ELIAS_SPARSE,
}
CODINGS = {int(codec): coding for coding, codec in CODECS.items()}
MAX_BUCKET = 65535
"""A frame's `params` is the bucket's length; 0 for one bucket a tensor."""


class QsgdParameters(CompressorParameters):
    steps: int = Field(
        7,
        ge=1,
        le=MAX_STEPS,
        description="s, levels above zero: 2s + 1 values in ceil(log2(2s + 1)) bits (7: 4 bits)",
    )
    bucket: int | None = Field(
        512,
        ge=1,
        le=MAX_BUCKET,
        description="elements that share one norm (32 bits a bucket); null: one norm a tensor",
    )
    norm: Norm = Field("max", description="a bucket's norm: its maximum |v|, or l2 (the paper's)")
    coding: Coding = Field(
        "fixed",
        description="of levels: fixed width, digits of base 2s + 1, or Elias codes of all (dense) "
        "or of the non-zero levels (sparse)",
    )


def code_bits(steps: int) -> int:
    """Bits of a code with 2s + 1 values: ceil(log2(2s + 1))."""
    return (2 * steps).bit_length()


class Qsgd(Compressor[QsgdParameters]):
    """Stochastic quantisation to evenly spaced levels, bucket by bucket."""

    about = About(
        title="QSGD",
        family="quantization",
        collective="all-gather (Elias coding: of variable length)",
        bits="ceil(log2(2 steps + 1)) + 32 / bucket",
        unbiased=True,
        paper="Alistarh et al., NIPS 2017, arXiv:1610.02132",
    )

    @classmethod
    def properties(cls, parameters: QsgdParameters) -> Properties:
        """Unbiased; the error is bounded bucket by bucket (the paper's, and Bernoulli's 1/4)."""
        chosen = parameters

        def bound(values: Tensor) -> float:
            return error_bound(values, chosen.steps, chosen.bucket, chosen.norm)

        return Properties(unbiased=True, error_bound=bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        message = self.encode(bucket, step)
        if self.parameters.coding in ("fixed", "digits"):
            payloads = yield AllGather(payload=message)
        else:
            payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """The message of a bucket's gradient: uint8, one frame a tensor."""
        me = self.worker
        keys = [
            random_key(me.seed, step, piece.index, "qsgd rounding", me.rank)
            for piece in bucket.layout.slices
        ]
        return encoded(bucket.gradient, bucket.layout, keys, self.parameters)


@of_bucket("qsgd")
def encoded(
    gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], chosen: QsgdParameters
) -> Tensor:
    """The message of a gradient, float32 `[layout.numel]`, with a key for each tensor."""
    frames = []
    bits = code_bits(chosen.steps) if chosen.coding == "fixed" else 8
    for (piece, values), key in zip(batched(layout.views(gradient)), keys, strict=True):
        size = chosen.bucket or max(1, piece.numel)
        norms = bucket_norms(values, size, chosen.norm)  # [buckets]
        # codes q + s: packed bits [bytes] for a fixed width, else one byte an element
        codes = encode_levels(values, norms, key, size=size, steps=chosen.steps, bits=bits)
        coded, nonzero = _coded(codes, piece.numel, chosen.steps, chosen.coding)
        frame = pack_frame(
            CODECS[chosen.coding], torch.cat((as_bytes(norms), coded)),
            numel=piece.numel, nonzero=nonzero, flags=chosen.steps, params=chosen.bucket or 0,
        )  # fmt: skip
        frames.append(frame)
    return torch.cat(frames)


def error_bound(values: Tensor, steps: int, size: int | None, norm: Norm) -> float:
    """The bound on E|Q(v) - v|^2 of float32 `[n]`, added up over buckets (see the first lines)."""
    n = values.numel()
    size = size or max(1, n)
    norms = bucket_norms(values, size, norm).double()
    total = 0.0
    for _, buckets, length in bucket_parts(n, size):
        factor = min(length / steps**2, math.sqrt(length) / steps)
        if norm == "max":
            factor = length / (4 * steps**2)
        total += factor * float(norms[buckets].square().sum())
    return total


@of_bucket("add_qsgd")
@decoder(CODINGS)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add the levels of a frame times its buckets' norms."""
    n, steps, coding = frame.numel, frame.flags, CODINGS[frame.codec]
    size = frame.params or max(1, n)
    if not 1 <= steps <= MAX_STEPS:
        raise InputError(f"damaged payload: {steps} steps")
    head_bytes, bits = 4 * bucket_count(n, size), code_bits(steps)
    if coding == "fixed":
        tail_bytes = packed_bytes(n, bits)
    elif coding == "digits":
        tail_bytes = digit_bytes(n, 2 * steps + 1)
    else:
        tail_bytes = max(0, frame.body.numel() - head_bytes)
    head, tail = split_body(frame, head_bytes, tail_bytes)
    norms = from_bytes(head, torch.float32, bucket_count(n, size))
    if coding == "fixed":
        add_packed_levels(part, tail, norms, size=size, steps=steps, bits=bits, weight=weight)
    else:
        codes = _decoded(tail, frame, steps, coding)
        add_levels(part, codes, norms, size=size, steps=steps, weight=weight)


def _coded(codes: Tensor, n: int, steps: int, coding: Coding) -> tuple[Tensor, int]:
    """(body, number of elements that travel): the codes of `encode_levels` as they travel."""
    if coding == "fixed":
        return codes, n
    if coding == "digits":
        return pack_digits(codes, 2 * steps + 1), n
    if coding == "elias_dense":
        return encode_dense(codes, steps), n
    return encode_sparse(codes, steps)


def _decoded(body: Tensor, frame: Frame, steps: int, coding: Coding) -> Tensor:
    """Undo `_coded` but for the fixed width: codes, uint8 `[n]`."""
    if coding == "digits":
        return unpack_digits(body, frame.numel, 2 * steps + 1)
    if coding == "elias_dense":
        return decode_dense(body, frame.numel, steps)
    return decode_sparse(body, frame.numel, frame.nonzero, steps)
