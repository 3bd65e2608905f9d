"""Sums and extrema on a GPU: the kernels of `coding/scans.py`.

Integers, maxima and sums modulo 2^64 equal the loops' bit for bit. Float sums are float64 too, but
in another order: a tree over blocks of at most `BLOCK` elements, then over blocks (the loops' order
depends on the processor). Two orders of n terms of the same sign differ by at most n 2^-52 of the
sum, so its float32 is the same, or a neighbour in at most n 2^-28 of all cases. A sum of n
magnitudes between m and m 2^28 / n is exact in any order.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding import scans as loops
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import BLOCK, blocks, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, Segments, starts

MAGNITUDE, SQUARES, PLAIN, NORM = range(4)
_INFINITE = 0x7F800000


def bucket_totals(values: Tensor, cells: Cells, what: int) -> Tensor:
    """Reduce each cell of a flat float32 to a number: `[cells]`, 0 for an empty cell. `MAGNITUDE`:
    bits of the largest |v|, int32, or of a NaN; `SQUARES`, `PLAIN`: the sum of v^2 or v, float64;
    `NORM`: the root of the first, float32."""
    rows = cells.segments.length, cells.segments.begin, cells.size, cells.count
    elements, begins, sizes, counts = rows
    width = min(BLOCK, 1 << (int(sizes.max(initial=1)) - 1).bit_length())
    pieces = -(-sizes // width)  # programs per cell
    several = int(pieces.max(initial=1)) > 1
    together = 1 if several else BLOCK // width  # cells per program
    slots = counts * pieces
    dtype = torch.int32 if what == MAGNITUDE else torch.float64
    if what == NORM and not several:
        dtype = torch.float32
    found = values.new_empty(int(slots.sum()), dtype=dtype)
    programs = -(-counts // together) * pieces
    parts = parts_of(values, elements, programs, begins, sizes, pieces, starts(slots))
    launch_parts(_reduce, parts, values.contiguous(), found, WHAT=what, ROWS=together, WIDTH=width)
    if not several:
        return found
    if len(counts) == 1 and what != NORM:
        alone = found.view(int(counts[0]), int(pieces[0]))
        return alone.amax(1) if what == MAGNITUDE else alone.sum(1)
    ends = np.repeat(pieces, counts).cumsum()
    cuts = there([0, *ends], values.device)
    return joined(found, cuts, what)


def joined(found: Tensor, cuts: Tensor, what: int) -> Tensor:
    """Return the largest (or the sum) between each two cuts: `[cuts - 1]`."""
    out = found.new_empty(len(cuts) - 1, dtype=torch.float32 if what == NORM else found.dtype)
    launch(_join, len(out), found, cuts, out, WHAT=what, BLOCK=256)
    return out


@kernel_of(loops.finite)
def finite(values: Tensor) -> Tensor:
    """Check finiteness without waiting."""
    return (bucket_totals(values, _blocks(values), MAGNITUDE) < _INFINITE).all()


@kernel_of(loops.finite_part)
def finite_part(values: Tensor, scale: Tensor | float, faulty: Tensor) -> Tensor:
    """Divide and replace in one launch."""
    found = torch.empty(values.numel(), dtype=torch.float32, device=values.device)
    scaled, divisor = isinstance(scale, torch.Tensor) or scale != 1.0, found
    if scaled:
        divisor = torch.as_tensor(scale, dtype=torch.float32).to(values.device)
    launch(_finite_part, blocks(values.numel()), values.contiguous(), found, faulty, divisor,
           values.numel(), SCALED=scaled, BLOCK=BLOCK)  # fmt: skip
    return found


@kernel_of(loops.not_finite)
def not_finite(values: Tensor) -> Tensor:
    """Count in two launches."""
    n, count = values.numel(), torch.zeros(1, dtype=torch.int32, device=values.device)
    launch(_count_faults, blocks(n), values.contiguous(), count, n, BLOCK=BLOCK)
    return count


@kernel_of(loops.squared_lengths)
def squared_lengths(one: Tensor, other: Tensor) -> tuple[float, float, float]:
    """Return squared lengths, summed in another order than in the loop."""
    cells = _blocks(one)
    first, second, apart = (
        float(bucket_totals(each, cells, SQUARES).sum()) for each in (one, other, one - other)
    )
    return first, second, apart


def _blocks(values: Tensor) -> Cells:
    return Segments.alone(values.numel()).cells(BLOCK)


@kernel_of(loops.fingerprint)
def fingerprint(values: Tensor) -> int:
    """Return the same number as the loop."""
    n = values.numel()
    sums = values.new_empty(blocks(n), dtype=torch.int64)
    data = values.contiguous().view(torch.int32)
    launch(_weigh, blocks(n), data, sums, n, BLOCK=BLOCK)
    return int(sums.sum()) % (1 << 64)


@triton.jit
def _root(total):
    root = tl.sqrt(total)
    finite = root < float("inf")
    return tl.where(finite & (root > 3.4028234663852886e38), 3.4028234663852886e38, root).to(
        tl.float32
    )


@triton.jit
def _reduce(
    values, found, table, parts, WHAT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    part, number, n = own_part(table, parts)
    size = tl.load(part + 3 * parts)
    pieces = tl.load(part + 4 * parts)
    # a program has one piece of a long cell, or ROWS cells of one piece each
    row = number // pieces * ROWS + tl.arange(0, ROWS)
    column = number % pieces * WIDTH + tl.arange(0, WIDTH)
    at = row[:, None] * size + column[None, :]
    here = (column[None, :] < size) & (at < n)
    v = tl.load(values + tl.load(part + 2 * parts) + at, mask=here, other=0.0)
    if WHAT == 0:
        # magnitudes order as integers, with NaN above all
        total = tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    elif WHAT % 2 == 1:  # SQUARES, NORM
        wide = v.to(tl.float64)
        total = tl.sum(wide * wide, axis=1)
        if found.dtype.element_ty == tl.float32:
            total = _root(total)
    else:
        total = tl.sum(v.to(tl.float64), axis=1)
    slot = found + tl.load(part + 5 * parts) + row * pieces + number % pieces
    # row 0 is written even if the tensor is empty: its cell has total 0
    tl.store(slot, total, mask=(row == 0) | (row * size < n))


@triton.jit
def _join(found, cuts, out, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    bucket = tl.program_id(0)
    first = tl.load(cuts + bucket)
    last = tl.load(cuts + bucket + 1)
    total = tl.zeros([BLOCK], dtype=found.dtype.element_ty)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        each = tl.load(found + at, mask=at < last, other=0)
        total = tl.maximum(total, each) if WHAT == 0 else total + each
    if WHAT == 0:
        tl.store(out + bucket, tl.max(total, axis=0))
    elif WHAT == 3:
        tl.store(out + bucket, _root(tl.sum(total, axis=0)))
    else:
        tl.store(out + bucket, tl.sum(total, axis=0))


@triton.jit
def _infinite(values, n, BLOCK: tl.constexpr):
    """Return (a program's block as float32, places, whether they exist, 1 if not finite)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    v = tl.load(values + at, mask=here, other=0.0).to(tl.float32)
    bits = v.to(tl.int32, bitcast=True) & 0x7F800000
    return v, at, here, (bits == 0x7F800000).to(tl.int32)


@triton.jit
def _finite_part(
    values, found, faulty, scale, n, SCALED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    v, at, here, bad = _infinite(values, n, BLOCK)
    v = tl.where(bad != 0, 0.0, v)
    if SCALED:
        v = tl.div_rn(v, tl.load(scale))
    tl.store(found + at, v, mask=here)
    tl.store(faulty, 1, mask=tl.max(bad, axis=0) != 0)


@triton.jit
def _count_faults(values, count, n, BLOCK: tl.constexpr):
    _, _, _, bad = _infinite(values, n, BLOCK)
    total = tl.sum(bad, axis=0)
    tl.atomic_add(count, total, mask=total > 0, sem="relaxed")


@triton.jit
def _weigh(bits, sums, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(bits + at, mask=at < n, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
    total = tl.sum(word * (at.to(tl.uint64) * 2 + 1), axis=0)
    tl.store(sums + tl.program_id(0), total.to(tl.int64, bitcast=True))
