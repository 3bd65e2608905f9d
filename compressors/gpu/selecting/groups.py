"""Random groups on a GPU: the kernels of `coding/selecting/groups.py`. A lane shuffles a run like
the loop; the table is stored group by group, so that neighbouring lanes share memory lines."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import groups as loops
from gcsim.compressors.gpu.parts import launch_parts, own_block, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK, bits64
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments, starts

_RUNS = 128


@kernel_of(loops.deal)
def deal(like: Tensor, n: Column, groups: int, keys: NDArray[np.uint64]) -> Tensor:
    """Deal the groups; the result is a transposed view of the loop's table."""
    runs = -(-n // groups)
    dealt = like.new_empty((groups, int(runs.sum())), dtype=torch.int16)
    parts = parts_in_blocks(like, runs, n, starts(runs), keys, size=_RUNS)
    launch_parts(_shuffle, parts, dealt, groups, dealt.shape[1], RUNS=_RUNS)
    return dealt.view(torch.uint16).T


@kernel_of(loops.turn)
def turn(always: Tensor, dealt: Tensor, segments: Segments, count: Column, group: int) -> Tensor:
    """List the places; runs without an element of the group first get -1, and the host waits."""
    runs = -(-(segments.length - count) // dealt.shape[1])
    many = count + runs
    parts = parts_in_blocks(always, many, segments.begin, count, starts(count), starts(runs))
    out = always.new_empty(int(many.sum()))
    column = dealt.view(torch.int16)[:, group]
    launch_parts(
        _turn, parts, always, column, column.stride(0), out, dealt.shape[1],
        int(count.max()).bit_length(), BLOCK=BLOCK,
    )  # fmt: skip
    return out[out >= 0]


@triton.jit
def _shuffle(dealt, groups, stride, table, parts, RUNS: tl.constexpr):
    """Shuffle (Fisher-Yates), one run per lane. Layouts differ, so another thread may load a stored
    value: hence the barriers."""
    column, _, run, here = own_block(table, parts, RUNS)
    key = tl.load(column + 4 * parts).to(tl.uint64, bitcast=True)
    length = tl.load(column + 2 * parts) - run * groups
    own = dealt + tl.load(column + 3 * parts) + run
    for i in range(groups):
        tl.store(
            own + tl.cast(i, tl.int64) * stride,
            tl.where(i < length, i, groups).to(tl.int16),
            mask=here,
        )
    tl.debug_barrier()
    for k in range(1, groups):
        last = tl.cast(groups - k, tl.int64)
        bits = bits64(key, run * groups + last) >> 32
        chosen = ((bits * (last + 1).to(tl.uint64)) >> 32).to(tl.int64)
        one, other = own + last * stride, own + chosen * stride
        taken = tl.load(one, mask=here)
        given = tl.load(other, mask=here)
        tl.debug_barrier()
        tl.store(one, given, mask=here)
        tl.store(other, taken, mask=here)
        tl.debug_barrier()


@triton.jit
def _turn(
    always, dealt, stride, out, groups, steps, table, parts,
    BLOCK: tl.constexpr,
):  # fmt: skip
    column, _, at, here = own_block(table, parts, BLOCK)
    count = tl.load(column + 3 * parts)
    own = always + tl.load(column + 4 * parts)
    first = tl.load(column + 5 * parts)
    place = tl.load(own + at, mask=at < count, other=0)
    run = at - count
    grouped = (run >= 0) & here
    # uint16 are read as int16: & 65535 restores them
    dealt_here = tl.load(dealt + (first + run) * stride, mask=grouped, other=0).to(tl.int64) & 65535
    rank = run * groups + dealt_here
    low = tl.zeros([BLOCK], dtype=tl.int64)  # number of `always` at or below, by bisection
    high = low + count
    # own[m] - m never falls; `steps` halvings decide among all `count` + 1 outcomes
    for _ in range(steps):
        middle = (low + high) // 2
        open = grouped & (low < high)
        below = open & (tl.load(own + middle, mask=open, other=0) <= rank + middle)
        low = tl.where(below, middle + 1, low)
        high = tl.where(open & (below == 0), middle, high)
    place = tl.where(grouped, rank + low, place) + tl.load(column + 2 * parts)
    place = tl.where(grouped & (dealt_here >= groups), -1, place)
    tl.store(out + tl.load(column + 4 * parts) + first + at, place, mask=here)
