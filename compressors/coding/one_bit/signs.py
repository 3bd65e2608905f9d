"""Signs of a bucket: coding as one bit per element with a scale per cell, and decoding.

A bit of 1 means negative; zero of either sign counts as positive. Error feedback takes one pass:
the error after coding p with scale s is e = p - s sign(p), and the next vector is x + e, whose
signs do not depend on its scale. So p and s are kept, and e is computed at the next step: one loop
reads x and p, writes the new p and its bits, and adds up |p|. Writing e would take a second pass.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from gcsim.compressors import loops
from gcsim.compressors.coding.frames import put_in
from gcsim.compressors.coding.integers.packing import check_packed, packed_bytes, put_signs
from gcsim.compressors.coding.one_bit.bits import NONE, Stripes, add_levels, written_to
from gcsim.compressors.coding.scans import sum_of_squares
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import counted_as, kernel, launch, unpriced
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import ZERO, Cells, Column, Segments

Norm = Literal["mean_abs", "rms"]
"""Scale of a cell: mean |p|, which is optimal for given signs, or the root mean square."""
NO_FACTORS = 0.0, 0.0, 0.0, 0.0
_NO_FACTORS = tuple(map(np.float32, NO_FACTORS))
_NO_SUMS = np.zeros(0)


@counted_as(
    lambda _, values, segments, bits, at: [
        launch(
            "streaming", "packing.pack_signs", segments.length, 4 * segments.length,
            packed_bytes(segments.length, 1),
        )
    ]
)  # fmt: skip
@primitive
def put_sign_bits(values: Tensor, segments: Segments, bits: Tensor, at: Column) -> None:
    """Write the signs of float32 values: ceil(n / 8) bytes per tensor, from byte `at` on."""
    g, size = np.ascontiguousarray(loops.array(values)), segments.length  # a tensor is one cell
    with loops.written_back(bits) as out:
        loops.in_tiles(
            _code_tiles, segments.tiles, g, NONE, NONE, NONE, segments.table, at, size, at,
            *_NO_FACTORS, False, out, at, _NO_SUMS, False,
        )  # fmt: skip


def pack_signs(values: Tensor) -> Tensor:
    """Pack the signs of float32 `[n]`, 1 = negative, zero is positive: uint8 `[ceil(n / 8)]`."""
    bits = values.new_empty(packed_bytes(values.numel(), 1), dtype=torch.uint8)
    put_sign_bits(values, Segments.alone(values.numel()), bits, ZERO)
    return bits


@kernel("streaming", name="packing.unpack_signs")
def unpack_signs(buffer: Tensor, count: int) -> Tensor:
    """Undo `pack_signs`: float32 `[count]` of +1 and -1. Raises `InputError` as `unpack_bits`."""
    check_packed(buffer, count, 1)
    out = buffer.new_empty(count, dtype=torch.float32)
    write_signs(out, Segments.alone(count), buffer, ZERO)
    return out


def write_signs(out: Tensor, segments: Segments, bits: Tensor, at: Column) -> None:
    """Write +1 or -1 for each tensor's bits, as with a scale of 1; see `add_levels`."""
    given = Stripes.of(segments.whole), bits, at, _one(out.device), (0 * at, 0 * at), (1.0, -1.0)
    add_levels(out, *given, overwrite=True, scales=True)


@cache
@unpriced
def _one(device: torch.device) -> Tensor:
    return torch.ones(1, device=device).view(torch.uint8)


def lost_by(coded: Tensor, scales: Tensor, cells: Cells) -> Tensor:
    """Return the error of the last `fold_signs`: coded - scale sign(coded), laid out as `coded`."""
    each = scales.repeat_interleave(torch.from_numpy(cells.length).to(scales.device))
    return torch.where(coded < 0, coded + each, coded - each)


def nesterov(decay: float) -> tuple[float, float, float, float]:
    """Return the factors for Nesterov's direction: u = decay u + v; v + decay u is coded."""
    return decay, 1.0, 1.0, decay


def _fold_launches(
    _: object, values: object, cells: Cells, bits: object, at: object, *,
    coded: object = None, scales: object = None, mixed: object = None, keep: bool = False,
    **chosen: object,
) -> list[KernelCost]:  # fmt: skip
    names = "signs.fold_average", "signs.fold_nesterov"
    name = names[keep] if mixed is not None else "signs.fold"
    if coded is None:
        name = "signs.scaled_sign_bits"
    vectors = 1 + 2 * (coded is not None) + (1 + keep) * (mixed is not None)
    n, tables = cells.segments.length, 1 + (scales is not None)
    moved = 4 * vectors * n, packed_bytes(n, 1), 4 * tables * cells.count
    return [launch("reduction", name, n, *moved)]


@counted_as(_fold_launches)
@primitive
def fold_signs(
    values: Tensor, cells: Cells, bits: Tensor, at: Column, *, head: Column | None = None,
    pieces: bool = False, coded: Tensor | None = None, scales: Tensor | None = None,
    mixed: Tensor | None = None, factors: tuple[float, float, float, float] = NO_FACTORS,
    keep: bool = False, norm: Norm = "mean_abs",
) -> Tensor:  # fmt: skip
    """Write the signs of the values plus the last call's error; return scales, float32 `[cells]`.

    Parameters
    ----------
    values : flat float32 of the cells' table
    cells : elements that share a scale, which is 0 for an empty cell
    bits, at : uint8 to write to; first byte of each tensor's ceil(n / 8)
    head : first byte of each tensor's scales, which are written there too
    pieces : the one tensor's bits are cut into equal pieces, each at the end of one of equally long
        frames; `at` and `head` have a number for each
    coded : as `values`, the vector coded last (zeros at first); replaced by values + coded - scale
        sign(coded)
    scales : float32 `[cells]`, those of `coded` (zeros at first)
    mixed, factors, keep : with factors (m, c, a, b), a values + b (m mixed + c values) is coded
        instead of the values; with `keep`, mixed = m mixed + c values
    """
    table, count = cells.segments.table, cells.count
    slots, begins, room = cells.slots
    sums = np.zeros(room, dtype=np.float64)
    squares = norm == "rms"
    g = np.ascontiguousarray(loops.array(values))
    before = NONE if scales is None else loops.array(scales)
    with written_to(bits, coded, mixed) as (out, p, u):
        places = out.reshape(len(at), -1)[:, at[0] :] if pieces else out
        found = np.zeros(places.size, dtype=np.uint8) if pieces else out
        loops.in_tiles(
            _code_tiles, cells.segments.tiles, g, u, p, before, table, cells.first, cells.size,
            slots, *map(np.float32, factors), keep, found, ZERO if pieces else at, sums,
            squares,
        )  # fmt: skip
        if pieces:
            places[:] = found.reshape(places.shape)
        if not cells.total:
            return values.new_empty(0)
        totals = np.add.reduceat(sums, begins) / np.maximum(1, cells.length)
        means = np.sqrt(totals) if squares else totals
        fresh = loops.tensor(np.minimum(means, loops.FLOAT32_MAX).astype(np.float32), values)
        if head is not None:
            own = (fresh.expand(len(at)), 4 + 0 * at) if pieces else (fresh, 4 * count)
            put_in(out, head, *own)
    return fresh


@loops.loop
def _code_tiles(
    start, stop, tiles, g, u, p, scales, table, cells, sizes, slots, m, c, a, b, keep, bits, at,
    sums, squares,
):  # fmt: skip
    """Set x = g or a g + b (m u + c g); p = x + p - scale sign(p) if given; write bits and sums."""
    words = np.empty(loops.SUM_BLOCK // 8, dtype=np.uint64)
    mixed = np.empty(loops.SUM_BLOCK, dtype=np.float32)
    for tile in range(start, stop):
        t, begin, tile_end = tiles[tile]
        for first in range(begin, tile_end, loops.SUM_BLOCK):  # a block stays in the cache
            last = min(first + loops.SUM_BLOCK, tile_end)
            own = slice(table[t, 0] + first, table[t, 0] + last)
            x = g[own]
            if u.size:
                _mix(x, u[own], mixed, m, c, a, b, keep)
                x = mixed[: last - first]
            coded = x
            if p.size:
                coded = p[own]
            here = first
            while here < last:  # the cells that overlap the block
                cell = here // sizes[t]
                end = min(last, (cell + 1) * sizes[t])
                part = coded[here - first : end - first]
                if p.size:
                    _add_error(part, x[here - first : end - first], scales[cells[t] + cell])
                if sums.size:
                    # each step increments block, cell or both, so no two parts share a sum
                    slot = slots[t] + first // loops.SUM_BLOCK + cell
                    sums[slot] = sum_of_squares(part) if squares else sum_of_magnitudes(part)
                here = end
            put_signs(coded, words, bits[at[t] + first // 8 : at[t] + (last + 7) // 8])


@loops.loop
def _mix(x, u, mixed, m, c, a, b, keep):
    if keep:
        for i in range(x.size):
            fresh = m * u[i] + c * x[i]
            u[i] = fresh
            mixed[i] = a * x[i] + b * fresh
    else:
        for i in range(x.size):
            mixed[i] = a * x[i] + b * (m * u[i] + c * x[i])


@loops.loop
def _add_error(p, x, scale):
    for i in range(p.size):  # the last call's error is p minus what its bit decodes to
        p[i] = x[i] + (p[i] - (-scale if p[i] < np.float32(0) else scale))


@loops.summing_loop
def sum_of_magnitudes(values) -> float:
    """Return the sum of a block's |v| in float64; for loops."""
    total = np.float64(0)
    for i in range(values.size):
        total += np.float64(abs(values[i]))
    return total
