"""Rounding to levels on a GPU: the one-pass kernels of `coding/rounding/levels.py`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.floats.powers import DECADES, LEAST, LOWEST, OFFSETS, SLOPES
from gcsim.compressors.coding.integers.digits import Form, fixed
from gcsim.compressors.coding.rounding import levels as loops
from gcsim.compressors.coding.rounding.levels import COUNTED, EVEN, EXPONENTS, KNOWN, TREE, Levels
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import (
    GROUPS,
    bits64,
    load_codes,
    magnifier,
    places_of,
    random16,
    store_codes,
    there,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, Column

_BYTES = fixed(8)


@kernel_of(loops.round_levels)
def round_levels(
    values: Tensor, levels: Levels, keys: NDArray[np.uint64] | None, out: Tensor, at: Column,
    form: Form, bounds: Tensor | None = None,
) -> None:  # fmt: skip
    """Round in one launch; products and sums are not fused."""
    cells, count, tables = levels.cells, levels.width, values
    drawn_by = np.zeros(len(cells.count), dtype=np.uint64) if keys is None else keys
    if levels.kind == KNOWN:
        count = len(levels.tables[0])
        pairs = [np.concatenate((each[:-1], np.diff(each))) for each in levels.tables]
        tables = there(pairs, values.device)
    elif levels.kind == TREE:
        tables = there((LEAST, SLOPES, OFFSETS), values.device, np.float32)
    parts = parts_of_cells(values, cells, at, drawn_by, levels.chosen_tables(), form=form)
    launch_parts(
        _round, parts, values.contiguous(), values if levels.numbers is None else levels.numbers,
        tables, values if bounds is None else bounds, out, float(levels.steps), count,
        KIND=levels.kind, COUNTING=count <= COUNTED, BOUNDED=bounds is not None,
        WIDTH=levels.width, LOWEST=LOWEST, DECADES=DECADES, SIZE=form.size, BITS=form.bits,
        BASE=form.base, GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip


@kernel_of(loops.add_rounded)
def add_rounded(
    out: Tensor, levels: Levels, packed: Tensor, at: Column, form: Form, weight: float
) -> None:
    """Add in one launch, plus one for the largest code, which is checked `when_known`."""
    numbers, tables, count = levels.numbers, out, levels.width
    if numbers is None:
        numbers = out
    elif numbers.device != out.device:
        numbers = there(numbers.numpy(), out.device)
    if levels.kind == KNOWN:
        tables, count = there(np.stack(levels.tables), out.device), len(levels.tables[0])
        if isinstance(levels.chosen, torch.Tensor):
            tables, levels = tables[levels.chosen], replace(levels, chosen=np.arange(len(at)))
    places = levels.cells.segments.begin if levels.places is None else levels.places
    parts = parts_of_cells(out, levels.cells, at, places, levels.chosen_tables(), form=form)
    seen = out.new_empty(parts.firsts[-1], dtype=torch.int32)
    factor = float(np.float32(weight / levels.steps if levels.kind == EVEN else weight))
    launch_parts(
        _add, parts, out, packed.contiguous(), numbers, tables, seen, float(levels.steps), count,
        factor, KIND=levels.kind, BYTES=levels.places is not None, WIDTH=levels.width,
        LOWEST=LOWEST, STRAY=loops.STRAY, SIZE=form.size, BITS=form.bits, BASE=form.base,
        GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip
    if levels.highest == 255 and levels.kind != EXPONENTS:
        return  # every byte is a valid code
    if len(seen):
        when_known(seen.max(), partial(loops.demand_codes, levels=levels))


def parts_of_cells(
    like: Tensor, cells: Cells, at: Column, *columns: Any, form: Form = _BYTES
) -> Parts:
    """Return parts in tiles of groups, with begins, first cells, places, cell sizes, and more."""
    elements, known = cells.segments.length, (cells.segments.begin, cells.first, at, cells.size)
    return parts_of(like, elements, tiles(form.planes(elements)), *known, *columns)


@triton.jit
def _random16_at(key, at):
    word = bits64(tl.cast(key, tl.uint64), at // 4)
    return ((word >> ((at % 4) * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)


@triton.jit
def _share(v, norm):
    """Return v / norm, -1 … 1. `div_rn` flushes subnormal operands (div.rn.ftz), so both are first
    scaled up, exactly. An element so small beside a larger norm could not move a fraction of 2^-17
    or more. `floor` flushes too, but a sum with such a fraction is 0 or far from subnormal."""
    norm = tl.where(norm == 0.0, 1.0, norm)
    factor = tl.where(norm < 2.0**-60, 2.0**64, 1.0)
    return tl.minimum(tl.maximum(tl.div_rn(v * factor, norm * factor), -1.0), 1.0)


@triton.jit
def _nearest(v, unit, lines, DECADES: tl.constexpr, GROUPS: tl.constexpr):
    unit = tl.where(unit == 0.0, 1.0, unit)
    # via float64, whose second rounding changes nothing: float32's division would flush subnormal
    # numbers and lose their signs
    scaled = (v.to(tl.float64) / unit.to(tl.float64)).to(tl.float32)
    size = tl.abs(scaled)
    slope = tl.zeros([GROUPS, 8], dtype=tl.float32)
    offset = tl.zeros([GROUPS, 8], dtype=tl.float32)
    cells = tl.zeros([GROUPS, 8], dtype=tl.float32)
    for k in tl.static_range(DECADES):
        above = size >= tl.load(lines + k)
        slope = tl.where(above, tl.load(lines + DECADES + k), slope)
        offset = tl.where(above, tl.load(lines + 2 * DECADES + k), offset)
        cells = tl.where(above, 2.0**k, cells)
    cell = tl.minimum(tl.maximum(size * slope + offset, 0.0), tl.maximum(cells - 1.0, 0.0))
    return cell.to(tl.int32) + cells.to(tl.int32) + tl.where(scaled < 0.0, 128, 0)


@triton.jit
def _round(  # noqa: PLR0912, PLR0915 - one walk, whatever the levels are
    values, numbers, tables, bounds, out, steps, count, table, parts, KIND: tl.constexpr,
    COUNTING: tl.constexpr, BOUNDED: tl.constexpr, WIDTH: tl.constexpr, LOWEST: tl.constexpr,
    DECADES: tl.constexpr,
    SIZE: tl.constexpr, BITS: tl.constexpr, BASE: tl.constexpr, GROUPS: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    # `place` is a code's number on the wire: one digit from each of SIZE planes
    plane = (n + SIZE - 1) // SIZE
    group, place = places_of(number, GROUPS, INDEX)
    # rows of the table: 2 begin, 3 first cell, 4 first byte of codes, 5 size of cells, 6 key,
    # 7 number of the table of levels
    first = tl.load(column + 3 * parts)
    target = out + tl.load(column + 4 * parts)
    size = tl.load(column + 5 * parts).to(INDEX)
    key = tl.load(column + 6 * parts).to(tl.uint64, bitcast=True)
    total = tl.zeros([GROUPS, 8], dtype=tl.int32)
    for j in tl.static_range(SIZE):  # Horner's rule, highest digit first
        at = place + (SIZE - 1 - j) * plane
        here = (place < plane) & (at < n)
        v = tl.load(values + tl.load(column + 2 * parts) + at, mask=here, other=0.0)
        # planes begin anywhere, so each element computes the word of its own bits
        drawn = random16(key, group, GROUPS) if SIZE == 1 else _random16_at(key, at)
        fraction = drawn.to(tl.float32) * 2.0**-16 + 2.0**-17
        own = numbers + (first + at // size) * WIDTH
        code = tl.zeros([GROUPS, 8], dtype=tl.int32)
        if KIND == 0:  # EVEN
            if BOUNDED:
                bound = tl.load(bounds + first + at // size, mask=here, other=0.0)
                v = tl.minimum(tl.maximum(v, -bound), bound)
            share = _share(v, tl.load(own, mask=here, other=1.0))
            # rounds up with the remainder's probability: fractions are uniform on 2^-17, 3 2^-17, …
            code = (tl.floor(share * steps + fraction) + steps).to(tl.int32)
        elif KIND == 1:  # KNOWN
            share = _share(v, tl.load(own, mask=here, other=1.0))
            pairs = count - 1
            # a table holds the lower levels of its pairs, then their gaps
            lower = tables + 2 * pairs * tl.load(column + 7 * parts)
            if COUNTING:  # count the pairs whose random point is below the share
                for pair in range(pairs):
                    point = tl.load(lower + pair) + fraction * tl.load(lower + pairs + pair)
                    code += (point < share).to(tl.int32)
            else:  # find the last level not above the share, then compare its pair
                for pair in range(1, pairs):
                    code += (tl.load(lower + pair) <= share).to(tl.int32)
                point = tl.load(lower + code) + fraction * tl.load(lower + pairs + code)
                code += (point < share).to(tl.int32)
        elif KIND == 2:  # OWN
            least = tl.load(own, mask=here, other=0.0)
            most = tl.load(own + (WIDTH - 1), mask=here, other=0.0)
            scale = magnifier(tl.maximum(tl.abs(least), tl.abs(most)))
            for k in tl.static_range(WIDTH - 1):  # count the random points that v exceeds
                low = tl.load(own + k, mask=here, other=0.0) * scale
                gap = tl.load(own + (k + 1), mask=here, other=0.0) * scale - low
                code += (v * scale - low > fraction * gap).to(tl.int32)
        elif KIND == 3 or KIND == 5:  # noqa: PLR1714 - Triton knows no sets
            # POWERS, EXPONENTS
            word = v.to(tl.uint32, bitcast=True)
            magnitude = word & 0x7FFFFFFF
            # 16 of the mantissa's 23 bits are random, plus half a unit of the last of them
            raised = magnitude + ((drawn.to(tl.uint32) << 7) | 64)
            code = tl.minimum((raised >> 23).to(tl.int32), 254)
            code = tl.where(magnitude >= 0x7F800000, 255, code)
            sign = (word >> 31).to(tl.int32)
            if KIND == 5:
                store_codes(target + n, group, sign, (n + 7) // 8, 1)
            else:
                code = tl.minimum(tl.maximum(code, LOWEST), LOWEST + 127) - LOWEST
                code = code | (sign << 7)
        else:
            # TREE
            unit = tl.load(own, mask=here, other=1.0)
            code = _nearest(v, unit, tables, DECADES, GROUPS)
        total = total * BASE + tl.where(here, code, 0)
    if BITS == 16:
        tl.store(target + 2 * place, (total & 255).to(tl.uint8), mask=place < plane)
        tl.store(target + 2 * place + 1, (total >> 8).to(tl.uint8), mask=place < plane)
    else:
        store_codes(target, group, total, (plane * BITS + 7) // 8, BITS)


@triton.jit
def _number(numbers, at, here, BYTES: tl.constexpr):
    """Read the float32 at these places; in a message, byte by byte."""
    if BYTES:
        bits = tl.load(numbers + at, mask=here, other=0).to(tl.uint32)
        for k in tl.static_range(1, 4):
            bits |= tl.load(numbers + at + k, mask=here, other=0).to(tl.uint32) << (8 * k)
        found = bits.to(tl.float32, bitcast=True)
    else:
        found = tl.load(numbers + at, mask=here, other=0.0)
    return found


@triton.jit
def _add(  # noqa: PLR0912, PLR0915 - one walk, whatever the levels are
    out, packed, numbers, tables, seen, steps, count, weight, table, parts,
    KIND: tl.constexpr, BYTES: tl.constexpr, WIDTH: tl.constexpr,
    LOWEST: tl.constexpr, STRAY: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr,
    BASE: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    plane = (n + SIZE - 1) // SIZE
    group, place = places_of(number, GROUPS, INDEX)
    source = packed + tl.load(column + 4 * parts)
    size = tl.load(column + 5 * parts).to(INDEX)
    first = tl.load(column + 3 * parts)
    if BYTES:
        first = tl.load(column + 6 * parts)  # a byte in the message, not a cell
    if BITS == 16:
        rest = tl.load(source + 2 * place, mask=place < plane, other=0).to(tl.int32)
        high = tl.load(source + 2 * place + 1, mask=place < plane, other=0).to(tl.int32)
        rest = rest | (high << 8)
    else:
        rest = load_codes(source, group, (plane * BITS + 7) // 8, BITS)
    worst = tl.zeros([GROUPS, 8], dtype=tl.int32)
    for j in tl.static_range(SIZE):
        at = place + j * plane
        here = (place < plane) & (at < n)
        code = rest
        if SIZE > 1:
            code = rest % BASE
            rest = rest // BASE
        # past the last element digits and leftover bits must be 0
        worst = tl.maximum(worst, tl.where(here, code, tl.where(code != 0, STRAY, 0)))
        within = at // size * WIDTH
        if KIND == 0:
            norm = _number(numbers, first + within * (4 if BYTES else 1), here, BYTES)
            level = (code.to(tl.float32) - steps) * (weight * norm)
        elif KIND == 1:
            norm = _number(numbers, first + within * (4 if BYTES else 1), here, BYTES)
            own = tables + count * tl.load(column + 7 * parts)
            # a code past the last level reads nothing; `worst` reports it
            level = tl.load(own + code, mask=here & (code < count), other=0.0) * (weight * norm)
        elif KIND == 3 or KIND == 5:  # noqa: PLR1714 - Triton knows no sets
            if KIND == 5:
                sign = load_codes(source + n, group, (n + 7) // 8, 1)
                worst = tl.maximum(worst, tl.where(~here & (sign != 0), STRAY, 0))
                pattern = (code.to(tl.uint32) << 23) | (sign.to(tl.uint32) << 31)
            else:
                word = code.to(tl.uint32)
                exponent = word & 127
                exponent = tl.where(exponent > 0, exponent + LOWEST, exponent)
                pattern = (exponent << 23) | ((word >> 7) << 31)
            level = weight * pattern.to(tl.float32, bitcast=True)
        else:
            # OWN, TREE
            inside = here & (code < WIDTH)
            entry = (within + code) * (4 if BYTES else 1)
            if not BYTES:
                # `first` counts cells: with the `first` below, it is `first` times WIDTH numbers
                entry = entry + first * (WIDTH - 1)
            level = weight * _number(numbers, first + entry, inside, BYTES)
        target = out + tl.load(column + 2 * parts) + at
        tl.store(target, tl.load(target, mask=here, other=0.0) + level, mask=here)
    if SIZE > 1:
        worst = tl.maximum(worst, tl.where(rest != 0, STRAY, 0))
    tl.store(seen + tl.program_id(0), tl.max(tl.max(worst, axis=1), axis=0))
