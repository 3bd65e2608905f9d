"""Votes of one bit an element on a GPU: the kernels of `coding/one_bit/votes.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit import votes as loops
from gcsim.compressors.coding.one_bit.signs import demand_signs
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import BLOCK, blocks, launch
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments, starts


@kernel_of(loops.add_votes)
def add_votes(counts: Tensor, message: Tensor, at: Column, segments: Segments) -> None:
    """Padding is checked `when_known`."""
    sizes = packed_bytes(segments.length, 1)
    parts = parts_of(
        counts, sizes.tolist(), [blocks(n) for n in sizes.tolist()], at.tolist(),
        starts(sizes).tolist(), segments.length.tolist(),
    )  # fmt: skip
    stray = counts.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _vote, parts, counts, message.contiguous(), stray, counts.shape[1],
        PLANES=counts.shape[0], BLOCK=BLOCK,
    )  # fmt: skip
    when_known(stray.any(), demand_signs)


@kernel_of(loops.more_than)
def more_than(counts: Tensor, threshold: int) -> Tensor:
    """A program compares a block of bytes."""
    planes, size = counts.shape
    bits = counts.new_zeros(size)
    if threshold >> planes == 0:  # else more than there are voters
        launch(_compare, blocks(size), counts, bits, size, threshold, PLANES=planes, BLOCK=BLOCK)
    return bits


@kernel_of(loops.from_counters)
def from_counters(counts: Tensor, count: int, ties: bool) -> Tensor:
    """Torch's operators."""
    tie = 0.0 if ties and count % 2 == 0 else 1.0
    update = torch.where(counts == count // 2, tie, 1.0)
    return torch.where(counts > count // 2, -1.0, update)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _vote(
    counts, message, stray, size, table, parts, PLANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    within = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = within < n
    carry = tl.load(message + tl.load(column + 2 * parts) + within, mask=here, other=0)
    elements = tl.load(column + 4 * parts)
    behind = tl.where(within == elements // 8, carry.to(tl.int32) >> (elements % 8), 0)
    tl.store(stray + tl.program_id(0), tl.max(behind, axis=0))
    at = tl.load(column + 3 * parts) + within
    for k in tl.static_range(PLANES):  # plane k holds bit k of every count: add with carry
        place = counts + tl.cast(size, tl.int64) * k + at
        plane = tl.load(place, mask=here, other=0)
        tl.store(place, plane ^ carry, mask=here)
        carry = carry & plane


@triton.jit
def _compare(counts, bits, size, threshold, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    size = tl.cast(size, tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    equal = tl.full([BLOCK], 255, dtype=tl.uint8)
    more = tl.zeros([BLOCK], dtype=tl.uint8)
    for j in tl.static_range(PLANES):  # from the highest bit: the first that differs
        k = PLANES - 1 - j
        plane = tl.load(counts + k * size + at, mask=at < size, other=0)
        wanted = (threshold >> k) & 1
        more = tl.where(wanted != 0, more, more | (equal & plane))
        equal = tl.where(wanted != 0, equal & plane, equal & (plane ^ 255))
    tl.store(bits + at, more, mask=at < size)
