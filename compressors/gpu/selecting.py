"""Which elements travel, found on a GPU? Twins of `coding/selecting/marks.py` and `selection.py`.

Selected elements are counted block by block, the counts are added up, and a second pass writes each
block's behind those of the blocks before: no atomic operation, so the order is the elements' own.

The k-th largest magnitude is found by three histograms over eleven, ten and ten bits, whose bin is
chosen on the device too. Of the magnitudes that equal it, the first ones are taken, as many as are
missing. The host waits once, to learn whether a value is not a number; for a threshold it waits for
the number of marked elements, which is the length of the message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.selecting.marks import BLOCK, Marks
from gcsim.compressors.coding.selecting.selection import NO_NUMBER, check_k
from gcsim.compressors.gpu.words import blocks, launch
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError, InternalError

_MOST_BLOCKS = 16
"""Blocks whose magnitudes one program counts in its histogram, at most; a power of two."""


def mark(values: Tensor, up: float | np.float32, down: float | np.float32 | None = None) -> Marks:
    """See `marks.mark`."""
    return _marked(values, None, up, down)


def add_and_mark(
    memory: Tensor, gradient: Tensor, up: float | np.float32, down: float | np.float32 | None = None
) -> Marks:
    """See `marks.add_and_mark`."""
    return _marked(memory, gradient.contiguous(), up, down)


def _marked(
    values: Tensor,
    added: Tensor | None,
    up: float | np.float32,
    down: float | np.float32 | None,
) -> Marks:
    n = values.numel()
    marks = _new_marks(values, up, down)
    launch(
        _mark, blocks(n), values, values if added is None else added, marks.counts, n,
        float(marks.up), float(marks.down), ADD=added is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return marks


def _new_marks(
    values: Tensor, up: float | np.float32, down: float | np.float32 | None = None
) -> Marks:
    counts = values.new_empty(blocks(values.numel()), dtype=torch.int64)
    return Marks(
        down=np.float32(-up if down is None else down), up=np.float32(up), counts=counts,
        places=np.empty((0, 0), dtype=np.uint16),
    )  # fmt: skip


def add_momentum(
    u: Tensor, v: Tensor, gradient: Tensor, momentum: float, nesterov: bool, threshold: float
) -> Marks:
    """See `dgc.add_momentum`."""
    n = v.numel()
    marks = _new_marks(v, threshold)
    launch(
        _accumulate, blocks(n), u, v, gradient.contiguous(), marks.counts, n,
        float(np.float32(momentum)), float(marks.up), NESTEROV=nesterov, BLOCK=BLOCK,
    )  # fmt: skip
    return marks


def _next_velocity(parts: Sequence[Tensor], momentum: float, nesterov: bool) -> Tensor:
    """See `dgc._next_velocity`."""
    u, v, gradient = parts
    m = float(np.float32(momentum))
    return v + ((u + gradient) * m + gradient if nesterov else u * m + gradient)


def _sum(terms: list[Tensor]) -> Tensor:
    """See `selection._sum`."""
    return sum(terms[1:], start=terms[0].clone())


def take(values: Tensor, marks: Marks, *, clear: bool = False) -> tuple[Tensor, Tensor]:
    """See `marks.take`."""
    n = values.numel()
    counts = torch.as_tensor(marks.counts, device=values.device)  # a loop's own are an array
    if n > BLOCK * len(counts):
        raise InternalError(f"marks of {len(counts)} blocks for {n} elements")
    total = marks.total
    indices = values.new_empty(total, dtype=torch.int64)
    taken = values.new_empty(total)
    launch(
        _take, blocks(n), values, counts.cumsum(0) - counts, indices, taken, n, float(marks.up),
        float(marks.down), CLEAR=clear, BLOCK=BLOCK,
    )  # fmt: skip
    if bool(taken.isnan().any()):
        raise InputError("cannot select by magnitude: a value is not a number")
    return indices, taken


def take_largest(
    values: Tensor, k: int, marks: Marks | None = None, *, clear: bool = True
) -> tuple[Tensor, Tensor]:
    """See `selection.take_largest`; `marks` are not needed."""
    n = values.numel()
    check_k(n, k)
    indices = values.new_empty(k, dtype=torch.int64)
    taken = values.new_empty(k)
    if k == 0:
        return indices, taken
    data = values if clear else values.contiguous()
    limit, _ = _kth(data, k)
    counts = values.new_empty((3, blocks(n)), dtype=torch.int64)
    launch(_count_ranked, blocks(n), data, limit, counts, n, blocks(n), BLOCK=BLOCK)
    above, ties, strange = counts
    if bool(strange.any()):
        raise InputError(NO_NUMBER)
    wanted = k - above.sum()  # of the ties, the first
    before = ties.cumsum(0) - ties
    offsets = above.cumsum(0) - above + before.minimum(wanted)
    launch(
        _take_ranked, blocks(n), data, limit, wanted, before, offsets, indices, taken, n,
        CLEAR=clear, BLOCK=BLOCK,
    )  # fmt: skip
    return indices, taken


def add_and_take_largest(memory: Tensor, gradient: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `selection.add_and_take_largest`."""
    from gcsim.compressors.coding.selecting import selection  # the meter's, not the twin

    check_k(memory.numel(), k)
    return selection.take_largest(memory.add_(gradient), k)


def kth_magnitude(values: Tensor, k: int) -> float:
    """See `selection.kth_magnitude`."""
    if not 1 <= k <= values.numel():
        raise InternalError(f"no element number {k} of {values.numel()}")
    limit, _ = _kth(values.contiguous(), k)
    return float(limit.view(torch.float32))


def _kth(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The bits of the k-th largest magnitude, int32 `[1]`, and its rank among equals, `[1]`."""
    n = values.numel()
    each_counts = min(_MOST_BLOCKS, 1 << (blocks(n) - 1).bit_length())
    programs = -(-blocks(n) // each_counts)
    prefix = values.new_zeros(1, dtype=torch.int32)
    rank = values.new_full((1,), k, dtype=torch.int64)
    for above, shift, bins in ((31, 20, 2048), (20, 10, 1024), (10, 0, 1024)):
        counts = values.new_empty((programs, bins), dtype=torch.int32)
        launch(
            _histogram, programs, values, prefix, counts, n,
            ABOVE=above, SHIFT=shift, BINS=bins, BLOCKS=each_counts, BLOCK=BLOCK,
        )  # fmt: skip
        each = counts.sum(0, dtype=torch.int64).flip(0)  # from the highest bin down
        at_least = each.cumsum(0)
        place = torch.searchsorted(at_least, rank)
        rank = rank - (at_least - each)[place]  # within the bin that holds the k-th
        prefix = prefix * bins + (bins - 1 - place).int()
    return prefix, rank


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _mark(
    values, added, counts, n, up, down,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + at, mask=at < n, other=0.0)
    if ADD:
        v = v + tl.load(added + at, mask=at < n, other=0.0)
        tl.store(values + at, v, mask=at < n)
    inside = (v < up) & (v > down)  # NaN is not
    hits = tl.where((at < n) & (inside == 0), 1, 0)
    tl.store(counts + tl.program_id(0), tl.sum(hits, axis=0).to(tl.int64))


@triton.jit
def _accumulate(
    u, v, gradient, counts, n, momentum, up, NESTEROV: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    direction = tl.load(u + at, mask=at < n, other=0.0)
    added = tl.load(gradient + at, mask=at < n, other=0.0)
    if NESTEROV:
        direction = (direction + added) * momentum
        step = direction + added
    else:
        direction = direction * momentum + added
        step = direction
    velocity = tl.load(v + at, mask=at < n, other=0.0) + step
    tl.store(u + at, direction, mask=at < n)
    tl.store(v + at, velocity, mask=at < n)
    inside = (velocity < up) & (velocity > -up)  # NaN is not
    hits = tl.where((at < n) & (inside == 0), 1, 0)
    tl.store(counts + tl.program_id(0), tl.sum(hits, axis=0).to(tl.int64))


@triton.jit
def _take(
    values, offsets, indices, taken, n, up, down,
    CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + at, mask=at < n, other=0.0)
    inside = (v < up) & (v > down)
    hit = (at < n) & (inside == 0)
    place = tl.load(offsets + tl.program_id(0)) + tl.cumsum(hit.to(tl.int32), axis=0) - 1
    tl.store(indices + place, at, mask=hit)
    tl.store(taken + place, v, mask=hit)
    if CLEAR:
        tl.store(values + at, tl.zeros([BLOCK], dtype=tl.float32), mask=hit)


@triton.jit
def _histogram(
    values, prefix, counts, n, ABOVE: tl.constexpr, SHIFT: tl.constexpr,
    BINS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the magnitudes that begin with `prefix` by their next bits."""
    begun = tl.load(prefix)
    total = tl.zeros([BINS], dtype=tl.int32)
    first = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS)
    for block in range(BLOCKS):
        at = first + block * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(values + at, mask=at < n, other=0.0)
        size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        here = (at < n) & ((size >> ABOVE) == begun)
        total += tl.histogram((size >> SHIFT) & (BINS - 1), BINS, mask=here)
    tl.store(counts + tl.program_id(0) * BINS + tl.arange(0, BINS), total)


@triton.jit
def _count_ranked(values, limit, counts, n, programs, BLOCK: tl.constexpr):
    """By block: magnitudes above the limit, equal to it, and not-a-number."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + at, mask=at < n, other=0.0)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    least = tl.load(limit)
    above = tl.sum(((at < n) & (size > least)).to(tl.int32), axis=0)
    ties = tl.sum(((at < n) & (size == least)).to(tl.int32), axis=0)
    strange = tl.sum((size > 0x7F800000).to(tl.int32), axis=0)
    tl.store(counts + program, above.to(tl.int64))
    tl.store(counts + programs + program, ties.to(tl.int64))
    tl.store(counts + 2 * programs + program, strange.to(tl.int64))


@triton.jit
def _take_ranked(
    values, limit, wanted, before, offsets, indices, taken,
    n, CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + at, mask=at < n, other=0.0)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    least = tl.load(limit)
    tie = (at < n) & (size == least)
    number = tl.load(before + tl.program_id(0)) + tl.cumsum(tie.to(tl.int32), axis=0)  # from 1
    chosen = ((at < n) & (size > least)) | (tie & (number <= tl.load(wanted)))
    place = tl.load(offsets + tl.program_id(0)) + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(indices + place, at, mask=chosen)
    tl.store(taken + place, v, mask=chosen)
    if CLEAR:
        tl.store(values + at, tl.zeros([BLOCK], dtype=tl.float32), mask=chosen)
