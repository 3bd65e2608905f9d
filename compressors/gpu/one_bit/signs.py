"""Signs as bits with scales on a GPU: the kernels of `coding/one_bit/signs.py`.

Coding is one kernel that brings the memory on and packs bits, and one that adds up magnitudes for
the scales: those are sums in float64, whose last bit may differ as `reductions.py` says.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit import signs as loops
from gcsim.compressors.coding.one_bit.signs import Norm
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.scans import ABSOLUTE, SQUARES, bucket_totals
from gcsim.compressors.gpu.words import (
    GROUPS,
    load_codes,
    places_of,
    store_codes,
    there,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import FLOAT32_MAX
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, Column, Segments


@kernel_of(loops.put_sign_bits)
def put_sign_bits(values: Tensor, segments: Segments, bits: Tensor, at: Column) -> None:
    """A fold without memories."""
    _fold_parts(values.contiguous(), bits, segments.whole, at)


@kernel_of(loops.fold_signs)
def fold_signs(
    values: Tensor, cells: Cells, bits: Tensor, at: Column, *,
    coded: Tensor | None = None, scales: Tensor | None = None, mixed: Tensor | None = None,
    factors: tuple[float, float, float, float] = loops.NO_FACTORS, keep: bool = False,
    norm: Norm = "mean_abs",
) -> Tensor:  # fmt: skip
    """Sums for the scales may differ as `reductions.py` says."""
    data = values.contiguous()
    _fold_parts(
        data, bits, cells, at, coded=coded, scales=scales, mixed=mixed, factors=factors,
        keep=keep,
    )  # fmt: skip
    if not cells.total:
        return values.new_empty(0)
    squares = norm == "rms"
    totals = bucket_totals(
        data if coded is None else coded, cells, SQUARES if squares else ABSOLUTE
    )
    means = totals / there(cells.length, values.device, np.float64)
    means = means.sqrt() if squares else means
    # not-a-number passes, as it does in numpy's minimum
    return means.clamp(max=FLOAT32_MAX).float()


def _fold_parts(
    values: Tensor, bits: Tensor, cells: Cells, at: Column, *,
    coded: Tensor | None = None, scales: Tensor | None = None, mixed: Tensor | None = None,
    factors: tuple[float, float, float, float] = loops.NO_FACTORS, keep: bool = False,
) -> None:  # fmt: skip
    """Bring memories on, and write signs to `bits` from `at` on."""
    length, begin = cells.segments.length.tolist(), cells.segments.begin.tolist()
    columns = (each.tolist() for each in (at, cells.first, cells.size))
    parts = parts_of(values, length, [tiles(n) for n in length], begin, *columns)
    launch_parts(
        _fold, parts, values, values if mixed is None else mixed,
        values if coded is None else coded, values if scales is None else scales, bits,
        *(float(np.float32(factor)) for factor in factors), MIX=mixed is not None, KEEP=keep,
        ERROR=coded is not None, GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip


@kernel_of(loops.add_scaled_signs)
def add_scaled_signs(
    out: Tensor, cells: Cells, bits: Tensor, at: Column, scales: Tensor, weight: float, *,
    overwrite: bool = False, room: Column | None = None,
) -> None:  # fmt: skip
    """Padding is checked `when_known`."""
    segments = cells.segments
    room = packed_bytes(segments.length, 1) if room is None else room
    rows = segments.length, segments.begin, at, cells.first, cells.size, room
    elements, *columns = (row.tolist() for row in rows)
    parts = parts_of(out, elements, [tiles(8 * n) for n in columns[-1]], *columns)
    stray = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _write, parts, out, bits.contiguous(), scales, stray, float(np.float32(weight)),
        ADD=not overwrite, GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip
    right = ((scales >= 0) & (scales <= FLOAT32_MAX)).all()  # nor not-a-number
    when_known(torch.stack((stray.any(), right)), loops.demand_signs)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _fold(
    values, mixed, coded, scales, bits, m, c, a, b, table, parts,
    MIX: tl.constexpr, KEEP: tl.constexpr, ERROR: tl.constexpr,
    GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """x = g, or a g + b (m u + c g); p = x + p - scale sign(p), where given; then bits."""
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    here = at < n
    begin = tl.load(column + 2 * parts)
    x = tl.load(values + begin + at, mask=here, other=0.0)
    if MIX:
        fresh = m * tl.load(mixed + begin + at, mask=here, other=0.0) + c * x
        if KEEP:
            tl.store(mixed + begin + at, fresh, mask=here)
        x = a * x + b * fresh
    if ERROR:
        p = tl.load(coded + begin + at, mask=here, other=0.0)
        block = at // tl.load(column + 5 * parts).to(INDEX)
        scale = tl.load(scales + tl.load(column + 4 * parts) + block, mask=here, other=0.0)
        x = x + (p - tl.where(p < 0.0, -scale, scale))
        tl.store(coded + begin + at, x, mask=here)
    place = bits + tl.load(column + 3 * parts)
    store_codes(place, group, (x < 0.0) & here, (n + 7) // 8, 1)


@triton.jit
def _write(
    out, packed, scales, stray, weight, table, parts, ADD: tl.constexpr,
    GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    here = at < n
    room = tl.load(column + 6 * parts)
    negative = load_codes(packed + tl.load(column + 3 * parts), group, room, 1)
    behind = tl.where(here, 0, negative)
    tl.store(stray + tl.program_id(0), tl.max(tl.max(behind, axis=1), axis=0))
    block = at // tl.load(column + 5 * parts).to(INDEX)
    scale = tl.load(scales + tl.load(column + 4 * parts) + block, mask=here, other=0.0)
    factor = scale * weight
    signed = tl.where(negative != 0, -factor, factor)
    target = out + tl.load(column + 2 * parts) + at
    if ADD:
        signed = tl.load(target, mask=here, other=0.0) + signed
    tl.store(target, signed, mask=here)
