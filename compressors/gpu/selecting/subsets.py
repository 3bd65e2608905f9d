"""Random subsets on a GPU: the kernels of `coding/selecting/subsets.py`. A subset is the first
distinct positions in drawing order: usually enough are drawn, and a stable sort finds repeated
ones. The host waits once, for the number of elements taken."""

from __future__ import annotations

import itertools

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import subsets as loops
from gcsim.compressors.gpu.parts import launch_parts, own_block, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK, bits64, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments, spread, starts


@kernel_of(loops._draw_pieces)
def _draw_pieces(
    like: Tensor, segments: Segments, pieces: NDArray[np.int64], counts: Column,
    keys: NDArray[np.uint64],
) -> Tensor:  # fmt: skip
    owner, first, last = pieces.T
    n, total = last - first, int(counts.sum())
    drawn, others = loops.fewer(pieces, counts), 2 * counts > n
    # m draws miss a share exp(-m / n); add six standard deviations
    expected = -n * np.log1p(-drawn / n)
    known = n, segments.begin[owner] + first, first, keys[owner], drawn, others
    # another try draws the same numbers first, so the subset is the same
    for more in itertools.count(1):
        draws = (expected + 6 * more * np.sqrt(expected + 1)).astype(np.int64) + 1
        draws[drawn == 0] = 0
        parts = parts_in_blocks(like, draws, *known, starts(draws))
        positions = like.new_empty(int(draws.sum()), dtype=torch.int64)
        launch_parts(_draw, parts, positions, BLOCK=BLOCK)
        # pieces have disjoint positions, so one sort serves all
        ordered, order = positions.sort(stable=True)
        fresh = torch.ones_like(positions)
        fresh[order[1:]] = (ordered[1:] != ordered[:-1]).long()
        flags = there(others, like.device, np.uint8)
        taken = spread(flags, n) if others.any() else flags.new_zeros(int(n.sum()))
        launch_parts(_mark, parts, positions, fresh, fresh.cumsum(0), taken, BLOCK=BLOCK)
        found = taken.nonzero().view(-1)
        if len(found) == total:
            return found
    raise AssertionError  # unreachable


@triton.jit
def _draw(positions, table, parts, BLOCK: tl.constexpr):
    column, _, at, here = own_block(table, parts, BLOCK)
    n = tl.load(column + 2 * parts).to(tl.uint64)
    key = tl.load(column + 5 * parts).to(tl.uint64, bitcast=True)
    bits = bits64(key, at + 4 * tl.load(column + 4 * parts)) >> 20
    position = tl.load(column + 3 * parts) + ((bits * n) >> 44).to(tl.int64)
    tl.store(positions + tl.load(column + 8 * parts) + at, position, mask=here)


@triton.jit
def _mark(
    positions, fresh, upto, taken, table, parts, BLOCK: tl.constexpr
):  # fmt: skip
    """Mark the first distinct positions; for a complement, clear them."""
    column, _, at, here = own_block(table, parts, BLOCK)
    start = tl.load(column + 8 * parts)
    here = here & (tl.load(fresh + start + at, mask=here, other=0) != 0)
    before = tl.load(upto + start) - 1  # those of earlier pieces; a piece's first draw is fresh
    rank = tl.load(upto + start + at, mask=here, other=0) - before
    here = here & (rank <= tl.load(column + 6 * parts))
    position = tl.load(positions + start + at, mask=here, other=0)
    mark = (1 - tl.load(column + 7 * parts)).to(tl.uint8)
    tl.store(taken + position, tl.zeros([BLOCK], dtype=tl.uint8) + mark, mask=here)
