"""How do signs become bits on a GPU, and votes of bits one? Twins of `coding/one_bit/`.

Coding is one kernel that brings the memory on and packs bits, and one that adds up magnitudes for
the scales: those are sums in float64, whose last bit may differ as `reductions.py` says.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import check_packed, packed_bytes
from gcsim.compressors.coding.one_bit.signs import Norm
from gcsim.compressors.gpu.levels import LARGEST
from gcsim.compressors.gpu.reductions import ABSOLUTE, SQUARES, bucket_totals
from gcsim.compressors.gpu.words import (
    BLOCK,
    GROUPS,
    blocks,
    index_type,
    launch,
    load_codes,
    places,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError


def scaled_sign_bits(values: Tensor, length: int, norm: Norm = "mean_abs") -> tuple[Tensor, Tensor]:
    """See `signs.scaled_sign_bits`."""
    return _code(values, length, norm)


def fold(
    values: Tensor, coded: Tensor, scales: Tensor, length: int, norm: Norm = "mean_abs"
) -> tuple[Tensor, Tensor]:
    """See `signs.fold`."""
    return _code(values, length, norm, coded=coded, scales=scales)


def fold_nesterov(
    values: Tensor, momentum: Tensor, coded: Tensor, scales: Tensor, length: int, *, decay: float
) -> tuple[Tensor, Tensor]:
    """See `signs.fold_nesterov`."""
    factors = decay, 1.0, 1.0, decay
    return _code(
        values, length, "mean_abs", coded=coded, scales=scales, mixed=momentum, factors=factors,
        keep=True,
    )  # fmt: skip


def fold_average(
    values: Tensor, average: Tensor, coded: Tensor, scales: Tensor, *, decay: float, norm: Norm
) -> tuple[Tensor, Tensor]:
    """See `signs.fold_average`."""
    factors = decay, 1.0 - decay, 0.0, 1.0
    return _code(
        values, values.numel(), norm, coded=coded, scales=scales, mixed=average, factors=factors
    )


def _code(
    values: Tensor,
    length: int,
    norm: Norm,
    *,
    coded: Tensor | None = None,
    scales: Tensor | None = None,
    mixed: Tensor | None = None,
    factors: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
    keep: bool = False,
) -> tuple[Tensor, Tensor]:
    n, data = values.numel(), values.contiguous()
    bits = values.new_empty(packed_bytes(n, 1), dtype=torch.uint8)
    launch(
        _fold, tiles(n), data, data if mixed is None else mixed, data if coded is None else coded,
        data if scales is None else scales, bits, n, bits.numel(), length,
        *(float(np.float32(factor)) for factor in factors), MIX=mixed is not None, KEEP=keep,
        ERROR=coded is not None, GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    if not n:
        return bits, values.new_empty(0)
    squares = norm == "rms"
    totals = bucket_totals(
        data if coded is None else coded, length, SQUARES if squares else ABSOLUTE
    )
    last = n - (totals.numel() - 1) * length  # elements of the last block
    means = totals / length
    means[-1] = totals[-1] / last
    means = means.sqrt() if squares else means
    # not-a-number passes, as it does in numpy's minimum
    return bits, means.clamp(max=LARGEST).float()


def add_signs(out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float) -> None:
    """See `signs.add_signs`."""
    _decode(out, bits, scales, length, weight, add=True)


def write_signs(out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float) -> None:
    """See `signs.write_signs`."""
    _decode(out, bits, scales, length, weight, add=False)


def _decode(
    out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float, *, add: bool
) -> None:
    n = out.numel()
    check_packed(bits, n, 1)
    if length * scales.numel() < n or (scales.numel() - 1) * length >= n > 0:
        raise InputError(f"damaged payload: {scales.numel()} scales of {length} elements for {n}")
    if not bool(((scales >= 0) & (scales <= LARGEST)).all()):  # nor not-a-number
        raise InputError("damaged payload: a scale is negative or not a finite number")
    launch(
        _write, tiles(n), out, bits.contiguous(), scales, n, bits.numel(), length,
        float(np.float32(weight)), ADD=add, GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip


def add_votes(counts: Tensor, bits: Tensor) -> None:
    """See `votes.add_votes`."""
    size = bits.numel()
    launch(
        _vote, blocks(size), counts, bits.contiguous(), size, PLANES=counts.shape[0], BLOCK=BLOCK
    )


def more_than(counts: Tensor, threshold: int) -> Tensor:
    """See `votes.more_than`."""
    planes, size = counts.shape
    bits = counts.new_zeros(size)
    if threshold >> planes == 0:  # else more than there are voters
        launch(_compare, blocks(size), counts, bits, size, threshold, PLANES=planes, BLOCK=BLOCK)
    return bits


def from_counters(counts: Tensor, count: int, ties: bool) -> Tensor:
    """See `signsgd.from_counters`."""
    tie = 0.0 if ties and count % 2 == 0 else 1.0
    update = torch.where(counts == count // 2, tie, 1.0)
    return torch.where(counts > count // 2, -1.0, update)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _fold(
    values, mixed, coded, scales, bits, n, nbytes, length,
    m, c, a, b, MIX: tl.constexpr, KEEP: tl.constexpr, ERROR: tl.constexpr,
    GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """x = g, or a g + b (m u + c g); p = x + p - scale sign(p), where given; then bits."""
    group, at = places(GROUPS, INDEX)
    here = at < n
    x = tl.load(values + at, mask=here, other=0.0)
    if MIX:
        fresh = m * tl.load(mixed + at, mask=here, other=0.0) + c * x
        if KEEP:
            tl.store(mixed + at, fresh, mask=here)
        x = a * x + b * fresh
    if ERROR:
        p = tl.load(coded + at, mask=here, other=0.0)
        scale = tl.load(scales + at // length, mask=here, other=0.0)
        x = x + (p - tl.where(p < 0.0, -scale, scale))
        tl.store(coded + at, x, mask=here)
    store_codes(bits, group, (x < 0.0) & here, nbytes, 1)


@triton.jit
def _write(
    out, bits, scales, n, nbytes, length, weight,
    ADD: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    here = at < n
    factor = tl.load(scales + at // length, mask=here, other=0.0) * weight
    signed = tl.where(load_codes(bits, group, nbytes, 1) != 0, -factor, factor)
    if ADD:
        signed = tl.load(out + at, mask=here, other=0.0) + signed
    tl.store(out + at, signed, mask=here)


@triton.jit
def _vote(counts, bits, size, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    size = tl.cast(size, tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    carry = tl.load(bits + at, mask=at < size, other=0)
    for k in tl.static_range(PLANES):  # plane k holds bit k of every count: add with carry
        plane = tl.load(counts + k * size + at, mask=at < size, other=0)
        tl.store(counts + k * size + at, plane ^ carry, mask=at < size)
        carry = carry & plane


@triton.jit
def _compare(counts, bits, size, threshold, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    size = tl.cast(size, tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    equal = tl.full([BLOCK], 255, dtype=tl.uint8)
    more = tl.zeros([BLOCK], dtype=tl.uint8)
    for j in tl.static_range(PLANES):  # from the highest bit: the first that differs
        k = PLANES - 1 - j
        plane = tl.load(counts + k * size + at, mask=at < size, other=0)
        wanted = (threshold >> k) & 1
        more = tl.where(wanted != 0, more, more | (equal & plane))
        equal = tl.where(wanted != 0, equal & plane, equal & (plane ^ 255))
    tl.store(bits + at, more, mask=at < size)
