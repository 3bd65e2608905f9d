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
from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.gpu.words import (
    BLOCK,
    GROUPS,
    blocks,
    index_type,
    launch,
    load_codes,
    places,
    random16,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random

LOWEST = 18
"""The exponent field of float32 that 8 bits of natural compression code as 0."""


def to_powers(values: Tensor, key: np.uint64, *, bits: int) -> Tensor:
    """See `natural.to_powers`."""
    n = values.numel()
    signs = packed_bytes(n, 1) if bits == 9 else 0
    out = values.new_empty(n + signs, dtype=torch.uint8)
    count_random(n, 16)
    launch(
        _to_powers, tiles(n), values.contiguous(), out, out[n:], int(key), n, signs,
        BITS=bits, LOWEST=LOWEST, GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    return out


def add_powers(out: Tensor, body: Tensor, *, bits: int, weight: float) -> None:
    """See `natural.add_powers`."""
    n = out.numel()
    if body.numel() < n or (bits == 8 and body.numel() > n):
        raise damaged(f"{body.numel()} bytes for {n} exponents")
    data = body.contiguous()
    if bits == 9:
        check_packed(data[n:], n, 1)
    launch(
        _add_powers, tiles(n), out, data, data[n:], n, data.numel() - n, float(np.float32(weight)),
        BITS=bits, LOWEST=LOWEST, GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip


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
    out.add_(torch.from_numpy(table).to(out.device)[codes.long()])


# --- kernels --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["key"])
def _to_powers(
    values, out, signs, key: tl.uint64, n, nbytes, BITS: tl.constexpr,
    LOWEST: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    word = tl.load(values + at, mask=at < n, other=0.0).to(tl.uint32, bitcast=True)
    magnitude = word & 0x7FFFFFFF
    # 16 of the mantissa's 23 bits are random, and half a unit of the last of them
    raised = magnitude + ((random16(key, group, GROUPS).to(tl.uint32) << 7) | 64)
    exponent = tl.minimum((raised >> 23).to(tl.int32), 254)
    exponent = tl.where(magnitude >= 0x7F800000, 255, exponent)
    sign = (word >> 31).to(tl.int32)
    if BITS == 8:
        exponent = tl.minimum(tl.maximum(exponent, LOWEST), LOWEST + 127) - LOWEST
        exponent = exponent | (sign << 7)
    tl.store(out + at, exponent.to(tl.uint8), mask=at < n)
    if BITS == 9:
        store_codes(signs, group, sign, nbytes, 1)


@triton.jit
def _add_powers(
    out, exponents, signs, n, nbytes, weight, BITS: tl.constexpr,
    LOWEST: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    code = tl.load(exponents + at, mask=at < n, other=0).to(tl.uint32)
    if BITS == 9:
        pattern = (code << 23) | (load_codes(signs, group, nbytes, 1).to(tl.uint32) << 31)
    else:
        exponent = code & 127
        exponent = tl.where(exponent > 0, exponent + LOWEST, exponent)
        pattern = (exponent << 23) | ((code >> 7) << 31)
    total = tl.load(out + at, mask=at < n, other=0.0)
    total = total + weight * pattern.to(tl.float32, bitcast=True)
    tl.store(out + at, total, mask=at < n)


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
