"""How does a float32 become a shorter number on a GPU? Powers of two, and 8 and 16-bit formats.

Twins of natural compression's and of `coding/floats/narrow_floats.py`; the arithmetic is on the
numbers' bits, as there.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.floats.narrow_floats import Narrow
from gcsim.compressors.gpu.words import (
    BLOCK,
    blocks,
    launch,
    looked_up,
    there,
)
from gcsim.compressors.lazy_torch import Tensor, torch


def narrow(values: Tensor, form: Narrow, factor: float) -> Tensor:
    """See `narrow_floats.narrow`."""
    n = values.numel()
    codes = values.new_empty(n, dtype=torch.uint8 if form.bits == 8 else torch.int16)
    launch(
        _narrow, blocks(n), values.contiguous(), codes, n, float(np.float32(factor)),
        2.0**23 * form.smallest_step, MANTISSA=form.mantissa, BIAS=form.bias, BITS=form.bits,
        OVERFLOW=form.overflow, NAN=form.nan, BLOCK=BLOCK,
    )  # fmt: skip
    return codes


def add_looked_up(out: Tensor, codes: Tensor, table: NDArray[np.float32]) -> None:
    """See `narrow_floats.add_looked_up`."""
    out.add_(looked_up(table, codes))


def nearest_codes(values: Tensor, largest: float) -> Tensor:
    """See `dynamic_8bit.nearest_codes`."""
    from gcsim.compressors.quantization.floats.dynamic_8bit import DECADES, LEAST, OFFSETS, SLOPES

    n = values.numel()
    codes = values.new_empty(n, dtype=torch.uint8)
    table = there((LEAST, SLOPES, OFFSETS), values.device, np.float32)
    launch(
        _nearest, blocks(n), values.contiguous(), codes, table, n,
        float(np.float32(largest or 1.0)), DECADES=DECADES, BLOCK=BLOCK,
    )  # fmt: skip
    return codes


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _narrow(
    values, codes, n, factor, magic, MANTISSA: tl.constexpr,
    BIAS: tl.constexpr, BITS: tl.constexpr, OVERFLOW: tl.constexpr, NAN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    scaled = tl.load(values + at, mask=at < n, other=0.0) * factor
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
    tl.store(codes + at, code.to(codes.dtype.element_ty), mask=at < n)


@triton.jit
def _nearest(values, codes, table, n, largest, DECADES: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + at, mask=at < n, other=0.0)
    # by way of float64, rounded once more to the same: float32's division drops subnormal numbers,
    # and with them their signs
    scaled = (v.to(tl.float64) / tl.cast(largest, tl.float32).to(tl.float64)).to(tl.float32)
    size = tl.abs(scaled)
    slope = tl.zeros([BLOCK], dtype=tl.float32)
    offset = tl.zeros([BLOCK], dtype=tl.float32)
    cells = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(DECADES):
        above = size >= tl.load(table + k)
        slope = tl.where(above, tl.load(table + DECADES + k), slope)
        offset = tl.where(above, tl.load(table + 2 * DECADES + k), offset)
        cells = tl.where(above, 2.0**k, cells)
    last = tl.maximum(cells - 1.0, 0.0)
    cell = tl.minimum(tl.maximum(size * slope + offset, 0.0), last)
    code = cell.to(tl.int32) + cells.to(tl.int32) + tl.where(scaled < 0.0, 128, 0)
    tl.store(codes + at, code.to(tl.uint8), mask=at < n)
