"""Strom: what if an element waits until it exceeds a threshold, and then only its sign travels?

r += g; an element with r_i > tau is sent as +tau, one with r_i < -tau as -tau, once a step however
large it is; r -= what was sent. A sent element is one word of 32 bits: its index in 31 bits and
its sign. `mxnet` is the dense form of that library's 2-bit compression: every element travels in
two bits (0: zero, 2: -tau, 3: +tau) and |r_i| = tau is sent too.

Bits: 32 m / n for m sent elements; 2 for `mxnet`. Biased with memory: what a step loses is
sum over sent (|r_i| - tau)^2 + sum over others r_i^2, the next residual.

Assumes that tau is known to all workers: it does not travel. Messages are all-gathered and
averaged, where MXNet's server adds them up.

Source: N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
Interspeech 2015; MXNet's kvstore gradient compression type "2bit".
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.frame import Codec, Frame, of_bucket, pack_frame
from gcsim.compressors.coding.messages import decoder, split_body
from gcsim.compressors.coding.selecting.marks import passing
from gcsim.compressors.coding.sparse import add_signed, energy, pack_signed, signed_words
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange, gather_variable
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_threshold.threshold import just_above
from gcsim.errors import InputError

_DEFAULT = {"words": 0.1, "mxnet": 0.5}
_BLOCK = 4096


class StromParameters(CompressorParameters):
    threshold: float | None = Field(
        None, gt=0, le=1e38, description="tau, in units of the gradient; null: 0.1 (mxnet: 0.5)"
    )
    variant: Literal["words", "mxnet"] = Field(
        "words", description="32 bits a sent element, or 2 bits every element"
    )

    @property
    def tau(self) -> float:
        """The threshold as float32."""
        chosen = _DEFAULT[self.variant] if self.threshold is None else self.threshold
        return float(np.float32(chosen))


class Strom(ErrorFeedback[StromParameters]):
    """Signs of what has grown beyond a threshold."""

    about = About(
        title="Strom's threshold quantisation",
        family="sparsification",
        collective="all-gather of unequal messages (mxnet: equal)",
        bits="32 sent / n (mxnet: 2)",
        state="residual (n)",
        paper="Strom, Interspeech 2015",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        tau, message = self.parameters.tau, self.encode(bucket)
        if self.parameters.variant == "mxnet":
            payloads = yield AllGather(payload=message)
            return self.mean_of(payloads, bucket, add_codes, tau=tau)
        payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_signed, levels=(tau, -tau))

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient to the residual and take out the signs: uint8, one frame a tensor."""
        tau = self.parameters.tau
        residual = bucket_state(self.residual, bucket)
        if self.parameters.variant == "words":
            return encoded(residual, bucket.gradient, bucket.layout, tau)
        frames = []
        for piece, gradient in batched(bucket.layout.views(bucket.gradient)):
            body = two_bits(piece.of(residual), gradient, tau)
            frames.append(pack_frame(Codec.TABLE, body, numel=piece.numel))
        return torch.cat(frames)

    @classmethod
    def properties(cls, parameters: StromParameters) -> Properties:
        tau = parameters.tau

        def lost(vector: Tensor) -> float:
            magnitudes = vector.double().abs()
            words = parameters.variant == "words"
            sent = magnitudes > tau if words else magnitudes >= tau
            return energy(torch.where(sent, magnitudes - tau, magnitudes))

        return Properties(error_bound=lost, error_is_exact=True, conserves=True)


# --- the dense form ---------------------------------------------------------------------------


@of_bucket("strom", "messages.words")
def encoded(residual: Tensor, gradient: Tensor, layout: BucketLayout, tau: float) -> Tensor:
    """The message of words, one frame a tensor; what they say is taken out of the residual."""
    frames = []
    for piece, part in batched(layout.views(gradient)):
        memory = piece.of(residual)
        indices, values, _ = passing(
            part, Segments.alone(part.numel()), just_above(tau), memory=memory
        )
        words = signed_words(memory, indices, values, tau, -tau)
        frames.append(pack_signed(words, piece.numel))
    return torch.cat(frames)


@kernel("streaming", updates=("memory",))
@on_device("integers.packing")
def two_bits(memory: Tensor, gradient: Tensor, tau: float) -> Tensor:
    """memory += gradient, and two bits an element of it, whose value is then taken out.

    Both float32 `[n]`; returns uint8 `[ceil(n / 4)]`, the first element in the lowest bits.
    """
    packed = np.zeros(-(-memory.numel() // 4), dtype=np.uint8)
    with written_back(memory) as rest:
        in_parallel(_code, rest.size, rest, array(gradient), np.float32(tau), packed)
    return tensor(packed, memory)


@decoder(Codec.TABLE)
def add_codes(frame: Frame, part: Tensor, weight: float, tau: float) -> None:
    """Add tau * {0, -1, 1}."""
    n = frame.numel
    _, packed = split_body(frame, 0, -(-n // 4))
    if n % 4 and int(packed[-1]) >> 2 * (n % 4):
        raise InputError("damaged payload: padding after the last code is not zero")
    if int(_add(part, packed, weight * tau)):
        raise InputError("damaged payload: code 1 stands for nothing")


@kernel("streaming", updates=("out",))
@on_device("integers.packing", "add_two_bits")
def _add(out: Tensor, packed: Tensor, level: float) -> Tensor:
    bad = np.zeros(1, dtype=np.uint8)
    with written_back(out) as target:
        in_parallel(_decode, target.size, array(packed), np.float32(level), target, bad)
    return tensor(bad, out)


@loop
def _code(start: int, stop: int, memory: Any, gradient: Any, tau: Any, packed: Any) -> None:
    codes = np.zeros(_BLOCK, dtype=np.uint8)
    words = codes.view(np.uint32)
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        rest, added, out = memory[first:last], gradient[first:last], packed[first // 4 :]
        for i in range(rest.size):
            value = rest[i] + added[i]
            plus, minus = value >= tau, value <= -tau
            codes[i] = np.uint8(2) * np.uint8(plus | minus) | np.uint8(plus)
            rest[i] = value - (tau if plus else (-tau if minus else np.float32(0)))
        codes[rest.size : rest.size + 3] = 0
        for i in range((rest.size + 3) // 4):
            word = words[i]
            out[i] = (word | word >> 6 | word >> 12 | word >> 18) & 0xFF


@loop
def _decode(start: int, stop: int, packed: Any, level: Any, out: Any, bad: Any) -> None:
    codes = np.zeros(_BLOCK, dtype=np.uint8)
    words = codes.view(np.uint32)
    wrong = np.uint8(0)
    for first in range(start, stop, _BLOCK):
        target = out[first : min(first + _BLOCK, stop)]
        part = packed[first // 4 :]
        for i in range((target.size + 3) // 4):
            word = np.uint32(part[i])
            words[i] = (word | word << 6 | word << 12 | word << 18) & 0x03030303
        for i in range(target.size):
            code = codes[i]
            sign = np.int32(code & 1) * np.int32(2) - np.int32(code >> 1)
            wrong |= code & ~(code >> 1) & 1
            target[i] += level * np.float32(sign)
    if wrong:
        bad[0] = 1
