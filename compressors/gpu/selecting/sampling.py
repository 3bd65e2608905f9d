"""Which elements do random draws take, drawn on a GPU? Twins of `subsets.py` and `sampling.py`.

All in `coding/selecting/`. The numbers are those of the loops, by the same counters. A subset of k
takes the first k positions that differ, in the order in which they are drawn: so many are drawn
that they most likely are enough, and a stable sort tells which ones were drawn before.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.selecting.sampling import BLOCK as SHARED
from gcsim.compressors.coding.selecting.sampling import SLACK, Weights
from gcsim.compressors.coding.selecting.subsets import SEGMENT, parts_of
from gcsim.compressors.gpu.words import BLOCK, bits64, blocks, float64, float64_bits, launch
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random

_LANES = 256
"""Blocks of 16 elements that a program draws from."""


def distinct_positions(like: Tensor, generator: np.random.Generator, n: int, k: int) -> Tensor:
    """See `subsets.distinct_positions`."""
    parts, key = parts_of(generator, n, k)
    count_random(min(k, n - k), 64)
    found = []
    for number, part in enumerate(parts):
        first = number * SEGMENT
        found.append(_of_segment(like, key, 4 * first, min(SEGMENT, n - first), part) + first)
    return torch.cat(found) if found else like.new_empty(0, dtype=torch.int64)


def _of_segment(like: Tensor, key: np.uint64, number: int, n: int, k: int) -> Tensor:
    """k of n positions, ascending, by the numbers from `number` on."""
    complement = 2 * k > n  # more than half: draw those that are left out
    wanted = n - k if complement else k
    # m draws leave a share exp(-m / n); six standard deviations more
    expected = -n * math.log1p(-wanted / n) if wanted else 0.0
    for more in itertools.count(1):
        draws = int(expected + 6 * more * math.sqrt(expected + 1)) + 1 if wanted else 0
        drawn = like.new_empty(draws, dtype=torch.int64)
        launch(_draw_positions, blocks(draws), drawn, int(key), number, n, draws, BLOCK=BLOCK)
        ordered, order = drawn.sort(stable=True)
        again = torch.zeros_like(drawn, dtype=torch.bool)
        again[order[1:]] = ordered[1:] == ordered[:-1]
        fresh = drawn[~again]  # one wait: how many they are
        if fresh.numel() >= wanted:
            break
    chosen = torch.zeros(n, dtype=torch.bool, device=like.device)
    chosen[fresh[:wanted]] = True
    return (~chosen if complement else chosen).nonzero().view(-1)


def block_sums(values: Tensor) -> Tensor:
    """See `sampling.block_sums`; each sum is taken from the first element to the last."""
    n = values.numel()
    sums = values.new_empty(-(-n // SHARED), dtype=torch.float64)
    programs = -(-sums.numel() // _LANES)
    launch(
        _sum_blocks, programs, values.contiguous(), sums, n, sums.numel(),
        SHARED=SHARED, LANES=_LANES,
    )  # fmt: skip
    return sums


def _saturation(sums: Tensor, weights: Weights, scale: float) -> tuple[int, float, float]:
    """See `sampling._saturation`."""
    values = weights.values
    n = values.numel()
    found = values.new_empty((3, blocks(n)), dtype=torch.float64)
    launch(_saturate, blocks(n), values, found, float64_bits(scale), n, blocks(n), BLOCK=BLOCK)
    count, rest, squares = found.sum(1).tolist()
    return int(count), rest, squares


def _draw(
    sums: Tensor,
    touched: Tensor,
    weights: Weights,
    scale: float,
    key: np.uint64,
    options: tuple[float, Tensor | None, bool],
) -> tuple[Tensor, Tensor]:
    """See `sampling._draw`."""
    factor, prior, chances = options
    values = weights.values
    n = values.numel()
    if not (n and scale > 0.0):
        return values.new_zeros(0, dtype=torch.int64), values.new_zeros(0)
    hit = values.new_zeros(n, dtype=torch.uint8)
    before = values.clone() if chances and factor < 1.0 else values
    launch(
        _draw_blocks, -(-sums.numel() // _LANES), values, sums, hit, int(key),
        float64_bits(scale), float(np.float32(factor)), n, sums.numel(), LOWER=factor < 1.0,
        SLACK=1.0 + SLACK, SHARED=SHARED, LANES=_LANES,
    )  # fmt: skip
    positions = hit.nonzero().view(-1)
    count_random(sums.numel() + positions.numel(), 64)
    if prior is not None:
        some = prior[positions]
        lower = some * float(np.float32(factor))
        prior[positions] = torch.where(lower >= float(np.float32(1e-30)), lower, some)
    if not chances:
        return positions, values.new_empty(0)
    return positions, (before[positions].double().abs() * scale).clamp(max=1.0).float()


def split_certain(
    values: Tensor, positions: Tensor, scale: float
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """See `variance_bounded.split_certain`."""
    picked = values[positions]
    certain = picked.double().abs() * scale >= 1.0
    return (positions[certain], picked[certain]), (positions[~certain], picked[~certain])


# --- kernels --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["key"])
def _draw_positions(drawn, key: tl.uint64, number, n, draws, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    bits = bits64(tl.cast(key, tl.uint64), at + number) >> 20
    position = (bits * tl.cast(n, tl.uint64)) >> 44
    tl.store(drawn + at, position.to(tl.int64), mask=at < draws)


@triton.jit
def _fraction64(key, index):
    """`random.fraction64` of each index."""
    return (bits64(key, index) >> 11).to(tl.float64) * 2.0**-53


@triton.jit
def _sum_blocks(values, sums, n, count, SHARED: tl.constexpr, LANES: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    total = tl.zeros([LANES], dtype=tl.float64)
    for i in tl.static_range(SHARED):
        at = block * SHARED + i
        total += tl.abs(tl.load(values + at, mask=at < n, other=0.0).to(tl.float64))
    tl.store(sums + block, total, mask=block < count)


@triton.jit(do_not_specialize=["scale"])
def _saturate(values, found, scale: tl.uint64, n, programs, BLOCK: tl.constexpr):
    """By block: elements with scale |v| >= 1, sum of the others, sum of squares of the former."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tl.abs(tl.load(values + at, mask=at < n, other=0.0).to(tl.float64))
    certain = size * float64(scale) >= 1.0
    tl.store(found + program, tl.sum(certain.to(tl.float64), axis=0))
    tl.store(found + programs + program, tl.sum(tl.where(certain, 0.0, size), axis=0))
    squares = tl.sum(tl.where(certain, size * size, 0.0), axis=0)
    tl.store(found + 2 * programs + program, squares)


@triton.jit(do_not_specialize=["key", "scale"])
def _draw_blocks(
    values, sums, hit, key: tl.uint64, scale: tl.uint64, factor, n, count, LOWER: tl.constexpr,
    SLACK: tl.constexpr, SHARED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The recurrence of the loop's `_draw_chunks`, in a lane for each block."""
    key = tl.cast(key, tl.uint64)
    scale64 = float64(scale)
    block = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    left = tl.load(sums + block, mask=block < count, other=0.0) * scale64 * SLACK
    u = _fraction64(key, block)
    going = (block < count) & (u < left)
    taken = tl.zeros([LANES], dtype=tl.float64)
    survive = tl.full([LANES], 1.0, dtype=tl.float64)
    hits = tl.zeros([LANES], dtype=tl.int32)
    drawn = tl.zeros([LANES], dtype=tl.int32)  # a bit for each element
    for i in tl.static_range(SHARED):
        at = block * SHARED + i
        v = tl.load(values + at, mask=going & (at < n), other=0.0)
        p = tl.minimum(scale64 * tl.abs(v.to(tl.float64)), 1.0)
        left = left - p
        taken = taken + survive * p  # P(the first one is among those so far)
        survive = survive * (1.0 - p)  # P(none so far)
        here = going & (at < n) & ((u < taken) | (survive == 0.0))
        drawn = drawn | (here.to(tl.int32) << i)
        u = tl.where(here, _fraction64(key, count + block * SHARED + hits), u)
        hits += here.to(tl.int32)
        going = going & ((here == 0) | (u < left))
        taken = tl.where(here, 0.0, taken)
        survive = tl.where(here, 1.0, survive)
    total = tl.zeros([LANES], dtype=tl.float64)
    for i in tl.static_range(SHARED):
        at = block * SHARED + i
        here = ((drawn >> i) & 1) != 0
        tl.store(hit + at, tl.full([LANES], 1, dtype=tl.uint8), mask=here)
        if LOWER:
            v = tl.load(values + at, mask=(drawn != 0) & (at < n), other=0.0)
            lower = v * factor
            v = tl.where(here & (lower >= 1e-30), lower, v)
            tl.store(values + at, v, mask=here)
            total += tl.abs(v.to(tl.float64))
    if LOWER:
        tl.store(sums + block, total, mask=drawn != 0)
