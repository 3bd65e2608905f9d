"""Is everything finite, is it still the same, how long is it? One pass over a vector each."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import SUM_BLOCK, array, in_parallel, loop, partial_sums, summing_loop


def all_finite(values: Tensor) -> bool:
    """Whether a float32 `[n]` holds neither NaN nor infinity."""
    found = np.zeros(-(-values.numel() // SUM_BLOCK), dtype=np.uint32)
    bits = array(values.contiguous()).view(np.uint32)
    in_parallel(_largest_exponents, values.numel(), bits, found, grain=SUM_BLOCK)
    return not bool((found >= 0x7F800000).any())


def squared_length(values: Tensor) -> float:
    """Sum of squares of a float32 `[n]`, added up in float64."""
    sums = partial_sums(values.numel())
    in_parallel(_sums_of_squares, values.numel(), array(values), sums, grain=SUM_BLOCK)
    return float(sums.sum())


def fingerprint(values: Tensor) -> int:
    """64 bits that change when an element of a float32 `[n]` does (but for one case in 2^32)."""
    sums = np.zeros(-(-values.numel() // SUM_BLOCK), dtype=np.uint64)
    bits = array(values.contiguous()).view(np.uint32)
    in_parallel(_weighted_sums, values.numel(), bits, sums, grain=SUM_BLOCK)
    return int(sums.sum(dtype=np.uint64))


@loop
def _weighted_sums(start: int, stop: int, bits: Any, sums: Any) -> None:
    """Sums of elements times odd numbers that differ, modulo 2^64: one a block."""
    for first in range(start, stop, SUM_BLOCK):
        block = bits[first : min(first + SUM_BLOCK, stop)]
        total = np.uint64(0)
        factor = np.uint64(2) * np.uint64(first) + np.uint64(1)
        for i in range(block.size):
            total += np.uint64(block[i]) * (factor + np.uint64(2) * np.uint64(i))
        sums[first // SUM_BLOCK] = total


@loop
def _largest_exponents(start: int, stop: int, bits: Any, found: Any) -> None:
    """Of each block the largest magnitude: as integers, float32 keep their order."""
    for first in range(start, stop, SUM_BLOCK):
        block = bits[first : min(first + SUM_BLOCK, stop)]
        largest = np.uint32(0)
        for i in range(block.size):
            largest = max(largest, block[i] & np.uint32(0x7FFFFFFF))
        found[first // SUM_BLOCK] = largest


@summing_loop
def _sums_of_squares(start: int, stop: int, values: Any, sums: Any) -> None:
    for first in range(start, stop, SUM_BLOCK):
        block = values[first : min(first + SUM_BLOCK, stop)]
        total = 0.0
        for i in range(block.size):
            wide = np.float64(block[i])
            total += wide * wide
        sums[first // SUM_BLOCK] = total
