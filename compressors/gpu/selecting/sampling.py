"""Poisson sampling on a GPU: the kernels of `coding/selecting/sampling.py`, with the loops' random
numbers; a lane draws from a block. The host waits once, for the number of elements drawn."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import sampling as loops
from gcsim.compressors.coding.selecting.sampling import BLOCK, SLACK
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_in_blocks
from gcsim.compressors.gpu.words import bits64, float64, float64_bits, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments

_LANES = 256
"""Blocks of 16 elements per program."""


@kernel_of(loops.block_sums)
def block_sums(
    values: Tensor, segments: Segments, largest: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum each block from the first element to the last."""
    squares = values if largest is None else torch.empty_like(values)
    sums = values.new_empty(segments.cells(BLOCK).total, dtype=torch.float64)
    given = values.contiguous(), values if largest is None else largest, squares, sums
    launch_parts(
        _sum_blocks, _parts_of_blocks(values, segments), *given, SQUARES=largest is not None,
        BLOCK=BLOCK, BLOCKS=_LANES,
    )  # fmt: skip
    return squares, sums


@kernel_of(loops.draw_poisson)
def draw_poisson(
    values: Tensor, sums: Tensor, segments: Segments, scales: Tensor, keys: NDArray[np.uint64], *,
    expected: Column, factor: float = 1.0, prior: Tensor | None = None, chances: bool = False,
    apart: bool = False,
) -> tuple[Tensor, Tensor, Column]:  # fmt: skip
    """Draw a bit per element (two if certain ones are kept apart), then list their places."""
    parts = _parts_of_blocks(values, segments, keys)
    source = values if apart else values.new_empty(values.numel() if chances else 1)
    drawn = values.new_empty(len(sums), dtype=torch.int32)
    counts = values.new_empty((1 + apart) * parts.firsts[-1], dtype=torch.int64)
    launch_parts(
        _draw, parts, values, sums, scales, values if prior is None else prior, drawn, counts,
        source, float(np.float32(factor)), SLACK=1.0 + SLACK, LOWER=factor < 1.0,
        PRIOR=prior is not None, CHANCES=chances, APART=apart, BLOCK=BLOCK, BLOCKS=_LANES,
    )  # fmt: skip
    upto = counts.cumsum(0)  # elements drawn by all programs up to each
    ends = np.zeros((1 + apart, 2 if not apart else len(parts.firsts)), dtype=np.int64)
    if len(upto) and apart:
        before = np.add.outer((0, parts.firsts[-1]), parts.firsts)  # those of earlier tensors
        read = upto[there(np.maximum(1, before) - 1, values.device)].tolist()
        ends = np.where(before > 0, read, 0)
    elif len(upto):
        ends[0, 1] = int(upto[-1])
    total = int(ends[-1, -1])
    positions = drawn.new_empty(total, dtype=torch.int64)
    kept = source.new_empty(total * (chances or apart))
    launch_parts(
        _compact, parts, drawn, upto, source, positions, kept, KEPT=chances or apart, APART=apart,
        BLOCK=BLOCK, BLOCKS=_LANES,
    )  # fmt: skip
    return positions, kept, np.diff(ends)


@kernel_of(loops.lift)
def lift(
    values: Tensor, sums: Tensor, segments: Segments, scales: Tensor, least: float, most: float, *,
    top: float = np.inf, prior: Tensor | None = None,
) -> None:  # fmt: skip
    """Lift the weights; programs of other tensors end at once."""
    launch_parts(
        _lift, _parts_of_blocks(values, segments), values, sums, scales,
        values if prior is None else prior, float64_bits(least), float64_bits(most),
        float(top), PRIOR=prior is not None, BLOCK=BLOCK, BLOCKS=_LANES,
    )  # fmt: skip


def _parts_of_blocks(
    like: Tensor, segments: Segments, keys: NDArray[np.uint64] | None = None
) -> Parts:
    first, numbers = segments.cells(BLOCK).first, np.arange(len(segments.table))
    columns = segments.begin, first, numbers, numbers if keys is None else keys
    return parts_in_blocks(like, segments.length, *columns, size=BLOCK * _LANES)


@triton.jit
def _fraction64(key, index):
    return (bits64(key, index) >> 11).to(tl.float64) * 2.0**-53


@triton.jit
def _own_blocks(
    table, parts, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """Return (column of the table, the part's elements, its blocks, its begin, blocks of this
    program, places of their first elements and sums)."""
    column, program, n = own_part(table, parts)
    block = program.to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    count = (n + BLOCK - 1) // BLOCK
    return column, n, count, tl.load(column + 2 * parts), block, tl.load(column + 3 * parts) + block


@triton.jit
def _sum_blocks(
    values, largest, squares, sums, table, parts, SQUARES: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    column, n, count, begin, block, place = _own_blocks(table, parts, BLOCK, BLOCKS)
    most = tl.load(largest + tl.load(column + 4 * parts)) if SQUARES else 0.0
    total = tl.zeros([BLOCKS], dtype=tl.float64)
    for i in tl.static_range(BLOCK):
        at = block * BLOCK + i
        v = tl.load(values + begin + at, mask=at < n, other=0.0)
        if SQUARES:
            share = tl.div_rn(v, tl.where(most > 0, most, 1.0) + tl.zeros_like(v))
            v = tl.where(at < n, tl.where(most > 0, share * share, 1.0), 0.0)
            tl.store(squares + begin + at, v, mask=at < n)
        total += tl.abs(v.to(tl.float64))
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
def _draw(
    values, sums, scales, prior, drawn, counts, chance, factor, table, parts,
    SLACK: tl.constexpr, LOWER: tl.constexpr, PRIOR: tl.constexpr, CHANCES: tl.constexpr,
    APART: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Run the recurrence of the loop's `_draw_tile`, a lane per block and a bit per element. With
    `APART`, the high bits are those with p = 1, counted before all others."""
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
    sure = tl.zeros([BLOCKS], dtype=tl.int32)
    for i in tl.static_range(BLOCK):
        at = block * BLOCK + i
        v = tl.load(values + begin + at, mask=going & (at < n), other=0.0)
        p = tl.minimum(scale * tl.abs(v.to(tl.float64)), 1.0)
        left = left - p
        taken = taken + survive * p  # P(the first hit is among those so far)
        survive = survive * (1.0 - p)  # P(no hit so far)
        here = going & (at < n) & ((u < taken) | (survive == 0.0))
        if CHANCES:
            tl.store(chance + begin + at, p.to(tl.float32), mask=here)
        bits = bits | (here.to(tl.int32) << i)
        if APART:
            bits = bits | ((here & (p >= 1.0)).to(tl.int32) << (BLOCK + i))
            sure += (bits >> (BLOCK + i)) & 1
        # numbered as in the loop: below `count` one opens each block, then each block has its own
        u = tl.where(here, _fraction64(key, count + block * BLOCK + hits), u)
        hits += here.to(tl.int32)
        going = going & ((here == 0) | (u < left))
        taken = tl.where(here, 0.0, taken)
        survive = tl.where(here, 1.0, survive)
    tl.store(drawn + place, bits, mask=block < count)
    own = counts + tl.program_id(0)
    if APART:
        tl.store(own, tl.sum(sure, axis=0).to(tl.int64))
        own += tl.num_programs(0)
    tl.store(own, tl.sum(hits - sure, axis=0).to(tl.int64))
    if LOWER:
        total = tl.zeros([BLOCKS], dtype=tl.float64)
        for i in tl.static_range(BLOCK):
            at = block * BLOCK + i
            here = ((bits >> i) & 1) != 0
            # read the whole of each block that was hit, to sum it anew
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
    drawn, upto, source, positions, kept, table, parts,
    KEPT: tl.constexpr, APART: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """List places of set bits, after earlier programs': in the bucket, or (`APART`) tensor."""
    _, _, count, begin, block, place = _own_blocks(table, parts, BLOCK, BLOCKS)
    bits = tl.load(drawn + place, mask=block < count, other=0)
    own = upto + tl.program_id(0)
    for side in tl.static_range(1 + APART):
        chosen = bits & ((1 << BLOCK) - 1)
        if APART:
            # bit 31 is a sign, which the shift repeats and `chosen` masks
            chosen = (bits >> BLOCK) & chosen if side == 0 else chosen & ~(bits >> BLOCK)
        ones = tl.zeros([BLOCKS], dtype=tl.int32)
        for i in tl.static_range(BLOCK):
            ones += (chosen >> i) & 1
        behind = tl.sum(ones, axis=0) - (tl.cumsum(ones, axis=0) - ones)  # from this block on
        out = tl.load(own + side * tl.num_programs(0)) - behind
        for i in tl.static_range(BLOCK):
            here = ((chosen >> i) & 1) != 0
            at = block * BLOCK + i
            tl.store(positions + out, at if APART else begin + at, mask=here)
            if KEPT:
                tl.store(kept + out, tl.load(source + begin + at, mask=here, other=0.0), mask=here)
            out += here.to(tl.int64)
