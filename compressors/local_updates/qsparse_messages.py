"""Messages of Qsparse-local-SGD: kept values in one byte or one bit each.

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
from numpy.typing import NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.indices.coded import (
    chosen_coders,
    coded_positions,
    decoded_positions,
)
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.one_bit.signs import add_scaled_signs, fold_signs
from gcsim.compressors.coding.rounding.levels import add_rounded, even, round_levels
from gcsim.compressors.coding.rounding.norms import Norm, cell_norms
from gcsim.compressors.coding.selecting.selection import flat_places
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import kernel
from gcsim.compressors.segments import Column, Segments

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
    """Rounding of kept values to levels."""

    norm: Norm
    bucket: int | None
    """Values that share a norm; None: all."""
    scaled: bool
    """Whether norms are divided by 1 + beta."""


def beta(d: int) -> float:
    """Variance of the quantiser relative to |v|^2, of d values with one norm; an upper bound."""
    return min(d / STEPS**2, math.sqrt(d) / STEPS)


# --- sender -----------------------------------------------------------------------------------


def encoded(
    values: Tensor, indices: Tensor, segments: Segments, k: Column, coding: IndexCoding,
    rounding: Rounding | None, keys: NDArray[np.uint64],
) -> Tensor:  # fmt: skip
    """The message of kept values at indices within their tensor, k of each.

    They are rounded at random to 127 levels, or (without `rounding`) to signs of their mean
    magnitude.
    """
    coders = chosen_coders(coding, segments, k)
    coded, tail = coded_positions(indices, segments, k, coders)
    kept = Segments.behind(k)
    if rounding is None:
        middle, cells = packed_bytes(k, 1), kept.whole
    else:
        middle, cells = k, kept.cells(rounding.bucket)
        norms = cell_norms(values, cells, rounding.norm)
        codes = torch.empty_like(values, dtype=torch.uint8)
        round_levels(values, even(cells, norms, STEPS), keys, codes, kept.begin, fixed(8))
        codes = to_sign_magnitude(codes)
        if rounding.scaled:
            sizes = np.minimum(rounding.bucket or k, k)[cells.owner].tolist()
            losses = norms.new_tensor([1.0 + beta(size) for size in sizes])
            norms = norms / losses
    head = 4 * cells.count
    flags = coders | _SIGNS if rounding is None else coders
    params = rounding.bucket or 0 if rounding else 0
    sizes = head + middle + tail
    message, at = frames(
        values, Codec.QSPARSE, segments, sizes, nonzero=k, flags=flags, params=params
    )
    if rounding is None:
        fold_signs(values, cells, message, at + head, head=at)
    else:
        put(message, at, norms, head)
        put(message, at + head, codes, middle)
    put(message, at + head + middle, coded, tail)
    return seal(message, at, sizes)


@kernel("streaming")
def to_sign_magnitude(codes: Tensor) -> Tensor:
    """Codes q + 127 as bytes with the sign in bit 7 (1 = negative) and |q| below it."""
    return _looked_up(SIGN_MAGNITUDE, codes)


@kernel("streaming")
def from_sign_magnitude(stored: Tensor) -> Tensor:
    """Undo `to_sign_magnitude`: uint8 q + 127."""
    return _looked_up(CODES, stored)


def _looked_up(table: NDArray[np.uint8], codes: Tensor) -> Tensor:
    return torch.from_numpy(table).to(codes.device)[codes.int()]


# --- receiver ---------------------------------------------------------------------------------


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * kept values, in place; `InputError` for a damaged or another message."""
    places, values = _read(message, layout, weight)
    out.index_add_(0, places, values)


def decoded(
    payloads: Iterable[Tensor], layout: BucketLayout, weight: float
) -> list[tuple[Tensor, Tensor]]:
    """(positions in the bucket, int64, weight * values, float32) of each message."""
    return [_read(payload, layout, weight) for payload in payloads]


def _read(message: Tensor, layout: BucketLayout, weight: float) -> tuple[Tensor, Tensor]:
    """(positions in the bucket, int64, weight * values, float32)."""
    segments, found = Segments.of(layout), read(message, layout, Codec.QSPARSE)
    k, signs = found.nonzero, found.flags & _SIGNS
    kept = Segments.behind(k)
    if (signs != signs[0]).any():
        raise damaged(f"flags {found.flags.tolist()} differ between frames")
    cells = kept.whole if signs[0] else kept.cells(found.alike("params") or None)
    head, middle = 4 * cells.count, packed_bytes(k, 1) if signs[0] else k
    tail = found.size - head - middle
    if (tail < 0).any():
        raise damaged(f"bodies of {found.size.tolist()} bytes for {k.tolist()} kept values")
    values = torch.zeros(int(k.sum()), device=message.device)
    if signs[0]:
        add_scaled_signs(values, cells, message, found.at + head, found.at, weight)
    else:
        norms = taken(message, found.at, head, torch.float32)
        codes = from_sign_magnitude(taken(message, found.at + head, middle, torch.uint8))
        add_rounded(values, even(cells, norms, STEPS), codes, kept.begin, fixed(8), weight)
    coded = taken(message, found.at + head + middle, tail, torch.uint8)
    indices = decoded_positions(coded, segments, tail, k, found.flags & 0xF)
    return flat_places(indices, segments, k), values
