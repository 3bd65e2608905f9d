"""Bytes with a decimal exponent on a GPU: the kernel of `coding/floats/decades.py`."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.floats import decades as loops
from gcsim.compressors.coding.floats.decades import DECADES, LEAST, OFFSETS, SLOPES
from gcsim.compressors.gpu.floats.narrow_floats import parts_in_blocks
from gcsim.compressors.gpu.parts import launch_parts, own_part
from gcsim.compressors.gpu.words import BLOCK, there
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.nearest_codes)
def nearest_codes(
    values: Tensor, segments: Segments, largest: Tensor, out: Tensor, at: Column
) -> None:
    """Written by one kernel."""
    parts = parts_in_blocks(values, segments, at, np.arange(len(at)))
    lines = there((LEAST, SLOPES, OFFSETS), values.device, np.float32)
    launch_parts(
        _nearest, parts, values.contiguous(), out, largest, lines, DECADES=DECADES, BLOCK=BLOCK
    )


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _nearest(
    values, codes, largest, lines, table, parts,
    LANES: tl.constexpr, DECADES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    at = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=at < n, other=0.0)
    unit = tl.load(largest + tl.load(column + 4 * parts))
    unit = tl.where(unit == 0.0, 1.0, unit)
    # by way of float64, rounded once more to the same: float32's division drops subnormal numbers,
    # and with them their signs
    scaled = (v.to(tl.float64) / unit.to(tl.float64)).to(tl.float32)
    size = tl.abs(scaled)
    slope = tl.zeros([BLOCK], dtype=tl.float32)
    offset = tl.zeros([BLOCK], dtype=tl.float32)
    cells = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(DECADES):
        above = size >= tl.load(lines + k)
        slope = tl.where(above, tl.load(lines + DECADES + k), slope)
        offset = tl.where(above, tl.load(lines + 2 * DECADES + k), offset)
        cells = tl.where(above, 2.0**k, cells)
    last = tl.maximum(cells - 1.0, 0.0)
    cell = tl.minimum(tl.maximum(size * slope + offset, 0.0), last)
    code = cell.to(tl.int32) + cells.to(tl.int32) + tl.where(scaled < 0.0, 128, 0)
    tl.store(codes + tl.load(column + 3 * parts) + at, code.to(tl.uint8), mask=at < n)
