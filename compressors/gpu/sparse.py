"""Messages of selected elements on a GPU: the kernel of `coding/sparse.py`."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding import sparse as loops
from gcsim.compressors.coding.frames import Frames, from_bytes
from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    decoded_positions,
    demand_ascending,
    rooms,
)
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.frames import own_frame, table_of
from gcsim.compressors.gpu.indices.index_coding import read_positions
from gcsim.compressors.gpu.integers.packing import get_field, stray
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import by_loop, kernel_of
from gcsim.compressors.segments import Column, Segments, starts

RAW, HALF = tl.constexpr(int(Coder.RAW)), tl.constexpr(loops.HALF)


@kernel_of(loops.scatter_add)
def scatter_add(
    out: Tensor, segments: Segments, coded: Tensor, sizes: Column, coders: Column, values: Tensor,
    k: Column, weight: float,
) -> None:  # fmt: skip
    """Add raw positions in one launch; their order is checked `when_known`."""
    given, wrong = (coded, segments, sizes, k, coders), coded.new_zeros((), dtype=torch.int32)
    if (coders == Coder.RAW).all() and (sizes == 4 * k).all():
        positions = from_bytes(coded, torch.int32, int(k.sum()))
    elif found := read_positions(*given):
        positions, wrong = found
    else:  # too long, or damaged
        positions = by_loop(decoded_positions, *given)
    parts = parts_in_blocks(out, k, starts(k), segments.begin, segments.length)
    launch_parts(
        _add, parts, out, positions, values.float(), wrong, float(np.float32(weight)), BLOCK=BLOCK
    )
    when_known(wrong, demand_ascending)


@kernel_of(loops.add_plain)
def add_plain(
    out: Tensor, segments: Segments, message: Tensor, found: Frames | Tensor, weight: float
) -> None:
    """Add in one launch; the order of positions is checked `when_known`."""
    wrong = out.new_zeros((), dtype=torch.int32)
    packed, _ = rooms(segments.length, segments.length, segments.column(Coder.PACKED))
    parts = parts_in_blocks(out, segments.length, segments.begin, packed)
    launch_parts(
        _add_plain, parts, out, message, table_of(found, out), wrong, float(np.float32(weight)),
        BLOCK=BLOCK,
    )  # fmt: skip
    when_known(wrong, demand_ascending)


@triton.jit
def _add_plain(out, message, frames, wrong, weight, table, parts, BLOCK: tl.constexpr):
    column, number, n = own_part(table, parts)
    at, size, flags, k = own_frame(frames, table, parts)
    i = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    item = tl.where((flags & HALF) != 0, 2, 4)
    width = tl.where((flags & 15) == RAW, 32, tl.load(column + 3 * parts))
    here = (i < k) & (size == item * k + (k * width + 7) // 8)
    code = 8 * (at + item * k) + i * width  # values come first, then positions
    position = get_field(message, code, width, here)
    before = get_field(message, code - width, width, here & (i > 0))
    good = here & (position > tl.where(i > 0, before, -1)) & (position < n)
    bits = get_field(message, 8 * (at + item * i), 8 * item, good).to(tl.int32)
    half = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    value = tl.where(item == 2, half, bits.to(tl.float32, bitcast=True))
    # ascending positions are distinct, so no two lanes add to the same element
    target = out + tl.load(column + 2 * parts) + position
    total = tl.load(target, mask=good, other=0.0) + weight * value
    tl.store(target, total, mask=good)
    bad = (here & (good == 0)) | stray(message, code + width, here & (i == k - 1))
    tl.atomic_or(wrong, tl.max(bad.to(tl.int32), axis=0), sem="relaxed")


@triton.jit
def _add(out, positions, values, wrong, weight, table, parts, BLOCK: tl.constexpr):
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    place = positions + tl.load(column + 2 * parts) + i
    # raw positions are unsigned but read as int32: a huge one is out of range, not negative
    at = tl.load(place, mask=i < k, other=0).to(tl.int64) & 0xFFFFFFFF
    before = tl.load(place - 1, mask=(i > 0) & (i < k), other=0).to(tl.int64) & 0xFFFFFFFF
    good = (at > tl.where(i > 0, before, -1)) & (at < tl.load(column + 4 * parts)) & (i < k)
    target = out + tl.load(column + 3 * parts) + at
    value = tl.load(values + tl.load(column + 2 * parts) + i, mask=good, other=0.0)
    total = tl.load(target, mask=good, other=0.0) + weight * value
    tl.store(target, total, mask=good)
    tl.atomic_or(wrong, tl.max(((i < k) & (good == 0)).to(tl.int32), axis=0), sem="relaxed")
