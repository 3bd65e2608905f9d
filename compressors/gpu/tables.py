"""How is a vector rounded to levels that each bucket finds for itself, on a GPU? ORQ and Linear.

Twins of `coding/rounding/bucket_levels.py` and of the searches in sorted buckets. Where a bucket
holds zeros of both signs, a sort may order them otherwise than the host's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.gpu.binary import clip_to_spread
from gcsim.compressors.gpu.words import (
    BLOCK,
    GROUPS,
    blocks,
    index_type,
    launch,
    magnifier,
    places,
    random16,
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
            clip_to_spread(rows.view(-1), length, clip)
            search(rows, at)
    return tables


def optimal_levels(rows: Tensor, levels: Tensor, sweeps: int) -> None:
    """See `orq.optimal_levels`. With `sweeps` the host waits after each, whether one moved."""
    last = levels.shape[1] - 1
    levels[:, 0], levels[:, last] = rows[:, 0], rows[:, -1]
    stride = last // 2
    while stride:  # all middles of a round are independent
        _improved(rows, levels, range(stride, last, 2 * stride), stride, greedy=True)
        stride //= 2
    for _ in range(sweeps):
        before = levels.clone()
        for k in range(1, last):
            _improved(rows, levels, range(k, k + 1), 1, greedy=False)
        if torch.equal(before, levels):
            break


def _improved(rows: Tensor, levels: Tensor, which: range, reach: int, *, greedy: bool) -> None:
    """Each of these levels becomes the best between those that are `reach` away."""
    length = rows.shape[1]
    launch(
        _best, rows.shape[0] * len(which), rows, levels, length, levels.shape[1], which.start,
        which.step, len(which), reach, GREEDY=greedy,
        WIDTH=min(_WIDEST, 1 << max(0, length - 1).bit_length()),
    )  # fmt: skip


def quantiles(rows: Tensor, levels: Tensor) -> None:
    """See `linear.quantiles`."""
    last = levels.shape[1] - 1
    for j in range(last + 1):
        at, rest = divmod(j * (rows.shape[1] - 1), last)
        low = rows[:, at].double()
        if rest:
            low = low + (rows[:, at + 1].double() - low) * (rest / last)
        levels[:, j] = low.float()


def round_between(values: Tensor, tables: Tensor, *, size: int, key: np.uint64) -> Tensor:
    """See `bucket_levels.round_between`."""
    n = values.numel()
    codes = values.new_empty(n, dtype=torch.uint8)
    count_random(n, 16)
    launch(
        _round, tiles(n), values.contiguous(), tables, codes, int(key), n, size,
        COUNT=tables.shape[1], GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    return codes


def _add_from_tables(out: Tensor, codes: Tensor, tables: Tensor, size: int, weight: float) -> None:
    """See `bucket_levels._add_from_tables`."""
    n = out.numel()
    launch(
        _look_up, blocks(n), out, codes.contiguous(), tables.contiguous(), n, size,
        float(np.float32(weight)), COUNT=tables.shape[1], BLOCK=BLOCK,
    )  # fmt: skip


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _best(
    rows, levels, length, count, first, step, many, reach,
    GREEDY: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = (program // many).to(tl.int64)
    values = rows + row * length
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


@triton.jit(do_not_specialize=["key"])
def _round(
    values, tables, codes, key: tl.uint64, n, size,
    COUNT: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    here = at < n
    table = tables + at // size * COUNT
    first = tl.load(table, mask=here, other=0.0)
    last = tl.load(table + (COUNT - 1), mask=here, other=0.0)
    scale = magnifier(tl.maximum(tl.abs(first), tl.abs(last)))
    scaled = tl.load(values + at, mask=here, other=0.0) * scale
    fraction = (random16(key, group, GROUPS).to(tl.float32) + 0.5) * 2.0**-16
    code = tl.zeros([GROUPS, 8], dtype=tl.int32)
    for j in tl.static_range(COUNT - 1):  # a code counts the random points that v exceeds
        low = tl.load(table + j, mask=here, other=0.0) * scale
        gap = tl.load(table + (j + 1), mask=here, other=0.0) * scale - low
        code += (scaled - low > fraction * gap).to(tl.int32)
    tl.store(codes + at, code.to(tl.uint8), mask=here)


@triton.jit
def _look_up(out, codes, tables, n, size, weight, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(codes + at, mask=at < n, other=0).to(tl.int32)
    level = tl.load(tables + at // size * COUNT + code, mask=at < n, other=0.0)
    total = tl.load(out + at, mask=at < n, other=0.0) + weight * level
    tl.store(out + at, total, mask=at < n)
