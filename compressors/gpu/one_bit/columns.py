"""How does a matrix become one bit an element and two levels a column on a GPU? 1-bit SGD.

Twins of `coding/one_bit/columns.py`. Sums over columns are of float64, in an order of their own
(`reductions.py`); bits and decoded values are the loops'.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.gpu.words import (
    GROUPS,
    index_type,
    launch,
    load_codes,
    places,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_bytes

_ROWS, _COLUMNS = 32, 64
"""Of the part of a matrix that a program adds up at a time."""
_TIMES = 8
"""How many of these one below the other."""


def column_sums(values: Tensor, centres: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `columns.column_sums`."""
    return _summed(values, None, centres, columns)


def add_and_sum_columns(
    values: Tensor, added: Tensor, columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `columns.add_and_sum_columns`."""
    return _summed(values, added.contiguous(), values.new_zeros(columns), columns)


def _summed(
    values: Tensor, added: Tensor | None, centres: Tensor, columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows = values.numel() // columns
    pieces, stripes = -(-rows // (_ROWS * _TIMES)), -(-columns // _COLUMNS)
    found = values.new_empty((3, pieces, columns), dtype=torch.float64)
    launch(
        _sum, pieces * stripes, values, values if added is None else added, centres, found, rows,
        columns, pieces, stripes, ADD=added is not None, ROWS=_ROWS, TIMES=_TIMES,
        COLUMNS=_COLUMNS,
    )  # fmt: skip
    total, magnitude, count = found.sum(1)
    return total, magnitude, count


def column_bits(
    values: Tensor,
    columns: int,
    stripe: tuple[int, int],
    levels: tuple[Tensor, Tensor, Tensor],
    *,
    keep_error: bool,
) -> Tensor:
    """See `columns.column_bits`."""
    first, width = stripe
    n = values.numel() // columns * width
    bits = values.new_empty(packed_bytes(n, 1), dtype=torch.uint8)
    count_bytes("streaming", 4 * n * (2 if keep_error else 1))
    launch(
        _code, tiles(n), values, *(level.contiguous() for level in levels), bits, n, bits.numel(),
        columns, first, width, KEEP=keep_error, GROUPS=GROUPS, INDEX=index_type(values.numel()),
    )  # fmt: skip
    return bits


def add_columns(
    out: Tensor,
    columns: int,
    stripe: tuple[int, int],
    bits: Tensor,
    levels: tuple[Tensor, Tensor],
    *,
    weight: float,
) -> None:
    """See `columns.add_columns`."""
    first, width = stripe
    n = out.numel() // columns * width
    count_bytes("streaming", 8 * n)
    launch(
        _decode, tiles(n), out, *(level.contiguous() for level in levels), bits.contiguous(), n,
        bits.numel(), columns, first, width, float(np.float32(weight)), GROUPS=GROUPS,
        INDEX=index_type(out.numel()),
    )  # fmt: skip


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _sum(
    values, added, centres, found, rows, columns, pieces, stripes, ADD: tl.constexpr,
    ROWS: tl.constexpr, TIMES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0) // stripes
    column = tl.program_id(0) % stripes * COLUMNS + tl.arange(0, COLUMNS)
    centre = tl.load(centres + column, mask=column < columns, other=0.0).to(tl.float64)
    total = tl.zeros([COLUMNS], dtype=tl.float64)
    magnitude = tl.zeros([COLUMNS], dtype=tl.float64)
    count = tl.zeros([COLUMNS], dtype=tl.float64)
    for k in range(TIMES):
        row = (piece * TIMES + k).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        here = (row[:, None] < rows) & (column[None, :] < columns)
        at = row[:, None] * columns + column[None, :]
        v = tl.load(values + at, mask=here, other=0.0)
        if ADD:
            v = v + tl.load(added + at, mask=here, other=0.0)
            tl.store(values + at, v, mask=here)
        distance = v.to(tl.float64) - centre[None, :]
        total += tl.sum(tl.where(here, distance, 0.0), axis=0)
        magnitude += tl.sum(tl.where(here, tl.abs(distance), 0.0), axis=0)
        count += tl.sum((here & (distance >= 0.0)).to(tl.float64), axis=0)
    place = tl.cast(piece, tl.int64) * columns + column
    all_pieces = tl.cast(pieces, tl.int64) * columns
    tl.store(found + place, total, mask=column < columns)
    tl.store(found + all_pieces + place, magnitude, mask=column < columns)
    tl.store(found + 2 * all_pieces + place, count, mask=column < columns)


@triton.jit
def _code(
    values, thresholds, lows, highs, bits, n, nbytes, columns, first, width,
    KEEP: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    column = at % width
    here = (at < n) & (first + column < columns)  # the rest of the stripe is beyond the matrix
    source = values + (at // width * columns + first + column)
    v = tl.load(source, mask=here, other=0.0)
    above = here & (v >= tl.load(thresholds + column, mask=here, other=0.0))
    if KEEP:
        low = tl.load(lows + column, mask=here, other=0.0)
        high = tl.load(highs + column, mask=here, other=0.0)
        tl.store(source, v - tl.where(above, high, low), mask=here)
    store_codes(bits, group, above, nbytes, 1)


@triton.jit
def _decode(
    out, lows, highs, bits, n, nbytes, columns, first, width, weight,
    GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    column = at % width
    here = (at < n) & (first + column < columns)
    target = out + (at // width * columns + first + column)
    low = tl.load(lows + column, mask=here, other=0.0)
    high = tl.load(highs + column, mask=here, other=0.0)
    level = tl.where(load_codes(bits, group, nbytes, 1) != 0, high, low)
    tl.store(target, tl.load(target, mask=here, other=0.0) + weight * level, mask=here)
