"""What do the messages of Qsparse-local-SGD look like? Kept values in one byte or one bit each.

For each tensor: the norms of the buckets of kept values (float32) and a byte of sign and magnitude
for each value, or one magnitude (float32) and a bit for each; then the coded indices. The frame's
flags say which (bit 4: signs) and name the index coder (low four bits); its params are the bucket.

See `qsparse_local_sgd.py` for the method and its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.indices.index_coding import Coder, decode_indices, encode_indices
from gcsim.compressors.coding.integers.packing import (
    damaged,
    pack_signs,
    packed_bytes,
    unpack_signs,
)
from gcsim.compressors.coding.messages import decoder, frames_of
from gcsim.compressors.coding.rounding.levels import (
    Norm,
    add_levels,
    bucket_count,
    bucket_norms,
    encode_levels,
)
from gcsim.compressors.coding.selecting.selection import scatter_add
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device

STEPS = 127
VALUE_BUCKET = 512
"""Kept values that share a norm."""
_LEVELS = np.arange(256) - STEPS
SIGN_MAGNITUDE = (np.abs(_LEVELS) | (_LEVELS < 0) << 7).astype(np.uint8)
CODES = (STEPS + np.where(_LEVELS <= 0, 1, -1) * (np.arange(256) & STEPS)).astype(np.uint8)
_SIGNS = 1 << 4
"""Flag of a frame: signs and one magnitude."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How kept values are rounded to levels."""

    norm: Norm
    bucket: int | None
    """Values that share a norm; None: all."""
    scaled: bool
    """Whether norms are divided by 1 + beta."""


def beta(d: int) -> float:
    """Variance of the quantiser relative to |v|^2, of d values with one norm; an upper bound."""
    return min(d / STEPS**2, math.sqrt(d) / STEPS)


# --- sender -----------------------------------------------------------------------------------


def pack_signed_kept(values: Tensor, indices: Tensor, numel: int, coder: Coder) -> Tensor:
    """One frame of the signs of `values` `[k]` at `indices` `[k]`, and their mean magnitude."""
    k = values.numel()
    magnitude = values.double().abs().mean().float() if k else values.new_zeros(())
    coded = encode_indices(indices, numel, coder)
    body = as_bytes(magnitude.reshape(1)), pack_signs(values), coded
    flags = int(coder) | _SIGNS
    return pack_frame(Codec.QSPARSE, torch.cat(body), numel=numel, nonzero=k, flags=flags)


def pack_levels_kept(
    values: Tensor, indices: Tensor, numel: int, coder: Coder, rounding: Rounding, key: np.uint64
) -> Tensor:
    """One frame of `values` `[k]` at `indices` `[k]`, rounded at random (`key`) to 127 levels."""
    k = values.numel()
    size = rounding.bucket or max(1, k)
    norms = bucket_norms(values, size, rounding.norm)
    codes = encode_levels(values, norms, key, size=size, steps=STEPS, bits=8)
    if rounding.scaled:
        norms = norms / (1.0 + beta(min(size, k)))
    body = (as_bytes(norms), to_sign_magnitude(codes), encode_indices(indices, numel, coder))
    params = rounding.bucket or 0
    return pack_frame(
        Codec.QSPARSE, torch.cat(body), numel=numel, nonzero=k, flags=int(coder), params=params
    )


@kernel("streaming")
@on_device("methods.momentum")
def to_sign_magnitude(codes: Tensor) -> Tensor:
    """Codes q + 127 as bytes with the sign in bit 7 (1 = negative) and |q| below it."""
    return tensor(SIGN_MAGNITUDE[array(codes)], codes)


@kernel("streaming")
@on_device("methods.momentum")
def from_sign_magnitude(stored: Tensor) -> Tensor:
    """Undo `to_sign_magnitude`: uint8 q + 127."""
    return tensor(CODES[array(stored)], stored)


# --- receiver ---------------------------------------------------------------------------------


@decoder(Codec.QSPARSE)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add the kept values of a frame."""
    scatter_add(part, *_read(frame, weight))


def decoded(
    payloads: Iterable[Tensor], layout: BucketLayout, weight: float
) -> list[tuple[Tensor, Tensor]]:
    """(positions in the bucket, int64, weight * values, float32) of each message."""
    found = []
    for payload in payloads:
        parts = [
            (piece.offset + indices, values)
            for piece, frame in frames_of(payload, layout, Codec.QSPARSE)
            for indices, values in [_read(frame, weight)]
        ]
        places, numbers = zip(*parts, strict=True)
        found.append((torch.cat(places), torch.cat(numbers)))
    return found


def _read(frame: Frame, weight: float) -> tuple[Tensor, Tensor]:
    """(indices int64 `[k]`, weight * values float32 `[k]`) of one frame."""
    k = frame.nonzero
    signs, size = bool(frame.flags & _SIGNS), frame.params or max(1, k)
    head = 4 if signs else 4 * bucket_count(k, size)
    middle = packed_bytes(k, 1) if signs else k
    if frame.body.numel() < head + middle:
        raise damaged(f"{frame.body.numel()} bytes for {k} kept values")
    norms = from_bytes(frame.body[:head], torch.float32, head // 4)
    coded = frame.body[head : head + middle]
    if signs:
        values = unpack_signs(coded, k).mul_(norms).mul_(weight)
    else:
        values = torch.zeros(k, dtype=torch.float32, device=frame.body.device)
        codes = from_sign_magnitude(coded)
        add_levels(values, codes, norms, size=size, steps=STEPS, weight=weight)
    indices = decode_indices(frame.body[head + middle :], frame.numel, k, frame.flags & 0xF)
    return indices, values
