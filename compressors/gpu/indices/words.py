"""Words of 32 bits on a GPU: the kernels of `coding/indices/words.py`. One updates memories and
writes words, another lists those to send; in between the host waits for their number."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.frames import Frames
from gcsim.compressors.coding.indices import words as loops
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.frames import own_frame, table_of
from gcsim.compressors.gpu.integers.packing import get_field
from gcsim.compressors.gpu.parts import launch_parts, own_part, own_row, parts_in_blocks, sum_before
from gcsim.compressors.gpu.words import BLOCK, float64, float64_bits, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments, starts


@kernel_of(loops.signed_words)
def signed_words(
    memory: Tensor, segments: Segments, indices: Tensor, values: Tensor, k: Column,
    levels: loops.Levels,
) -> Tensor:  # fmt: skip
    """Write the signs in one launch."""
    loops.demand_short(segments, loops.SIGN_BITS)
    words = memory.new_empty(len(values), dtype=torch.int32)
    each = levels if isinstance(levels, torch.Tensor) else there(levels, memory.device, np.float32)
    first = np.arange(len(k)) * 2 * (len(levels) > 1)
    parts = parts_in_blocks(memory, k, starts(k), segments.begin, first)
    launch_parts(_sign, parts, memory, indices, values, each, words, BLOCK=BLOCK)
    return words


@kernel_of(loops.clear_words)
def clear_words(
    residual: Tensor, moment: Tensor, gradient: Tensor, second_moment: Tensor, segments: Segments,
    *, alpha: float, zeta: float, tau: float | None = None,
) -> tuple[Tensor, Column, Tensor | None]:  # fmt: skip
    """Find the words in two launches (signs) or three (powers), with one wait."""
    signs = tau is not None
    loops.demand_short(segments, loops.SIGN_BITS if signs else loops.POWER_BITS)
    parts, exponents = parts_in_blocks(residual, segments.length, segments.begin), None
    words = residual.new_empty(residual.numel(), dtype=torch.int32)
    chosen = residual.new_empty(residual.numel(), dtype=torch.uint8)
    counts = residual.new_empty(parts.firsts[-1], dtype=torch.int32)
    tops, k = residual.new_zeros((2, len(segments.table)), dtype=torch.int32)
    launch_parts(
        _find, parts, residual, moment, gradient.contiguous(), second_moment.contiguous(), words,
        chosen, counts, k, tops, float64_bits(alpha), float(loops.least_clear(tau)),
        float(np.float32(zeta)), SIGNS=signs, BLOCK=BLOCK,
    )  # fmt: skip
    if not signs:
        exponents = residual.new_zeros(len(k), dtype=torch.int8)
        launch_parts(
            _code, parts, residual, moment, words, chosen, counts, k, tops, exponents,
            MANTISSA=loops.MANTISSA_BITS, POWER=loops.POWER_BITS, DEEPEST=loops.DEEPEST,
            BIAS=loops.BIAS, LARGEST=loops.LARGEST, BLOCK=BLOCK,
        )  # fmt: skip
    many = np.array(k.tolist(), dtype=np.int64)
    out = words.new_empty(int(many.sum()))
    launch_parts(_list, parts, words, chosen, counts, out, BLOCK=BLOCK)
    return out, many, exponents


@kernel_of(loops.add_words)
def add_words(
    out: Tensor, segments: Segments, message: Tensor, found: Frames | Tensor, head: int,
    levels: NDArray[np.float64] | None, weight: float,
) -> None:  # fmt: skip
    """Add the words in one launch; they are checked `when_known`."""
    wrong = out.new_zeros(2, dtype=torch.int32)
    known = there(loops.powers() if levels is None else levels, out.device)
    parts = parts_in_blocks(out, segments.length, segments.begin)
    launch_parts(
        _add, parts, out, message, table_of(found, out), known, wrong, float64_bits(weight),
        HEAD=head, BITS=loops.index_bits(head), BLOCK=BLOCK,
    )  # fmt: skip
    when_known(wrong, loops.demand_right)


@triton.jit
def _note(chosen, counts, k, table, parts):
    hits = tl.sum(chosen.to(tl.int32), axis=0)
    tl.store(counts + tl.program_id(0), hits)
    tl.atomic_add(k + own_row(table, parts, tl.program_id(0)), hits)


@triton.jit(do_not_specialize=["alpha"])
def _find(
    r, v, gradient, second_moment, words, chosen, counts, k, tops, alpha: tl.uint64, least, zeta,
    table, parts, SIGNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Mark clear elements: subtract signs times `least`, or record the largest magnitude."""
    column, number, n = own_part(table, parts)
    within = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = within < n
    at = tl.load(column + 2 * parts) + within
    total = tl.load(r + at, mask=here, other=0.0) + tl.load(gradient + at, mask=here, other=0.0)
    second = tl.load(v + at, mask=here, other=0.0)
    second = second + tl.load(second_moment + at, mask=here, other=0.0)
    wide, size = total.to(tl.float64), tl.abs(total)
    clear = here & (wide * wide > float64(alpha) * second.to(tl.float64)) & (size > least)
    tl.store(chosen + at, clear.to(tl.uint8), mask=here)
    if SIGNS:
        positive = total > 0.0
        tl.store(words + at, (within | tl.where(positive, 0, 1 << 31)).to(tl.int32), mask=here)
        corrected = second - (2.0 * size - least) * least
        second = tl.where(clear, tl.maximum(corrected, 0.0), second)
        off = tl.where(clear, least, 0.0)
        total = total - tl.where(positive, off, -off)
        _note(clear, counts, k, table, parts)
    else:
        top = tl.max(tl.where(clear, size, 0.0).to(tl.int32, bitcast=True), axis=0)
        # magnitudes order as integers, and a maximum does not depend on the programs' order
        tl.atomic_max(tops + own_row(table, parts, tl.program_id(0)), top)
    tl.store(r + at, total, mask=here)
    tl.store(v + at, zeta * second, mask=here)  # v of a sent power is zeroed later


@triton.jit
def _code(
    r, v, words, chosen, counts, k, tops, exponents, table, parts,
    MANTISSA: tl.constexpr, POWER: tl.constexpr, DEEPEST: tl.constexpr, BIAS: tl.constexpr,
    LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the word of each clear element; zero r and v of those whose d fits."""
    column, number, n = own_part(table, parts)
    within = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(column + 2 * parts) + within
    clear = tl.load(chosen + at, mask=within < n, other=0) != 0
    bits = tl.load(r + at, mask=clear, other=0.0).to(tl.int32, bitcast=True)
    row = own_row(table, parts, tl.program_id(0))
    top = tl.load(tops + row)
    cap = tl.minimum(tl.where(top == 0, BIAS << MANTISSA, top), LARGEST) & (255 << MANTISSA)
    if number == 0:
        tl.store(exponents + row, ((cap >> MANTISSA) - BIAS).to(tl.int8))
    rounded = tl.minimum(((bits & 0x7FFFFFFF) + 0x400000) & 0x7F800000, cap)
    depth = (cap - rounded) >> MANTISSA
    fits = clear & (depth <= DEEPEST)
    word = within.to(tl.int32) | (depth << POWER) | (bits & (-2147483648))
    tl.store(words + at, word, mask=fits)
    tl.store(chosen + at, fits.to(tl.uint8), mask=clear)
    tl.store(r + at, tl.zeros([BLOCK], dtype=tl.float32), mask=fits)
    tl.store(v + at, tl.zeros([BLOCK], dtype=tl.float32), mask=fits)
    _note(fits, counts, k, table, parts)


@triton.jit
def _list(words, chosen, counts, out, table, parts, BLOCK: tl.constexpr):
    """Write each program's words after those of earlier programs."""
    column, number, n = own_part(table, parts)
    within = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(column + 2 * parts) + within
    hit = tl.load(chosen + at, mask=within < n, other=0).to(tl.int32)
    place = sum_before(counts, 0, tl.program_id(0), BLOCK) + tl.cumsum(hit, axis=0) - 1
    tl.store(out + place, tl.load(words + at, mask=hit != 0, other=0), mask=hit != 0)


@triton.jit
def _sign(memory, indices, values, levels, words, table, parts, BLOCK: tl.constexpr):
    column, number, k = own_part(table, parts)
    i = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(column + 2 * parts) + i
    at = tl.load(indices + place, mask=i < k, other=0)
    value = tl.load(values + place, mask=i < k, other=0.0)
    minus = (value < 0).to(tl.int32)
    level = tl.load(levels + tl.load(column + 4 * parts) + minus)
    tl.store(memory + tl.load(column + 3 * parts) + at, value - level, mask=i < k)
    tl.store(words + place, at.to(tl.int32) | (minus << 31), mask=i < k)


@triton.jit(do_not_specialize=["weight"])
def _add(
    out, message, frames, levels, wrong, weight: tl.uint64, table, parts, HEAD: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    begin, size, _, k = own_frame(frames, table, parts)
    # programs cover n words, since k may be known only on the device
    i = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = (i < k) & (size == HEAD + 4 * k)
    place = 8 * (begin + HEAD + 4 * i)
    word = get_field(message, place, 32, here)
    low: tl.constexpr = (1 << BITS) - 1
    before = get_field(message, place - 32, 32, here & (i > 0)) & low
    at = word & low
    ordered = (at > tl.where(i > 0, before, -1)) & (at < n)
    good = here & ordered
    which = word >> BITS
    if HEAD == 8:
        bits = get_field(message, 8 * begin + 32 * which, 32, good)
        level = bits.to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    else:
        if HEAD == 1:  # the exponent's row
            which += 16 * (tl.load(message + begin, mask=k > 0, other=0).to(tl.int64) ^ 128)
        level = tl.load(levels + which, mask=good, other=0.0)
    level = (level * float64(weight)).to(tl.float32)
    target = out + tl.load(column + 2 * parts) + at
    tl.store(target, tl.load(target, mask=good, other=0.0) + level, mask=good)
    tl.store(wrong, 1, mask=tl.max((here & (ordered == 0)).to(tl.int32), axis=0) > 0)
    strange = (level.to(tl.int32, bitcast=True) & 0x7FFFFFFF) > 0x7F800000
    tl.store(wrong + 1, 1, mask=tl.max(strange.to(tl.int32), axis=0) > 0)
