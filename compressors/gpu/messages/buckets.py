"""How does a bucket become a message on a GPU in launches whose number does not grow with tensors?

Twins of what a method does with all tensors of a bucket. Each kernel treats them together, and
writes bodies where the message has them. What a twin does not treat, or finds damaged, it leaves to
the loop over tensors, whose kernels are launched for each: that says what is wrong with which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import Codec
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit.binary import KNOWN_LEVELS, SYMMETRIC, TWO_LEVELS
from gcsim.compressors.gpu.frames import begun, seal
from gcsim.compressors.gpu.layouts import (
    alike,
    as_long,
    floats_in,
    places_in,
    sums,
    tensors_of,
    unpadded,
)
from gcsim.compressors.gpu.one_bit.binary import (
    add_all_chosen,
    all_class_means,
    all_optimal_bounds,
    clip_all,
    put_bits_above,
    put_random_bits,
)
from gcsim.compressors.gpu.parts import put
from gcsim.compressors.lazy_torch import Tensor, torch

_NOT_HERE: Any = NotImplemented
"""What a twin returns that leaves the call to the loop."""


# --- one bit and two levels a bucket ----------------------------------------------------------


def clip(gradient: Tensor, layout: BucketLayout, size: int, clip: float) -> None:
    """See `bucket_levels._clip_all`."""
    clip_all(gradient, size, clip, *tensors_of(layout))


def bingrad_b(gradient: Tensor, layout: BucketLayout, size: int, iterations: int) -> Tensor:
    """See `bingrad_b.encoded`."""
    elements, begins = tensors_of(layout)
    thresholds, *levels = all_class_means(gradient, size, iterations, elements, begins)
    message, places, lengths = _binary(gradient, elements, levels, size, TWO_LEVELS)
    put_bits_above(gradient, thresholds, size, message, elements, begins, places)
    seal(message, lengths)
    return message


def bingrad_pb(gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], size: int) -> Tensor:
    """See `bingrad_pb.encoded`."""
    elements, begins = tensors_of(layout)
    bounds = all_optimal_bounds(gradient, size, elements, begins)
    message, places, lengths = _binary(gradient, elements, [bounds], size, SYMMETRIC)
    put_random_bits(gradient, bounds, size, keys, message, elements, begins, places)
    seal(message, lengths)
    return message


def _binary(
    like: Tensor, elements: list[int], levels: list[Tensor], size: int, flags: int
) -> tuple[Tensor, list[int], list[int]]:
    """(a message with its levels; where bits go; bytes of each body)."""
    heads = [4 * -(-n // size) for n in elements]
    places = [0] * len(elements)
    lengths = sums([len(levels) * head for head in heads], [packed_bytes(n, 1) for n in elements])
    message, places = begun(like, Codec.BINARY, elements, lengths, flags=flags, params=size)
    for each in levels:
        put(message, each.view(torch.uint8), heads, places)
        places = sums(places, heads)
    return message, places, lengths


def add_two_levels(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float,
    known: tuple[Tensor, Tensor, int] | None = None,
) -> Any:  # fmt: skip
    """See `bingrad_b.add_decoded`."""
    frames = alike(message, layout, Codec.BINARY)
    size = frames[0].params if frames else 0
    elements, begins = tensors_of(layout)
    if size < 1 or any(frame.params != size for frame in frames):
        return _NOT_HERE
    of_each = {TWO_LEVELS: 2, SYMMETRIC: 1, KNOWN_LEVELS: 0}.get(frames[0].flags, -1)
    if (of_each == 0) != (known is not None) or (known and size != known[2]) or of_each < 0:
        return _NOT_HERE
    cells = [4 * -(-n // size) for n in elements]
    heads = [of_each * each for each in cells]
    whole = as_long(frames, sums(heads, [packed_bytes(n, 1) for n in elements]))
    if not whole or not unpadded(message, frames):
        return _NOT_HERE
    if known is not None:
        lows, highs, _ = known
    else:
        behind = zip(frames, heads, cells, strict=True)
        last = [frame.body[head - each : head] for frame, head, each in behind]
        highs = torch.cat(last).view(torch.float32)
        lows = floats_in(frames, cells) if of_each == 2 else -highs
    places = places_in(message, frames, heads)
    add_all_chosen(out, message, lows, highs, elements, begins, places, size=size, weight=weight)
    return None


def add_symmetric(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> Any:
    """See `bingrad_pb.add_decoded`."""
    return add_two_levels(message, layout, out, weight)
