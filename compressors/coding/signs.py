"""How does one bit an element become a sign, a scaled sign or a vote, at memory speed?

A bit says negative; zero of either sign counts as positive. Bits are packed little endian and
padded with zeros to a whole byte. Blocks of `length` consecutive elements (the last may be
shorter) share a scale.

Error feedback in one pass. The error after coding p with scale s is e = p - s sign(p). The next
vector to code is x + e; its signs do not depend on its scale, so one loop reads x and p, writes
the new p and its bits, and adds up |p|. It can, because what is kept is p and s: e is formed when
it is read next. A loop that writes e would wait for the scale and pass over p again.

Votes. The numbers of negative votes lie in bit planes: bit i of plane k is bit k of element i's
count. A payload of n bits is added with a carry from plane to plane, eight elements a byte
operation; a comparison with a constant runs down the planes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gcsim.compressors.coding.packing import packed_bytes
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import (
    SUM_BLOCK,
    array,
    in_parallel,
    loop,
    summing_loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import kernel
from gcsim.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Norm = Literal["mean_abs", "rms"]
"""What a scale is: mean |p|, the best for given signs, or the root mean square of p."""

_NONE = np.zeros(0, dtype=np.float32)


# --- from numbers to bits --------------------------------------------------------------------


@kernel("streaming")
def sign_bits(values: Tensor) -> Tensor:
    """Bits of a float32 `[n]`: uint8 `[ceil(n / 8)]`."""
    bits, _ = _code(array(values), length=0, norm=None)
    return tensor(bits, values)


@kernel("reduction")
def scaled_sign_bits(values: Tensor, length: int, norm: Norm = "mean_abs") -> tuple[Tensor, Tensor]:
    """Of float32 `[n]`: bits, uint8 `[ceil(n / 8)]`; scales, float32 `[ceil(n / length)]`."""
    bits, scales = _code(array(values), length=length, norm=norm)
    return tensor(bits, values), tensor(scales, values)


@kernel("reduction", updates=("coded",))
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
def fold_nesterov(
    values: Tensor, momentum: Tensor, coded: Tensor, scales: Tensor, length: int, *, decay: float
) -> tuple[Tensor, Tensor]:
    """`fold` of Nesterov's direction: u = decay u + values in place, coded is values + decay u."""
    with written_back(momentum) as u, written_back(coded) as p:
        bits, found = _code(
            array(values),
            p=p,
            scales=array(scales),
            length=length,
            norm="mean_abs",
            u=u,
            factors=(decay, 1.0, 1.0, decay),
            keep=True,
        )
    return tensor(bits, values), tensor(found, values)


@kernel("reduction", updates=("coded",))
def fold_average(
    values: Tensor, average: Tensor, coded: Tensor, scales: Tensor, *, decay: float, norm: Norm
) -> tuple[Tensor, Tensor]:
    """`fold` of decay average + (1 - decay) values in one block; `average` is only read."""
    with written_back(coded) as p:
        bits, found = _code(
            array(values),
            p=p,
            scales=array(scales),
            length=values.numel(),
            norm=norm,
            u=array(average),
            factors=(decay, 1.0 - decay, 0.0, 1.0),
        )
    return tensor(bits, values), tensor(found, values)


def error_of(coded: Tensor, scales: Tensor, length: int) -> Tensor:
    """What the last `fold` lost: coded - scale sign(coded), float32 `[n]`."""
    each = scales.repeat_interleave(length)[: coded.numel()] if length else scales
    return torch.where(coded < 0, coded + each, coded - each)


def _code(
    g: NDArray[Any],
    *,
    length: int,
    norm: Norm | None,
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
    sums = np.zeros(tiles + blocks if norm else 0, dtype=np.float64)
    m, c, a, b = (np.float32(factor) for factor in factors)
    squares = norm == "rms"
    in_parallel(
        _coding, n, g, u, p, scales, length, m, c, a, b, keep, bits, sums, squares, grain=SUM_BLOCK
    )
    if not blocks:
        return bits, _NONE
    # Tile t and block b meet in sum t + b; between two blocks that end with a tile lies a zero.
    numbers = np.arange(blocks)
    totals = np.add.reduceat(sums, numbers * length // SUM_BLOCK + numbers)
    sizes = np.full(blocks, float(length))
    sizes[-1] = n - (blocks - 1) * length
    means = np.sqrt(totals / sizes) if squares else totals / sizes
    return bits, np.minimum(means, np.finfo(np.float32).max).astype(np.float32)


@loop
def _coding(
    start: int,
    stop: int,
    g: Any,
    u: Any,
    p: Any,
    scales: Any,
    length: int,
    m: Any,
    c: Any,
    a: Any,
    b: Any,
    keep: bool,
    bits: Any,
    sums: Any,
    squares: bool,
) -> None:
    """x = g, or a g + b (m u + c g); p = x + p - scale sign(p), where given; then bits and sums."""
    flags = np.empty(SUM_BLOCK, dtype=np.uint8)
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
        while sums.size and at < last:
            block = at // length
            end = min(last, (block + 1) * length)
            part = coded[at - first : end - first]
            if p.size:
                _add_error(part, x[at - first : end - first], scales[block])
            tile = first // SUM_BLOCK
            sums[tile + block] = _sum_of_squares(part) if squares else _sum_of_magnitudes(part)
            at = end
        _pack(coded, flags, bits[first // 8 : (last + 7) // 8])


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
    for i in range(p.size):
        p[i] = x[i] + (p[i] - (-scale if p[i] < np.float32(0) else scale))


@summing_loop
def _sum_of_magnitudes(values: Any) -> float:
    total = np.float64(0)
    for i in range(values.size):
        total += np.float64(abs(values[i]))
    return total


@summing_loop
def _sum_of_squares(values: Any) -> float:
    total = np.float64(0)
    for i in range(values.size):
        value = np.float64(values[i])
        total += value * value
    return total


@loop
def _pack(values: Any, flags: Any, bits: Any) -> None:
    """Eight bytes of 0 or 1 make a byte: the multiplication moves bit 8 j to 56 + j."""
    for i in range(values.size):
        flags[i] = values[i] < np.float32(0)
    for i in range(values.size, 8 * bits.size):
        flags[i] = 0
    words = flags[: 8 * bits.size].view(np.uint64)
    for k in range(bits.size):
        bits[k] = np.uint8((words[k] * np.uint64(0x0102040810204080)) >> np.uint64(56))


# --- from bits to numbers --------------------------------------------------------------------


@kernel("streaming", updates=("out",))
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
        When the bits are not those of n elements, or a scale is not a finite number >= 0.
    """
    _decode(out, bits, scales, length, weight, add=True)


@kernel("streaming", updates=("out",))
def write_signs(out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float) -> None:
    """`add_signs` to zeros, whatever `out` holds before; priced like it, as one of N payloads."""
    _decode(out, bits, scales, length, weight, add=False)


def _decode(
    out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float, *, add: bool
) -> None:
    n = out.numel()
    check_bits(bits, n)
    factors = array(scales)
    if length * factors.size < n or (factors.size - 1) * length >= n > 0:
        raise InputError(f"damaged payload: {factors.size} scales of {length} elements for {n}")
    if not np.all(np.isfinite(factors) & (factors >= 0)):
        raise InputError("damaged payload: a scale is negative or not a finite number")
    factors = factors * np.float32(weight)
    with written_back(out) as target:
        in_parallel(_decoding, n, array(bits), factors, length, target, add, grain=SUM_BLOCK)


@loop
def _decoding(
    start: int, stop: int, bits: Any, factors: Any, length: int, out: Any, add: bool
) -> None:
    flags = np.empty(SUM_BLOCK, dtype=np.uint8)
    words = flags.view(np.uint64)
    for first in range(start, stop, SUM_BLOCK):
        last = min(first + SUM_BLOCK, stop)
        packed = bits[first // 8 : (last + 7) // 8]
        for k in range(packed.size):  # the byte in all eight places, bit j alone in place j
            spread = np.uint64(packed[k]) * np.uint64(0x0101010101010101)
            spread &= np.uint64(0x8040201008040201)
            words[k] = (spread + np.uint64(0x7F7F7F7F7F7F7F7F)) & np.uint64(0x8080808080808080)
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


def check_bits(bits: Tensor, n: int) -> None:
    """Raise `InputError` unless these can be the packed bits of n elements."""
    if bits.numel() != packed_bytes(n, 1):
        raise InputError(
            f"damaged payload: {bits.numel()} bytes where {packed_bytes(n, 1)} hold {n} signs"
        )
    if n % 8 and int(bits[-1]) >> n % 8:
        raise InputError("damaged payload: padding after the last sign is not zero")


# --- votes -----------------------------------------------------------------------------------


def no_votes(n: int, voters: int, like: Tensor) -> Tensor:
    """Counts of zero: uint8 `[planes, ceil(n / 8)]` that hold up to `voters` votes an element."""
    planes = voters.bit_length()
    return tensor(np.zeros((planes, packed_bytes(n, 1)), dtype=np.uint8), like)


@kernel("streaming", resident=("counts",))
def add_votes(counts: Tensor, bits: Tensor) -> None:
    """Count each bit that is set, in place. `bits` is uint8 `[ceil(n / 8)]`.

    Not more often than there are voters: a carry out of the highest plane is lost.
    """
    with written_back(counts) as planes:
        in_parallel(_voting, bits.numel(), array(bits), planes, grain=SUM_BLOCK)


@loop
def _voting(start: int, stop: int, bits: Any, planes: Any) -> None:
    carry = np.empty(SUM_BLOCK, dtype=np.uint8)
    for first in range(start, stop, SUM_BLOCK):
        votes = bits[first : min(first + SUM_BLOCK, stop)]
        for i in range(votes.size):
            carry[i] = votes[i]
        for k in range(planes.shape[0]):
            plane = planes[k, first : first + votes.size]
            for i in range(votes.size):
                before = plane[i]
                plane[i] = before ^ carry[i]
                carry[i] &= before


@kernel("streaming", resident=("counts",))
def more_than(counts: Tensor, threshold: int) -> Tensor:
    """Bits of the elements with more votes than `threshold` (>= 0): uint8 `[ceil(n / 8)]`."""
    planes = array(counts)
    bits = np.zeros(planes.shape[1], dtype=np.uint8)
    if threshold >> planes.shape[0] == 0:  # else more than there are voters
        in_parallel(_comparing, bits.size, planes, threshold, bits, grain=SUM_BLOCK)
    return tensor(bits, counts)


@loop
def _comparing(start: int, stop: int, planes: Any, threshold: int, bits: Any) -> None:
    equal = np.empty(SUM_BLOCK, dtype=np.uint8)
    for first in range(start, stop, SUM_BLOCK):
        more = bits[first : min(first + SUM_BLOCK, stop)]
        for i in range(more.size):
            equal[i] = np.uint8(255)
        for k in range(planes.shape[0] - 1, -1, -1):
            plane = planes[k, first : first + more.size]
            if (threshold >> k) & 1:
                for i in range(more.size):
                    equal[i] &= plane[i]
            else:
                for i in range(more.size):
                    more[i] |= equal[i] & plane[i]
                    equal[i] &= ~plane[i]
