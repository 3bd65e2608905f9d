"""Random groups of a tensor's elements: every Q consecutive elements are dealt to Q groups in
random order, one to each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, tensor
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import TILE, Column, Segments, starts, tiles_of


@counted_as(
    lambda dealt, _, n, *__: [
        drawn("tk_ccd.deal", n, 64),
        launch("random", "tk_ccd.deal", dealt.numel(), dealt.nbytes),
    ]
)
@primitive
def deal(like: Tensor, n: Column, groups: int, keys: NDArray[np.uint64]) -> Tensor:
    """Draw a random permutation of 0 … Q-1 for each run of Q of n elements: uint16 `[runs, Q]` on
    the device of `like`, runs of consecutive tensors. A tensor's short last run is a permutation of
    its length, also dealt in random order; groups without one of its elements have Q."""
    runs = -(-n // groups)
    dealt = np.empty((runs.sum(), groups), dtype=np.uint16)
    # tiles of whole runs, so a run belongs to one thread
    grain = np.full(len(n), max(1, TILE // groups) * groups)
    in_tiles(_shuffle, tiles_of(n, grain), n, starts(runs), keys, dealt)
    return tensor(dealt, like)


@counted_as(
    lambda found, always, dealt, *_: [
        launch(
            "gather_scatter",
            "tk_ccd.group_positions",
            dealt.numel(),
            dealt.nbytes,
            always.nbytes,
            found.nbytes,
        )
    ]
)
@primitive
def turn(always: Tensor, dealt: Tensor, segments: Segments, count: Column, group: int) -> Tensor:
    """Return places in the flat bucket, int64: per tensor those of `always`, then those of a group
    of the others, both ascending.

    Parameters
    ----------
    always : int64 `[sum of count]`, `count` of each tensor, ascending; places within it
    dealt : uint16 `[runs, Q]` of all others (`deal`)
    """
    runs = -(-(segments.length - count) // dealt.shape[1])
    column = np.ascontiguousarray(array(dealt)[:, group])
    out = np.empty(always.numel() + column.size, dtype=np.int64)
    given = array(always), segments.begin, count, column, runs, dealt.shape[1], out
    return tensor(out[: _take_turn(*given)], always)


@loop
def _shuffle(start, stop, tiles, lengths, firsts, keys, dealt):
    """Shuffle each run (Fisher-Yates)."""
    groups = dealt.shape[1]
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        for run in range(first // groups, (last + groups - 1) // groups):
            row = dealt[firsts[t] + run]
            length = min(groups, lengths[t] - run * groups)
            for i in range(groups):
                row[i] = i if i < length else groups
            for i in range(groups - 1, 0, -1):
                # 32 random bits times i + 1: uniform on 0 … i to 2^-16
                bits = bits64(keys[t], run * groups + i) >> np.uint64(32)
                j = np.int64((bits * np.uint64(i + 1)) >> np.uint64(32))
                row[i], row[j] = row[j], row[i]


@loop
def _take_turn(always, begins, counts, column, runs, groups, out) -> int:
    """Turn ranks among the other elements into places, by adding the number of `always` below."""
    at, a, c = 0, 0, 0
    for t in range(begins.size):
        own = always[a : a + counts[t]]
        for i in range(own.size):
            out[at + i] = begins[t] + own[i]
        at += own.size
        passed = 0
        for run in range(runs[t]):
            # a short last run may have no element for this group
            if column[c + run] < groups:
                rank = run * groups + column[c + run]
                # ranks ascend from run to run, so the cursor over `always` only moves forward
                while passed < own.size and own[passed] <= rank + passed:
                    passed += 1
                out[at] = begins[t] + rank + passed
                at += 1
        a += own.size
        c += runs[t]
    return at
