"""Scans of a whole vector: finiteness, norm, fingerprint."""

from __future__ import annotations

import numpy as np

from gcsim.compressors.demands import Found
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_parallel, loop, summing_loop
from gcsim.compressors.on_device import primitive


def all_finite(values: Tensor) -> bool:
    """Whether a float32 `[n]` contains neither NaN nor infinity."""
    return bool(finite(values))


@primitive
def finite(values: Tensor) -> Found:
    """Do `all_finite` without waiting for a device."""
    found = np.zeros(-(-values.numel() // SUM_BLOCK), dtype=np.uint32)
    in_parallel(
        block_magnitudes, values.numel(), array(values.contiguous()), found, grain=SUM_BLOCK
    )
    # bits of infinity; NaN's are larger
    return not bool((found >= 0x7F800000).any())


@primitive
def finite_part(values: Tensor, scale: Tensor | float, faulty: Tensor) -> Tensor:
    """Return a flat vector of 16 or 32 bits, divided by `scale`, in float32 (possibly itself), with
    0 for elements that are not finite; `faulty`, int64 `[1]`, is set to 1 if there are any."""
    found = values.float()
    if not all_finite(found):
        faulty.fill_(1)
        found = torch.where(found.isfinite(), found, 0.0)
    return found if isinstance(scale, float) and scale == 1.0 else found / scale


@primitive
def not_finite(values: Tensor) -> Found:
    """Count the elements of a vector that are NaN or infinity, without waiting for a device."""
    return values.numel() - int(values.isfinite().sum())


@primitive
def squared_lengths(one: Tensor, other: Tensor) -> tuple[float, float, float]:
    """Return the sums of squares of two float32 `[n]` and of their difference, in float64."""
    n = one.numel()
    sums = np.zeros((3, -(-n // SUM_BLOCK)))
    in_parallel(_squares_of_both, n, array(one), array(other), sums, grain=SUM_BLOCK)
    first, second, apart = sums.sum(axis=1).tolist()
    return first, second, apart


@primitive
def fingerprint(values: Tensor) -> int:
    """Return 64 bits that change if an element of a float32 `[n]` does (with 2^-32 exceptions)."""
    sums = np.zeros(-(-values.numel() // SUM_BLOCK), dtype=np.uint64)
    bits = array(values.contiguous()).view(np.uint32)
    in_parallel(_weighted_sums, values.numel(), bits, sums, grain=SUM_BLOCK)
    return int(sums.sum(dtype=np.uint64))


@loop
def _weighted_sums(start, stop, bits, sums):
    """Sum each block's elements times distinct odd numbers, modulo 2^64."""
    for first in range(start, stop, SUM_BLOCK):
        block = bits[first : min(first + SUM_BLOCK, stop)]
        total = np.uint64(0)
        # odd numbers are invertible modulo 2^64: one changed element always changes the sum
        factor = np.uint64(2) * np.uint64(first) + np.uint64(1)
        for i in range(block.size):
            total += np.uint64(block[i]) * (factor + np.uint64(2) * np.uint64(i))
        sums[first // SUM_BLOCK] = total


@summing_loop
def _squares_of_both(start, stop, one, other, sums):
    """Compute the sums of squares of each block of two vectors and of their difference."""
    for first in range(start, stop, SUM_BLOCK):
        last = min(first + SUM_BLOCK, stop)
        left, right, a, b, c = one[first:last], other[first:last], 0.0, 0.0, 0.0
        for i in range(left.size):
            apart = left[i] - right[i]
            a += np.float64(left[i]) * np.float64(left[i])
            b += np.float64(right[i]) * np.float64(right[i])
            c += np.float64(apart) * np.float64(apart)
        row = first // SUM_BLOCK
        sums[0, row], sums[1, row], sums[2, row] = a, b, c


# --- for loops, here and in other files ---------------------------------------------------------


@loop
def greatest_magnitude(values) -> np.uint32:
    """Return the bits of the largest |v| of float32 `[n]`, or those of a NaN if there is one."""
    bits = values.view(np.uint32)
    greatest = np.uint32(0)
    for i in range(bits.size):  # magnitudes order as integers, with NaN above all
        greatest = max(greatest, bits[i] & np.uint32(0x7FFFFFFF))
    return greatest


@summing_loop
def sum_of_squares(values) -> float:
    """Return the sum of squares of float32 `[n]`, n <= `SUM_BLOCK`, in float64."""
    total = 0.0
    for i in range(values.size):
        # the square is exact: 24 bits squared are 48, and float64 has 53
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@summing_loop
def moments(values, centre) -> tuple[float, float]:
    """Return the sums of v - centre and its square over one block of float32, in float64."""
    total, squares = 0.0, 0.0
    for i in range(values.size):
        distance = np.float64(values[i]) - centre
        total += distance
        squares += distance * distance
    return total, squares


@loop
def block_magnitudes(start, stop, values, found):
    """Compute `greatest_magnitude` of each block."""
    for first in range(start, stop, SUM_BLOCK):
        found[first // SUM_BLOCK] = greatest_magnitude(values[first : min(first + SUM_BLOCK, stop)])


@loop
def block_squares(start, stop, values, sums):
    """Compute `sum_of_squares` of each block."""
    for first in range(start, stop, SUM_BLOCK):
        sums[first // SUM_BLOCK] = sum_of_squares(values[first : min(first + SUM_BLOCK, stop)])


@summing_loop
def block_products(start, stop, a, b, sums):
    """Compute <a, b> of each block of two float32 `[n]`, in float64."""
    for first in range(start, stop, SUM_BLOCK):
        last = min(first + SUM_BLOCK, stop)
        left, right, total = a[first:last], b[first:last], 0.0
        for i in range(left.size):
            total += np.float64(left[i]) * np.float64(right[i])
        sums[first // SUM_BLOCK] = total
