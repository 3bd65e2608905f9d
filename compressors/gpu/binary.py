"""How does a vector become one bit an element and levels a bucket, on a GPU? BinGrad's kernels.

Twins of `coding/one_bit/binary.py`, and of what finds thresholds and levels: one program works on a
bucket until it is done. Sums are of float64, in an order of their own (`reductions.py`).
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.gpu.words import (
    GROUPS,
    float64,
    float64_bits,
    index_type,
    launch,
    load_codes,
    magnifier,
    places,
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
    launch(
        _above, tiles(n), values.contiguous(), thresholds, out, n, out.numel(), size,
        GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    return out


def random_bits(values: Tensor, bounds: Tensor, size: int, key: np.uint64) -> Tensor:
    """See `binary.random_bits`."""
    n = values.numel()
    out = values.new_empty(packed_bytes(n, 1), dtype=torch.uint8)
    count_random(n, 16)
    launch(
        _draw, tiles(n), values.contiguous(), bounds, out, int(key), n, out.numel(), size,
        GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    return out


def add_chosen(
    out: Tensor, bits: Tensor, lows: Tensor, highs: Tensor, *, size: int, weight: float
) -> None:
    """See `binary.add_chosen`."""
    n = out.numel()
    launch(
        _choose, tiles(n), out, bits.contiguous(), lows, highs, n, bits.numel(), size,
        float(np.float32(weight)), GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip


def class_means(values: Tensor, size: int, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `bingrad_b.class_means`."""
    n = values.numel()
    found = values.new_empty((3, -(-n // size)))
    launch(
        _means, found.shape[1], values.contiguous(), found, n, size, iterations, found.shape[1],
        WIDTH=_width(size),
    )  # fmt: skip
    return found[0], found[1], found[2]


def class_sums(values: Tensor, thresholds: Tensor, size: int) -> Tensor:
    """See `bingrad_b.class_sums`."""
    n = values.numel()
    found = values.new_empty((3, thresholds.numel()))
    launch(
        _sums, found.shape[1], values.contiguous(), thresholds.contiguous(), found, n, size,
        found.shape[1], WIDTH=_width(size),
    )  # fmt: skip
    return found


def optimal_bounds(values: Tensor, size: int) -> Tensor:
    """See `bingrad_pb.optimal_bounds`; its sums are of float32, these of float64."""
    from gcsim.compressors.quantization.one_bit.bingrad_pb import MAX_HALVINGS

    n = values.numel()
    bounds = values.new_empty(-(-n // size))
    launch(
        _halve, bounds.numel(), values.contiguous(), bounds, n, size, MAX_HALVINGS,
        WIDTH=_width(size),
    )  # fmt: skip
    return bounds


def clip_to_spread(values: Tensor, size: int, clip: float | None) -> None:
    """See `bucket_levels.clip_to_spread`."""
    if clip is not None:
        n = values.numel()
        launch(_clip, -(-n // size), values, n, size, float64_bits(clip), WIDTH=_width(size))


def _width(size: int) -> int:
    return min(_WIDEST, 1 << max(0, size - 1).bit_length())


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _above(values, thresholds, out, n, nbytes, size, GROUPS: tl.constexpr, INDEX: tl.constexpr):
    group, at = places(GROUPS, INDEX)
    v = tl.load(values + at, mask=at < n, other=0.0)
    threshold = tl.load(thresholds + at // size, mask=at < n, other=0.0)
    store_codes(out, group, (at < n) & (v >= threshold), nbytes, 1)


@triton.jit(do_not_specialize=["key"])
def _draw(
    values, bounds, out, key: tl.uint64, n, nbytes, size,
    GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    v = tl.load(values + at, mask=at < n, other=0.0)
    bound = tl.load(bounds + at // size, mask=at < n, other=0.0)
    scale = magnifier(bound)
    low = -bound * scale
    fraction = (random16(key, group, GROUPS).to(tl.float32) + 0.5) * 2.0**-16
    store_codes(out, group, (at < n) & (v * scale - low > fraction * (low * -2.0)), nbytes, 1)


@triton.jit
def _choose(
    out, bits, lows, highs, n, nbytes, size, weight, GROUPS: tl.constexpr, INDEX: tl.constexpr
):
    group, at = places(GROUPS, INDEX)
    low = weight * tl.load(lows + at // size, mask=at < n, other=0.0)
    high = weight * tl.load(highs + at // size, mask=at < n, other=0.0)
    total = tl.load(out + at, mask=at < n, other=0.0)
    total = total + tl.where(load_codes(bits, group, nbytes, 1) != 0, high, low)
    tl.store(out + at, total, mask=at < n)


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
def _bucket(n, size):
    """This program's bucket: where it begins, and its length."""
    first = tl.program_id(0).to(tl.int64) * size
    return first, tl.minimum(size, n - first).to(tl.int32)


@triton.jit
def _means(values, found, n, size, iterations, buckets, WIDTH: tl.constexpr):
    first, length = _bucket(n, size)
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
def _sums(values, thresholds, found, n, size, buckets, WIDTH: tl.constexpr):
    first, length = _bucket(n, size)
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
def _halve(values, bounds, n, size, most, WIDTH: tl.constexpr):
    first, length = _bucket(n, size)
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
def _clip(values, n, size, factor: tl.uint64, WIDTH: tl.constexpr):
    first, length = _bucket(n, size)
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
