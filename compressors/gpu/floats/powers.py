"""Powers of two on a GPU: the kernels of `coding/floats/powers.py`."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.floats import powers as loops
from gcsim.compressors.coding.floats.powers import LOWEST
from gcsim.compressors.coding.one_bit.bits import demand_signs
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import (
    GROUPS,
    load_codes,
    places_of,
    random16,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.put_powers)
def put_powers(
    values: Tensor, segments: Segments, keys: NDArray[np.uint64], out: Tensor, at: Column, *,
    bits: int,
) -> None:  # fmt: skip
    """Rounded and written by one kernel."""
    parts = _parts(values, segments, at, keys)
    launch_parts(
        _put, parts, values.contiguous(), out, BITS=bits, LOWEST=LOWEST, GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip


@kernel_of(loops.add_powers)
def add_powers(
    out: Tensor, segments: Segments, message: Tensor, at: Column, *, bits: int, weight: float
) -> None:
    """Padding is checked `when_known`."""
    parts = _parts(out, segments, at)
    stray = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _add, parts, out, message.contiguous(), stray, float(np.float32(weight)),
        BITS=bits, LOWEST=LOWEST, GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip
    if bits == 9:
        when_known(stray.any(), demand_signs)


def _parts(like: Tensor, segments: Segments, *columns: NDArray[np.int64 | np.uint64]) -> Parts:
    elements, begins = segments.length.tolist(), segments.begin.tolist()
    programs = [tiles(n) for n in elements]
    return parts_of(like, elements, programs, begins, *(each.tolist() for each in columns))


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _put(
    values, out, table, parts, BITS: tl.constexpr,
    LOWEST: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
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
def _add(
    out, packed, stray, weight, table, parts, BITS: tl.constexpr,
    LOWEST: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
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
