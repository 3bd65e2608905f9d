"""How does one bit an element become a scaled sign, at memory speed?

A bit says negative; zero of either sign counts as positive. Bits are packed little endian and
padded with zeros to a whole byte. Blocks of `length` consecutive elements (the last may be
shorter) share a scale.

Error feedback in one pass. The error after coding p with scale s is e = p - s sign(p). The next
vector to code is x + e; its signs do not depend on its scale, so one loop reads x and p, writes
the new p and its bits, and adds up |p|. It can, because what is kept is p and s: e is formed when
it is read next. A loop that writes e would wait for the scale and pass over p again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import (
    damaged,
    packed_bytes,
    put_signs,
    unfold_bits,
)
from gcsim.compressors.coding.scans import sum_of_squares
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    FLOAT32_MAX,
    SUM_BLOCK,
    array,
    in_tiles,
    loop,
    summing_loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import counted_as, kernel, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import ZERO, Cells, Column, Segments, starts

Norm = Literal["mean_abs", "rms"]
"""What a scale is: mean |p|, the best for given signs, or the root mean square of p."""

_NONE = np.zeros(0, dtype=np.float32)


# --- from numbers to bits --------------------------------------------------------------------


@kernel("reduction")
def scaled_sign_bits(values: Tensor, length: int, norm: Norm = "mean_abs") -> tuple[Tensor, Tensor]:
    """Of float32 `[n]`: bits, uint8 `[ceil(n / 8)]`; scales, float32 `[ceil(n / length)]`."""
    return _folded(values, length, norm=norm)


@kernel("reduction", updates=("coded",))
def fold(
    values: Tensor, coded: Tensor, scales: Tensor, length: int, norm: Norm = "mean_abs"
) -> tuple[Tensor, Tensor]:
    """`fold_signs` of a tensor alone, in blocks of `length` elements: (bits, scales)."""
    return _folded(values, length, coded=coded, scales=scales, norm=norm)


@kernel("reduction", updates=("coded",))
def fold_average(
    values: Tensor, average: Tensor, coded: Tensor, scales: Tensor, *, decay: float, norm: Norm
) -> tuple[Tensor, Tensor]:
    """`fold` of decay average + (1 - decay) values in one block; `average` is only read."""
    factors = decay, 1.0 - decay, 0.0, 1.0  # decay u + (1 - decay) v is coded
    return _folded(
        values, values.numel(), coded=coded, scales=scales, mixed=average, factors=factors,
        norm=norm,
    )  # fmt: skip


def _folded(values: Tensor, length: int, **given: Any) -> tuple[Tensor, Tensor]:
    n = values.numel()
    bits = values.new_empty(packed_bytes(n, 1), dtype=torch.uint8)
    return bits, fold_signs(values, Segments.alone(n).cells(max(1, length)), bits, ZERO, **given)


def error_of(coded: Tensor, scales: Tensor, length: int) -> Tensor:
    """What the last `fold` lost: coded - scale sign(coded), float32 `[n]`."""
    return lost_by(coded, scales, Segments.alone(coded.numel()).cells(max(1, length)))


def lost_by(coded: Tensor, scales: Tensor, cells: Cells) -> Tensor:
    """Error of the last `fold_signs`: coded - scale sign(coded), laid out as `coded`."""
    each = scales.repeat_interleave(torch.from_numpy(cells.length).to(scales.device))
    return torch.where(coded < 0, coded + each, coded - each)


NO_FACTORS = 0.0, 0.0, 0.0, 0.0


def nesterov(decay: float) -> tuple[float, float, float, float]:
    """Factors of Nesterov's direction: u = decay u + v; v + decay u is coded."""
    return decay, 1.0, 1.0, decay


def _fold_launches(
    _: object, values: object, cells: Cells, bits: object, at: object, *,
    coded: object = None, scales: object = None, mixed: object = None,
    factors: object = NO_FACTORS, keep: bool = False, norm: object = "mean_abs",
) -> list[KernelCost]:  # fmt: skip
    names = "signs.fold_average", "signs.fold_nesterov"
    name = names[keep] if mixed is not None else "signs.fold"
    if coded is None:
        name = "signs.scaled_sign_bits"
    vectors = 1 + 2 * (coded is not None) + (1 + keep) * (mixed is not None)
    n, tables = cells.segments.length, 1 + (scales is not None)
    moved = 4 * vectors * n, packed_bytes(n, 1), 4 * tables * cells.count
    return [launch("reduction", name, n, *moved)]


@counted_as(_fold_launches)
@primitive
def fold_signs(
    values: Tensor, cells: Cells, bits: Tensor, at: Column, *,
    coded: Tensor | None = None, scales: Tensor | None = None, mixed: Tensor | None = None,
    factors: tuple[float, float, float, float] = NO_FACTORS, keep: bool = False,
    norm: Norm = "mean_abs",
) -> Tensor:  # fmt: skip
    """Write the signs of values, plus what the last call lost, and return the scales; in one pass.

    Parameters
    ----------
    values : flat float32 of the cells' table
    cells : elements that share a scale
    bits, at : uint8 that is written to; first byte of each tensor's ceil(n / 8)
    coded : as `values`, the vector that was coded last (zeros at first); replaced by
        values + coded - scale sign(coded)
    scales : float32 `[cells]`, those that `coded` was coded with (zeros at first)
    mixed, factors, keep : with factors (m, c, a, b), a values + b (m mixed + c values) is coded in
        the place of the values; with `keep`, mixed = m mixed + c values
    norm : what the scales are

    Returns
    -------
    float32 `[cells]`
    """
    table, count = cells.segments.table, cells.count
    slots = -(-cells.segments.length // SUM_BLOCK) + count
    sums = np.zeros(int(slots.sum()), dtype=np.float64)
    m, c, a, b = (np.float32(factor) for factor in factors)
    squares = norm == "rms"
    g = np.ascontiguousarray(array(values))
    before = _NONE if scales is None else array(scales)
    with written_to(bits, coded, mixed) as (out, p, u):
        in_tiles(
            _code_tiles, cells.segments.tiles, g, u, p, before, table, cells.first, cells.size,
            starts(slots), m, c, a, b, keep, out, at, sums, squares,
        )  # fmt: skip
    if not cells.total:
        return values.new_empty(0)
    # Block t and cell c meet in sum t + c; between two cells that end with a block lies a zero.
    size = cells.size[cells.owner]
    begins = starts(slots)[cells.owner] + cells.number * size // SUM_BLOCK + cells.number
    totals = np.add.reduceat(sums, begins)
    means = np.sqrt(totals / cells.length) if squares else totals / cells.length
    return tensor(np.minimum(means, FLOAT32_MAX).astype(np.float32), values)


@contextmanager
def written_to(*targets: Tensor | None) -> Iterator[list[NDArray[Any]]]:
    """`written_back` of each, an empty array for None."""
    with ExitStack() as stack:
        yield [_NONE if t is None else stack.enter_context(written_back(t)) for t in targets]


@loop
def _code_tiles(
    start: int, stop: int, tiles: Any, g: Any, u: Any, p: Any, scales: Any, table: Any, cells: Any,
    sizes: Any, slots: Any, m: Any, c: Any, a: Any, b: Any, keep: bool, bits: Any, at: Any,
    sums: Any, squares: bool,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin, n = table[t, 0], table[t, 1]
        own = slice(begin, begin + n)
        _coding(
            first, last, g[own], u[own], p[own], scales[cells[t] :], sizes[t], m, c, a, b, keep,
            bits[at[t] : at[t] + (n + 7) // 8], sums[slots[t] :], squares,
        )  # fmt: skip


@loop
def _coding(
    start: int, stop: int, g: Any, u: Any, p: Any, scales: Any, length: int, m: Any, c: Any,
    a: Any, b: Any, keep: bool, bits: Any, sums: Any, squares: bool,
) -> None:  # fmt: skip
    """x = g, or a g + b (m u + c g); p = x + p - scale sign(p), where given; then bits and sums."""
    words = np.empty(SUM_BLOCK // 8, dtype=np.uint64)
    mixed = np.empty(SUM_BLOCK, dtype=np.float32)
    for first in range(start, stop, SUM_BLOCK):  # a tile stays in the cache
        last = min(first + SUM_BLOCK, stop)
        x = g[first:last]
        if u.size:
            _mix(x, u[first:last], mixed, m, c, a, b, keep)
            x = mixed[: last - first]
        coded = x
        if p.size:
            coded = p[first:last]
        at = first
        while at < last:  # the blocks that the tile meets
            block = at // length
            end = min(last, (block + 1) * length)
            part = coded[at - first : end - first]
            if p.size:
                _add_error(part, x[at - first : end - first], scales[block])
            tile = first // SUM_BLOCK
            sums[tile + block] = sum_of_squares(part) if squares else _sum_of_magnitudes(part)
            at = end
        put_signs(coded, words, bits[first // 8 : (last + 7) // 8])


@loop
def _mix(x: Any, u: Any, mixed: Any, m: Any, c: Any, a: Any, b: Any, keep: bool) -> None:
    if keep:
        for i in range(x.size):
            fresh = m * u[i] + c * x[i]
            u[i] = fresh
            mixed[i] = a * x[i] + b * fresh
    else:
        for i in range(x.size):
            mixed[i] = a * x[i] + b * (m * u[i] + c * x[i])


@loop
def _add_error(p: Any, x: Any, scale: Any) -> None:
    for i in range(p.size):  # what the last call lost is p less what its bit decodes to
        p[i] = x[i] + (p[i] - (-scale if p[i] < np.float32(0) else scale))


@summing_loop
def _sum_of_magnitudes(values: Any) -> float:
    total = np.float64(0)
    for i in range(values.size):
        total += np.float64(abs(values[i]))
    return total


# --- from bits to numbers --------------------------------------------------------------------


@kernel("streaming", updates=("out",))
def add_signs(out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float) -> None:
    """`add_scaled_signs` to a tensor alone, in blocks of `length` elements."""
    _decode(out, bits, scales, length, weight, overwrite=False)


@kernel("streaming", updates=("out",))
def write_signs(out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float) -> None:
    """`add_signs` to zeros, whatever `out` holds before; priced like it, as one of N payloads."""
    _decode(out, bits, scales, length, weight, overwrite=True)


def _decode(
    out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float, *, overwrite: bool
) -> None:
    n, count = out.numel(), scales.numel()
    if bits.numel() != packed_bytes(n, 1):
        raise damaged(f"{bits.numel()} bytes for {n} codes of 1 bits, not {packed_bytes(n, 1)}")
    if length * count < n or (count - 1) * length >= n > 0:
        raise damaged(f"{count} scales of {length} elements for {n}")
    cells = Segments.alone(n).cells(max(1, length))
    add_scaled_signs(out, cells, bits, ZERO, scales, weight, overwrite=overwrite)


def _unfold_launches(
    _: object, out: object, cells: Cells, bits: object, at: object, scales: object,
    weight: object, *, overwrite: bool = False,
) -> list[KernelCost]:  # fmt: skip
    name = "signs.write_signs" if overwrite else "signs.add_signs"
    n = cells.segments.length
    return [launch("streaming", name, n, 8 * n, packed_bytes(n, 1), 4 * cells.count)]


@counted_as(_unfold_launches)
@primitive
def add_scaled_signs(
    out: Tensor, cells: Cells, bits: Tensor, at: Column, scales: Tensor, weight: float, *,
    overwrite: bool = False,
) -> None:  # fmt: skip
    """out += weight * scale * sign, in place; with `overwrite`, out = weight * scale * sign.

    Parameters
    ----------
    out : flat float32 of the cells' table
    cells : elements that share a scale
    bits, at : uint8; first byte of each tensor's ceil(n / 8)
    scales : float32 `[cells]`
    weight : a number

    Raises
    ------
    InputError
        When bits are set behind a tensor's last, or a scale is not a finite number >= 0; what
        kernels make of `out` is then worthless.
    """
    data, factors, n = array(bits), array(scales), cells.segments.length
    uneven = np.flatnonzero(n % 8)
    demand_signs(
        stray=bool((data[(at + n // 8)[uneven]] >> (n % 8)[uneven].astype(np.uint8)).any()),
        right=bool(((factors >= 0) & (factors <= FLOAT32_MAX)).all()),  # nor not-a-number
    )
    factors = factors * np.float32(weight)
    with written_back(out) as target:
        in_tiles(
            _decode_tiles, cells.segments.tiles, data, at, factors, cells.segments.table,
            cells.first, cells.size, target, not overwrite,
        )  # fmt: skip


def demand_signs(*, stray: bool, right: bool) -> None:
    """`InputError` where bits are set behind a tensor's last, or scales are not `right`."""
    if stray:
        raise damaged("padding after the last code is not zero")
    if not right:
        raise damaged("a scale is negative or not a finite number")


@loop
def _decode_tiles(
    start: int, stop: int, tiles: Any, bits: Any, at: Any, factors: Any, table: Any, cells: Any,
    sizes: Any, out: Any, add: bool,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin, n = table[t, 0], table[t, 1]
        own = bits[at[t] : at[t] + (n + 7) // 8]
        decoding(first, last, own, factors[cells[t] :], sizes[t], out[begin : begin + n], add)


@loop
def decoding(
    start: int, stop: int, bits: Any, factors: Any, length: int, out: Any, add: bool
) -> None:
    """The loop of `add_signs` (or, unless `add`, of `write_signs`)."""
    words = np.empty(SUM_BLOCK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for first in range(start, stop, SUM_BLOCK):
        last = min(first + SUM_BLOCK, stop)
        unfold_bits(bits[first // 8 : (last + 7) // 8], words)
        at = first
        while at < last:
            block = at // length
            end = min(last, (block + 1) * length)
            part = out[at:end]
            negative = flags[at - first : end - first]
            factor = factors[block]
            if add:
                for i in range(part.size):
                    part[i] += -factor if negative[i] else factor
            else:
                for i in range(part.size):
                    part[i] = -factor if negative[i] else factor
            at = end
