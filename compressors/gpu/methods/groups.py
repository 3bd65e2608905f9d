"""How are coordinates dealt to groups at random on a GPU, and where are those of a group? TK-CCD.

Twins of what stands in `tk_ccd.py`. A lane shuffles a run, step by step as the loop does; the
table lies group by group, so that lanes that are neighbours touch neighbouring memory, and a
group's column is one stretch of it.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.gpu.words import bits64, launch
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random

_RUNS = 128
"""Of a program."""


def deal(like: Tensor, n: int, groups: int, key: np.uint64) -> Tensor:
    """See `tk_ccd.deal`."""
    runs = -(-n // groups)
    dealt = like.new_empty((groups, runs), dtype=torch.int16)
    launch(_shuffle, -(-runs // _RUNS), dealt, n, groups, runs, int(key), RUNS=_RUNS)
    count_random(n, 64)
    return dealt.view(torch.uint16).T


def group_positions(dealt: Tensor, always: Tensor, group: int) -> Tensor:
    """See `tk_ccd.group_positions`."""
    runs, groups = dealt.shape
    column = dealt.T[group].view(torch.int16).long() & 0xFFFF
    ranks = torch.arange(runs, device=dealt.device) * groups + column
    ranks = ranks[column < groups]
    others_before = always - torch.arange(len(always), device=always.device)
    return ranks + torch.searchsorted(others_before, ranks, right=True)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["key"])
def _shuffle(dealt, n, groups, runs, key: tl.uint64, RUNS: tl.constexpr):
    """Fisher and Yates, a run a lane.

    What a thread stores another one may load, since layouts differ: hence barriers.
    """
    key = tl.cast(key, tl.uint64)
    run = tl.program_id(0).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    here = run < runs
    length = n - run * groups
    for i in range(groups):
        place = tl.cast(i, tl.int64) * runs + run
        tl.store(dealt + place, tl.where(i < length, i, groups).to(tl.int16), mask=here)
    tl.debug_barrier()
    for k in range(1, groups):
        last = tl.cast(groups - k, tl.int64)
        bits = bits64(key, run * groups + last) >> 32
        chosen = ((bits * (last + 1).to(tl.uint64)) >> 32).to(tl.int64)
        one, other = dealt + (last * runs + run), dealt + (chosen * runs + run)
        taken = tl.load(one, mask=here)
        given = tl.load(other, mask=here)
        tl.debug_barrier()
        tl.store(one, given, mask=here)
        tl.store(other, taken, mask=here)
        tl.debug_barrier()
