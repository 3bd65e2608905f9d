"""Casts to 8 and 16 bits on a GPU: the kernel of `coding/floats/narrow_floats.py`, with the same
bit operations."""

from __future__ import annotations

import triton
import triton.language as tl

from gcsim.compressors.coding.floats import narrow_floats as loops
from gcsim.compressors.coding.floats.narrow_floats import Narrow
from gcsim.compressors.gpu.parts import launch_parts, own_part, own_row, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.cast)
def cast(
    values: Tensor, segments: Segments, form: Narrow, factors: Tensor, out: Tensor, at: Column, *,
    fit: bool = False,
) -> Tensor:  # fmt: skip
    """Write the codes in one launch."""
    parts = parts_in_blocks(values, segments.length, segments.begin, at)
    scales, (top, carry) = torch.ones_like(factors) if fit else factors, form.fitting
    launch_parts(
        _cast, parts, values.contiguous(), factors, scales, out, 2.0**23 * form.smallest_step,
        MANTISSA=form.mantissa, BIAS=form.bias, BITS=form.bits, OVERFLOW=form.overflow,
        NAN=form.nan, TOP=top, CARRY=carry, FIT=fit, BLOCK=BLOCK,
    )  # fmt: skip
    return scales


@triton.jit
def _cast(
    values, factors, scales, codes, magic, table, parts, MANTISSA: tl.constexpr,
    BIAS: tl.constexpr, BITS: tl.constexpr, OVERFLOW: tl.constexpr, NAN: tl.constexpr,
    TOP: tl.constexpr, CARRY: tl.constexpr, FIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    at = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = own_row(table, parts, tl.program_id(0))
    factor = tl.load(factors + row)
    if FIT:  # every program of the tensor computes the scale from the largest magnitude
        fields = (tl.minimum(factor.to(tl.int32, bitcast=True), 0x7F800000) + CARRY) >> 23
        power = (tl.minimum(TOP - fields, 253) << 23).to(tl.float32, bitcast=True)
        factor = tl.where(factor == 0.0, 1.0, power)
        tl.store(scales + row, factor)
    source = values + tl.load(column + 2 * parts) + at
    scaled = tl.load(source, mask=at < n, other=0.0) * factor
    word = scaled.to(tl.int32, bitcast=True)
    size = word & 0x7FFFFFFF
    # normal: add half a unit (slightly less if the last kept bit is even) and truncate
    odd = (size >> (23 - MANTISSA)) & 1
    kept = (size.to(tl.uint32) + (((1 << (22 - MANTISSA)) - 1) + odd).to(tl.uint32)) >> (
        23 - MANTISSA
    )
    # subnormal: float32's addition rounds, as the sum's unit is the format's smallest step
    origin = tl.cast(magic, tl.float32).to(tl.int32, bitcast=True)
    fixed = (size.to(tl.float32, bitcast=True) + magic).to(tl.int32, bitcast=True)
    normal = kept.to(tl.int32) - ((127 - BIAS) << MANTISSA)
    code = tl.where(size >= ((128 - BIAS) << 23), normal, fixed - origin)
    code = tl.where(size > 0x7F800000, NAN, tl.minimum(code, OVERFLOW))
    code = code | ((word.to(tl.uint32, bitcast=True) >> 31).to(tl.int32) << (BITS - 1))
    target = codes + tl.load(column + 3 * parts) + at
    tl.store(target, code.to(codes.dtype.element_ty), mask=at < n)
