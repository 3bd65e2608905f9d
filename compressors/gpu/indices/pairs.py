"""Sums of sparse vectors on a GPU: the kernel of `coding/indices/pairs.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from gcsim.compressors.coding.indices import pairs as loops
from gcsim.compressors.gpu.parts import launch_parts, own_block, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments, starts


@kernel_of(loops.merged_pairs)
def merged_pairs(
    indices: Tensor, values: Tensor, other_indices: Tensor, other_values: Tensor,
    segments: Segments, room: Column,
) -> tuple[Tensor, Tensor, Column]:  # fmt: skip
    """Merge pairs: a stable sort makes equal indices adjacent, and a kernel adds them."""
    places, order = torch.cat((indices, other_indices)).sort(stable=True)
    terms = torch.cat((values, other_values))[order]
    first = torch.ones_like(places)
    first[1:] = places[1:] != places[:-1]
    merged, sums = torch.full_like(places, loops.BEYOND), torch.zeros_like(terms)
    parts = parts_in_blocks(places, room, starts(room))
    given = places, terms, first, first.cumsum(0)
    launch_parts(_add, parts, *given, merged, sums, len(places), BLOCK=BLOCK)
    return merged, sums, room


@triton.jit
def _add(places, terms, first, upto, merged, sums, total, table, parts, BLOCK: tl.constexpr):
    """Write each distinct index and its sum after those before it in its tensor."""
    column, _, i, here = own_block(table, parts, BLOCK)
    begin = tl.load(column + 2 * parts)
    at = begin + i
    begins = here & (tl.load(first + at, mask=here, other=0) != 0)
    # an index occurs at most twice, once per list, and is then adjacent
    again = begins & (at + 1 < total)
    again = again & (tl.load(first + at + 1, mask=again, other=1) == 0)
    value = tl.load(terms + at, mask=here, other=0.0)
    value = tl.where(again, value + tl.load(terms + at + 1, mask=again, other=0.0), value)
    before = tl.load(upto + begin - 1, mask=begin > 0, other=0)
    # distinct indices up to this one, minus those of earlier tensors
    place = begin + tl.load(upto + at, mask=here, other=0) - before - 1
    tl.store(merged + place, tl.load(places + at, mask=here, other=0), mask=begins)
    tl.store(sums + place, value, mask=begins)
