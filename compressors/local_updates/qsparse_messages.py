"""Messages of Qsparse-local-SGD: kept values in one byte each.

For each tensor: the norms of the buckets of kept values (float32) and a byte of sign and magnitude
for each value; then the coded indices. The frame's flags name the index coder; its params are the
bucket.

See `qsparse_local_sgd.py` for the method and its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frames import Codec, packed, read
from gcsim.compressors.coding.indices.index_coding import (
    IndexCoding,
    chosen_coders,
    coded_positions,
    decoded_positions,
)
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.integers.packing import damaged
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


def beta(d: int) -> float:
    """Variance of the quantiser relative to |v|^2, of d values with one norm; an upper bound."""
    return min(d / STEPS**2, math.sqrt(d) / STEPS)


# --- sender -----------------------------------------------------------------------------------


def encoded(
    values: Tensor, indices: Tensor, segments: Segments, k: Column, coding: IndexCoding, norm: Norm,
    bucket: int | None, keys: NDArray[np.uint64],
) -> Tensor:  # fmt: skip
    """The message of kept values at indices within their tensor, k of each.

    They are rounded at random to 127 levels of the norm that `bucket` values share; None: all.
    """
    coders, kept = chosen_coders(coding, segments, k), Segments.behind(k)
    coded, tail = coded_positions(indices, segments, k, coders)
    cells = kept.cells(bucket)
    norms, codes = cell_norms(values, cells, norm), torch.empty_like(values, dtype=torch.uint8)
    round_levels(values, even(cells, norms, STEPS), keys, codes, kept.begin, fixed(8))
    parts = (norms, 4 * cells.count), (to_sign_magnitude(codes), k), (coded, tail)
    row: dict[str, Any] = {"nonzero": k, "flags": coders, "params": bucket or 0}
    return packed(values, Codec.QSPARSE, segments, *parts, **row)


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
    k = found.nonzero
    kept = Segments.behind(k)
    cells = kept.cells(found.alike("params") or None)
    head = 4 * cells.count
    tail = found.size - head - k
    if (tail < 0).any():
        raise damaged(f"bodies of {found.size.tolist()} bytes for {k.tolist()} kept values")
    parts = (head, torch.float32), (k, torch.uint8), (tail, torch.uint8)
    norms, stored, coded = found.parts(message, *parts)
    values = torch.zeros(int(k.sum()), device=message.device)
    codes = from_sign_magnitude(stored)
    add_rounded(values, even(cells, norms, STEPS), codes, kept.begin, fixed(8), weight)
    indices = decoded_positions(coded, segments, tail, k, found.flags)
    return flat_places(indices, segments, k), values
