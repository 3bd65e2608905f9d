"""Signs as bits with scales on a GPU: the kernels of `coding/one_bit/signs.py`. One kernel updates
the memory, packs bits and sums a tile's magnitudes by cell, in float64; the second adds up each
cell and writes its scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit import signs as loops
from gcsim.compressors.coding.one_bit.signs import Norm
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import GROUPS, places_of, tiles
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, Column, Segments, starts

_NONE, _MAGNITUDES, _SQUARES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_TILE = tl.constexpr(8 * GROUPS)


@kernel_of(loops.put_sign_bits)
def put_sign_bits(values: Tensor, segments: Segments, bits: Tensor, at: Column) -> None:
    """Write the signs: a fold without memories."""
    _fold_parts(values, segments.whole, bits, at, starts(at), SUMS=0)


@kernel_of(loops.fold_signs)
def fold_signs(
    values: Tensor, cells: Cells, bits: Tensor, at: Column, *, head: Column | None = None,
    pieces: bool = False, coded: Tensor | None = None, scales: Tensor | None = None,
    mixed: Tensor | None = None, factors: tuple[float, float, float, float] = loops.NO_FACTORS,
    keep: bool = False, norm: Norm = "mean_abs",
) -> Tensor:  # fmt: skip
    """Fold the signs with two kernels."""
    slots = -(-cells.segments.length // _TILE.value) + cells.count
    first, kind = starts(slots), 1 + (norm == "rms")
    sums = values.new_empty(int(slots.sum()), dtype=torch.float64)
    _fold_parts(
        values, cells, bits, at, first, coded=coded, scales=scales, mixed=mixed, sums=sums,
        factors=factors, pieces=pieces, KEEP=keep, SUMS=kind,
    )  # fmt: skip
    found = values.new_empty(cells.total)
    columns = cells.segments.length, cells.count, cells.size, first, cells.first
    places = at if head is None else head[: len(cells.count)]
    parts = parts_of(values, *columns, places)
    copies = len(at) if pieces else 1
    launch_parts(
        _scale, parts, sums, found, bits, copies, bits.numel() // copies, HEAD=head is not None,
        SUMS=kind, BLOCK=512,
    )  # fmt: skip
    return found


def _fold_parts(
    values: Tensor, cells: Cells, bits: Tensor, at: Column, first: Column, *,
    coded: Tensor | None = None, scales: Tensor | None = None, mixed: Tensor | None = None,
    sums: Tensor | None = None, pieces: bool = False, KEEP: bool = False,
    factors: tuple[float, float, float, float] = loops.NO_FACTORS, **constants: Any,
) -> None:  # fmt: skip
    """Update memories; write signs to `bits` from `at` on, and sums to `sums`."""
    n, frame = cells.segments.length, bits.numel() // max(1, len(at))
    piece = frame - int(at[0]) if pieces else 0
    sizes = np.array([len(at) * piece]) if pieces else packed_bytes(n, 1)
    columns = cells.segments.begin, at[: len(n)], cells.first, cells.size, first, sizes
    parts = parts_of(values, n, tiles(8 * sizes), *columns)
    data = values.contiguous()
    given = (data if each is None else each for each in (mixed, coded, scales, sums))
    launch_parts(
        _fold, parts, data, *given, bits, *(float(np.float32(each)) for each in factors), piece,
        frame, MIX=mixed is not None, KEEP=KEEP, ERROR=coded is not None, PIECES=pieces,
        GROUPS=GROUPS, INDEX=parts.index, **constants,
    )  # fmt: skip


@triton.jit
def _fold(
    values, mixed, coded, scales, sums, bits, m, c, a, b, piece, frame, table, parts,
    MIX: tl.constexpr, KEEP: tl.constexpr, ERROR: tl.constexpr, PIECES: tl.constexpr,
    SUMS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Set x = g or a g + b (m u + c g); p = x + p - scale sign(p) if given; write bits and sums."""
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    here = at < n
    begin = tl.load(column + 2 * parts)
    size = tl.load(column + 5 * parts)
    block = at // size.to(INDEX)
    x = tl.load(values + begin + at, mask=here, other=0.0)
    if MIX:
        fresh = m * tl.load(mixed + begin + at, mask=here, other=0.0) + c * x
        if KEEP:
            tl.store(mixed + begin + at, fresh, mask=here)
        x = a * x + b * fresh
    if ERROR:
        p = tl.load(coded + begin + at, mask=here, other=0.0)
        scale = tl.load(scales + tl.load(column + 4 * parts) + block, mask=here, other=0.0)
        x = x + (p - tl.where(p < 0.0, -scale, scale))
        tl.store(coded + begin + at, x, mask=here)
    lane = tl.arange(0, 8)[None, :]
    # the lanes' bits are distinct, so the sum is the union
    byte = tl.sum(((x < 0.0) & here).to(tl.int32) << lane, axis=1)
    place = group.to(tl.int64)
    if PIECES:
        place = place // piece * frame + place % piece
    where = bits + tl.load(column + 3 * parts) + place
    # padding bytes are written too: without elements they are 0
    tl.store(where, byte.to(tl.uint8), mask=group < tl.load(column + 7 * parts))
    if SUMS > 0:  # tile t and cell c share slot t + c
        wide = x.to(tl.float64)
        each = tl.abs(wide)
        if SUMS == _SQUARES:
            each = wide * wide
        low = number.to(tl.int64) * _TILE
        cell = low // size
        cells = tl.where(low < n, (tl.minimum(low + _TILE, n) - 1) // size + 1, 0)
        slot = sums + tl.load(column + 6 * parts) + number
        while cell < cells:
            total = tl.where(here & (block == cell), each, 0.0)
            tl.store(slot + cell, tl.sum(tl.sum(total, axis=1), axis=0))
            cell += 1


@triton.jit
def _scale(
    sums, scales, bits, copies, frame, table, parts, HEAD: tl.constexpr, SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    size = tl.load(column + 2 * parts)
    begin = number * size
    end = tl.minimum(begin + size, n)
    slot = sums + tl.load(column + 3 * parts) + number
    total = tl.zeros([BLOCK], dtype=tl.float64)
    last = tl.where(begin < end, (end - 1) // _TILE + 1, 0)
    for start in range(begin // _TILE, last, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        total += tl.load(slot + tile, mask=tile < last, other=0.0)
    mean = tl.sum(total, axis=0) / tl.maximum(end - begin, 1).to(tl.float64)
    if SUMS == _SQUARES:
        mean = tl.sqrt(mean)
    # NaN passes, as in numpy's minimum
    scale = tl.where(mean > 3.4028234663852886e38, 3.4028234663852886e38, mean).to(tl.float32)
    tl.store(scales + tl.load(column + 4 * parts) + number, scale)
    if HEAD:
        lane = tl.arange(0, 4)
        byte = (scale.to(tl.uint32, bitcast=True) >> (8 * lane)) & 255
        place = bits + tl.load(column + 5 * parts) + 4 * number + lane
        for _ in range(copies):
            tl.store(place, byte.to(tl.uint8))
            place += frame
