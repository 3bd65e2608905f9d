"""Casts to 8 and 16 bits on a GPU: the kernels of `coding/floats/narrow_floats.py`.

The arithmetic is on the numbers' bits, as there.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.floats import narrow_floats as loops
from gcsim.compressors.coding.floats.narrow_floats import DECADES, LEAST, OFFSETS, SLOPES, Narrow
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import BLOCK, blocks, there
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.cast)
def cast(
    values: Tensor, segments: Segments, form: Narrow, factors: NDArray[np.float64], out: Tensor,
    at: Column,
) -> None:  # fmt: skip
    """Written by one kernel."""
    parts = _parts(values, segments, at, factors.astype(np.float32).view(np.uint32))
    launch_parts(
        _cast, parts, values.contiguous(), out, 2.0**23 * form.smallest_step,
        MANTISSA=form.mantissa, BIAS=form.bias, BITS=form.bits, OVERFLOW=form.overflow,
        NAN=form.nan, BLOCK=BLOCK,
    )  # fmt: skip


@kernel_of(loops.add_looked_up)
def add_looked_up(
    out: Tensor, segments: Segments, codes: Tensor, at: Column, tables: NDArray[np.float32]
) -> None:
    """Looked up by one kernel."""
    parts = _parts(out, segments, at, np.arange(len(tables)))
    launch_parts(_look_up, parts, out, codes.contiguous(), there(tables, out.device), BLOCK=BLOCK)


@kernel_of(loops.nearest_codes)
def nearest_codes(
    values: Tensor, segments: Segments, largest: Tensor, out: Tensor, at: Column
) -> None:
    """Written by one kernel."""
    parts = _parts(values, segments, at, np.arange(len(at)))
    lines = there((LEAST, SLOPES, OFFSETS), values.device, np.float32)
    launch_parts(
        _nearest, parts, values.contiguous(), out, largest, lines, DECADES=DECADES, BLOCK=BLOCK
    )


def _parts(like: Tensor, segments: Segments, *columns: NDArray[np.generic]) -> Parts:
    """Parts in blocks, with begins and more."""
    elements, begins = segments.length.tolist(), segments.begin.tolist()
    programs = [blocks(n) for n in elements]
    return parts_of(like, elements, programs, begins, *(each.tolist() for each in columns))


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _cast(
    values, codes, magic, table, parts, MANTISSA: tl.constexpr,
    BIAS: tl.constexpr, BITS: tl.constexpr, OVERFLOW: tl.constexpr, NAN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    at = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    factor = tl.load(column + 4 * parts).to(tl.int32).to(tl.float32, bitcast=True)
    source = values + tl.load(column + 2 * parts) + at
    scaled = tl.load(source, mask=at < n, other=0.0) * factor
    word = scaled.to(tl.int32, bitcast=True)
    size = word & 0x7FFFFFFF
    # normal: add half a unit (a little less when the last kept bit is even), cut off
    odd = (size >> (23 - MANTISSA)) & 1
    kept = (size.to(tl.uint32) + (((1 << (22 - MANTISSA)) - 1) + odd).to(tl.uint32)) >> (
        23 - MANTISSA
    )
    # subnormal: float32's addition rounds when the sum's unit is the format's smallest step
    origin = tl.cast(magic, tl.float32).to(tl.int32, bitcast=True)
    fixed = (size.to(tl.float32, bitcast=True) + magic).to(tl.int32, bitcast=True)
    normal = kept.to(tl.int32) - ((127 - BIAS) << MANTISSA)
    code = tl.where(size >= ((128 - BIAS) << 23), normal, fixed - origin)
    code = tl.where(size > 0x7F800000, NAN, tl.minimum(code, OVERFLOW))
    code = code | ((word.to(tl.uint32, bitcast=True) >> 31).to(tl.int32) << (BITS - 1))
    target = codes + tl.load(column + 3 * parts) + at
    tl.store(target, code.to(codes.dtype.element_ty), mask=at < n)


@triton.jit
def _look_up(out, codes, tables, table, parts, BLOCK: tl.constexpr):
    column, number, n = own_part(table, parts)
    at = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(codes + tl.load(column + 3 * parts) + at, mask=at < n, other=0).to(tl.int32)
    value = tl.load(tables + tl.load(column + 4 * parts) * 256 + code, mask=at < n, other=0.0)
    target = out + tl.load(column + 2 * parts) + at
    tl.store(target, tl.load(target, mask=at < n, other=0.0) + value, mask=at < n)


@triton.jit
def _nearest(
    values, codes, largest, lines, table, parts, DECADES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
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
