"""One bit per element on a GPU: the kernels of `coding/one_bit/bits.py`. A program handles a tile
of a stripe; faults of bits or scales are recorded in one number per exchange, otherwise 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.one_bit import bits as loops
from gcsim.compressors.coding.one_bit.bits import Stripes
from gcsim.compressors.demands import entered, when_known
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import (
    GROUPS,
    index_type,
    load_codes,
    magnifier,
    places_of,
    random16,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column

_STRAY, _WRONG = tl.constexpr(1), tl.constexpr(2)


@kernel_of(loops.put_bits)
def put_bits(
    values: Tensor, stripes: Stripes, lines: Tensor, bits: Tensor, at: Column, *,
    keep_error: bool = False, keys: NDArray[np.uint64] | None = None,
) -> None:  # fmt: skip
    """Write the bits in one launch; the compiler does not fuse products and sums, like the loop."""
    random = keys is not None
    given = at, stripes.table[:, 5], keys if keys is not None else at
    _launch(
        _put, values, stripes, stripes.sizes, given, values.contiguous(), lines.contiguous(), bits,
        lines.shape[1], KEEP=keep_error, RANDOM=random,
    )  # fmt: skip


@kernel_of(loops.add_levels)
def add_levels(
    out: Tensor, stripes: Stripes, bits: Tensor, at: Column, levels: Tensor,
    places: tuple[Column, Column], weights: tuple[float, float], *, overwrite: bool = False,
    scales: bool = False, room: Column | None = None,
) -> None:  # fmt: skip
    """Add the levels in one launch; padding and scales are checked `when_known`."""
    room = stripes.sizes if room is None else room
    with noting(out) as faults:
        _launch(
            _add, out, stripes, room, (at, *places, room), out, bits.contiguous(), levels, faults,
            *(float(np.float32(weight)) for weight in weights), ADD=not overwrite, SCALES=scales,
        )  # fmt: skip


def _launch(
    kernel: Any, like: Tensor, stripes: Stripes, sizes: Column, given: tuple[Any, ...],
    *arguments: Any, **constants: Any,
) -> None:  # fmt: skip
    """Launch a kernel over tiles of stripes of `sizes` bytes; `given` are additional columns."""
    rows, columns, offset, first, width, _, size = stripes.table.T
    most = int((rows * np.maximum(columns, width)).max(initial=0))
    # rows of the table from 2 on; if each column has a line, the size is 1
    known = offset, columns, first, np.maximum(1, width), np.maximum(1, size), *given
    parts = parts_of(like, stripes.elements.length, tiles(8 * sizes), *known)
    launch_parts(kernel, parts, *arguments, GROUPS=GROUPS, INDEX=index_type(most), **constants)


@contextmanager
def noting(like: Tensor) -> Iterator[Tensor]:
    """Yield the number, int32 `[1]`, in which kernels record faults; one per exchange."""
    exchange = entered()
    faults = None if exchange is None else exchange.faults
    known = faults is not None
    yield (noted := faults if faults is not None else like.new_zeros(1, dtype=torch.int32))
    if exchange is not None:
        exchange.faults = noted
    if not known:
        when_known(noted, _demand_none)


def _demand_none(faults: int) -> None:
    loops.demand_signs(stray=bool(faults & 1), right=not faults & 2)


@triton.jit
def _stripe(own, parts, number, GROUPS: tl.constexpr, INDEX: tl.constexpr):
    """Return (groups, elements, lines, places, whether the matrix has them) of a tile."""
    group, at = places_of(number, GROUPS, INDEX)
    columns = tl.load(own + 3 * parts).to(INDEX)
    first = tl.load(own + 4 * parts).to(INDEX)
    width = tl.load(own + 5 * parts).to(INDEX)
    column = at % width
    source = tl.load(own + 2 * parts) + (at // width * columns + first + column)
    here = (at < tl.load(own + parts)) & (first + column < columns)
    return group, at, column // tl.load(own + 6 * parts).to(INDEX), source, here


@triton.jit
def _put(
    values, lines, bits, count, table, parts, KEEP: tl.constexpr, RANDOM: tl.constexpr,
    GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    own, number, n = own_part(table, parts)
    group, _, line, source, here = _stripe(own, parts, number, GROUPS, INDEX)
    line = tl.load(own + 8 * parts) + line
    v = tl.load(values + source, mask=here, other=0.0)
    threshold = tl.load(lines + line, mask=here, other=0.0)
    if RANDOM:  # the threshold is then a bound
        key = tl.load(own + 9 * parts).to(tl.uint64, bitcast=True)
        scale = magnifier(threshold)
        low = -threshold * scale
        fraction = (random16(key, group, GROUPS).to(tl.float32) + 0.5) * 2.0**-16
        above = here & (v * scale - low > fraction * (low * -2.0))
    else:
        above = here & (v >= threshold)
    if KEEP:
        low = tl.load(lines + count + line, mask=here, other=0.0)
        high = tl.load(lines + 2 * count + line, mask=here, other=0.0)
        tl.store(values + source, v - tl.where(above, high, low), mask=here)
    store_codes(bits + tl.load(own + 7 * parts), group, above, (n + 7) // 8, 1)


@triton.jit
def _level(levels, line, here):
    """Read float32 numbers from four consecutive bytes at any place."""
    word = tl.load(levels + line * 4, mask=here, other=0).to(tl.uint32)
    for k in tl.static_range(1, 4):
        word |= tl.load(levels + line * 4 + k, mask=here, other=0).to(tl.uint32) << (8 * k)
    return word.to(tl.float32, bitcast=True)


@triton.jit
def _add(
    out, bits, levels, faults, zero_weight, one_weight, table, parts, ADD: tl.constexpr,
    SCALES: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    own, number, n = own_part(table, parts)
    group, at, line, source, here = _stripe(own, parts, number, GROUPS, INDEX)
    code = load_codes(bits + tl.load(own + 7 * parts), group, tl.load(own + 10 * parts), 1)
    wrong = tl.where((at >= n) & (code != 0), _STRAY, 0)
    zero = _level(levels + tl.load(own + 8 * parts), line, here)
    if SCALES:
        one = zero
        right = (zero >= 0.0) & (zero <= 3.4028234663852886e38)  # also false for NaN
        wrong |= tl.where(here & (right == 0), _WRONG, 0)
    else:
        one = _level(levels + tl.load(own + 9 * parts), line, here)
    # one fault refuses the message, so the larger represents the tile
    found = tl.max(tl.max(wrong, axis=1), axis=0)
    if found != 0:
        tl.atomic_or(faults, found)
    level = tl.where(code != 0, one * one_weight, zero * zero_weight)
    if ADD:
        level = tl.load(out + source, mask=here, other=0.0) + level
    tl.store(out + source, level, mask=here)
