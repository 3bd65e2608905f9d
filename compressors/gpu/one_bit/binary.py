"""How does a vector become one bit an element and levels a bucket, on a GPU? BinGrad's kernels.

Twins of `coding/one_bit/binary.py`, and of what finds thresholds and levels: one program works on a
bucket until it is done. Sums are of float64, in an order of their own (`reductions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of, starts
from gcsim.compressors.gpu.words import (
    GROUPS,
    float64,
    float64_bits,
    load_codes,
    magnifier,
    places_of,
    random16,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random

_WIDEST = 1024
"""Elements of a bucket that are added up at a time, at most."""


def bits_above(values: Tensor, thresholds: Tensor, size: int) -> Tensor:
    """See `binary.bits_above`."""
    n = values.numel()
    out = values.new_empty(packed_bytes(n, 1), dtype=torch.uint8)
    put_bits_above(values.contiguous(), thresholds, size, out, [n], [0], [0])
    return out


def put_bits_above(
    values: Tensor, thresholds: Tensor, size: int, out: Tensor, elements: Sequence[int],
    begins: Sequence[int], places: Sequence[int],
) -> None:  # fmt: skip
    """`bits_above` of many tensors: where each begins, where its bytes go."""
    parts = _tiled(values, elements, begins, size, places)
    launch_parts(_above, parts, values, thresholds, out, size, GROUPS=GROUPS, INDEX=parts.index)


def random_bits(values: Tensor, bounds: Tensor, size: int, key: np.uint64) -> Tensor:
    """See `binary.random_bits`."""
    n = values.numel()
    out = values.new_empty(packed_bytes(n, 1), dtype=torch.uint8)
    put_random_bits(values.contiguous(), bounds, size, [key], out, [n], [0], [0])
    return out


def put_random_bits(
    values: Tensor, bounds: Tensor, size: int, keys: Sequence[np.uint64], out: Tensor,
    elements: Sequence[int], begins: Sequence[int], places: Sequence[int],
) -> None:  # fmt: skip
    """`random_bits` of many tensors: where each begins, where its bytes go."""
    count_random(sum(elements), 16)
    parts = _tiled(values, elements, begins, size, places, [int(key) for key in keys])
    launch_parts(_draw, parts, values, bounds, out, size, GROUPS=GROUPS, INDEX=parts.index)


def add_chosen(
    out: Tensor, bits: Tensor, lows: Tensor, highs: Tensor, *, size: int, weight: float
) -> None:
    """See `binary.add_chosen`."""
    add_all_chosen(
        out, bits.contiguous(), lows, highs, [out.numel()], [0], [0], size=size, weight=weight
    )


def add_all_chosen(
    out: Tensor, bits: Tensor, lows: Tensor, highs: Tensor, elements: Sequence[int],
    begins: Sequence[int], places: Sequence[int], *, size: int, weight: float,
) -> None:  # fmt: skip
    """`add_chosen` of many tensors: where each and its bytes begin."""
    parts = _tiled(out, elements, begins, size, places)
    launch_parts(
        _choose, parts, out, bits, lows, highs, size, float(np.float32(weight)), GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip


def _tiled(
    like: Tensor, elements: Sequence[int], begins: Sequence[int], size: int,
    places: Sequence[int], *more: Sequence[int],
) -> Parts:  # fmt: skip
    """Tiles of tensors: where each begins, its first bucket, where its bytes are, and more."""
    firsts = starts([-(-n // size) for n in elements])
    return parts_of(like, elements, [tiles(n) for n in elements], begins, firsts, places, *more)


def _by_bucket(like: Tensor, elements: Sequence[int], begins: Sequence[int], size: int) -> Parts:
    """A program a bucket; those of one tensor behind those of the other."""
    return parts_of(like, elements, [-(-n // size) for n in elements], begins)


def class_means(values: Tensor, size: int, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `bingrad_b.class_means`."""
    found = all_class_means(values.contiguous(), size, iterations, [values.numel()], [0])
    return found[0], found[1], found[2]


def all_class_means(
    values: Tensor, size: int, iterations: int, elements: Sequence[int], begins: Sequence[int]
) -> Tensor:
    """`class_means` of many tensors, where each begins: float32 `[3, buckets of all]`."""
    parts = _by_bucket(values, elements, begins, size)
    found = values.new_empty((3, parts.firsts[-1]))
    launch_parts(
        _means, parts, values, found, size, iterations, parts.firsts[-1], WIDTH=_width(size)
    )
    return found


def class_sums(values: Tensor, thresholds: Tensor, size: int) -> Tensor:
    """See `bingrad_b.class_sums`."""
    return all_class_sums(values.contiguous(), thresholds, size, [values.numel()], [0])


def all_class_sums(
    values: Tensor, thresholds: Tensor, size: int, elements: Sequence[int], begins: Sequence[int]
) -> Tensor:
    """`class_sums` of many tensors, where each begins: float32 `[3, buckets of all]`."""
    parts = _by_bucket(values, elements, begins, size)
    found = values.new_empty((3, parts.firsts[-1]))
    launch_parts(
        _sums, parts, values, thresholds.contiguous(), found, size, parts.firsts[-1],
        WIDTH=_width(size),
    )  # fmt: skip
    return found


def optimal_bounds(values: Tensor, size: int) -> Tensor:
    """See `bingrad_pb.optimal_bounds`; its sums are of float32, these of float64."""
    return all_optimal_bounds(values.contiguous(), size, [values.numel()], [0])


def all_optimal_bounds(
    values: Tensor, size: int, elements: Sequence[int], begins: Sequence[int]
) -> Tensor:
    """`optimal_bounds` of many tensors, where each begins: float32 `[buckets of all]`."""
    from gcsim.compressors.quantization.one_bit.bingrad_pb import MAX_HALVINGS

    parts = _by_bucket(values, elements, begins, size)
    bounds = values.new_empty(parts.firsts[-1])
    launch_parts(_halve, parts, values, bounds, size, MAX_HALVINGS, WIDTH=_width(size))
    return bounds


def clip_to_spread(values: Tensor, size: int, clip: float | None) -> None:
    """See `bucket_levels.clip_to_spread`."""
    if clip is not None:
        clip_all(values, size, clip, [values.numel()], [0])


def clip_all(
    values: Tensor, size: int, clip: float, elements: Sequence[int], begins: Sequence[int]
) -> None:
    """`clip_to_spread` of many tensors, where each begins."""
    parts = _by_bucket(values, elements, begins, size)
    launch_parts(_clip, parts, values, size, float64_bits(clip), WIDTH=_width(size))


def _width(size: int) -> int:
    return min(_WIDEST, 1 << max(0, size - 1).bit_length())


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _above(
    values, thresholds, out, size, table, parts,
    LANES: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    group, at = places_of(number, GROUPS, INDEX)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=at < n, other=0.0)
    bucket = tl.load(column + 3 * parts) + at // size
    threshold = tl.load(thresholds + bucket, mask=at < n, other=0.0)
    place = out + tl.load(column + 4 * parts)
    store_codes(place, group, (at < n) & (v >= threshold), (n + 7) // 8, 1)


@triton.jit
def _draw(
    values, bounds, out, size, table, parts,
    LANES: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    group, at = places_of(number, GROUPS, INDEX)
    key = tl.load(column + 5 * parts).to(tl.uint64, bitcast=True)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=at < n, other=0.0)
    bucket = tl.load(column + 3 * parts) + at // size
    bound = tl.load(bounds + bucket, mask=at < n, other=0.0)
    scale = magnifier(bound)
    low = -bound * scale
    fraction = (random16(key, group, GROUPS).to(tl.float32) + 0.5) * 2.0**-16
    up = (at < n) & (v * scale - low > fraction * (low * -2.0))
    store_codes(out + tl.load(column + 4 * parts), group, up, (n + 7) // 8, 1)


@triton.jit
def _choose(
    out, bits, lows, highs, size, weight, table, parts,
    LANES: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    group, at = places_of(number, GROUPS, INDEX)
    bucket = tl.load(column + 3 * parts) + at // size
    low = weight * tl.load(lows + bucket, mask=at < n, other=0.0)
    high = weight * tl.load(highs + bucket, mask=at < n, other=0.0)
    target = out + tl.load(column + 2 * parts) + at
    total = tl.load(target, mask=at < n, other=0.0)
    code = load_codes(bits + tl.load(column + 4 * parts), group, (n + 7) // 8, 1)
    tl.store(target, total + tl.where(code != 0, high, low), mask=at < n)


@triton.jit
def _about(values, first, length, centre, WIDTH: tl.constexpr):
    """Of a bucket: the sum of d = v - centre, the sum of |d|, the number of d >= 0; float64."""
    total = tl.cast(0.0, tl.float64)
    magnitude = tl.cast(0.0, tl.float64)
    count = tl.cast(0.0, tl.float64)
    for start in range(0, length, WIDTH):
        i = start + tl.arange(0, WIDTH)
        v = tl.load(values + first + i, mask=i < length, other=0.0)
        distance = tl.where(i < length, v.to(tl.float64) - centre.to(tl.float64), 0.0)
        total += tl.sum(distance, axis=0)
        magnitude += tl.sum(tl.abs(distance), axis=0)
        count += tl.sum(((i < length) & (v >= centre)).to(tl.float64), axis=0)
    return total, magnitude, count


@triton.jit
def _bucket(size, table, parts, LANES: tl.constexpr):
    """This program's bucket: where it begins, and its length."""
    column, number, n = own_part(table, parts, LANES)
    first = number.to(tl.int64) * size
    begin = tl.load(column + 2 * parts) + first
    return begin, tl.minimum(size, n - first).to(tl.int32)


@triton.jit
def _means(
    values, found, size, iterations, buckets, table, parts,
    LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    first, length = _bucket(size, table, parts, LANES)
    elements = length.to(tl.float64)
    total, magnitude, count = _about(values, first, length, tl.cast(0.0, tl.float32), WIDTH)
    threshold = (total / elements).to(tl.float32)
    low = threshold
    high = threshold
    following = threshold
    left = tl.cast(iterations, tl.int32) + 1
    while left > 0:
        threshold = following
        total, magnitude, count = _about(values, first, length, threshold, WIDTH)
        wide = threshold.to(tl.float64)
        below = wide + 0.5 * (total - magnitude) / tl.maximum(elements - count, 1.0)
        above = wide + 0.5 * (total + magnitude) / tl.maximum(count, 1.0)
        low = tl.where(count < elements, below.to(tl.float32), threshold)
        high = tl.where(count > 0, above.to(tl.float32), threshold)
        following = (0.5 * (low.to(tl.float64) + high.to(tl.float64))).to(tl.float32)
        left = tl.where(following == threshold, 0, left - 1)
    bucket = tl.program_id(0)
    tl.store(found + bucket, threshold)
    tl.store(found + buckets + bucket, low)
    tl.store(found + 2 * buckets + bucket, high)


@triton.jit
def _sums(
    values, thresholds, found, size, buckets, table, parts,
    LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    first, length = _bucket(size, table, parts, LANES)
    bucket = tl.program_id(0)
    threshold = tl.load(thresholds + bucket)
    total, magnitude, count = _about(values, first, length, threshold, WIDTH)
    wide = threshold.to(tl.float64)
    below = wide * (length.to(tl.float64) - count) + 0.5 * (total - magnitude)
    above = wide * count + 0.5 * (total + magnitude)
    tl.store(found + bucket, below.to(tl.float32))
    tl.store(found + buckets + bucket, above.to(tl.float32))
    tl.store(found + 2 * buckets + bucket, count.to(tl.float32))


@triton.jit
def _mean_from(values, first, length, bound, WIDTH: tl.constexpr):
    """Sum of |v| over the elements with |v| >= bound, over the number of all elements."""
    total = tl.cast(0.0, tl.float64)
    for start in range(0, length, WIDTH):
        i = start + tl.arange(0, WIDTH)
        size = tl.abs(tl.load(values + first + i, mask=i < length, other=0.0))
        total += tl.sum(tl.where(size >= bound, size, 0.0).to(tl.float64), axis=0)
    return total / length.to(tl.float64)


@triton.jit
def _halve(values, bounds, size, most, table, parts, LANES: tl.constexpr, WIDTH: tl.constexpr):
    first, length = _bucket(size, table, parts, LANES)
    low = tl.cast(0.0, tl.float64)
    high = _mean_from(values, first, length, tl.cast(0.0, tl.float32), WIDTH)
    left = tl.cast(most, tl.int32)
    while left > 0:
        wide = high - low > high * 2.0**-22
        middle = 0.5 * (low + high)
        reached = _mean_from(values, first, length, middle.to(tl.float32), WIDTH)
        up = reached >= middle
        lower = tl.where(up, middle, tl.maximum(low, reached))
        upper = tl.where(up, tl.minimum(high, reached), middle)
        low = tl.where(wide, lower, low)
        high = tl.where(wide, upper, high)
        left = tl.where(wide, left - 1, 0)
    tl.store(bounds + tl.program_id(0), high.to(tl.float32))


@triton.jit(do_not_specialize=["factor"])
def _clip(values, size, factor: tl.uint64, table, parts, LANES: tl.constexpr, WIDTH: tl.constexpr):
    first, length = _bucket(size, table, parts, LANES)
    elements = length.to(tl.float64)
    total, _, _ = _about(values, first, length, tl.cast(0.0, tl.float32), WIDTH)
    mean = total / elements
    squares = tl.cast(0.0, tl.float64)
    for start in range(0, length, WIDTH):
        i = start + tl.arange(0, WIDTH)
        v = tl.load(values + first + i, mask=i < length, other=0.0).to(tl.float64)
        distance = tl.where(i < length, v - mean, 0.0)
        squares += tl.sum(distance * distance, axis=0)
    bound = (float64(factor) * tl.sqrt(squares / elements)).to(tl.float32)
    if bound > 0.0:
        for start in range(0, length, WIDTH):
            i = start + tl.arange(0, WIDTH)
            v = tl.load(values + first + i, mask=i < length, other=0.0)
            clipped = tl.minimum(tl.maximum(v, -bound), bound)
            tl.store(values + first + i, clipped, mask=i < length)
