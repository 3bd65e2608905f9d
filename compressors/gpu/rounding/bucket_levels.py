"""Levels that each bucket finds for itself: the kernels of `coding/rounding/bucket_levels.py`.

Where a bucket holds zeros of both signs, a sort may order them otherwise than the host's.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.rounding import bucket_levels as loops
from gcsim.compressors.gpu.one_bit.binary import clip_to_spread
from gcsim.compressors.gpu.parts import launch_parts, own_part, put
from gcsim.compressors.gpu.rounding.levels import parts_of_cells
from gcsim.compressors.gpu.words import GROUPS, launch, magnifier, places_of, random16, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, starts

_WIDEST = 1024
"""Elements of a bucket that are looked at together, at most."""


@kernel_of(loops.optimal_levels)
def optimal_levels(
    values: Tensor, cells: Cells, count: int, clip: float | None, sweeps: int
) -> Tensor:
    """With `sweeps` the host waits after each, whether one moved."""
    rows, lengths = _sorted(values, cells, clip)
    levels, last = rows.new_empty((len(rows), count)), count - 1
    levels[:, 0], levels[:, last] = rows[:, 0], rows.gather(1, lengths[:, None] - 1)[:, 0]
    stride = last // 2
    while stride:  # all middles of a round are independent
        which = range(stride, last, 2 * stride)
        _improved(rows, lengths, levels, which, stride, greedy=True)
        stride //= 2
    for _ in range(sweeps):
        before = levels.clone()
        for k in range(1, last):
            _improved(rows, lengths, levels, range(k, k + 1), 1, greedy=False)
        if torch.equal(before, levels):
            break
    return levels


def _improved(
    rows: Tensor, lengths: Tensor, levels: Tensor, which: range, reach: int, *, greedy: bool
) -> None:
    """Each of these levels becomes the best between those that are `reach` away."""
    width = rows.shape[1]
    launch(
        _best, rows.shape[0] * len(which), rows, lengths, levels, width, levels.shape[1],
        which.start, which.step, len(which), reach, GREEDY=greedy,
        WIDTH=min(_WIDEST, 1 << max(0, width - 1).bit_length()),
    )  # fmt: skip


@kernel_of(loops.quantiles)
def quantiles(values: Tensor, cells: Cells, count: int, clip: float | None) -> Tensor:
    """By torch's operators."""
    rows, lengths = _sorted(values, cells, clip)
    last = count - 1
    place = (lengths[:, None] - 1) * torch.arange(count, device=rows.device)
    at, rest = place // last, place % last
    low = rows.gather(1, at).double()
    high = rows.gather(1, (at + 1).minimum(lengths[:, None] - 1)).double()
    between = low + (high - low) * (rest.double() / last)
    return torch.where(rest > 0, between, low).float()


def _sorted(values: Tensor, cells: Cells, clip: float | None) -> tuple[Tensor, Tensor]:
    """(clipped elements of each cell, ascending, with NaN behind them: `[cells, longest]`; how many
    they are, int64 `[cells]`)."""
    elements, begins = cells.segments.length.tolist(), cells.segments.begin.tolist()
    width = int(cells.size.max(initial=1))
    if clip is not None:
        values = values.clone()
        clip_to_spread(values, cells, clip)
    rows = values.new_full((cells.total, width), float("nan"))
    put(rows.view(-1), values.contiguous(), elements, (width * cells.first).tolist(), begins)
    return rows.sort(dim=1).values, there(cells.length, values.device, np.int64)


@kernel_of(loops.round_between)
def round_between(values: Tensor, cells: Cells, tables: Tensor, keys: NDArray[np.uint64]) -> Tensor:
    """Rounded by one kernel."""
    length = cells.segments.length
    codes = values.new_empty(int(length.sum()), dtype=torch.uint8)
    parts = parts_of_cells(values, cells, starts(length), keys)
    launch_parts(
        _round, parts, values.contiguous(), tables.contiguous(), codes, COUNT=tables.shape[1],
        GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip
    return codes


@kernel_of(loops.add_between)
def add_between(out: Tensor, cells: Cells, tables: Tensor, codes: Tensor, weight: float) -> None:
    """Looked up by one kernel."""
    parts = parts_of_cells(out, cells, starts(cells.segments.length))
    launch_parts(
        _look_up, parts, out, codes.contiguous(), tables.contiguous(), float(np.float32(weight)),
        COUNT=tables.shape[1], GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _best(
    rows, lengths, levels, stride, count, first, step, many, reach,
    GREEDY: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = (program // many).to(tl.int64)
    values = rows + row * stride
    length = tl.load(lengths + row).to(tl.int32)
    place = levels + row * count + first + (program % many) * step
    low = tl.load(place - reach)
    high = tl.load(place + reach)
    below = tl.cast(0, tl.int32)
    between = tl.cast(0, tl.int32)
    total = tl.cast(0.0, tl.float64)
    for start in range(0, length, WIDTH):
        i = start + tl.arange(0, WIDTH)
        v = tl.load(values + i, mask=i < length, other=0.0)
        inside = (i < length) & (v > low) & (v < high)
        below += tl.sum(((i < length) & (v <= low)).to(tl.int32), axis=0)
        between += tl.sum(inside.to(tl.int32), axis=0)
        total += tl.sum(tl.where(inside, v.to(tl.float64) - low.to(tl.float64), 0.0), axis=0)
    if GREEDY:
        other = (0.5 * (low.to(tl.float64) + high.to(tl.float64))).to(tl.float32)
    else:
        other = tl.load(place)
    some = between > 0
    gap = tl.where(some, high.to(tl.float64) - low.to(tl.float64), 1.0)
    rank = tl.minimum(tl.maximum((total / gap).to(tl.int32), 0), between - 1)
    best = tl.load(values + below + between - 1 - rank, mask=some, other=0.0)
    tl.store(place, tl.where(some, best, other))


@triton.jit
def _round(
    values, tables, codes, table, parts, COUNT: tl.constexpr, GROUPS: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    here = at < n
    size = tl.load(column + 5 * parts).to(INDEX)
    key = tl.load(column + 6 * parts).to(tl.uint64, bitcast=True)
    own = tables + (tl.load(column + 3 * parts) + at // size) * COUNT
    first = tl.load(own, mask=here, other=0.0)
    last = tl.load(own + (COUNT - 1), mask=here, other=0.0)
    scale = magnifier(tl.maximum(tl.abs(first), tl.abs(last)))
    source = values + tl.load(column + 2 * parts) + at
    scaled = tl.load(source, mask=here, other=0.0) * scale
    fraction = (random16(key, group, GROUPS).to(tl.float32) + 0.5) * 2.0**-16
    code = tl.zeros([GROUPS, 8], dtype=tl.int32)
    for j in tl.static_range(COUNT - 1):  # a code counts the random points that v exceeds
        low = tl.load(own + j, mask=here, other=0.0) * scale
        gap = tl.load(own + (j + 1), mask=here, other=0.0) * scale - low
        code += (scaled - low > fraction * gap).to(tl.int32)
    tl.store(codes + tl.load(column + 4 * parts) + at, code.to(tl.uint8), mask=here)


@triton.jit
def _look_up(
    out, codes, tables, weight, table, parts, COUNT: tl.constexpr, GROUPS: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    _, at = places_of(number, GROUPS, INDEX)
    code = tl.load(codes + tl.load(column + 4 * parts) + at, mask=at < n, other=0).to(tl.int32)
    size = tl.load(column + 5 * parts).to(INDEX)
    cell = tl.load(column + 3 * parts) + at // size
    level = tl.load(tables + cell * COUNT + code, mask=at < n, other=0.0)
    target = out + tl.load(column + 2 * parts) + at
    total = tl.load(target, mask=at < n, other=0.0) + weight * level
    tl.store(target, total, mask=at < n)
