"""Matrices as one bit an element and two levels a column on a GPU: `coding/one_bit/columns.py`.

Sums over columns are of float64, in an order of their own (`reductions.py`).
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.one_bit import columns as loops
from gcsim.compressors.coding.one_bit.columns import Matrices, Stripes
from gcsim.compressors.coding.one_bit.signs import demand_signs
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.scans import PLAIN, joined
from gcsim.compressors.gpu.words import (
    GROUPS,
    index_type,
    load_codes,
    places_of,
    store_codes,
    there,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column

_ROWS, _COLUMNS = 32, 64
"""Of the part of a matrix that a program adds up at a time."""
_TIMES = 8
"""How many of these one below the other."""


@kernel_of(loops.column_sums)
def column_sums(
    values: Tensor, matrices: Matrices, *, centres: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A program adds up a part of some columns; the parts of each are then joined."""
    pieces, side = -(-matrices.rows // (_ROWS * _TIMES)), -(-matrices.columns // _COLUMNS)
    numbers = np.zeros(matrices.count * matrices.lines + 1, dtype=np.int64)
    numbers[1 + matrices.line_of_columns] = np.repeat(pieces, matrices.columns)
    cuts = there(np.cumsum(numbers), values.device)
    found = values.new_empty((3, int(numbers.sum())), dtype=torch.float64)
    columns = (
        matrices.offset, matrices.columns, np.maximum(1, side), matrices.width, matrices.line
    )  # fmt: skip
    sizes = matrices.rows * matrices.columns, pieces * side
    parts = parts_of(values, *(each.tolist() for each in (*sizes, *columns)))
    launch_parts(
        _sum, parts, values, values if added is None else added.contiguous(),
        values if centres is None else centres, cuts, found, found.shape[1], matrices.lines,
        ADD=added is not None, CENTRED=centres is not None, ROWS=_ROWS, TIMES=_TIMES,
        COLUMNS=_COLUMNS,
    )  # fmt: skip
    return torch.stack([joined(each, cuts, PLAIN) for each in found])


@kernel_of(loops.put_column_bits)
def put_column_bits(
    values: Tensor, stripes: Stripes, lines: Tensor, bits: Tensor, at: Column, *, keep_error: bool
) -> None:
    """A program writes a tile of a stripe."""
    launch_parts(
        _code, _tiled(values, stripes, at), values, lines.contiguous(), bits, lines.shape[1],
        KEEP=keep_error, GROUPS=GROUPS, INDEX=_index(stripes),
    )  # fmt: skip


@kernel_of(loops.add_columns)
def add_columns(
    out: Tensor, stripes: Stripes, bits: Tensor, at: Column, lows: Tensor, highs: Tensor,
    weight: float,
) -> None:  # fmt: skip
    """Padding is checked `when_known`."""
    parts = _tiled(out, stripes, at)
    stray = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _decode, parts, out, lows, highs, bits.contiguous(), stray, float(np.float32(weight)),
        GROUPS=GROUPS, INDEX=_index(stripes),
    )  # fmt: skip
    when_known(stray.any(), demand_signs)


def _tiled(like: Tensor, stripes: Stripes, at: Column) -> Parts:
    """Tiles of stripes: first byte, then the table's columns but for rows."""
    elements = stripes.elements.length.tolist()
    columns = at, *stripes.table.T[1:]
    programs = [tiles(n) for n in elements]
    return parts_of(like, elements, programs, *(each.tolist() for each in columns))


def _index(stripes: Stripes) -> object:
    """The type of a place within a matrix, or within a stripe that reaches beyond it."""
    rows, columns, *_ = stripes.table.T
    most = rows * np.maximum(columns, stripes.width)
    return index_type(int(most.max(initial=0)))


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _sum(
    values, added, centres, cuts, found, all_pieces, all_lines, table, parts, ADD: tl.constexpr,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, TIMES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    own, number, n = own_part(table, parts)
    offset = tl.load(own + 2 * parts)
    columns = tl.load(own + 3 * parts)
    side = tl.load(own + 4 * parts)
    width = tl.load(own + 5 * parts)
    piece = number // side
    column = number % side * COLUMNS + tl.arange(0, COLUMNS)
    line = tl.load(own + 6 * parts) + column // width * all_lines + column % width
    centre = tl.zeros([COLUMNS], dtype=tl.float64)
    if CENTRED:
        centre = tl.load(centres + line, mask=column < columns, other=0.0).to(tl.float64)
    total = tl.zeros([COLUMNS], dtype=tl.float64)
    magnitude = tl.zeros([COLUMNS], dtype=tl.float64)
    count = tl.zeros([COLUMNS], dtype=tl.float64)
    for k in range(TIMES):
        row = (piece * TIMES + k).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        within = row[:, None] * columns + column[None, :]
        here = (within < n) & (column[None, :] < columns)
        at = offset + within
        v = tl.load(values + at, mask=here, other=0.0)
        if ADD:
            v = v + tl.load(added + at, mask=here, other=0.0)
            tl.store(values + at, v, mask=here)
        distance = v.to(tl.float64) - centre[None, :]
        total += tl.sum(tl.where(here, distance, 0.0), axis=0)
        magnitude += tl.sum(tl.where(here, tl.abs(distance), 0.0), axis=0)
        count += tl.sum((here & (distance >= 0.0)).to(tl.float64), axis=0)
    place = found + tl.load(cuts + line, mask=column < columns, other=0) + piece
    tl.store(place, total, mask=column < columns)
    tl.store(place + all_pieces, magnitude, mask=column < columns)
    tl.store(place + 2 * all_pieces, count, mask=column < columns)


@triton.jit
def _stripe(own, parts, number, GROUPS: tl.constexpr, INDEX: tl.constexpr):
    """(groups, elements, lines, where elements lie, whether the matrix has them) of a tile."""
    group, at = places_of(number, GROUPS, INDEX)
    columns = tl.load(own + 3 * parts).to(INDEX)
    first = tl.load(own + 5 * parts).to(INDEX)
    width = tl.load(own + 6 * parts).to(INDEX)
    column = at % width
    source = tl.load(own + 4 * parts) + (at // width * columns + first + column)
    n = tl.load(own + parts)
    return group, tl.load(own + 7 * parts) + column, source, (at < n) & (first + column < columns)


@triton.jit
def _code(
    values, lines, bits, count, table, parts, KEEP: tl.constexpr, GROUPS: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    own, number, n = own_part(table, parts)
    group, line, source, here = _stripe(own, parts, number, GROUPS, INDEX)
    v = tl.load(values + source, mask=here, other=0.0)
    above = here & (v >= tl.load(lines + line, mask=here, other=0.0))
    if KEEP:
        low = tl.load(lines + count + line, mask=here, other=0.0)
        high = tl.load(lines + 2 * count + line, mask=here, other=0.0)
        tl.store(values + source, v - tl.where(above, high, low), mask=here)
    store_codes(bits + tl.load(own + 2 * parts), group, above, (n + 7) // 8, 1)


@triton.jit
def _decode(
    out, lows, highs, bits, stray, weight, table, parts, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    own, number, n = own_part(table, parts)
    group, line, source, here = _stripe(own, parts, number, GROUPS, INDEX)
    code = load_codes(bits + tl.load(own + 2 * parts), group, (n + 7) // 8, 1)
    behind = tl.where(group[:, None] * 8 + tl.arange(0, 8)[None, :] < n, 0, code)
    tl.store(stray + tl.program_id(0), tl.max(tl.max(behind, axis=1), axis=0))
    low = tl.load(lows + line, mask=here, other=0.0)
    high = tl.load(highs + line, mask=here, other=0.0)
    level = tl.where(code != 0, high, low)
    total = tl.load(out + source, mask=here, other=0.0) + weight * level
    tl.store(out + source, total, mask=here)
