"""Independent draws on a GPU: the kernels of `coding/selecting/sampling.py`.

The numbers are those of the loops, by the same counters; a lane draws from a block. The host waits
once, for the number of elements drawn.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import sampling as loops
from gcsim.compressors.coding.selecting.sampling import BLOCK, SLACK
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import BLOCK as _MANY
from gcsim.compressors.gpu.words import bits64, blocks, float64, float64_bits, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments

_LANES = 256
"""Blocks of 16 elements that a program works on."""


@kernel_of(loops.block_sums)
def block_sums(values: Tensor, segments: Segments) -> Tensor:
    """Each sum is taken from the first element to the last."""
    sums = values.new_empty(segments.cells(BLOCK).total, dtype=torch.float64)
    launch_parts(
        _sum_blocks, _parts_of_blocks(values, segments), values.contiguous(), sums, BLOCK=BLOCK,
        BLOCKS=_LANES,
    )  # fmt: skip
    return sums


@kernel_of(loops.draw_poisson)
def draw_poisson(
    values: Tensor, sums: Tensor, segments: Segments, scales: Tensor, keys: NDArray[np.uint64], *,
    expected: Column, factor: float = 1.0, prior: Tensor | None = None, chances: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A bit for each element, and of these the places."""
    parts = _parts_of_blocks(values, segments, keys)
    drawn = values.new_empty(len(sums), dtype=torch.int32)
    counts = values.new_empty(parts.firsts[-1], dtype=torch.int64)
    chance = values.new_empty(values.numel() if chances else 1)
    launch_parts(
        _draw, parts, values, sums, scales, values if prior is None else prior, drawn, counts,
        chance, float(np.float32(factor)), SLACK=1.0 + SLACK, LOWER=factor < 1.0,
        PRIOR=prior is not None, CHANCES=chances, BLOCK=BLOCK, BLOCKS=_LANES,
    )  # fmt: skip
    upto = counts.cumsum(0)
    total = int(upto[-1]) if len(upto) else 0
    positions = values.new_empty(total, dtype=torch.int64)
    kept = values.new_empty(total if chances else 0)
    launch_parts(
        _compact, parts, drawn, upto, chance, positions, kept, CHANCES=chances, BLOCK=BLOCK,
        BLOCKS=_LANES,
    )  # fmt: skip
    return positions, kept


@kernel_of(loops.squared_shares)
def squared_shares(values: Tensor, segments: Segments, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Each sum is taken from the first element to the last."""
    squares = torch.empty_like(values)
    sums = values.new_empty(segments.cells(BLOCK).total, dtype=torch.float64)
    launch_parts(
        _square, _parts_of_blocks(values, segments), values.contiguous(), largest, squares, sums,
        BLOCK=BLOCK, BLOCKS=_LANES,
    )  # fmt: skip
    return squares, sums


@kernel_of(loops.lift)
def lift(
    values: Tensor, sums: Tensor, segments: Segments, scales: Tensor, least: float, most: float, *,
    top: float = np.inf, prior: Tensor | None = None,
) -> None:  # fmt: skip
    """Programs of other tensors end at once."""
    launch_parts(
        _lift, _parts_of_blocks(values, segments), values, sums, scales,
        values if prior is None else prior, float64_bits(least), float64_bits(most),
        float(top), PRIOR=prior is not None, BLOCK=BLOCK, BLOCKS=_LANES,
    )  # fmt: skip


@kernel_of(loops.split_certain)
def split_certain(
    values: Tensor, positions: Tensor, segments: Segments, scales: Tensor
) -> tuple[loops.Selected, loops.Selected]:
    """One pass counts, one writes; the host waits for the counts."""
    m, rows = len(positions), len(segments.table)
    parts = parts_of(values, [m], [blocks(m)])
    totals = values.new_zeros((2, rows), dtype=torch.int32)
    counts = values.new_empty((2, parts.firsts[-1]), dtype=torch.int32)
    begins = there(segments.begin, values.device)
    given = values, positions, begins, scales, rows
    launch_parts(_tell, parts, *given, totals, counts, parts.firsts[-1], BLOCK=_MANY)
    upto, k = counts.cumsum(1), np.array(totals.tolist(), dtype=np.int64)
    places = values.new_empty(m, dtype=torch.int64)
    taken = values.new_empty(m)
    launch_parts(_split, parts, *given, upto, parts.firsts[-1], places, taken, BLOCK=_MANY)
    cut = int(k[0].sum())
    return (places[:cut], taken[:cut], k[0]), (places[cut:], taken[cut:], k[1])


def _parts_of_blocks(
    like: Tensor, segments: Segments, keys: NDArray[np.uint64] | None = None
) -> Parts:
    """Parts in tiles of blocks, with begins, first blocks, numbers and perhaps keys."""
    blocks = segments.cells(BLOCK)
    columns = [segments.begin.tolist(), blocks.first.tolist(), range(len(blocks.count))]
    if keys is not None:
        columns.append(keys.tolist())
    programs = [-(-count // _LANES) for count in blocks.count.tolist()]
    return parts_of(like, segments.length.tolist(), programs, *columns)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _fraction64(key, index):
    """`random.fraction64` of each index."""
    return (bits64(key, index) >> 11).to(tl.float64) * 2.0**-53


@triton.jit
def _own_blocks(
    table, parts, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """(column of the table, the part's elements, its blocks, its begin, blocks of this program, the
    place of their first elements and of their sums)."""
    column, program, n = own_part(table, parts)
    block = program.to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    count = (n + BLOCK - 1) // BLOCK
    return column, n, count, tl.load(column + 2 * parts), block, tl.load(column + 3 * parts) + block


@triton.jit
def _sum_blocks(
    values, sums, table, parts, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    _, n, count, begin, block, place = _own_blocks(table, parts, BLOCK, BLOCKS)
    total = tl.zeros([BLOCKS], dtype=tl.float64)
    for i in tl.static_range(BLOCK):
        at = block * BLOCK + i
        total += tl.abs(tl.load(values + begin + at, mask=at < n, other=0.0).to(tl.float64))
    tl.store(sums + place, total, mask=block < count)


@triton.jit
def _square(
    values, largest, squares, sums, table, parts, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    column, n, count, begin, block, place = _own_blocks(table, parts, BLOCK, BLOCKS)
    most = tl.load(largest + tl.load(column + 4 * parts))
    total = tl.zeros([BLOCKS], dtype=tl.float64)
    for i in tl.static_range(BLOCK):
        at = block * BLOCK + i
        v = tl.load(values + begin + at, mask=at < n, other=0.0)
        share = tl.div_rn(v, tl.where(most > 0, most, 1.0) + tl.zeros_like(v))
        v = tl.where(at < n, tl.where(most > 0, share * share, 1.0), 0.0)
        tl.store(squares + begin + at, v, mask=at < n)
        total += v.to(tl.float64)
    tl.store(sums + place, total, mask=block < count)


@triton.jit(do_not_specialize=["least", "most"])
def _lift(
    values, sums, scales, prior, least: tl.uint64, most: tl.uint64, top, table, parts,
    PRIOR: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    column, n, count, begin, block, place = _own_blocks(table, parts, BLOCK, BLOCKS)
    scale = tl.load(scales + tl.load(column + 4 * parts))
    if scale > float64(least):
        factor = tl.minimum(scale, float64(most)).to(tl.float32)
        total = tl.zeros([BLOCKS], dtype=tl.float64)
        for i in tl.static_range(BLOCK):
            at = block * BLOCK + i
            v = tl.load(values + begin + at, mask=at < n, other=0.0) * factor
            v = tl.minimum(v, top)
            if PRIOR:
                before = tl.load(prior + begin + at, mask=at < n, other=0.0)
                before = tl.maximum(before, 1e-30)
                tl.store(prior + begin + at, before, mask=at < n)
                v = v * before
            tl.store(values + begin + at, v, mask=at < n)
            total += tl.abs(v.to(tl.float64))
        tl.store(sums + place, total, mask=block < count)


@triton.jit
def _certain(values, positions, begins, scales, rows, j, m):
    """(value, tensor, place within it, whether it is certain) of elements at positions."""
    at = tl.load(positions + j, mask=j < m, other=0)
    low = tl.zeros_like(at)
    high = low + rows
    span = rows
    while span > 0:  # the last tensor that does not begin later
        middle = (low + high) // 2
        later = tl.load(begins + middle) > at
        high = tl.where(later, middle, high)
        low = tl.where(later, low, middle)
        span = span // 2
    v = tl.load(values + at, mask=j < m, other=0.0)
    size = tl.abs(v.to(tl.float64)) * tl.load(scales + low)
    return v, low, at - tl.load(begins + low), size >= 1.0


@triton.jit
def _tell(
    values, positions, begins, scales, rows, totals, counts, programs, table, parts,
    BLOCK: tl.constexpr,
):  # fmt: skip
    _, number, m = own_part(table, parts)
    j = number * BLOCK + tl.arange(0, BLOCK)
    _, tensor, _, certain = _certain(values, positions, begins, scales, rows, j, m)
    tl.atomic_add(totals + tl.where(certain, 0, rows) + tensor, 1, mask=j < m)
    first = tl.sum((certain & (j < m)).to(tl.int32), axis=0)
    tl.store(counts + tl.program_id(0), first)
    here = tl.sum((j < m).to(tl.int32), axis=0)
    tl.store(counts + programs + tl.program_id(0), here - first)


@triton.jit
def _split(
    values, positions, begins, scales, rows, upto, programs, places, taken, table, parts,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The certain ones first, then the others."""
    _, number, m = own_part(table, parts)
    j = number * BLOCK + tl.arange(0, BLOCK)
    v, _, place, certain = _certain(values, positions, begins, scales, rows, j, m)
    program = tl.program_id(0)
    for side in tl.static_range(2):
        own = (j < m) & (certain if side == 0 else certain == 0)
        before = tl.load(upto + side * programs + program - 1, mask=program > 0, other=0)
        if side == 1:
            before += tl.load(upto + programs - 1)
        at = before + tl.cumsum(own.to(tl.int32), axis=0) - 1
        tl.store(places + at, place, mask=own)
        tl.store(taken + at, v, mask=own)


@triton.jit
def _draw(
    values, sums, scales, prior, drawn, counts, chance, factor, table, parts,
    SLACK: tl.constexpr, LOWER: tl.constexpr, PRIOR: tl.constexpr, CHANCES: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The recurrence of the loop's `_draw_tile`, in a lane for each block; a bit an element."""
    column, n, count, begin, block, place = _own_blocks(table, parts, BLOCK, BLOCKS)
    scale = tl.load(scales + tl.load(column + 4 * parts))
    key = tl.load(column + 5 * parts).to(tl.uint64, bitcast=True)
    left = tl.load(sums + place, mask=block < count, other=0.0) * scale * SLACK
    u = _fraction64(key, block)
    going = (block < count) & (u < left)
    taken = tl.zeros([BLOCKS], dtype=tl.float64)
    survive = tl.full([BLOCKS], 1.0, dtype=tl.float64)
    hits = tl.zeros([BLOCKS], dtype=tl.int32)
    bits = tl.zeros([BLOCKS], dtype=tl.int32)
    for i in tl.static_range(BLOCK):
        at = block * BLOCK + i
        v = tl.load(values + begin + at, mask=going & (at < n), other=0.0)
        p = tl.minimum(scale * tl.abs(v.to(tl.float64)), 1.0)
        left = left - p
        taken = taken + survive * p  # P(the first one is among those so far)
        survive = survive * (1.0 - p)  # P(none so far)
        here = going & (at < n) & ((u < taken) | (survive == 0.0))
        if CHANCES:
            tl.store(chance + begin + at, p.to(tl.float32), mask=here)
        bits = bits | (here.to(tl.int32) << i)
        u = tl.where(here, _fraction64(key, count + block * BLOCK + hits), u)
        hits += here.to(tl.int32)
        going = going & ((here == 0) | (u < left))
        taken = tl.where(here, 0.0, taken)
        survive = tl.where(here, 1.0, survive)
    tl.store(drawn + place, bits, mask=block < count)
    tl.store(counts + tl.program_id(0), tl.sum(hits, axis=0).to(tl.int64))
    if LOWER:
        total = tl.zeros([BLOCKS], dtype=tl.float64)
        for i in tl.static_range(BLOCK):
            at = block * BLOCK + i
            here = ((bits >> i) & 1) != 0
            v = tl.load(values + begin + at, mask=(bits != 0) & (at < n), other=0.0)
            lower = v * factor
            v = tl.where(here & (lower >= 1e-30), lower, v)
            tl.store(values + begin + at, v, mask=here)
            total += tl.abs(v.to(tl.float64))
            if PRIOR:
                before = tl.load(prior + begin + at, mask=here, other=0.0)
                lower = before * factor
                tl.store(prior + begin + at, lower, mask=here & (lower >= 1e-30))
        tl.store(sums + place, total, mask=bits != 0)


@triton.jit
def _compact(
    drawn, upto, chance, positions, kept, table, parts,
    CHANCES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Places of the bits that are set, behind those of the programs before."""
    _, _, count, begin, block, place = _own_blocks(table, parts, BLOCK, BLOCKS)
    bits = tl.load(drawn + place, mask=block < count, other=0)
    ones = tl.zeros([BLOCKS], dtype=tl.int32)
    for i in tl.static_range(BLOCK):
        ones += (bits >> i) & 1
    behind = tl.sum(ones, axis=0) - (tl.cumsum(ones, axis=0) - ones)  # from this block on
    out = tl.load(upto + tl.program_id(0)) - behind
    for i in tl.static_range(BLOCK):
        here = ((bits >> i) & 1) != 0
        at = begin + block * BLOCK + i
        tl.store(positions + out, at, mask=here)
        if CHANCES:
            tl.store(kept + out, tl.load(chance + at, mask=here, other=0.0), mask=here)
        out += here.to(tl.int64)
