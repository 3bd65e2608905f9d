"""How does a vector travel as one bit an element and two levels a group of elements?

Bit 1 says the group's upper level, 0 its lower one. Groups are buckets of `size` consecutive
elements (the last one may be shorter); for columns of a matrix see `columns.py`. Bits lie in the
order of the elements, the first in the lowest bit of the first byte; those after the last element
are 0.

A frame's body is the levels, float32, then the bits. What its levels are, its flags say:
TWO_LEVELS the lower levels of all groups, then the upper ones; SYMMETRIC the upper ones (the
lower ones are their negatives); KNOWN_LEVELS nothing, the receiver has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.integers.packing import (
    check_packed,
    fold_bits,
    packed_bytes,
    unfold_bits,
)
from gcsim.compressors.coding.messages import split_body
from gcsim.compressors.coding.rounding.bucket_levels import magnifier
from gcsim.compressors.coding.rounding.levels import bucket_count
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.random import bits64
from gcsim.errors import InputError

TWO_LEVELS, SYMMETRIC, KNOWN_LEVELS = 0, 1, 2

_CHUNK = 4096
"""Elements whose bits are gathered before they are folded; a multiple of 8."""


@kernel("streaming")
@on_device("one_bit.binary")
def bits_above(values: Tensor, thresholds: Tensor, size: int) -> Tensor:
    """One bit an element, v >= its bucket's threshold: uint8 `[ceil(n / 8)]`.

    `values` is float32 `[n]`, `thresholds` float32 `[ceil(n / size)]`.
    """
    bits = np.empty(packed_bytes(values.numel(), 1), dtype=np.uint8)
    in_parallel(_bits_above, values.numel(), array(values), array(thresholds), size, bits)
    return tensor(bits, values)


@kernel("streaming")
@on_device("one_bit.binary")
def random_bits(values: Tensor, bounds: Tensor, size: int, key: np.uint64) -> Tensor:
    """One random bit an element, 1 with probability (v + b) / 2b: uint8 `[ceil(n / 8)]`.

    Decoded as b or -b it is v on average; elements beyond their bucket's b, float32
    `[ceil(n / size)]`, saturate. The probability is right to 2^-17.
    """
    bits = np.empty(packed_bytes(values.numel(), 1), dtype=np.uint8)
    in_parallel(_random_bits, values.numel(), array(values), array(bounds), size, key, bits)
    count_random(values.numel(), 16)
    return tensor(bits, values)


@kernel("streaming", updates=("out",))
@on_device("one_bit.binary")
def add_chosen(
    out: Tensor, bits: Tensor, lows: Tensor, highs: Tensor, *, size: int, weight: float
) -> None:
    """out += weight * (high if its bit is set else low), in place; `out` is float32 `[n]`.

    `lows` and `highs` are float32 `[ceil(n / size)]`.
    """
    with written_back(out) as sums:
        levels = array(lows), array(highs)
        in_parallel(_add_chosen, sums.size, array(bits), *levels, size, np.float32(weight), sums)


def pack_binary(
    bits: Tensor, levels: Tensor | None, *, numel: int, flags: int, size: int
) -> Tensor:
    """One tensor's frame; `levels` (float32, one dimension) as `flags` says."""
    body = bits if levels is None else torch.cat((as_bytes(levels), bits))
    return pack_frame(Codec.BINARY, body, numel=numel, nonzero=numel, flags=flags, params=size)


def read_binary(
    frame: Frame, known: tuple[Tensor, Tensor, int] | None = None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """(bits, lower levels, upper levels, bucket length) of a frame that `pack_binary` made.

    With `known` (lower levels, upper levels, bucket length) the frame must hold no levels and be
    of that bucket length, without it must hold levels. Raises `InputError` when the frame is
    damaged.
    """
    size, n = frame.params, frame.numel
    if size < 1 or frame.flags not in (TWO_LEVELS, SYMMETRIC, KNOWN_LEVELS):
        raise InputError(f"damaged payload: kind {frame.flags}, buckets of {size} elements")
    if (frame.flags == KNOWN_LEVELS) != (known is not None) or (known and size != known[2]):
        raise InputError("damaged payload: levels and what the receiver expects do not fit")
    buckets = bucket_count(n, size)
    cells = (2, 1, 0)[frame.flags] * buckets
    head, bits = split_body(frame, 4 * cells, packed_bytes(n, 1))
    check_packed(bits, n, 1)
    if known is not None:
        return bits, *known
    levels = from_bytes(head, torch.float32, cells)
    if frame.flags == SYMMETRIC:
        return bits, -levels, levels, size
    return bits, levels[:buckets], levels[buckets:], size


# --- loops -----------------------------------------------------------------------------------


@loop
def _bits_above(start: int, stop: int, values: Any, thresholds: Any, size: int, bits: Any) -> None:
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        words[:] = np.uint64(0)
        first = at
        while first < end:
            bucket = first // size
            last = min(end, (bucket + 1) * size)
            part, marks, threshold = values[first:last], flags[first - at :], thresholds[bucket]
            for i in range(part.size):
                marks[i] = np.uint8(part[i] >= threshold)
            first = last
        fold_bits(words, bits[at // 8 : (end + 7) // 8])


@loop
def _random_bits(
    start: int, stop: int, values: Any, bounds: Any, size: int, key: np.uint64, bits: Any
) -> None:
    """Compares as `bucket_levels` does."""
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    drawn = np.empty(_CHUNK // 4, dtype=np.uint64)
    random16 = drawn.view(np.uint16)
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        words[:] = np.uint64(0)
        for k in range((end - at + 3) // 4):
            drawn[k] = bits64(key, at // 4 + k)
        first = at
        while first < end:
            bucket = first // size
            last = min(end, (bucket + 1) * size)
            part, marks, random = values[first:last], flags[first - at :], random16[first - at :]
            scale = magnifier(bounds[bucket])
            low = -bounds[bucket] * scale
            gap = np.float32(-2) * low
            for i in range(part.size):
                fraction = (np.float32(random[i]) + np.float32(0.5)) * np.float32(2.0**-16)
                marks[i] = np.uint8(part[i] * scale - low > fraction * gap)
            first = last
        fold_bits(words, bits[at // 8 : (end + 7) // 8])


@loop
def _add_chosen(
    start: int, stop: int, bits: Any, lows: Any, highs: Any, size: int, weight: np.float32,
    out: Any,
) -> None:  # fmt: skip
    words = np.empty(_CHUNK // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        unfold_bits(bits[at // 8 : (end + 7) // 8], words)
        first = at
        while first < end:
            bucket = first // size
            last = min(end, (bucket + 1) * size)
            sums, marks = out[first:last], flags[first - at :]
            low, high = weight * lows[bucket], weight * highs[bucket]
            for i in range(sums.size):
                sums[i] += high if marks[i] else low
            first = last
