"""How does a bucket become a message on a GPU in launches whose number does not grow with tensors?

Twins of what a method does with all tensors of a bucket. Each kernel treats them together, and
writes bodies where the message has them. What a twin does not treat, or finds damaged, it leaves to
the loop over tensors, whose kernels are launched for each: that says what is wrong with which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import HEADER_BYTES, Codec
from gcsim.compressors.coding.integers.packing import check_packed, packed_bytes
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.one_bit.binary import KNOWN_LEVELS, SYMMETRIC, TWO_LEVELS
from gcsim.compressors.coding.one_bit.votes import add_votes, more_than, no_votes
from gcsim.compressors.gpu.floats.narrow import add_powers_of, power_bytes, powers_of
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
from gcsim.compressors.gpu.one_bit.signs import decode_parts, fold_parts
from gcsim.compressors.gpu.parts import put, starts
from gcsim.compressors.gpu.reductions import Buckets
from gcsim.compressors.lazy_torch import Tensor, torch

_NOT_HERE: Any = NotImplemented
"""What a twin returns that leaves the call to the loop."""


# --- powers of two ----------------------------------------------------------------------------


def natural(gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], bits: int) -> Tensor:
    """See `natural.encoded`."""
    elements, begins = tensors_of(layout)
    lengths = [power_bytes(n, bits) for n in elements]
    message, bodies = begun(gradient, Codec.NATURAL, elements, lengths, flags=bits)
    powers_of(gradient, message, elements, begins, bodies, keys, bits)
    seal(message, lengths)
    return message


def add_natural(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> Any:
    """See `natural.add_decoded`."""
    frames = alike(message, layout, Codec.NATURAL)
    bits = frames[0].flags if frames else 0
    elements, begins = tensors_of(layout)
    if bits not in (8, 9) or not as_long(frames, [power_bytes(n, bits) for n in elements]):
        return _NOT_HERE
    places = places_in(message, frames)
    right = add_powers_of(out, message, elements, begins, places, bits=bits, weight=weight)
    return None if right else _NOT_HERE


# --- signs ------------------------------------------------------------------------------------


def signs(vector: Tensor, layout: BucketLayout) -> Tensor:
    """See `signsgd.encode`."""
    elements, begins = tensors_of(layout)
    lengths = [packed_bytes(n, 1) for n in elements]
    message, bodies = begun(vector, Codec.SIGN, elements, lengths)
    buckets = Buckets(elements=elements, begins=begins, sizes=[max(1, n) for n in elements])
    fold_parts(vector.contiguous(), message, buckets, bodies)
    seal(message, lengths)
    return message


def write_signs(message: Tensor, out: Tensor, layout: BucketLayout) -> Any:
    """See `signsgd.write_decoded`."""
    frames = alike(message, layout, Codec.SIGN)
    elements, begins = tensors_of(layout)
    if not frames or not as_long(frames, [packed_bytes(n, 1) for n in elements]):
        return _NOT_HERE
    one, first = out.new_ones(1), [0] * len(elements)
    stray, _ = decode_parts(
        out, message, one, elements, begins, places_in(message, frames), first,
        [max(1, n) for n in elements], weight=1.0, add=False,
    )  # fmt: skip
    return _NOT_HERE if stray else None


def chunk_frames(bits: Tensor, scale: Tensor, chunk: int, count: int) -> list[Tensor]:
    """See `onebit_adam.chunk_frames`."""
    size = chunk // 8
    bodies = bits.new_zeros((count, 4 + size))
    bodies[:, : scale.nbytes] = scale.view(torch.uint8)
    signs = bits.new_zeros(count * size)
    signs[: bits.numel()] = bits
    bodies[:, 4:] = signs.view(count, size)
    lengths = [4 + size] * count
    message, places = begun(bits, Codec.SIGN_BLOCK, [chunk] * count, lengths)
    put(message, bodies.view(-1), lengths, places)
    seal(message, lengths)
    return list(message.split(HEADER_BYTES + 4 + size))


def no_counts(like: Tensor, layout: BucketLayout, count: int) -> list[Tensor]:
    """See `signsgd.no_counts`: one for the bits of all tensors."""
    total = sum(packed_bytes(n, 1) for n in tensors_of(layout)[0])
    return [no_votes(8 * total, count, like)]


def count_votes(message: Tensor, layout: BucketLayout, counts: list[Tensor]) -> None:
    """See `signsgd.count_votes`. The host waits once, for whether bits are set behind a last."""
    frames = [frame for _, frame in frames_of(message, layout, Codec.SIGN)]
    lengths = [packed_bytes(frame.numel, 1) for frame in frames]
    if not as_long(frames, lengths) or not unpadded(message, frames):
        for frame in frames:  # says what is wrong with which
            check_packed(frame.body, frame.numel, 1)
    add_votes(counts[0], torch.cat([frame.body for frame in frames]))


def said(counts: list[Tensor], layout: BucketLayout, half: int) -> Tensor:
    """See `signsgd.said`."""
    elements, _ = tensors_of(layout)
    lengths = [packed_bytes(n, 1) for n in elements]
    message, bodies = begun(counts[0], Codec.SIGN, elements, lengths)
    put(message, more_than(counts[0], half), lengths, bodies)
    seal(message, lengths)
    return message


def write_said(
    counts: list[Tensor], layout: BucketLayout, half: int, out: Tensor, split: bool
) -> None:
    """See `signsgd.write_said`."""
    elements, begins = tensors_of(layout)
    places = starts([packed_bytes(n, 1) for n in elements])
    one, first, sizes = out.new_ones(1), [0] * len(elements), [max(1, n) for n in elements]
    for threshold in (half, half - 1) if split else (half,):
        decode_parts(
            out, more_than(counts[0], threshold), one, elements, begins, places, first, sizes,
            weight=0.5 if split else 1.0, add=threshold < half,
        )  # fmt: skip


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
