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

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import (
    check_packed,
    packed_bytes,
    put_signs,
    unfold_bits,
)
from gcsim.compressors.coding.scans import sum_of_squares
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    FLOAT32_MAX,
    SUM_BLOCK,
    array,
    in_parallel,
    loop,
    summing_loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device
from gcsim.errors import InputError

Norm = Literal["mean_abs", "rms"]
"""What a scale is: mean |p|, the best for given signs, or the root mean square of p."""

_NONE = np.zeros(0, dtype=np.float32)
_ONLY_START = np.zeros(1, dtype=np.int64)


# --- from numbers to bits --------------------------------------------------------------------


@kernel("reduction")
@on_device("one_bit.signs")
def scaled_sign_bits(values: Tensor, length: int, norm: Norm = "mean_abs") -> tuple[Tensor, Tensor]:
    """Of float32 `[n]`: bits, uint8 `[ceil(n / 8)]`; scales, float32 `[ceil(n / length)]`."""
    bits, scales = _code(array(values), length=length, norm=norm)
    return tensor(bits, values), tensor(scales, values)


@kernel("reduction", updates=("coded",))
@on_device("one_bit.signs")
def fold(
    values: Tensor, coded: Tensor, scales: Tensor, length: int, norm: Norm = "mean_abs"
) -> tuple[Tensor, Tensor]:
    """Code `values` plus what the last call lost; bits and scales as `scaled_sign_bits`.

    Parameters
    ----------
    values : float32 `[n]`
    coded : float32 `[n]`, the vector that was coded last (zeros at first); replaced by
        values + coded - scale sign(coded)
    scales : float32 `[ceil(n / length)]`, those that `coded` was coded with (zeros at first)
    length : elements of a block
    norm : what the scales are
    """
    with written_back(coded) as p:
        bits, found = _code(array(values), p=p, scales=array(scales), length=length, norm=norm)
    return tensor(bits, values), tensor(found, values)


@kernel("reduction", updates=("momentum", "coded"))
@on_device("one_bit.signs")
def fold_nesterov(
    values: Tensor, momentum: Tensor, coded: Tensor, scales: Tensor, length: int, *, decay: float
) -> tuple[Tensor, Tensor]:
    """`fold` of Nesterov's direction: u = decay u + values in place, coded is values + decay u."""
    with written_back(momentum) as u, written_back(coded) as p:
        factors = decay, 1.0, 1.0, decay  # u = decay u + v; v + decay u is coded
        bits, found = _code(
            array(values), p=p, scales=array(scales), length=length, norm="mean_abs", u=u,
            factors=factors, keep=True,
        )  # fmt: skip
    return tensor(bits, values), tensor(found, values)


@kernel("reduction", updates=("coded",))
@on_device("one_bit.signs")
def fold_average(
    values: Tensor, average: Tensor, coded: Tensor, scales: Tensor, *, decay: float, norm: Norm
) -> tuple[Tensor, Tensor]:
    """`fold` of decay average + (1 - decay) values in one block; `average` is only read."""
    with written_back(coded) as p:
        factors = decay, 1.0 - decay, 0.0, 1.0  # decay u + (1 - decay) v is coded
        bits, found = _code(
            array(values), p=p, scales=array(scales), length=values.numel(), norm=norm,
            u=array(average), factors=factors,
        )  # fmt: skip
    return tensor(bits, values), tensor(found, values)


def error_of(coded: Tensor, scales: Tensor, length: int) -> Tensor:
    """What the last `fold` lost: coded - scale sign(coded), float32 `[n]`."""
    each = scales.repeat_interleave(length)[: coded.numel()] if length else scales
    return torch.where(coded < 0, coded + each, coded - each)


def _code(
    g: NDArray[Any],
    *,
    length: int,
    norm: Norm,
    p: NDArray[Any] = _NONE,
    scales: NDArray[Any] = _NONE,
    u: NDArray[Any] = _NONE,
    factors: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
    keep: bool = False,
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    n = g.size
    bits = np.empty(packed_bytes(n, 1), dtype=np.uint8)
    blocks = -(-n // length) if length else 0
    tiles = -(-n // SUM_BLOCK)
    sums = np.zeros(tiles + blocks, dtype=np.float64)
    m, c, a, b = (np.float32(factor) for factor in factors)
    squares = norm == "rms"
    in_parallel(
        _coding, n, g, u, p, scales, length, m, c, a, b, keep, bits, sums, squares, grain=SUM_BLOCK
    )
    if not blocks:
        return bits, _NONE
    # Tile t and block b meet in sum t + b; between two blocks that end with a tile lies a zero.
    starts, sizes = _ONLY_START, np.array([float(n)])
    if blocks > 1:
        numbers = np.arange(blocks)
        starts = numbers * length // SUM_BLOCK + numbers
        sizes = np.full(blocks, float(length))
        sizes[-1] = n - (blocks - 1) * length
    totals = np.add.reduceat(sums, starts)
    means = np.sqrt(totals / sizes) if squares else totals / sizes
    return bits, np.minimum(means, FLOAT32_MAX).astype(np.float32)


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
@on_device("one_bit.signs")
def add_signs(out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float) -> None:
    """out += weight * scale * sign, in place.

    Parameters
    ----------
    out : float32 `[n]`
    bits : uint8 `[ceil(n / 8)]`
    scales : float32 `[ceil(n / length)]`
    length : elements of a block
    weight : a number

    Raises
    ------
    InputError
        When the bits are not those of n elements, or a scale is not a finite number >= 0; what
        kernels make of `out` is then worthless.
    """
    _decode(out, bits, scales, length, weight, add=True)


@kernel("streaming", updates=("out",))
@on_device("one_bit.signs")
def write_signs(out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float) -> None:
    """`add_signs` to zeros, whatever `out` holds before; priced like it, as one of N payloads."""
    _decode(out, bits, scales, length, weight, add=False)


def _decode(
    out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float, *, add: bool
) -> None:
    n = out.numel()
    check_packed(bits, n, 1)
    factors = array(scales)
    if length * factors.size < n or (factors.size - 1) * length >= n > 0:
        raise InputError(f"damaged payload: {factors.size} scales of {length} elements for {n}")
    if not ((factors >= 0) & (factors <= FLOAT32_MAX)).all():  # nor not-a-number
        raise InputError("damaged payload: a scale is negative or not a finite number")
    factors = factors * np.float32(weight)
    with written_back(out) as target:
        in_parallel(decoding, n, array(bits), factors, length, target, add, grain=SUM_BLOCK)


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
