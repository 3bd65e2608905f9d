"""Counting of one-bit votes, eight elements per byte operation.

Counts are stored as bit planes: bit i of plane k is bit k of element i's count. A payload of n bits
is added with a carry from plane to plane; a comparison with a constant goes down the planes. Bits
of a bucket's tensors are consecutive, each tensor's in whole bytes.
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.integers.packing import demand_no_stray, packed_bytes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments


def votes_of(segments: Segments, voters: int, like: Tensor) -> Tensor:
    """Allocate counts up to `voters` per element: uint8 `[planes, bytes of all tensors' bits]`."""
    total = int(packed_bytes(segments.length, 1).sum())
    return like.new_empty((voters.bit_length(), total), dtype=torch.uint8)


@counted_as(
    lambda _, counts, *given, **first: [
        launch("streaming", "votes.add_votes", counts.shape[1], counts.shape[1])
    ]
)
@primitive
def add_votes(
    counts: Tensor, message: Tensor, at: Column, segments: Segments, *, first: bool = False
) -> None:
    """Count each set bit of a message, in place; the `first` message starts the counts. Each
    tensor's ceil(n / 8) bytes begin at `at`. At most one call per voter: a carry out of the highest
    plane is lost. Raises `InputError` for stray bits; on a GPU counts are then undefined."""
    data = array(message)
    demand_no_stray(data, at, segments.length, 1)
    own = Segments.behind(packed_bytes(segments.length, 1))
    with written_back(counts) as planes:
        in_tiles(_voting, own.tiles, data, at, own.begin, planes, first)


@loop
def _voting(start, stop, tiles, bits, at, begins, planes, begin_all):
    carry = np.empty(SUM_BLOCK, dtype=np.uint8)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, SUM_BLOCK):
            last = min(first + SUM_BLOCK, end)
            votes = bits[at[t] + first : at[t] + last]
            for i in range(votes.size):
                carry[i] = votes[i]
            for k in range(planes.shape[0]):  # plane k holds bit k of every count
                plane = planes[k, begins[t] + first : begins[t] + last]
                if begin_all:
                    for i in range(votes.size):
                        plane[i] = carry[i]
                        # a vote is 0 or 1, so all higher planes are 0
                        carry[i] = 0
                else:
                    for i in range(votes.size):
                        before = plane[i]
                        plane[i] = before ^ carry[i]
                        carry[i] &= before


@counted_as(
    lambda _, counts, *given: [
        launch("streaming", "votes.more_than", counts.shape[1], counts.shape[1])
    ]
)
@primitive
def put_more_than(
    counts: Tensor, threshold: int, segments: Segments, bits: Tensor, at: Column
) -> None:
    """Write bits of the elements with more votes than `threshold` (>= 0), for `add_votes`."""
    own = Segments.behind(packed_bytes(segments.length, 1))
    with written_back(bits) as out:
        in_tiles(_comparing, own.tiles, array(counts), threshold, own.begin, out, at)


@loop
def _comparing(start, stop, tiles, planes, threshold, begins, bits, at):
    equal = np.empty(SUM_BLOCK, dtype=np.uint8)
    possible = threshold >> planes.shape[0] == 0  # false if the threshold exceeds the voters
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, SUM_BLOCK):
            more = bits[at[t] + first : at[t] + min(first + SUM_BLOCK, end)]
            for i in range(more.size):
                more[i] = 0
                equal[i] = 255 if possible else 0
            for k in range(planes.shape[0] - 1, -1, -1):  # the highest bit that differs decides
                plane = planes[k, begins[t] + first : begins[t] + first + more.size]
                if (threshold >> k) & 1:
                    for i in range(more.size):
                        equal[i] &= plane[i]
                else:
                    for i in range(more.size):
                        more[i] |= equal[i] & plane[i]
                        equal[i] &= ~plane[i]
