"""How is a vector rounded to levels that each bucket finds for itself, on a GPU? ORQ and Linear.

Twins of `coding/rounding/bucket_levels.py` and of the searches in sorted buckets. Where a bucket
holds zeros of both signs, a sort may order them otherwise than the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.gpu.one_bit.binary import clip_all
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of, put, starts
from gcsim.compressors.gpu.reductions import Buckets
from gcsim.compressors.gpu.words import (
    BLOCK,
    GROUPS,
    blocks,
    launch,
    magnifier,
    places_of,
    random16,
    there,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random

_WIDEST = 1024
"""Elements of a bucket that are looked at together, at most."""


def search_levels(
    values: Tensor, *, size: int, count: int, clip: float | None, search: Any
) -> Tensor:
    """See `bucket_levels.search_levels`."""
    n = values.numel()
    tables = values.new_empty((-(-n // size), count))
    whole = n // size * size
    for some, length, at in (
        (values[:whole], size, tables[: whole // size]),
        (values[whole:], n - whole, tables[whole // size :]),
    ):
        if some.numel():
            rows = some.reshape(-1, length).sort(dim=1).values
            if clip is not None:
                clip_all(rows.view(-1), length, clip, [rows.numel()], [0])
            search(rows, at)
    return tables


def optimal_levels(rows: Tensor, levels: Tensor, sweeps: int) -> None:
    """See `orq.optimal_levels`. With `sweeps` the host waits after each, whether one moved."""
    optimal_levels_of(rows, _lengths(rows), levels, sweeps)


def optimal_levels_of(rows: Tensor, lengths: Tensor, levels: Tensor, sweeps: int) -> None:
    """`optimal_levels` of rows that have so many elements each, int64 `[buckets]`."""
    last = levels.shape[1] - 1
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


def _lengths(rows: Tensor) -> Tensor:
    return torch.full((len(rows),), rows.shape[1], dtype=torch.int64, device=rows.device)


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


def quantiles(rows: Tensor, levels: Tensor) -> None:
    """See `linear.quantiles`."""
    quantiles_of(rows, _lengths(rows), levels)


def quantiles_of(rows: Tensor, lengths: Tensor, levels: Tensor) -> None:
    """`quantiles` of rows that have so many elements each, int64 `[buckets]`."""
    last = levels.shape[1] - 1
    place = (lengths[:, None] - 1) * torch.arange(last + 1, device=rows.device)
    at, rest = place // last, place % last
    low = rows.gather(1, at).double()
    high = rows.gather(1, (at + 1).minimum(lengths[:, None] - 1)).double()
    between = low + (high - low) * (rest.double() / last)
    levels.copy_(torch.where(rest > 0, between, low))


def sorted_buckets(
    values: Tensor, elements: Sequence[int], begins: Sequence[int], size: int, clip: float | None
) -> tuple[Tensor, Tensor]:
    """(a row for each bucket of many tensors, ascending, what is not a number behind its elements;
    how many these are, int64 `[buckets]`). Elements are clipped as by `clip_to_spread`."""
    if clip is not None:
        values = values.clone()
        clip_all(values, size, clip, elements, begins)
    lengths = Buckets(elements=list(elements), begins=list(begins), sizes=[size] * len(elements))
    rows = values.new_full((len(lengths.lengths), size), float("nan"))
    places = [size * first for first in starts(lengths.counts)]
    put(rows.view(-1), values, elements, places, begins)
    return rows.sort(dim=1).values, there(lengths.lengths, values.device, np.int64)


def round_between(values: Tensor, tables: Tensor, *, size: int, key: np.uint64) -> Tensor:
    """See `bucket_levels.round_between`."""
    return round_parts(values.contiguous(), tables, [values.numel()], [0], size=size, keys=[key])


def round_parts(
    values: Tensor, tables: Tensor, elements: Sequence[int], begins: Sequence[int], *, size: int,
    keys: Sequence[np.uint64],
) -> Tensor:  # fmt: skip
    """`round_between` of many tensors, where each begins: their codes, one behind the other."""
    codes = values.new_empty(sum(elements), dtype=torch.uint8)
    count_random(len(codes), 16)
    parts = parts_of(
        values, elements, [tiles(n) for n in elements], begins, _first_buckets(elements, size),
        starts(elements), [int(key) for key in keys],
    )  # fmt: skip
    launch_parts(
        _round, parts, values, tables, codes, size, COUNT=tables.shape[1], GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip
    return codes


def _first_buckets(elements: Sequence[int], size: int) -> list[int]:
    return starts([-(-n // size) for n in elements])


def _add_from_tables(out: Tensor, codes: Tensor, tables: Tensor, size: int, weight: float) -> None:
    """See `bucket_levels._add_from_tables`."""
    add_parts_from_tables(
        out, codes.contiguous(), tables.contiguous(), [out.numel()], [0], size=size, weight=weight
    )


def add_parts_from_tables(
    out: Tensor, codes: Tensor, tables: Tensor, elements: Sequence[int], begins: Sequence[int], *,
    size: int, weight: float,
) -> None:  # fmt: skip
    """`_add_from_tables` of many tensors, where each begins, by codes one behind the other."""
    parts = parts_of(
        out, elements, [blocks(n) for n in elements], begins, _first_buckets(elements, size),
        starts(elements),
    )  # fmt: skip
    launch_parts(
        _look_up, parts, out, codes, tables, size, float(np.float32(weight)),
        COUNT=tables.shape[1], INDEX=parts.index, BLOCK=BLOCK,
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
    values, tables, codes, size, table, parts,
    LANES: tl.constexpr, COUNT: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    group, at = places_of(number, GROUPS, INDEX)
    here = at < n
    key = tl.load(column + 5 * parts).to(tl.uint64, bitcast=True)
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
    out, codes, tables, size, weight, table, parts,
    LANES: tl.constexpr, COUNT: tl.constexpr, INDEX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    at = number.to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(codes + tl.load(column + 4 * parts) + at, mask=at < n, other=0).to(tl.int32)
    bucket = tl.load(column + 3 * parts) + at // size
    level = tl.load(tables + bucket * COUNT + code, mask=at < n, other=0.0)
    target = out + tl.load(column + 2 * parts) + at
    total = tl.load(target, mask=at < n, other=0.0) + weight * level
    tl.store(target, total, mask=at < n)
