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
beyond t_p. e holds what was lost, clamp and rounding.

T has 2^bits of the integers 0 … g, chosen by dynamic programming such that the mean square error
of a normal variable on [-t_p, t_p] is least.

Assumes the transform in parts, as the authors' code has it: `stages` butterflies, here of
2^stages elements that are `LANES` apart, so that every addition is one of whole stretches of
memory. The last elements of a tensor are transformed in parts of powers of two, each over as many
of its stages as it has: nothing is padded, and the transform of any length is orthogonal. Rotation,
rounding and what the rounding loses, rotated back, are one pass over parts that stay in the
processor's cache. A worker's own rounding is independent of the others'. Works in host memory.

Source: M. Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic
Compression", NSDI 2024, arXiv:2302.08545; transform in parts as in the authors' BytePS_THC.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gcsim.compressors.base import About, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.packing import damaged, pack_bits, packed_bytes, unpack_bits
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.coding.rounding.truncated_normals import best_grid_points
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    FLOAT32_MAX,
    SUM_BLOCK,
    array,
    in_parallel,
    in_tiles,
    loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import bits64
from gcsim.compressors.requests import AllReduce, Exchange, PushPull
from gcsim.compressors.segments import Segments, keys_of
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
        p, me, layout, segments = (
            self.parameters, self.worker, bucket.layout, Segments.of(bucket.layout),
        )  # fmt: skip
        held = self.corrected(bucket) if p.error_feedback else bucket.gradient.clone()
        norms = yield AllReduce(tensor=cell_norms(held, segments.whole, "l2"), op="max")
        most = p.half_range * array(norms).astype(float) / np.sqrt(np.maximum(segments.length, 1))
        signs = keys_of(layout, me.seed, step, "thc signs", None)
        rounding = keys_of(layout, me.seed, step, "thc rounding", me.rank)
        codes = round_rotated(held, segments, p, most, signs, rounding)
        packed = [pack_bits(own, p.bits) for _, own in layout.views(codes) if own.numel()]
        sizes: Any = packed_bytes(segments.length, p.bits)
        message, at = frames(held, Codec.THC, segments, sizes, flags=p.bits, params=p.granularity)
        put(message, at, torch.cat([codes[:0], *packed]), sizes)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            return summed(payloads, layout, p, me.count)

        answer = yield PushPull(
            payload=seal(message, at, sizes), server=serve, without_server="alltoall_allgather"
        )
        update = torch.empty_like(bucket.gradient)
        return fill_once(_write_update, answer, update, layout, p, me.count, most, signs)


def summed(
    payloads: Iterable[Tensor], layout: BucketLayout, parameters: ThcParameters, count: int
) -> Tensor:
    """The server's answer: sums of the integers that codes stand for."""
    p, segments, total = parameters, Segments.of(layout), torch.zeros(0)
    dtype, sizes = sum_dtype(p.granularity, count), packed_bytes(segments.length, p.bits)
    for payload in payloads:
        found = read(payload, layout, Codec.THC)
        if (found.flags != p.bits).any() or (found.params != p.granularity).any():
            raise damaged(f"{found.flags} bits on grids of {found.params}")
        found.demand_sizes(sizes)
        bodies = torch.split(taken(payload, found.at, sizes, torch.uint8), sizes.tolist())
        pairs = zip(bodies, segments.length.tolist(), strict=True)
        codes = [unpack_bits(body, n, p.bits) for body, n in pairs if n]
        if not total.numel():
            total = payload.new_zeros(layout.numel, dtype=dtype)
        add_integers(total, torch.cat([payload[:0], *codes]), lookup_table(p))
    flags, sizes = _ANSWER + dtype.itemsize, dtype.itemsize * segments.length
    message, at = frames(total, Codec.THC, segments, sizes, flags=flags, params=p.granularity)
    put(message, at, total, sizes)
    return seal(message, at, sizes)


def _write_update(
    answer: Tensor, out: Tensor, layout: BucketLayout, parameters: ThcParameters, count: int,
    most: Numbers, signs: Keys,
) -> None:  # fmt: skip
    sums = read_answer(answer, layout, parameters.granularity, count)
    step = 2 * most / (parameters.granularity * count)
    rotate_back(out, sums, Segments.of(layout), parameters.stages, step, most, signs)


def read_answer(answer: Tensor, layout: BucketLayout, grid: int, count: int) -> Tensor:
    """The sums of integers `[numel]`; raises `InputError` when they cannot be such."""
    dtype, found = sum_dtype(grid, count), read(answer, layout, Codec.THC)
    if (found.flags != _ANSWER + dtype.itemsize).any() or (found.params != grid).any():
        raise damaged(f"flags {found.flags}, grids {found.params}")
    found.demand_sizes(dtype.itemsize * Segments.of(layout).length)
    total = taken(answer, found.at, found.size, dtype)
    if total.numel() and not 0 <= int(total.min()) <= int(total.max()) <= grid * count:
        raise damaged(f"a sum outside 0 … {grid * count}")
    return total


def sum_dtype(grid: int, count: int) -> torch.dtype:
    """Type of a sum of `count` integers 0 … grid."""
    most = grid * count
    return torch.uint8 if most < 1 << 8 else torch.int16 if most < 1 << 15 else torch.int32


@cache
def lookup_table(parameters: ThcParameters) -> NDArray[np.uint8]:
    """T: the integers that the codes stand for, ascending from 0 to g; uint8 `[2^bits]`."""
    return best_grid_points(2**parameters.bits, parameters.granularity, parameters.half_range)


@kernel("streaming", updates=("total",))
def add_integers(total: Tensor, codes: Tensor, table: NDArray[np.uint8]) -> None:
    """total += table[codes], in place: integers `[n]`, uint8 `[n]`."""
    with written_back(total) as target:
        in_parallel(_add_integers, target.size, target, array(codes), table)


@kernel("streaming", updates=("held",), name="rotated.round_rotated")
def round_rotated(
    held: Tensor, segments: Segments, parameters: ThcParameters, most: Numbers, signs: Keys,
    rounding: Keys,
) -> Tensor:  # fmt: skip
    """Codes of rotated tensors: uint8 `[numel]`; `held` (float32) keeps what they lose.

    `most` is M, half the range in which a tensor's values are represented; `signs` and `rounding`
    are keys of random numbers, the first the same on all workers.
    """
    count_random(held.numel(), 16)
    count_random(held.numel(), 1)
    table, grid = lookup_table(parameters), parameters.granularity
    index = np.minimum(
        np.searchsorted(table, np.arange(grid + 1), side="right") - 1, len(table) - 2
    )
    # between two integers of the table the code is a linear function of t: slopes and offsets
    slopes = 1 / (table[index + 1].astype(np.float64) - table[index])
    lines = np.stack((slopes, index - slopes * table[index])).astype(np.float32)
    scales = np.minimum(grid / (2 * np.where(most > 0, most, np.inf)), FLOAT32_MAX)
    values = ((2 * most / grid)[:, None] * table - most[:, None]).astype(np.float32)
    codes = np.empty(held.numel(), dtype=np.uint8)
    with written_back(held) as target:
        in_tiles(
            _round_parts, parts_of(segments, parameters.stages), segments.table,
            parameters.stages, target, codes, scales.astype(np.float32), lines, values, signs,
            rounding,
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
            _rotate_parts_back, parts_of(segments, stages), segments.table, stages, target,
            array(sums), step.astype(np.float32), most.astype(np.float32), signs,
        )  # fmt: skip


@lru_cache(maxsize=1 << 6)
def parts_of(segments: Segments, stages: int) -> NDArray[np.int64]:
    """Parts to transform: tensor, first element, element behind the last, `[parts, 3]`."""
    parts = []
    for t, n in enumerate(segments.length.tolist()):
        size, first = LANES << stages, 0
        while first < n:
            while first + size > n:
                size //= 2
            parts.append((t, first, first + size))
            first += size
    return np.array(parts, dtype=np.int64).reshape(-1, 3)


@loop
def _add_integers(start: int, stop: int, total: Any, codes: Any, table: Any) -> None:
    integers = np.empty(SUM_BLOCK, dtype=np.uint8)
    for first in range(start, stop, SUM_BLOCK):
        own, part = codes[first : min(first + SUM_BLOCK, stop)], total[first:stop]
        for i in range(own.size):
            integers[i] = table[own[i]]
        for i in range(own.size):
            part[i] += integers[i]


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
    words = x.view(np.uint32)
    if words.size < 64:
        for i in range(words.size):
            bits = bits64(key, (first + i) >> 6) >> np.uint64((first + i) & 63)
            words[i] ^= np.uint32(bits & np.uint64(1)) << np.uint32(31)
        return
    for part in range(words.size // 64):
        own = words[64 * part : 64 * part + 64]
        bits = bits64(key, (first >> 6) + part)
        low, high = np.uint32(bits & np.uint64(0xFFFFFFFF)), np.uint32(bits >> np.uint64(32))
        for i in range(32):
            own[i] ^= np.uint32(np.uint32(low << np.uint32(31 - i)) & np.uint32(0x80000000))
        for i in range(32):
            own[32 + i] ^= np.uint32(np.uint32(high << np.uint32(31 - i)) & np.uint32(0x80000000))


@loop
def _round_parts(
    start: int, stop: int, parts: Any, table: Any, stages: int, held: Any, codes: Any, scales: Any,
    lines: Any, values: Any, signs: Any, rounding: Any,
) -> None:  # fmt: skip
    slopes, offsets = lines[0], lines[1]
    grid, last = np.float32(slopes.size - 1), np.float32(values.shape[1] - 1)
    words = np.empty((LANES << stages) // 4 + 1, dtype=np.uint64)
    random = words.view(np.uint16)
    room, code = np.empty(LANES << stages, np.float32), np.empty(LANES << stages, np.int32)
    # Look-ups have loops of their own: what surrounds them is vectorised.
    for part in range(start, stop):
        tensor, first, behind = parts[part]
        begin, size = table[tensor, 0] + first, behind - first
        x, own, t = held[begin : begin + size], codes[begin : begin + size], room[:size]
        lanes = max(1, size >> stages)
        root = np.float32(1 / np.sqrt(size / lanes))
        factor, middle = root * scales[tensor], grid * np.float32(0.5)
        for j in range(size // 4 + 1):
            words[j] = bits64(rounding[tensor], first // 4 + j)
        shift = first % 4  # not zero only in parts of one or two elements
        drawn = random[shift : shift + size]
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


@loop
def _rotate_parts_back(
    start: int, stop: int, parts: Any, table: Any, stages: int, out: Any, sums: Any, step: Any,
    most: Any, signs: Any,
) -> None:  # fmt: skip
    for part in range(start, stop):
        tensor, first, behind = parts[part]
        begin, size = table[tensor, 0] + first, behind - first
        x, own = out[begin : begin + size], sums[begin : begin + size]
        lanes = max(1, size >> stages)
        root, slope, offset = np.float32(1 / np.sqrt(size / lanes)), step[tensor], most[tensor]
        for i in range(x.size):
            x[i] = (np.float32(own[i]) * slope - offset) * root
        _hadamard(x, lanes)
        _flip(x, first, signs[tensor])
