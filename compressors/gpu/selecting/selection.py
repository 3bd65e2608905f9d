"""The k largest magnitudes on a GPU, and the k-th: kernels of `coding/selecting/selection.py`.

The k-th largest magnitude is found by three histograms over eleven, ten and ten bits, whose bin is
chosen on the device too. Of the magnitudes that equal it, the first ones are taken, as many as are
missing: selected elements are counted block by block, the counts are added up, and a second pass
writes each block's behind those of the blocks before. The host waits once, to learn whether a value
is not a number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import selection as loops
from gcsim.compressors.coding.selecting.marks import BLOCK
from gcsim.compressors.coding.selecting.selection import NO_NUMBER
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
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments
from gcsim.errors import InputError

_MOST_BLOCKS = 16
"""Blocks whose magnitudes one program counts in its histogram, at most; a power of two."""


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


@kernel_of(loops.kth_magnitude)
def kth_magnitude(values: Tensor, segments: Segments, k: Column) -> NDArray[np.float32]:
    """The host waits for it."""
    loops.check_rank(segments, k)
    if not k.size:
        return np.zeros(0, dtype=np.float32)
    columns = segments.length.tolist(), segments.begin.tolist(), k.tolist()
    found = kth_bits(values.contiguous(), *columns).view(torch.float32)
    limits: NDArray[np.float32] = found.numpy(force=True)
    return limits


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
def _histogram(
    values, added, prefix, counts, table, parts, ADD: tl.constexpr,
    ABOVE: tl.constexpr, SHIFT: tl.constexpr, BINS: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the magnitudes that begin with `prefix` by their next bits."""
    column, number, n = own_part(table, parts)
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
def _count_ranked(values, limit, counts, programs, table, parts, BLOCK: tl.constexpr):
    """By block: magnitudes above the limit, equal to it, and not-a-number."""
    program = tl.program_id(0)
    column, number, n = own_part(table, parts)
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
    values, limit, wanted, before, offsets, indices, taken, table, parts, CLEAR: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column, number, n = own_part(table, parts)
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
