"""THC: a parameter server adds up 4-bit codes without decoding them.

Every worker holds a = g + e (error feedback) of a tensor of n elements, and an all-reduce finds the
largest of their norms |a|. Then, with the same random signs and the same range on all workers,

    y = H D a            randomised Hadamard transform: elements are about N(0, |a|^2 / n)
    t = clamp(y / M, -1, 1) on a grid of 0 … 30,  M = t_p max|a| / sqrt(n)
    t becomes one of the two neighbouring integers of `TABLE`, at random so that the mean is right

Their 4-bit indices travel. The server returns the sums of the integers (8 bits up to 8 workers,
then 16), from which every worker computes the mean; e = a - what it sent itself. Only the clamp
makes it biased: 1 / 32 of a normal variable lies beyond t_p.

Assumes the transform in parts, as the authors' code has it: ten butterflies of elements that are 32
apart, and the last elements of a tensor in parts of powers of two: nothing is padded. A worker's
own rounding is independent of the others'. Works in host memory.

Source: M. Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic
Compression", NSDI 2024, arXiv:2302.08545; transform in parts as in the authors' BytePS_THC.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, packed, read
from gcsim.compressors.coding.integers.digits import put_chunk
from gcsim.compressors.coding.integers.packing import damaged, demand_no_stray, packed_bytes
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.coding.rounding.truncated_normals import Numbers
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import FLOAT32_MAX, array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import bits64
from gcsim.compressors.requests import AllReduce, Exchange, PushPull
from gcsim.compressors.segments import TILE, Segments, keys_of, starts
from gcsim.compressors.sharing import fill_once

GRID = 30
HALF_RANGE = -NormalDist().inv_cdf(1 / 64)
"""t_p: 1 / 32 of a standard normal variable is beyond -t_p … t_p."""
LANES, STAGES = 32, 10
"""Distance of the elements of a transform, so many of which go side by side; its butterflies."""
TABLE = np.array((0, 3, 5, 7, 9, 11, 13, 15, 16, 17, 19, 21, 23, 25, 27, 30), dtype=np.uint8)
"""Integers that the codes stand for: those whose rounding errs least on N(0, 1)."""
_LOWER = np.searchsorted(TABLE[1:-1], np.arange(GRID + 1), side="right")
_SLOPES = 1 / np.diff(TABLE).astype(float)[_LOWER]
_LINES = np.stack((_SLOPES, _LOWER - _SLOPES * TABLE[_LOWER])).astype(np.float32)
"""Slopes and offsets of the code, which is linear between two integers of the table: `[2, 31]`."""
_PAIRS = TABLE.repeat(16).astype(np.uint16) << 8 | np.tile(TABLE, 16)
"""Integers of the two codes in each byte."""
_BITS, _ANSWER = 4, 128
"""Flags of codes; of sums of one byte, 128 + bytes."""
Keys = NDArray[np.uint64]
"""One a tensor."""


class ThcParameters(CompressorParameters):
    error_feedback: bool = Field(True, description="add what was lost to the next gradient")


class Thc(ErrorFeedback[ThcParameters]):
    """Rotated, clamped and rounded to integers that a server can add."""

    about = About(
        title="THC",
        family="quantization",
        collective="all-reduce (norms), push-pull of codes and sums",
        without_server="alltoall_allgather",
        bits="4 + 32 / n up; 8 down (16 from 9 workers on)",
        state="error (n)",
        paper="Li et al., NSDI 2024, arXiv:2302.08545",
    )

    @classmethod
    def properties(cls, parameters: ThcParameters) -> Properties:
        return Properties(conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        me, layout, segments = self.worker, bucket.layout, Segments.of(bucket.layout)
        held = self.corrected(bucket) if self.remembers else bucket.gradient.clone()
        norms = yield AllReduce(tensor=cell_norms(held, segments.whole, "l2"), op="max")
        most = HALF_RANGE * array(norms).astype(float) / np.sqrt(np.maximum(segments.length, 1))
        signs = keys_of(layout, me.seed, step, "thc signs", None)
        rounding = keys_of(layout, me.seed, step, "thc rounding", me.rank)
        codes = round_rotated(held, segments, most, signs, rounding)
        parts = codes, packed_bytes(segments.length, _BITS)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            total = held.new_zeros(layout.numel, dtype=sum_dtype(me.count))
            for payload in payloads:
                add_integers(total, payload, layout)
            size = total.element_size()
            sums, flags = (total, size * segments.length), _ANSWER + size
            return packed(held, Codec.THC, segments, sums, flags=flags, params=GRID)

        message = packed(held, Codec.THC, segments, parts, flags=_BITS, params=GRID)
        answer = yield PushPull(payload=message, server=serve, without_server="alltoall_allgather")
        update = torch.empty_like(bucket.gradient)
        return fill_once(write_update, answer, update, layout, me.count, most, signs)


def write_update(
    answer: Tensor, out: Tensor, layout: BucketLayout, count: int, most: Numbers, signs: Keys
) -> None:
    """The mean of `count` workers, float32 `[numel]`, from the server's answer.

    Raises `InputError` when its sums of integers cannot be such.
    """
    segments, dtype, found = Segments.of(layout), sum_dtype(count), read(answer, layout, Codec.THC)
    if (found.flags != _ANSWER + dtype.itemsize).any() or (found.params != GRID).any():
        raise damaged(f"flags {found.flags}, grids {found.params}")
    found.demand_sizes(dtype.itemsize * segments.length)
    (sums,) = found.parts(answer, (found.size, dtype))
    if sums.numel() and not 0 <= int(sums.min()) <= int(sums.max()) <= GRID * count:
        raise damaged(f"a sum outside 0 … {GRID * count}")
    rotate_back(out, sums, segments, 2 * most / (GRID * count), most, signs)


def sum_dtype(count: int) -> torch.dtype:
    """Type of a sum of `count` integers 0 … `GRID`."""
    most = GRID * count
    return torch.uint8 if most < 1 << 8 else torch.int16 if most < 1 << 15 else torch.int32


@kernel("streaming", updates=("total",))
def add_integers(total: Tensor, payload: Tensor, layout: BucketLayout) -> None:
    """total += the integers of a payload's codes, integers `[numel]`; `InputError` if damaged."""
    found, length = read(payload, layout, Codec.THC), Segments.of(layout).length
    if (found.flags != _BITS).any() or (found.params != GRID).any():
        raise damaged(f"{found.flags} bits on grids of {found.params}")
    found.demand_sizes(packed_bytes(length, _BITS))
    demand_no_stray(array(payload), found.at, length, _BITS)
    (codes,) = found.parts(payload, (found.size, torch.uint8))
    integers = _PAIRS[array(codes)].view(np.uint8)
    odd = length % 2 > 0  # the last byte holds one code
    total += tensor(np.delete(integers, 2 * found.size.cumsum()[odd] - 1), total)


@kernel("streaming", updates=("held",), name="rotated.round_rotated")
def round_rotated(
    held: Tensor, segments: Segments, most: Numbers, signs: Keys, rounding: Keys
) -> Tensor:
    """Packed codes of rotated tensors, uint8; `held` (float32) keeps what they lose.

    `most` is M, half the range in which a tensor's values are represented; `signs` and `rounding`
    are keys of random numbers, the first the same on all workers.
    """
    for random_bits in (16, 1):
        count_random(held.numel(), random_bits)
    # M is 0 for a tensor of zeros: its scale is 0, and its elements are the grid's middle
    scales = np.minimum(GRID / (2 * np.where(most > 0, most, np.inf)), FLOAT32_MAX)
    values = (2 * most / GRID)[:, None] * TABLE - most[:, None]
    sizes = packed_bytes(segments.length, _BITS)
    codes = np.empty(int(sizes.sum()), dtype=np.uint8)
    with written_back(held) as target:
        in_tiles(
            _round, segments.tiles, segments.begin, target, scales.astype(np.float32),
            values.astype(np.float32), signs, rounding, starts(sizes), codes,
        )  # fmt: skip
    return tensor(codes, held)


@kernel("streaming", updates=("out",), name="rotated.rotate_back")
def rotate_back(
    out: Tensor, sums: Tensor, segments: Segments, step: Numbers, most: Numbers, signs: Keys
) -> None:
    """out = the inverse transform of step * sums - most; float32 and integers `[numel]`."""
    count_random(out.numel(), 1)
    lines = np.stack((step, most)).astype(np.float32)
    with written_back(out) as target:
        in_tiles(_back, segments.tiles, segments.begin, array(sums), lines, signs, target)


@loop
def _back(
    start: int, stop: int, tiles: Any, begins: Any, sums: Any, lines: Any, signs: Any, out: Any
) -> None:
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin, end = begins[t] + first, begins[t] + last
        x, part = out[begin:end], sums[begin:end]
        for i in range(x.size):
            x[i] = np.float32(part[i]) * lines[0, t] - lines[1, t]
        _rotate(x, first, signs[t], True)


@loop
def _rotate(x: Any, first: int, key: Any, back: bool) -> None:
    """The orthogonal transform of elements of a tensor, `first` and on, or its inverse."""
    # a tile holds whole parts of 2^15 elements, but for a tensor's end
    at, size = 0, LANES << STAGES
    if not back:
        _flip(x, first, key)
    while at < x.size:
        while size > x.size - at:  # powers of two at the end
            size //= 2
        # ten butterflies at most: elements that are `distance` apart are one transform
        part, distance = x[at : at + size], max(1, size >> STAGES)
        # times this, the butterflies are orthogonal, and their own inverse
        root = np.float32(1 / np.sqrt(size / distance))
        if back:
            part *= root
        while distance < size:
            for base in range(0, size, 2 * distance):
                a, b = part[base : base + distance], part[base + distance : base + 2 * distance]
                for i in range(a.size):
                    a[i], b[i] = a[i] + b[i], a[i] - b[i]
            distance *= 2
        if not back:
            part *= root
        at += size
    if back:
        _flip(x, first, key)


@loop
def _flip(x: Any, first: int, key: Any) -> None:
    """Change the sign of every element whose random bit (number `first` on) is set."""
    for at in range(0, x.size, 32):
        words = x[at : at + 32].view(np.uint32)
        # `first + at` is a multiple of 32: one half of a word has the bits of 32 elements
        bits = np.uint32(bits64(key, (first + at) >> 6) >> np.uint64((first + at) & 63))
        for i in range(words.size):
            words[i] ^= np.uint32(bits >> np.uint32(i)) << np.uint32(31)


@loop
def _round(
    start: int, stop: int, tiles: Any, begins: Any, held: Any, scales: Any, values: Any,
    signs: Any, rounding: Any, at: Any, out: Any,
) -> None:  # fmt: skip
    codes, words = np.empty(TILE, dtype=np.uint8), np.empty(TILE // 4, dtype=np.uint64)
    drawn = words.view(np.uint16)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        x = held[begins[t] + first : begins[t] + last]
        _rotate(x, first, signs[t], False)
        for j in range(x.size // 4 + (x.size % 4 > 0)):
            words[j] = bits64(rounding[t], first // 4 + j)
        for i in range(x.size):
            place = x[i] * scales[t] + np.float32(GRID / 2)  # from -M … M to the grid's 0 … 30
            place = place if place > np.float32(0) else np.float32(0)  # NaN too
            place = place if place < np.float32(GRID) else np.float32(GRID)
            k = np.uint32(np.int32(place))
            fraction = (np.float32(drawn[i]) + np.float32(0.5)) * np.float32(2.0**-16)
            # the place among the codes; cut off with a fraction on top, it rounds at random
            place = place * _LINES[0, k] + _LINES[1, k] + fraction
            codes[i] = np.uint8(min(place, np.float32(15)))
            x[i] -= values[t, codes[i]]
        # the rest is the error, still rotated: the inverse makes it that of the tensor
        _rotate(x, first, signs[t], True)
        put_chunk(codes, x.size, _BITS, first, out[at[t] :])
