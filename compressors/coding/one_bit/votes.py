"""How are votes of one bit an element counted, eight elements a byte operation?

The numbers of votes lie in bit planes: bit i of plane k is bit k of element i's count. A payload of
n bits is added with a carry from plane to plane; a comparison with a constant runs down the planes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import kernel, unpriced
from gcsim.compressors.on_device import on_device


@unpriced  # a kernel that is fused over all votes begins with zeros in registers
def no_votes(n: int, voters: int, like: Tensor) -> Tensor:
    """Counts of zero: uint8 `[planes, ceil(n / 8)]` that hold up to `voters` votes an element."""
    planes = voters.bit_length()
    return like.new_zeros((planes, packed_bytes(n, 1)), dtype=torch.uint8)


@kernel("streaming", resident=("counts",))
@on_device("one_bit.signs")
def add_votes(counts: Tensor, bits: Tensor) -> None:
    """Count each bit that is set, in place. `bits` is uint8 `[ceil(n / 8)]`.

    Not more often than there are voters: a carry out of the highest plane is lost.
    """
    with written_back(counts) as planes:
        in_parallel(_voting, bits.numel(), array(bits), planes, grain=SUM_BLOCK)


@loop
def _voting(start: int, stop: int, bits: Any, planes: Any) -> None:
    carry = np.empty(SUM_BLOCK, dtype=np.uint8)
    for first in range(start, stop, SUM_BLOCK):
        votes = bits[first : min(first + SUM_BLOCK, stop)]
        for i in range(votes.size):
            carry[i] = votes[i]
        for k in range(planes.shape[0]):  # plane k holds bit k of every count: add with carry
            plane = planes[k, first : first + votes.size]
            for i in range(votes.size):
                before = plane[i]
                plane[i] = before ^ carry[i]
                carry[i] &= before


@kernel("streaming", resident=("counts",))
@on_device("one_bit.signs")
def more_than(counts: Tensor, threshold: int) -> Tensor:
    """Bits of the elements with more votes than `threshold` (>= 0): uint8 `[ceil(n / 8)]`."""
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
