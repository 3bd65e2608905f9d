"""Sums and extrema on a GPU: twins of `coding/scans.py`, TernGrad's moments, SIDCo's sums.

Integers, maxima and sums modulo 2^64 are the loops' to the bit. Sums of floats are added up in
float64 as there, but in another order: first in a tree over a block of at most `BLOCK` elements,
then over blocks. The loops' own order depends on the processor. Two orders of n terms of one sign
differ by at most n 2^-52 of the sum, so that the float32 that is made of it is the same, or its
neighbour in a share of n 2^-28 of all cases at worst. A sum of n magnitudes between m and
m 2^28 / n is exact in any order.
"""

from __future__ import annotations

import math

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.gpu.words import BLOCK, blocks, launch
from gcsim.compressors.lazy_torch import Tensor, torch

MAGNITUDE, SQUARES, ABSOLUTE = 0, 1, 2
_INFINITE = 0x7F800000


def bucket_totals(values: Tensor, size: int, what: int) -> Tensor:
    """Of each bucket of `size` elements of a float32 `[n]`, `[ceil(n / size)]`.

    `MAGNITUDE`: the bits of the largest |v|, int32, those of a NaN where there is one; `SQUARES`,
    `ABSOLUTE`: the sum of v^2 or |v|, float64.
    """
    n = values.numel()
    buckets = -(-n // size) if n else 0
    width = min(BLOCK, 1 << max(0, size - 1).bit_length())
    pieces = -(-size // width) if n else 1  # programs of a bucket
    rows = BLOCK // width if pieces == 1 else 1  # buckets of a program
    dtype = torch.int32 if what == MAGNITUDE else torch.float64
    found = values.new_empty((buckets, pieces), dtype=dtype)
    launch(
        _reduce, -(-buckets // rows) * pieces, values.contiguous(), found, n, size, buckets, pieces,
        WHAT=what, ROWS=rows, WIDTH=width,
    )  # fmt: skip
    if pieces == 1:
        return found.view(-1)
    return found.amax(1) if what == MAGNITUDE else found.sum(1)


def all_finite(values: Tensor) -> bool:
    """See `scans.all_finite`."""
    return not bool((bucket_totals(values, BLOCK, MAGNITUDE) >= _INFINITE).any())


def squared_length(values: Tensor) -> float:
    """See `scans.squared_length`."""
    return float(bucket_totals(values, BLOCK, SQUARES).sum())


def fingerprint(values: Tensor) -> int:
    """See `scans.fingerprint`."""
    n = values.numel()
    sums = values.new_empty(blocks(n), dtype=torch.int64)
    data = values.contiguous().view(torch.int32)
    launch(_weigh, blocks(n), data, sums, n, BLOCK=BLOCK)
    return int(sums.sum()) % (1 << 64)


def magnitude_and_spread(values: Tensor) -> tuple[float, float]:
    """See `terngrad.magnitude_and_spread`."""
    n = values.numel()
    if not n:
        return 0.0, 0.0
    sums = values.new_empty((3, blocks(n)), dtype=torch.float64)
    launch(_moments, blocks(n), values.contiguous(), sums, n, blocks(n), BLOCK=BLOCK)
    largest, total, squares = torch.stack((sums[0].amax(), sums[1].sum(), sums[2].sum())).tolist()
    mean = total / n
    return largest, math.sqrt(max(squares / n - mean**2, 0.0))


def _add_and_sum(memory: Tensor, added: Tensor) -> tuple[float, float, float]:
    """See `magnitude_fits._add_and_sum`."""
    return _magnitudes(memory, added.contiguous(), 0.0)


def _sums(values: Tensor, threshold: float) -> tuple[float, float, float]:
    """See `magnitude_fits._sums`."""
    return _magnitudes(values, None, threshold)


def _magnitudes(
    values: Tensor, added: Tensor | None, threshold: float
) -> tuple[float, float, float]:
    n = values.numel()
    sums = values.new_empty((3, blocks(n)), dtype=torch.float64)
    launch(
        _excess, blocks(n), values, values if added is None else added, sums, n, blocks(n),
        float(np.float32(threshold)), ADD=added is not None, BLOCK=BLOCK,
    )  # fmt: skip
    count, total, squares = sums.sum(1).tolist()
    return float(n) if added is not None else count, total, squares


def _sum_of_logarithms(values: Tensor) -> tuple[float, float]:
    """See `magnitude_fits._sum_of_logarithms`."""
    sizes = values.double().abs()
    zero = sizes == 0
    total = torch.where(zero, 1.0, sizes).log().sum()
    zeros, logarithms = torch.stack((zero.sum().double(), total)).tolist()
    return zeros, logarithms


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _reduce(
    values, found, n, size, buckets, pieces,
    WHAT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = (program // pieces).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % pieces) * WIDTH + tl.arange(0, WIDTH)
    at = row[:, None] * size + column[None, :]
    here = (column[None, :] < size) & (at < n)
    v = tl.load(values + at, mask=here, other=0.0)
    if WHAT == 0:
        # as integers, magnitudes keep their order, and NaN is above all
        total = tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    elif WHAT == 1:
        wide = v.to(tl.float64)
        total = tl.sum(wide * wide, axis=1)
    else:
        total = tl.sum(tl.abs(v.to(tl.float64)), axis=1)
    tl.store(found + row * pieces + program % pieces, total, mask=row < buckets)


@triton.jit
def _weigh(bits, sums, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(bits + at, mask=at < n, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
    total = tl.sum(word * (at.to(tl.uint64) * 2 + 1), axis=0)
    tl.store(sums + tl.program_id(0), total.to(tl.int64, bitcast=True))


@triton.jit
def _excess(values, added, sums, n, programs, threshold, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """By block, of |v| - threshold where that is positive: their number, sum, sum of squares."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + at, mask=at < n, other=0.0)
    if ADD:
        v = v + tl.load(added + at, mask=at < n, other=0.0)
        tl.store(values + at, v, mask=at < n)
    above = tl.abs(v) > threshold
    x = tl.where(above, tl.abs(v) - threshold, 0.0).to(tl.float64)
    tl.store(sums + program, tl.sum(above.to(tl.float64), axis=0))
    tl.store(sums + programs + program, tl.sum(x, axis=0))
    tl.store(sums + 2 * programs + program, tl.sum(x * x, axis=0))


@triton.jit
def _moments(values, sums, n, programs, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + at, mask=at < n, other=0.0)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(size, axis=0).to(tl.float32, bitcast=True)
    # about the first element, not about zero: nothing is lost when all are nearly equal
    distance = tl.where(at < n, v.to(tl.float64) - tl.load(values).to(tl.float64), 0.0)
    tl.store(sums + program, largest.to(tl.float64))
    tl.store(sums + programs + program, tl.sum(distance, axis=0))
    tl.store(sums + 2 * programs + program, tl.sum(distance * distance, axis=0))
