"""THC: a parameter server adds up 4-bit codes without decoding them.

Every worker holds a = g + e (error feedback) of a tensor of n elements, and an all-reduce tells the
largest of their norms |a|. Then, with the same random signs and the same range on all workers,

    y = H D a            randomised Hadamard transform: elements are about N(0, |a|^2 / n)
    t = clamp(y / M, -1, 1) on a grid of 0 … g,  M = t_p max|a| / sqrt(n)
    t becomes one of the two neighbouring integers of a table T, at random so that the mean is
    right; its index in T is the code of 4 bits

The server looks the codes up, adds the integers and returns their sums (8 bits while g N < 256,
else 16), from which every worker computes the mean, and e = a - what it sent itself. 4 n bits and
32 for the norm up, 8 n down. Only the clamp makes it biased: a fraction p of a normal variable lies
beyond t_p. T has 2^bits of the integers 0 … g, chosen by dynamic programming such that the mean
square error of a normal variable on [-t_p, t_p] is least.

Assumes the transform in parts, as the authors' code has it: `stages` butterflies of elements that
are `LANES` apart. The last elements of a tensor are transformed in parts of powers of two, each
over as many of its stages as it has: nothing is padded, and the transform is orthogonal. A
worker's own rounding is independent of the others'. Works in host memory.

Source: M. Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic
Compression", NSDI 2024, arXiv:2302.08545; transform in parts as in the authors' BytePS_THC.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gcsim.compressors.base import About, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.digits import get_chunk, put_chunk
from gcsim.compressors.coding.integers.packing import damaged, demand_no_stray, packed_bytes
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.coding.rounding.truncated_normals import best_grid_points
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import FLOAT32_MAX, array, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import bits64
from gcsim.compressors.requests import AllReduce, Exchange, PushPull
from gcsim.compressors.segments import TILE, Column, Segments, keys_of, starts
from gcsim.compressors.sharing import fill_once

_ANSWER = 128  # added to the flags of what the server returns
LANES = 32
"""Distance of the elements of a transform: so many transforms go side by side."""
Keys = NDArray[np.uint64]
Numbers = NDArray[np.float64]
"""One a tensor, as keys are."""


class ThcParameters(CompressorParameters):
    bits: int = Field(4, ge=2, le=8, description="bits of a code on the way up: 2^bits values")
    granularity: int = Field(30, ge=1, le=255, description="g: tables hold integers 0 … g")
    overflow: float = Field(
        1 / 32, gt=0, lt=1, description="p, fraction of a normal variable that is clamped"
    )
    stages: int = Field(10, ge=0, le=13, description="butterflies of the Hadamard transform")
    error_feedback: bool = Field(True, description="add what was lost to the next gradient")

    @model_validator(mode="after")
    def _table_fits(self) -> ThcParameters:
        if self.granularity < 2**self.bits - 1:
            raise ValueError(f"granularity must be at least 2^bits - 1 = {2**self.bits - 1}")
        return self

    @property
    def half_range(self) -> float:
        """t_p: a standard normal variable is beyond -t_p … t_p with probability p."""
        return -NormalDist().inv_cdf(self.overflow / 2)


class Thc(ErrorFeedback[ThcParameters]):
    """Rotated, clamped and rounded to integers that a server can add."""

    about = About(
        title="THC",
        family="quantization",
        collective="all-reduce (norms), push-pull of codes and sums",
        without_server="alltoall_allgather",
        bits="bits + 32 / n up; 8 down (16 from 256 / granularity workers on)",
        state="error (n)",
        paper="Li et al., NSDI 2024, arXiv:2302.08545",
    )

    @classmethod
    def properties(cls, parameters: ThcParameters) -> Properties:
        return Properties(conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        p, me, layout = self.parameters, self.worker, bucket.layout
        segments = Segments.of(layout)
        held = self.corrected(bucket) if p.error_feedback else bucket.gradient.clone()
        norms = yield AllReduce(tensor=cell_norms(held, segments.whole, "l2"), op="max")
        most = p.half_range * array(norms).astype(float) / np.sqrt(np.maximum(segments.length, 1))
        signs = keys_of(layout, me.seed, step, "thc signs", None)
        rounding = keys_of(layout, me.seed, step, "thc rounding", me.rank)
        codes = round_rotated(held, segments, p, most, signs, rounding)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            total = held.new_zeros(layout.numel, dtype=sum_dtype(p.granularity, me.count))
            for payload in payloads:
                _add_payload(total, payload, layout, p)
            return _message(total, segments, total.element_size() * segments.length,
                            _ANSWER + total.element_size(), p)  # fmt: skip

        message = _message(codes, segments, packed_bytes(segments.length, p.bits), p.bits, p)
        answer = yield PushPull(payload=message, server=serve, without_server="alltoall_allgather")
        update = torch.empty_like(bucket.gradient)
        return fill_once(write_update, answer, update, layout, p, me.count, most, signs)


def _message(
    bodies: Tensor, segments: Segments, sizes: Column, flags: int, p: ThcParameters
) -> Tensor:
    message, at = frames(bodies, Codec.THC, segments, sizes, flags=flags, params=p.granularity)
    put(message, at, bodies, sizes)
    return seal(message, at, sizes)


def _add_payload(total: Tensor, payload: Tensor, layout: BucketLayout, p: ThcParameters) -> None:
    found, length = read(payload, layout, Codec.THC), Segments.of(layout).length
    if (found.flags != p.bits).any() or (found.params != p.granularity).any():
        raise damaged(f"{found.flags} bits on grids of {found.params}")
    found.demand_sizes(packed_bytes(length, p.bits))
    demand_no_stray(array(payload), found.at, length, p.bits)
    add_integers(total, Segments.of(layout), payload, found.at, p)


def write_update(
    answer: Tensor, out: Tensor, layout: BucketLayout, parameters: ThcParameters, count: int,
    most: Numbers, signs: Keys,
) -> None:  # fmt: skip
    """The mean of `count` workers, float32 `[numel]`, from the server's answer.

    Raises `InputError` when its sums of integers cannot be such.
    """
    grid, segments = parameters.granularity, Segments.of(layout)
    dtype, found = sum_dtype(grid, count), read(answer, layout, Codec.THC)
    if (found.flags != _ANSWER + dtype.itemsize).any() or (found.params != grid).any():
        raise damaged(f"flags {found.flags}, grids {found.params}")
    found.demand_sizes(dtype.itemsize * segments.length)
    sums = taken(answer, found.at, found.size, dtype)
    if sums.numel() and not 0 <= int(sums.min()) <= int(sums.max()) <= grid * count:
        raise damaged(f"a sum outside 0 … {grid * count}")
    rotate_back(out, sums, segments, parameters.stages, 2 * most / (grid * count), most, signs)


def sum_dtype(grid: int, count: int) -> torch.dtype:
    """Type of a sum of `count` integers 0 … grid."""
    most = grid * count
    return torch.uint8 if most < 1 << 8 else torch.int16 if most < 1 << 15 else torch.int32


@cache
def lookup_table(parameters: ThcParameters) -> NDArray[np.uint8]:
    """T: the integers that the codes stand for, ascending from 0 to g; uint8 `[2^bits]`."""
    return best_grid_points(2**parameters.bits, parameters.granularity, parameters.half_range)


@kernel("streaming", updates=("total",))
def add_integers(
    total: Tensor, segments: Segments, packed: Tensor, at: Column, parameters: ThcParameters
) -> None:
    """total += the integers of codes, integers `[numel]`; a tensor's codes begin at byte `at`."""
    with written_back(total) as target:
        in_tiles(
            _add_integers, segments.tiles, segments.table, array(packed), at, parameters.bits,
            lookup_table(parameters), target,
        )  # fmt: skip


@kernel("streaming", updates=("held",), name="rotated.round_rotated")
def round_rotated(
    held: Tensor, segments: Segments, parameters: ThcParameters, most: Numbers, signs: Keys,
    rounding: Keys,
) -> Tensor:  # fmt: skip
    """Packed codes of rotated tensors, uint8; `held` (float32) keeps what they lose.

    `most` is M, half the range in which a tensor's values are represented; `signs` and `rounding`
    are keys of random numbers, the first the same on all workers.
    """
    for random_bits in (16, 1):
        count_random(held.numel(), random_bits)
    p, table, grid = parameters, lookup_table(parameters), parameters.granularity
    below = np.searchsorted(table, np.arange(grid + 1), side="right") - 1
    index = np.minimum(below, len(table) - 2)
    # between two integers of the table the code is a linear function of t: slopes and offsets
    slopes = 1 / (table[index + 1].astype(np.float64) - table[index])
    lines = np.stack((slopes, index - slopes * table[index])).astype(np.float32)
    scales = np.minimum(grid / (2 * np.where(most > 0, most, np.inf)), FLOAT32_MAX)
    values = ((2 * most / grid)[:, None] * table - most[:, None]).astype(np.float32)
    sizes = packed_bytes(segments.length, p.bits)
    codes = np.empty(int(sizes.sum()), dtype=np.uint8)
    with written_back(held) as target:
        in_tiles(
            _round, segments.cells(LANES << p.stages).tiles, segments.table, p.stages, target,
            scales.astype(np.float32), lines, values, signs, rounding, p.bits, starts(sizes), codes,
        )  # fmt: skip
    return tensor(codes, held)


@kernel("streaming", updates=("out",), name="rotated.rotate_back")
def rotate_back(
    out: Tensor, sums: Tensor, segments: Segments, stages: int, step: Numbers, most: Numbers,
    signs: Keys,
) -> None:  # fmt: skip
    """out = the inverse transform of step * sums - most; float32 and integers `[numel]`."""
    count_random(out.numel(), 1)
    with written_back(out) as target:
        in_tiles(
            _rotate_back, segments.cells(LANES << stages).tiles, segments.table, stages, target,
            array(sums), step.astype(np.float32), most.astype(np.float32), signs,
        )  # fmt: skip


@loop
def _add_integers(
    start: int, stop: int, tiles: Any, table: Any, packed: Any, at: Any, bits: int, integers: Any,
    total: Any,
) -> None:  # fmt: skip
    codes = np.empty(TILE, dtype=np.uint8)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        part = total[table[t, 0] + first : table[t, 0] + last]
        get_chunk(packed[at[t] :], first, part.size, bits, codes)
        for i in range(part.size):
            codes[i] = integers[codes[i]]
        for i in range(part.size):
            part[i] += codes[i]


@loop
def _hadamard(x: Any, distance: int) -> None:
    """In place: butterflies over `distance`, twice that, … up to half of x; two at a time."""
    size = x.size
    while 4 * distance <= size:
        for base in range(0, size, 4 * distance):
            a, b = x[base : base + distance], x[base + distance : base + 2 * distance]
            c = x[base + 2 * distance : base + 3 * distance]
            d = x[base + 3 * distance : base + 4 * distance]
            for i in range(a.size):
                p, q, r, s = a[i] + b[i], a[i] - b[i], c[i] + d[i], c[i] - d[i]
                a[i], b[i], c[i], d[i] = p + r, q + s, p - r, q - s
        distance *= 4
    if 2 * distance <= size:
        a, b = x[:distance], x[distance:]
        for i in range(a.size):
            a[i], b[i] = a[i] + b[i], a[i] - b[i]


@loop
def _flip(x: Any, first: int, key: Any) -> None:
    """Change the sign of every element whose random bit (number `first` on) is set."""
    for at in range(0, x.size, 32):
        words = x[at : at + 32].view(np.uint32)
        bits = np.uint32(bits64(key, (first + at) >> 6) >> np.uint64((first + at) & 63))
        for i in range(words.size):
            words[i] ^= np.uint32(bits >> np.uint32(i)) << np.uint32(31)


@loop
def _part(left: int, stages: int) -> int:
    """Elements that are transformed together: a power of two, at most all that are left."""
    size = LANES << stages
    while size > left:
        size //= 2
    return size


@loop
def _round(
    start: int, stop: int, tiles: Any, table: Any, stages: int, held: Any, scales: Any, lines: Any,
    values: Any, signs: Any, rounding: Any, bits: int, at: Any, out: Any,
) -> None:  # fmt: skip
    slopes, offsets = lines[0], lines[1]
    grid, last = np.float32(slopes.size - 1), np.float32(values.shape[1] - 1)
    words = np.empty((LANES << stages) // 4 + 1, dtype=np.uint64)
    room, code = np.empty(LANES << stages, np.float32), np.empty(LANES << stages, np.int32)
    packed = np.empty(max(TILE, LANES << stages), dtype=np.uint8)
    # Look-ups have loops of their own: what surrounds them is vectorised.
    for tile in range(start, stop):
        tensor, begin, end = tiles[tile]
        first = begin
        while first < end:
            size = _part(end - first, stages)
            x, t = held[table[tensor, 0] + first : table[tensor, 0] + first + size], room[:size]
            own, lanes = packed[first - begin : first - begin + size], max(1, size >> stages)
            root = np.float32(1 / np.sqrt(size / lanes))
            factor, middle = root * scales[tensor], grid * np.float32(0.5)
            for j in range(size // 4 + 1):
                words[j] = bits64(rounding[tensor], first // 4 + j)
            drawn = words.view(np.uint16)[first % 4 :]  # from there on only in the last parts
            _flip(x, first, signs[tensor])
            _hadamard(x, lanes)
            for i in range(x.size):  # from -M … M to the grid's 0 … g, clamped
                place = x[i] * factor + middle
                place = place if place > np.float32(0) else np.float32(0)  # NaN too
                t[i] = place if place < grid else grid
            for i in range(t.size):  # from the grid to the codes, which lie at uneven points of it
                k = np.uint32(np.int32(t[i]))
                t[i] = t[i] * slopes[k] + offsets[k]
            for i in range(x.size):
                fraction = (np.float32(drawn[i]) + np.float32(0.5)) * np.float32(2.0**-16)
                code[i] = np.int32(min(t[i] + fraction, last))
            for i in range(t.size):
                t[i] = values[tensor, np.uint32(code[i])]
            for i in range(x.size):  # what is lost, to be rotated back
                x[i] = (x[i] * root - t[i]) * root
                own[i] = code[i]
            _hadamard(x, lanes)
            _flip(x, first, signs[tensor])
            first += size
        put_chunk(packed, end - begin, bits, begin, out[at[tensor] :])


@loop
def _rotate_back(
    start: int, stop: int, tiles: Any, table: Any, stages: int, out: Any, sums: Any, step: Any,
    most: Any, signs: Any,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        tensor, first, end = tiles[tile]
        while first < end:
            size = _part(end - first, stages)
            begin, lanes = table[tensor, 0] + first, max(1, size >> stages)
            x, own = out[begin : begin + size], sums[begin : begin + size]
            root, slope, offset = np.float32(1 / np.sqrt(size / lanes)), step[tensor], most[tensor]
            for i in range(x.size):
                x[i] = (np.float32(own[i]) * slope - offset) * root
            _hadamard(x, lanes)
            _flip(x, first, signs[tensor])
            first += size
