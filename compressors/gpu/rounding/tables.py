"""Rounding to tables that all workers know: the kernels of `coding/rounding/tables.py`."""

from __future__ import annotations

from functools import partial

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.rounding import tables as loops
from gcsim.compressors.coding.rounding.levels import STRAY
from gcsim.compressors.coding.rounding.tables import COUNTED, Levels
from gcsim.compressors.coding.rounding.truncated_normals import Numbers
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import launch_parts, own_part
from gcsim.compressors.gpu.rounding.levels import parts_of_cells
from gcsim.compressors.gpu.scans import PLAIN, SQUARES, bucket_totals, joined
from gcsim.compressors.gpu.words import GROUPS, load_codes, places_of, random16, store_codes, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, Column


@kernel_of(loops.round_to_table)
def round_to_table(
    values: Tensor, cells: Cells, norms: Tensor, levels: Levels, numbers: Column,
    keys: NDArray[np.uint64], out: Tensor, at: Column, *, bits: int,
) -> None:  # fmt: skip
    """Pairs of levels are counted, up to `COUNTED` of them, as the loop does."""
    table = there(np.concatenate((levels[:, :-1], np.diff(levels)), axis=1), values.device)
    parts, count = parts_of_cells(values, cells, at, keys, numbers), levels.shape[1]
    launch_parts(
        _encode, parts, values.contiguous(), norms, table, out, count - 1, COUNT=count <= COUNTED,
        BITS=bits, GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip


@kernel_of(loops.add_from_table)
def add_from_table(
    out: Tensor, cells: Cells, norms: Tensor, levels: Levels, numbers: Column, packed: Tensor,
    at: Column, *, bits: int, weight: float,
) -> None:  # fmt: skip
    """The largest code is checked `when_known`."""
    parts, count = parts_of_cells(out, cells, at, numbers), levels.shape[1]
    highest = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _add, parts, out, packed.contiguous(), norms, there(levels, out.device), highest, count,
        float(np.float32(weight)), STRAY=STRAY, BITS=bits, GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip
    when_known(highest.max(), partial(loops.demand_codes, levels=count))


@kernel_of(loops.table_errors)
def table_errors(values: Tensor, cells: Cells, norms: Tensor, levels: Levels) -> Numbers:
    """Sums are in another order than the loop's. The host waits once."""
    parts = parts_of_cells(values, cells, cells.segments.begin)
    sums = values.new_zeros(max(1, parts.firsts[-1]), dtype=torch.float64)
    table, count = there(levels, values.device, np.float64), len(levels)
    launch_parts(
        _errors, parts, values.contiguous(), norms, table, sums, count, GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip
    return np.array(joined(sums, there(parts.firsts, values.device), SQUARES).tolist())


@kernel_of(loops.cell_sums)
def cell_sums(values: Tensor, cells: Cells) -> Tensor:
    """Sums are in another order than the loop's."""
    return torch.stack([bucket_totals(values, cells, what) for what in (PLAIN, SQUARES)], 1)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _encode(
    values, norms, levels, out, pairs, table, parts, COUNT: tl.constexpr, BITS: tl.constexpr,
    GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    size = tl.load(column + 5 * parts).to(INDEX)
    key = tl.load(column + 6 * parts).to(tl.uint64, bitcast=True)
    own = levels + 2 * pairs * tl.load(column + 7 * parts)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=at < n, other=0.0)
    norm = tl.load(norms + tl.load(column + 3 * parts) + at // size, mask=at < n, other=1.0)
    norm = tl.where(norm == 0.0, 1.0, norm)
    # as in `levels._encode`: division takes subnormal numbers for zero, so both are made larger
    factor = tl.where(norm < 2.0**-60, 2.0**64, 1.0)
    share = tl.minimum(tl.maximum(tl.div_rn(v * factor, norm * factor), -1.0), 1.0)
    fraction = random16(key, group, GROUPS).to(tl.float32) * 2.0**-16 + 2.0**-17
    code = tl.zeros([GROUPS, 8], dtype=tl.int32)
    if COUNT:  # the pairs whose random point between two levels is below the share
        for pair in range(pairs):
            point = tl.load(own + pair) + fraction * tl.load(own + pairs + pair)
            code += (point < share).to(tl.int32)
    else:  # the last level that the share is not below, and its pair
        for pair in range(1, pairs):
            code += (tl.load(own + pair) <= share).to(tl.int32)
        point = tl.load(own + code) + fraction * tl.load(own + pairs + code)
        code += (point < share).to(tl.int32)
    place = out + tl.load(column + 4 * parts)
    store_codes(place, group, tl.where(at < n, code, 0), (n * BITS + 7) // 8, BITS)


@triton.jit
def _add(
    out, packed, norms, levels, highest, count, weight, table, parts,
    STRAY: tl.constexpr, BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    here = at < n
    size = tl.load(column + 5 * parts).to(INDEX)
    code = load_codes(packed + tl.load(column + 4 * parts), group, (n * BITS + 7) // 8, BITS)
    seen = tl.where(here, code, tl.where(code != 0, STRAY, 0))
    tl.store(highest + tl.program_id(0), tl.max(tl.max(seen, axis=1), axis=0))
    own = levels + count * tl.load(column + 6 * parts)
    level = tl.load(own + code, mask=here & (code < count), other=0.0)
    norm = tl.load(norms + tl.load(column + 3 * parts) + at // size, mask=here, other=0.0)
    target = out + tl.load(column + 2 * parts) + at
    total = tl.load(target, mask=here, other=0.0) + level * (weight * norm)
    tl.store(target, total, mask=here)


@triton.jit
def _errors(
    values, norms, levels, sums, count, table, parts, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    _, at = places_of(number, GROUPS, INDEX)
    here = at < n
    size = tl.load(column + 5 * parts).to(INDEX)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=here, other=0.0).to(tl.float64)
    norm = tl.load(norms + tl.load(column + 3 * parts) + at // size, mask=here, other=0.0)
    norm = norm.to(tl.float64)
    share = tl.where(norm > 0, v / tl.where(norm > 0, norm, 1.0), 0.0)
    low = tl.zeros([GROUPS, 8], dtype=tl.int32)
    for level in range(1, count - 1):  # the last that the share is not below
        low += (tl.load(levels + level) <= share).to(tl.int32)
    below = share - tl.load(levels + low)
    error = tl.maximum(below * (tl.load(levels + low + 1) - share), 0.0)
    tl.store(sums + tl.program_id(0), tl.sum(tl.sum(norm * norm * error, axis=1), axis=0))
