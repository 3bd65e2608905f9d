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
from gcsim.compressors.gpu.parts import (
    Parts,
    by_part,
    by_program,
    launch_parts,
    own_part,
    parts_of,
    starts,
)
from gcsim.compressors.gpu.words import blocks, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import counting
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
    marks = new_marks_of(values, blocks(values.numel()), up, down)
    mark_parts(values, added, marks.counts, _whole(values, marks))
    return marks


def mark_parts(values: Tensor, added: Tensor | None, counts: Tensor, parts: Parts) -> None:
    """`mark` (or `add_and_mark`) the tensors of `limited_parts`; how many each block has."""
    launch_parts(
        _mark, parts, values, values if added is None else added, counts, ADD=added is not None,
        BLOCK=BLOCK,
    )  # fmt: skip


def limited_parts(
    values: Tensor, elements: Sequence[int], begins: Sequence[int],
    ups: Sequence[float | np.float32], downs: Sequence[float | np.float32] | None = None,
) -> Parts:  # fmt: skip
    """Tensors of which is marked what is outside (down, up), down -up unless given."""
    lower = [-up for up in ups] if downs is None else downs
    words = [np.array(each, dtype=np.float32).view(np.uint32).tolist() for each in (ups, lower)]
    return parts_of(values, elements, [blocks(n) for n in elements], begins, *words)


def _whole(values: Tensor, marks: Marks) -> Parts:
    return limited_parts(values, [values.numel()], [0], [marks.up], [marks.down])


def new_marks_of(
    values: Tensor, count: int, up: float | np.float32, down: float | np.float32 | None = None
) -> Marks:
    """Room for the marks of so many blocks."""
    return Marks(
        down=np.float32(-up if down is None else down), up=np.float32(up),
        counts=values.new_empty(count, dtype=torch.int64),
        places=np.empty((0, 0), dtype=np.uint16),
    )  # fmt: skip


def _sum(terms: list[Tensor]) -> Tensor:
    """See `selection._sum`."""
    return sum(terms[1:], start=terms[0].clone())


def take(values: Tensor, marks: Marks, *, clear: bool = False) -> tuple[Tensor, Tensor]:
    """See `marks.take`."""
    n = values.numel()
    counts = torch.as_tensor(marks.counts, device=values.device)  # a loop's own are an array
    if n > BLOCK * len(counts):
        raise InternalError(f"marks of {len(counts)} blocks for {n} elements")
    return take_parts(values, counts, marks.total, _whole(values, marks), clear=clear)


def take_parts(
    values: Tensor, counts: Tensor, total: int, parts: Parts, *, clear: bool
) -> tuple[Tensor, Tensor]:
    """`take` of what `mark_parts` marked: indices within their tensor, one tensor after another."""
    indices = values.new_empty(total, dtype=torch.int64)
    taken = values.new_empty(total)
    launch_parts(
        _take, parts, values, counts.cumsum(0) - counts, indices, taken, CLEAR=clear, BLOCK=BLOCK
    )
    if bool(taken.isnan().any()):
        raise InputError("cannot select by magnitude: a value is not a number")
    return indices, taken


def select(
    values: Tensor, added: Tensor | None, elements: Sequence[int], begins: Sequence[int],
    limits: Sequence[float | np.float32], *, clear: bool,
) -> tuple[Tensor, Tensor, list[int]]:  # fmt: skip
    """(indices within their tensor and values of what is not inside (-limit, limit) of each tensor,
    after `added` is added, if given; how many of each, for which the host waits)."""
    parts = limited_parts(values, elements, begins, limits)
    counts = values.new_empty(parts.firsts[-1], dtype=torch.int64)
    mark_parts(values, None if added is None else added.contiguous(), counts, parts)
    sent = by_part(counts, parts).tolist()
    return *take_parts(values, counts, sum(sent), parts, clear=clear), sent


def take_largest(
    values: Tensor, k: int, marks: Marks | None = None, *, clear: bool = True
) -> tuple[Tensor, Tensor]:
    """See `selection.take_largest`; `marks` are not needed."""
    n = values.numel()
    check_k(n, k)
    data = values if clear else values.contiguous()
    return take_largest_of(data, [n], [0], [k], clear=clear)


def take_largest_of(
    values: Tensor, elements: Sequence[int], begins: Sequence[int], wanted: Sequence[int], *,
    clear: bool, added: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`take_largest` of many tensors, so many of each: indices within their tensor, values.

    `added`, of the same places, is first added to the values, in place and in the first pass.
    """
    indices = values.new_empty(sum(wanted), dtype=torch.int64)
    taken = values.new_empty(sum(wanted))
    if not len(indices):
        return indices, taken
    limit = kth_bits(values, elements, begins, wanted, added)
    parts = parts_of(values, elements, [blocks(n) for n in elements], begins)
    counts = values.new_empty((3, parts.firsts[-1]), dtype=torch.int64)
    least = by_program(limit, parts)
    launch_parts(_count_ranked, parts, values, least, counts, parts.firsts[-1], BLOCK=BLOCK)
    above, ties, strange = counts
    if bool(strange.any()):
        raise InputError(NO_NUMBER)
    left = there(wanted, values.device) - by_part(above, parts)
    some = by_program(left, parts)  # of the ties, the first
    before = _before(ties, parts)
    offsets = _before(above, parts) + before.minimum(some)
    offsets += by_program(there(starts(wanted), values.device), parts)
    launch_parts(
        _take_ranked, parts, values, least, some, before, offsets, indices, taken, CLEAR=clear,
        BLOCK=BLOCK,
    )  # fmt: skip
    return indices, taken


def _before(counts: Tensor, parts: Parts) -> Tensor:
    """The sum over the programs of the same part that come before: int64 `[programs]`."""
    before = counts.cumsum(0) - counts
    if parts.count == 1:
        return before
    firsts = there(parts.firsts[:-1], counts.device)
    return before - by_program(before[firsts.clamp(max=len(counts) - 1)], parts)


def add_and_take_largest(memory: Tensor, gradient: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `selection.add_and_take_largest`."""
    n = memory.numel()
    check_k(n, k)
    if counting():  # both kernels of it
        from gcsim.compressors.coding.selecting import selection  # the meter's, not the twin

        return selection.take_largest(memory.add_(gradient), k)
    return take_largest_of(memory, [n], [0], [k], clear=True, added=gradient.contiguous())


def kth_magnitude(values: Tensor, k: int) -> float:
    """See `selection.kth_magnitude`."""
    if not 1 <= k <= values.numel():
        raise InternalError(f"no element number {k} of {values.numel()}")
    limit = kth_bits(values.contiguous(), [values.numel()], [0], [k])
    return float(limit.view(torch.float32))


def kth_bits(
    values: Tensor, elements: Sequence[int], begins: Sequence[int], ranks: Sequence[int],
    added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The bits of the k-th largest magnitude of each tensor: int32 `[tensors]`.

    Of values + `added`, in place, where that is given.
    """
    most = max(blocks(n) for n in elements)
    each_counts = min(_MOST_BLOCKS, 1 << (most - 1).bit_length())
    programs = [-(-blocks(n) // each_counts) for n in elements]
    parts = parts_of(values, elements, programs, begins)
    prefix = values.new_zeros(parts.count, dtype=torch.int32)
    rank = there(ranks, values.device)[:, None]
    for above, shift, bins in ((31, 20, 2048), (20, 10, 1024), (10, 0, 1024)):
        counts = values.new_empty((parts.firsts[-1], bins), dtype=torch.int32)
        launch_parts(
            _histogram, parts, values, values if added is None else added,
            by_program(prefix, parts), counts, ADD=added is not None,
            ABOVE=above, SHIFT=shift, BINS=bins, BLOCKS=each_counts, BLOCK=BLOCK,
        )  # fmt: skip
        each = by_part(counts.long(), parts).flip(1)  # from the highest bin down
        at_least = each.cumsum(1)
        place = torch.searchsorted(at_least, rank)
        place = place.clamp(max=bins - 1)  # of an empty tensor
        rank = rank - (at_least - each).gather(1, place)  # within the bin that holds the k-th
        added = None
        prefix = prefix * bins + (bins - 1 - place[:, 0]).int()
    return prefix


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def inside(v, column, parts):
    """Whether values are between the limits of their part; NaN is not."""
    up = tl.load(column + 3 * parts).to(tl.int32).to(tl.float32, bitcast=True)
    down = tl.load(column + 4 * parts).to(tl.int32).to(tl.float32, bitcast=True)
    return (v < up) & (v > down)


@triton.jit
def _mark(
    values, added, counts, table, parts,
    LANES: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    at = number * BLOCK + tl.arange(0, BLOCK)
    source = values + tl.load(column + 2 * parts) + at
    v = tl.load(source, mask=at < n, other=0.0)
    if ADD:
        v = v + tl.load(added + tl.load(column + 2 * parts) + at, mask=at < n, other=0.0)
        tl.store(source, v, mask=at < n)
    within = inside(v, column, parts)
    hits = tl.where((at < n) & (within == 0), 1, 0)
    tl.store(counts + tl.program_id(0), tl.sum(hits, axis=0).to(tl.int64))


@triton.jit
def _take(
    values, offsets, indices, taken, table, parts,
    LANES: tl.constexpr, CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    at = number * BLOCK + tl.arange(0, BLOCK)
    source = values + tl.load(column + 2 * parts) + at
    v = tl.load(source, mask=at < n, other=0.0)
    within = inside(v, column, parts)
    hit = (at < n) & (within == 0)
    place = tl.load(offsets + tl.program_id(0)) + tl.cumsum(hit.to(tl.int32), axis=0) - 1
    tl.store(indices + place, at, mask=hit)
    tl.store(taken + place, v, mask=hit)
    if CLEAR:
        tl.store(source, tl.zeros([BLOCK], dtype=tl.float32), mask=hit)


@triton.jit
def _histogram(
    values, added, prefix, counts, table, parts, LANES: tl.constexpr, ADD: tl.constexpr,
    ABOVE: tl.constexpr, SHIFT: tl.constexpr, BINS: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the magnitudes that begin with `prefix` by their next bits."""
    column, number, n = own_part(table, parts, LANES)
    begin = tl.load(column + 2 * parts)
    source = values + begin
    begun = tl.load(prefix + tl.program_id(0))
    total = tl.zeros([BINS], dtype=tl.int32)
    for block in range(BLOCKS):
        at = (number * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(source + at, mask=at < n, other=0.0)
        if ADD:
            v = v + tl.load(added + begin + at, mask=at < n, other=0.0)
            tl.store(source + at, v, mask=at < n)
        size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        here = (at < n) & ((size >> ABOVE) == begun)
        total += tl.histogram((size >> SHIFT) & (BINS - 1), BINS, mask=here)
    tl.store(counts + tl.program_id(0) * BINS + tl.arange(0, BINS), total)


@triton.jit
def _count_ranked(
    values, limit, counts, programs, table, parts, LANES: tl.constexpr, BLOCK: tl.constexpr
):
    """By block: magnitudes above the limit, equal to it, and not-a-number."""
    program = tl.program_id(0)
    column, number, n = own_part(table, parts, LANES)
    at = number * BLOCK + tl.arange(0, BLOCK)
    source = values + tl.load(column + 2 * parts) + at
    v = tl.load(source, mask=at < n, other=0.0)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    least = tl.load(limit + program)
    above = tl.sum(((at < n) & (size > least)).to(tl.int32), axis=0)
    ties = tl.sum(((at < n) & (size == least)).to(tl.int32), axis=0)
    strange = tl.sum((size > 0x7F800000).to(tl.int32), axis=0)
    tl.store(counts + program, above.to(tl.int64))
    tl.store(counts + programs + program, ties.to(tl.int64))
    tl.store(counts + 2 * programs + program, strange.to(tl.int64))


@triton.jit
def _take_ranked(
    values, limit, wanted, before, offsets, indices, taken, table, parts,
    LANES: tl.constexpr, CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column, number, n = own_part(table, parts, LANES)
    at = number * BLOCK + tl.arange(0, BLOCK)
    source = values + tl.load(column + 2 * parts) + at
    v = tl.load(source, mask=at < n, other=0.0)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    least = tl.load(limit + program)
    tie = (at < n) & (size == least)
    rank = tl.load(before + program) + tl.cumsum(tie.to(tl.int32), axis=0)  # from 1
    chosen = ((at < n) & (size > least)) | (tie & (rank <= tl.load(wanted + program)))
    place = tl.load(offsets + program) + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(indices + place, at, mask=chosen)
    tl.store(taken + place, v, mask=chosen)
    if CLEAR:
        tl.store(source, tl.zeros([BLOCK], dtype=tl.float32), mask=chosen)
