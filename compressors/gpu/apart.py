"""Elements as values or as signs of one magnitude on a GPU: the kernel of `coding/apart.py`."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding import apart as loops
from gcsim.compressors.coding.frames import Frames
from gcsim.compressors.coding.indices.index_coding import Coder, rooms
from gcsim.compressors.demands import entered, when_known
from gcsim.compressors.gpu.frames import own_frame, table_of
from gcsim.compressors.gpu.integers.packing import get_field, stray
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import by_loop, kernel_of
from gcsim.compressors.segments import Segments

RAW, HEAD = tl.constexpr(int(Coder.RAW)), tl.constexpr(loops.HEAD)
COUNTS, CODES, SIGNS, SCALE = (
    tl.constexpr(each) for each in (loops.COUNTS, loops.CODES, loops.SIGNS, loops.SCALE)
)


@kernel_of(loops.add_elements)
def add_elements(
    out: Tensor, segments: Segments, message: Tensor, found: Frames | Tensor, weight: float
) -> None:
    """Add fixed-width elements in one launch; faults are checked `when_known`."""
    if (exchange := entered()) is None or not exchange.plain:
        return by_loop(loops.add_elements, out, segments, message, found, weight)
    wrong = out.new_zeros((), dtype=torch.int32)
    widths, _ = rooms(segments.length, segments.length, segments.column(Coder.PACKED))
    parts = parts_in_blocks(out, segments.length, segments.begin, widths)
    launch_parts(
        _add, parts, out, message, table_of(found, out), wrong, float(np.float32(weight)),
        BLOCK=BLOCK,
    )  # fmt: skip
    when_known(wrong, loops.demand_whole)


@triton.jit
def _add(out, message, frames, wrong, weight, table, parts, BLOCK: tl.constexpr):
    column, number, n = own_part(table, parts)
    at, size, flags, k = own_frame(frames, table, parts)
    packed = tl.load(column + 3 * parts)
    head = (k > 0) & (size >= HEAD)
    scale = get_field(message, 8 * at, 32, head).to(tl.int32).to(tl.float32, bitcast=True)
    a = get_field(message, 8 * at + 32, 32, head)
    size_a = get_field(message, 8 * at + 64, 32, head)
    b = k - a
    width_a = tl.where((flags & 15) == RAW, 32, packed)
    width_b = tl.where((flags >> 4) == RAW, 32, packed)
    signs = at + HEAD + 4 * a
    codes = signs + (b + 7) // 8
    whole = head & (b >= 0) & (size_a == (a * width_a + 7) // 8)
    whole = whole & (at + size == codes + size_a + (b * width_b + 7) // 8)
    fault = tl.where((k > 0) & (whole == 0), COUNTS, 0)
    fault |= tl.where(head & (((scale >= 0.0) & (scale < float("inf"))) == 0), SCALE, 0)
    i = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = (i < k) & whole
    valued = here & (i < a)
    j = tl.where(valued, i, i - a)
    width = tl.where(valued, width_a, width_b)
    code = 8 * tl.where(valued, codes, codes + size_a) + j * width
    position = get_field(message, code, width, here)
    before = get_field(message, code - width, width, here & (j > 0))
    good = here & (position > tl.where(j > 0, before, -1)) & (position < n)
    value = get_field(message, 8 * (at + HEAD + 4 * i), 32, valued)
    value = value.to(tl.int32).to(tl.float32, bitcast=True)
    sign = get_field(message, 8 * signs + j, 1, here & (valued == 0))
    value = tl.where(valued, value, tl.where(sign != 0, -scale, scale))
    target = out + tl.load(column + 2 * parts) + position
    total = tl.load(target, mask=good, other=0.0) + weight * value
    tl.store(target, total, mask=good)
    ends = here & ((i == a - 1) | (i == k - 1))
    bad = (here & (good == 0)) | stray(message, code + width, ends)
    spoilt = stray(message, 8 * signs + b + 0 * i, here & (i == k - 1) & (b > 0))
    faults = tl.where(bad, CODES, 0) | tl.where(spoilt, SIGNS, 0)
    fault |= tl.max(faults & CODES, axis=0) | tl.max(faults & SIGNS, axis=0)
    tl.atomic_or(wrong, fault, sem="relaxed")
