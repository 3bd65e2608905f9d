"""How does a float32 become a shorter number on a GPU? Powers of two, and 8 and 16-bit formats.

Twins of natural compression's and of `coding/floats/narrow_floats.py`; the arithmetic is on the
numbers' bits, as there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.floats.narrow_floats import Narrow
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import (
    BLOCK,
    GROUPS,
    blocks,
    launch,
    load_codes,
    looked_up,
    places_of,
    random16,
    store_codes,
    there,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random

LOWEST = 18
"""The exponent field of float32 that 8 bits of natural compression code as 0."""


def to_powers(values: Tensor, key: np.uint64, *, bits: int) -> Tensor:
    """See `natural.to_powers`."""
    out = values.new_empty(power_bytes(values.numel(), bits), dtype=torch.uint8)
    powers_of(values.contiguous(), out, [values.numel()], [0], [0], [key], bits)
    return out


def power_bytes(n: int, bits: int) -> int:
    """Of n elements: exponents, and with 9 bits signs behind them."""
    return n + (packed_bytes(n, 1) if bits == 9 else 0)


def powers_of(
    values: Tensor, out: Tensor, elements: Sequence[int], begins: Sequence[int],
    places: Sequence[int], keys: Sequence[np.uint64], bits: int,
) -> None:  # fmt: skip
    """`to_powers` of many tensors: where each begins, and where its bytes go."""
    count_random(sum(elements), 16)
    parts = parts_of(
        values, elements, [tiles(n) for n in elements], begins, places, [int(key) for key in keys]
    )
    launch_parts(
        _to_powers, parts, values, out, BITS=bits, LOWEST=LOWEST, GROUPS=GROUPS, INDEX=parts.index
    )


def add_powers(out: Tensor, body: Tensor, *, bits: int, weight: float) -> None:
    """See `natural.add_powers`."""
    n = out.numel()
    if body.numel() != power_bytes(n, bits):
        raise damaged(f"{body.numel()} bytes for {n} exponents")
    if not add_powers_of(out, body.contiguous(), [n], [0], [0], bits=bits, weight=weight):
        raise damaged("padding after the last code is not zero")


def add_powers_of(
    out: Tensor, packed: Tensor, elements: Sequence[int], begins: Sequence[int],
    places: Sequence[int], *, bits: int, weight: float,
) -> bool:  # fmt: skip
    """`add_powers` of many tensors: where each and its bytes begin; False where bits are set
    behind the last sign. With 9 bits the host waits once."""
    parts = parts_of(out, elements, [tiles(n) for n in elements], begins, places)
    stray = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _add_powers, parts, out, packed, stray, float(np.float32(weight)),
        BITS=bits, LOWEST=LOWEST, GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip
    return bits == 8 or not bool(stray.any())


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
def _to_powers(
    values, out, table, parts, LANES: tl.constexpr, BITS: tl.constexpr,
    LOWEST: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    group, at = places_of(number, GROUPS, INDEX)
    key = tl.load(column + 4 * parts).to(tl.uint64, bitcast=True)
    source = values + tl.load(column + 2 * parts) + at
    place = out + tl.load(column + 3 * parts)
    word = tl.load(source, mask=at < n, other=0.0).to(tl.uint32, bitcast=True)
    magnitude = word & 0x7FFFFFFF
    # 16 of the mantissa's 23 bits are random, and half a unit of the last of them
    raised = magnitude + ((random16(key, group, GROUPS).to(tl.uint32) << 7) | 64)
    exponent = tl.minimum((raised >> 23).to(tl.int32), 254)
    exponent = tl.where(magnitude >= 0x7F800000, 255, exponent)
    sign = (word >> 31).to(tl.int32)
    if BITS == 8:
        exponent = tl.minimum(tl.maximum(exponent, LOWEST), LOWEST + 127) - LOWEST
        exponent = exponent | (sign << 7)
    tl.store(place + at, exponent.to(tl.uint8), mask=at < n)
    if BITS == 9:
        store_codes(place + n, group, sign, (n + 7) // 8, 1)


@triton.jit
def _add_powers(
    out, packed, stray, weight, table, parts, LANES: tl.constexpr, BITS: tl.constexpr,
    LOWEST: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    group, at = places_of(number, GROUPS, INDEX)
    place = packed + tl.load(column + 3 * parts)
    target = out + tl.load(column + 2 * parts) + at
    code = tl.load(place + at, mask=at < n, other=0).to(tl.uint32)
    if BITS == 9:
        sign = load_codes(place + n, group, (n + 7) // 8, 1)
        behind = tl.where(at < n, 0, sign)
        tl.store(stray + tl.program_id(0), tl.max(tl.max(behind, axis=1), axis=0))
        pattern = (code << 23) | (sign.to(tl.uint32) << 31)
    else:
        exponent = code & 127
        exponent = tl.where(exponent > 0, exponent + LOWEST, exponent)
        pattern = (exponent << 23) | ((code >> 7) << 31)
    total = tl.load(target, mask=at < n, other=0.0)
    total = total + weight * pattern.to(tl.float32, bitcast=True)
    tl.store(target, total, mask=at < n)


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
