"""Votes of one bit an element, counted eight elements a byte operation.

The numbers of votes lie in bit planes: bit i of plane k is bit k of element i's count. A payload of
n bits is added with a carry from plane to plane; a comparison with a constant runs down the planes.
The bits of a bucket's tensors lie one behind the other, each tensor's in whole bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.coding.integers.packing import demand_no_stray, packed_bytes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    SUM_BLOCK,
    array,
    in_parallel,
    in_tiles,
    loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import counted_as, kernel, launch, unpriced
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments


@unpriced  # a kernel that is fused over all votes begins with zeros in registers
def no_votes(segments: Segments, voters: int, like: Tensor) -> Tensor:
    """Counts of zero: uint8 `[planes, bytes of all tensors' bits]`, up to `voters` an element."""
    planes = voters.bit_length()
    return like.new_zeros((planes, int(packed_bytes(segments.length, 1).sum())), dtype=torch.uint8)


@counted_as(
    lambda _, counts, message, at, segments: [
        launch("streaming", "votes.add_votes", counts.shape[1], counts.shape[1])
    ]
)
@primitive
def add_votes(counts: Tensor, message: Tensor, at: Column, segments: Segments) -> None:
    """Count each bit of a message that is set, in place.

    Each tensor's ceil(n / 8) bytes begin at `at`. Not more often than there are voters: a carry
    out of the highest plane is lost. Raises `InputError` when bits are set behind a tensor's last;
    what kernels make of the counts is then worthless.
    """
    data = array(message)
    demand_no_stray(data, at, segments.length, 1)
    own = Segments.behind(packed_bytes(segments.length, 1))
    with written_back(counts) as planes:
        in_tiles(_voting, own.tiles, data, at, own.begin, planes)


@loop
def _voting(
    start: int, stop: int, tiles: Any, bits: Any, at: Any, begins: Any, planes: Any
) -> None:
    carry = np.empty(SUM_BLOCK, dtype=np.uint8)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, SUM_BLOCK):
            last = min(first + SUM_BLOCK, end)
            votes = bits[at[t] + first : at[t] + last]
            for i in range(votes.size):
                carry[i] = votes[i]
            for k in range(planes.shape[0]):  # plane k holds bit k of every count: add with carry
                plane = planes[k, begins[t] + first : begins[t] + last]
                for i in range(votes.size):
                    before = plane[i]
                    plane[i] = before ^ carry[i]
                    carry[i] &= before


@kernel("streaming", resident=("counts",))
@primitive
def more_than(counts: Tensor, threshold: int) -> Tensor:
    """Bits of the elements with more votes than `threshold` (>= 0): uint8 `[bytes]`."""
    planes = array(counts)
    bits = np.zeros(planes.shape[1], dtype=np.uint8)
    if threshold >> planes.shape[0] == 0:  # else more than there are voters
        in_parallel(_comparing, bits.size, planes, threshold, bits, grain=SUM_BLOCK)
    return tensor(bits, counts)


@loop
def _comparing(start: int, stop: int, planes: Any, threshold: int, bits: Any) -> None:
    equal = np.empty(SUM_BLOCK, dtype=np.uint8)
    for first in range(start, stop, SUM_BLOCK):
        more = bits[first : min(first + SUM_BLOCK, stop)]
        for i in range(more.size):
            equal[i] = np.uint8(255)
        for k in range(planes.shape[0] - 1, -1, -1):  # from the highest bit: the first that differs
            plane = planes[k, first : first + more.size]
            if (threshold >> k) & 1:
                for i in range(more.size):
                    equal[i] &= plane[i]
            else:
                for i in range(more.size):
                    more[i] |= equal[i] & plane[i]
                    equal[i] &= ~plane[i]


@kernel("streaming", name="signsgd.from_counters")
@primitive
def from_counters(counts: Tensor, count: int, ties: bool) -> Tensor:
    """The majority, float32 `[n]`, from the numbers of negative votes among `count`.

    A tie is 0 with `ties`, else +1.
    """
    tie = np.float32(0.0 if ties and count % 2 == 0 else 1.0)
    update = np.empty(counts.numel(), dtype=np.float32)
    in_parallel(_deciding, update.size, array(counts), count // 2, tie, update)
    return tensor(update, counts)


@loop
def _deciding(start: int, stop: int, counts: Any, half: int, tie: Any, update: Any) -> None:
    counts, update = counts[start:stop], update[start:stop]
    for i in range(counts.size):
        other = tie if counts[i] == half else np.float32(1)
        update[i] = np.float32(-1) if counts[i] > half else other
