"""THC: a parameter server adds up 4-bit codes without decoding them.

Every worker holds a = g + e (error feedback) of a tensor of n elements, and an all-reduce tells the
largest of their norms |a|. Then, with the same random signs and the same range on all workers,

    y = H D a            randomised Hadamard transform: elements are about N(0, |a|^2 / n)
    t = clamp(y / M, -1, 1) on a grid of 0 … g,  M = t_p max|a| / sqrt(n)
    t becomes one of the two neighbouring integers of a table T, at random so that the mean is
    right; its index in T is the code of 4 bits

The server looks the codes up, adds the integers and returns their sums (8 bits while g N < 256,
else 16), from which every worker computes the mean, and e = a - what it sent itself. 4 n bits and
32 for the norm up, 8 n down. Or an all-reduce adds up the integers themselves, 8 n. Only the clamp
makes it biased: a fraction p of a normal variable lies beyond t_p. e holds what was lost, clamp and
rounding.

T has 2^bits of the integers 0 … g, chosen by dynamic programming such that the mean square error
of a normal variable on [-t_p, t_p] is least. `uniform` takes all of 0 … 2^bits - 1 instead.

Assumes the transform in parts, as the authors' code has it: `stages` butterflies, here of
2^stages elements that are `LANES` apart, so that every addition is one of whole stretches of
memory. The last elements of a tensor are transformed in parts of powers of two, each over as many
of its stages as it has: nothing is padded, and the transform of any length is orthogonal. Rotation,
rounding and what the rounding loses, rotated back, are one pass over parts that stay in the
processor's cache. A worker's own rounding is independent of the others'.

Source: M. Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic
Compression", NSDI 2024, arXiv:2302.08545; transform in parts as in the authors' BytePS_THC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gcsim.compressors.base import About, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.frames import Codec, frames_of, from_bytes, pack_frame
from gcsim.compressors.coding.integers.packing import pack_bits, unpack_bits
from gcsim.compressors.coding.rounding.truncated_normals import best_grid_points
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    FLOAT32_MAX,
    SUM_BLOCK,
    array,
    in_parallel,
    loop,
    partial_sums,
    summing_loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import bits64, random_key
from gcsim.compressors.requests import AllReduce, Exchange, PushPull
from gcsim.compressors.sharing import fill_once
from gcsim.errors import InputError

_ANSWER = 128  # added to the flags of what the server returns
LANES = 32
"""Distance of the elements of a transform: so many transforms go side by side."""


class ThcParameters(CompressorParameters):
    bits: int = Field(4, ge=2, le=8, description="bits of a code on the way up: 2^bits values")
    granularity: int = Field(
        30, ge=1, le=255, description="g: tables hold integers 0 … g (uniform: 2^bits - 1)"
    )
    table: Literal["optimal", "uniform"] = Field(
        "optimal", description="optimal: least error of a normal variable; uniform: evenly spaced"
    )
    overflow: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="p, fraction of a normal variable that is clamped; null: 1/32, uniform 1/10000",
    )
    stages: int = Field(10, ge=0, le=13, description="butterflies of the Hadamard transform")
    error_feedback: bool = Field(True, description="add what was lost to the next gradient")
    aggregation: Literal["push_pull", "all_reduce"] = Field(
        "push_pull",
        description="push_pull: a server adds up what the codes stand for; all_reduce: the "
        "integers of the table are summed on the way (8, 16 or 32 bits)",
    )

    @model_validator(mode="after")
    def _table_fits(self) -> ThcParameters:
        if self.table == "optimal" and self.granularity < 2**self.bits - 1:
            raise ValueError(f"granularity must be at least 2^bits - 1 = {2**self.bits - 1}")
        return self

    @property
    def grid(self) -> int:
        """g, the largest integer of the table."""
        return 2**self.bits - 1 if self.table == "uniform" else self.granularity

    @property
    def half_range(self) -> float:
        """t_p: a standard normal variable is beyond -t_p … t_p with probability p."""
        p = self.overflow or (1e-4 if self.table == "uniform" else 1 / 32)
        return -NormalDist().inv_cdf(p / 2)


class Thc(ErrorFeedback[ThcParameters]):
    """Rotated, clamped and rounded to integers that a server can add."""

    about = About(
        title="THC",
        family="quantization",
        collective="all-reduce (norms), push-pull of codes and sums (or all-reduce of integers)",
        without_server="alltoall_allgather",
        bits="bits + 32 / n up; 8 down (16 from 256 / granularity workers on); all_reduce: 8 (16)",
        state="error (n)",
        paper="Li et al., NSDI 2024, arXiv:2302.08545",
    )

    def __init__(self, worker: Worker, parameters: ThcParameters) -> None:
        super().__init__(worker, parameters)
        self.table = lookup_table(parameters)
        self.sum_dtype = sum_dtype(parameters.grid, worker.count)

    @classmethod
    def properties(cls, parameters: ThcParameters) -> Properties:
        return Properties(conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout = bucket.layout
        if self.parameters.error_feedback:
            held = bucket_state(self.residual, bucket)
        else:
            held = torch.zeros_like(bucket.gradient)
        views = layout.views(held)
        found = [add_and_measure(p, piece.of(bucket.gradient)) for piece, p in views]
        norms = yield AllReduce(tensor=torch.tensor(found, device=held.device), op="max")
        ranges = [
            self.parameters.half_range * norm / math.sqrt(max(piece.numel, 1))
            for piece, norm in zip(layout.slices, norms.tolist(), strict=True)
        ]
        codes = self._codes(held, layout, ranges, step)
        if self.parameters.aggregation == "all_reduce":
            integers = torch.zeros_like(held, dtype=self.sum_dtype)
            for (_, part), own in zip(layout.views(integers), codes, strict=True):
                add_integers(part, own, self.table)
            answer = yield AllReduce(tensor=integers)
        else:

            def serve(payloads: Iterable[Tensor]) -> Tensor:
                return self._serve(held, layout, payloads)

            own = self._message(codes, layout)
            answer = yield PushPull(payload=own, server=serve, without_server="alltoall_allgather")
        place = self.worker.seed, step
        given = layout, self.parameters, self.worker.count, ranges, place
        return fill_once(_write_update, answer, torch.empty_like(bucket.gradient), *given)

    def _codes(
        self, held: Tensor, layout: BucketLayout, ranges: list[float], step: int
    ) -> Iterator[Tensor]:
        """Each tensor's codes, uint8; `held` keeps what they lose."""
        me, grid, stages = self.worker, self.parameters.grid, self.parameters.stages
        for (piece, part), most in zip(layout.views(held), ranges, strict=True):
            yield round_rotated(
                part, most=most, table=self.table, grid=grid, stages=stages,
                signs=_signs(me.seed, step, piece.index),
                rounding=random_key(me.seed, step, piece.index, "thc rounding", me.rank),
            )  # fmt: skip

    def _message(self, codes: Iterable[Tensor], layout: BucketLayout) -> Tensor:
        """What the server gets: packed codes, uint8, one frame a tensor."""
        bits, grid, frames = self.parameters.bits, self.parameters.grid, []
        for piece, own in zip(layout.slices, codes, strict=True):
            body = pack_bits(own, bits) if piece.numel else own
            frames.append(pack_frame(Codec.THC, body, numel=piece.numel, flags=bits, params=grid))
        return torch.cat(frames)

    def _serve(self, like: Tensor, layout: BucketLayout, payloads: Iterable[Tensor]) -> Tensor:
        """The server's step: sums of the table's integers, on the device of `like`."""
        chosen = self.parameters
        sums = [
            torch.zeros(piece.numel, dtype=self.sum_dtype, device=like.device)
            for piece in layout.slices
        ]
        for payload in payloads:
            frames = frames_of(payload, layout, Codec.THC)
            for total, (piece, frame) in zip(sums, frames, strict=True):
                if (frame.flags, frame.params) != (chosen.bits, chosen.grid):
                    raise InputError(
                        f"damaged payload: {frame.flags} bits on a grid of {frame.params}"
                    )
                if piece.numel:
                    codes = unpack_bits(frame.body, piece.numel, chosen.bits)
                    add_integers(total, codes, self.table)
                elif frame.body.numel():
                    raise InputError("damaged payload: codes of no element")
        answers, flags = [], _ANSWER + self.sum_dtype.itemsize
        for total in sums:
            n, body = total.numel(), total.view(torch.uint8)
            answers.append(pack_frame(Codec.THC, body, numel=n, flags=flags, params=chosen.grid))
        return torch.cat(answers)


def _write_update(
    answer: Tensor, out: Tensor, layout: BucketLayout, chosen: ThcParameters, count: int,
    ranges: list[float], place: tuple[int, int],
) -> None:  # fmt: skip
    """The vectors whose integers were summed, by the all-reduce or by the server."""
    if chosen.aggregation == "all_reduce":
        sums = [part for _, part in layout.views(answer)]
    else:
        sums = read_answer(answer, layout, chosen.grid, count)
    levels = chosen.grid * count
    for (piece, part), own, most in zip(layout.views(out), sums, ranges, strict=True):
        signs = _signs(*place, piece.index)
        rotate_back(part, own, step=2 * most / levels, most=most, stages=chosen.stages, signs=signs)


def read_answer(answer: Tensor, layout: BucketLayout, grid: int, count: int) -> list[Tensor]:
    """The sums of each tensor's integers; raises `InputError` when they cannot be such."""
    dtype, sums = sum_dtype(grid, count), []
    for piece, frame in frames_of(answer, layout, Codec.THC):
        if (frame.flags, frame.params) != (_ANSWER + dtype.itemsize, grid):
            raise InputError(f"damaged payload: flags {frame.flags}, grid {frame.params}")
        total = from_bytes(frame.body, dtype, piece.numel)
        if piece.numel and not 0 <= int(total.min()) <= int(total.max()) <= grid * count:
            raise InputError(f"damaged payload: a sum outside 0 … {grid * count}")
        sums.append(total)
    return sums


def _signs(seed: int, step: int, index: int) -> np.uint64:
    return random_key(seed, step, index, "thc signs")


def sum_dtype(grid: int, count: int) -> torch.dtype:
    """What a sum of `count` integers 0 … grid travels as."""
    most = grid * count
    return torch.uint8 if most < 1 << 8 else torch.int16 if most < 1 << 15 else torch.int32


@cache
def lookup_table(parameters: ThcParameters) -> NDArray[np.uint8]:
    """T: the integers that the codes stand for, ascending from 0 to g; uint8 `[2^bits]`."""
    return best_grid_points(2**parameters.bits, parameters.grid, parameters.half_range)


@kernel("reduction", updates=("held",))
def add_and_measure(held: Tensor, gradient: Tensor) -> float:
    """held += gradient, in place (float32 `[n]`); the norm of the sum, at most float32's range."""
    sums = partial_sums(gradient.numel())
    with written_back(held) as target:
        in_parallel(_add_and_square, target.size, target, array(gradient), sums)
    return min(math.sqrt(float(sums.sum())), FLOAT32_MAX)


@kernel("streaming", updates=("total",))
def add_integers(total: Tensor, codes: Tensor, table: NDArray[np.uint8]) -> None:
    """total += table[codes], in place: integers `[n]`, uint8 `[n]`."""
    with written_back(total) as target:
        in_parallel(_add_integers, target.size, target, array(codes), table)


@summing_loop
def _add_and_square(start: int, stop: int, held: Any, gradient: Any, sums: Any) -> None:
    for first in range(start, stop, SUM_BLOCK):
        block = held[first : min(first + SUM_BLOCK, stop)]
        added = gradient[first : min(first + SUM_BLOCK, stop)]
        total = 0.0
        for i in range(block.size):
            value = block[i] + added[i]
            block[i] = value
            total += np.float64(value) * np.float64(value)
        sums[first // SUM_BLOCK] = total


@loop
def _add_integers(start: int, stop: int, total: Any, codes: Any, table: Any) -> None:
    integers = np.empty(SUM_BLOCK, dtype=np.uint8)
    for first in range(start, stop, SUM_BLOCK):
        own, part = codes[first : min(first + SUM_BLOCK, stop)], total[first:stop]
        for i in range(own.size):
            integers[i] = table[own[i]]
        for i in range(own.size):
            part[i] += integers[i]


# --- rotation -------------------------------------------------------------------------------------


@kernel("streaming", updates=("held",), name="rotated.round_rotated")
def round_rotated(
    held: Tensor,
    *,
    most: float,
    table: NDArray[np.uint8],
    grid: int,
    stages: int,
    signs: np.uint64,
    rounding: np.uint64,
) -> Tensor:
    """Codes of a rotated vector: uint8 `[n]`; `held` (float32 `[n]`) keeps what they lose.

    Parameters
    ----------
    held : rotated, rounded and reduced by what the codes stand for, in place
    most : M, half the range in which values are represented
    table : the integers of the codes, 0 … grid
    signs, rounding : random keys, the first the same on all workers
    """
    n = held.numel()
    count_random(n, 16)
    count_random(n, 1)
    codes = np.empty(n, dtype=np.uint8)
    lines = lines_of(table.tobytes(), grid)
    scale = min(grid / (2 * most), FLOAT32_MAX) if most > 0 else 0.0
    numbers = np.array([scale, grid / 2, grid, len(table) - 1], dtype=np.float32)
    values = ((2 * most / grid) * table - most).astype(np.float32)
    with written_back(held) as target:
        for first, stop, size in pieces(n, stages):
            in_parallel(
                _round_rotated, stop - first, target[first:stop], codes[first:stop],
                np.int64(first), np.int64(size), np.int64(lanes_of(size, stages)), lines, values,
                numbers, signs, rounding, grain=size,
            )  # fmt: skip
    return tensor(codes, held)


@cache
def lines_of(integers: bytes, grid: int) -> NDArray[np.float32]:
    """Between two integers of a table the code is a linear function of t: slopes and offsets."""
    table = np.frombuffer(integers, dtype=np.uint8)
    index = np.searchsorted(table, np.arange(grid + 1), side="right") - 1
    index = np.minimum(index, len(table) - 2)
    slopes = 1 / (table[index + 1].astype(np.float64) - table[index])
    return np.stack((slopes, index - slopes * table[index])).astype(np.float32)


@kernel("streaming", updates=("out",), name="rotated.rotate_back")
def rotate_back(
    out: Tensor, sums: Tensor, *, step: float, most: float, stages: int, signs: np.uint64
) -> None:
    """out = the inverse transform of step * sums - most; float32 `[n]`, integers `[n]`."""
    n = out.numel()
    count_random(n, 1)
    integers = array(sums)
    with written_back(out) as target:
        for first, stop, size in pieces(n, stages):
            in_parallel(
                _rotate_back, stop - first, target[first:stop], integers[first:stop],
                np.int64(first), np.int64(size), np.int64(lanes_of(size, stages)), np.float32(step),
                np.float32(most), signs, grain=size,
            )  # fmt: skip


def pieces(n: int, stages: int) -> Iterable[tuple[int, int, int]]:
    """(first, stop, size): ranges to be transformed in parts of `size` elements, a power of two."""
    size, first = LANES << stages, 0
    while first < n:
        whole = (n - first) // size * size
        if whole:
            yield first, first + whole, size
        first += whole
        size //= 2


def lanes_of(size: int, stages: int) -> int:
    """Distance of the elements of a transform, in parts of `size` elements."""
    return max(1, size >> stages)


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
def _round_rotated(
    start: int, stop: int, held: Any, codes: Any, first: int, size: int, lanes: int, lines: Any,
    values: Any, numbers: Any, signs: Any, rounding: Any,
) -> None:  # fmt: skip
    scale, middle, grid, last = numbers
    slopes, offsets = lines[0], lines[1]
    root = np.float32(1 / np.sqrt(size / lanes))
    words = np.empty(size // 4 + 1, dtype=np.uint64)
    random = words.view(np.uint16)
    t = np.empty(size, dtype=np.float32)
    code = np.empty(size, dtype=np.int32)
    # Look-ups have loops of their own: what surrounds them is vectorised.
    for begin in range(start, stop, size):
        x, own = held[begin : begin + size], codes[begin : begin + size]
        for j in range(words.size):
            words[j] = bits64(rounding, (first + begin) // 4 + j)
        shift = (first + begin) % 4  # not zero only in parts of one or two elements
        drawn = random[shift : shift + size]
        _flip(x, first + begin, signs)
        _hadamard(x, lanes)
        for i in range(x.size):  # from -M … M to the grid's 0 … g, clamped
            place = x[i] * (root * scale) + middle
            place = place if place > np.float32(0) else np.float32(0)  # NaN too
            t[i] = place if place < grid else grid
        for i in range(t.size):  # from the grid to the codes, which lie at uneven points of it
            k = np.uint32(np.int32(t[i]))
            t[i] = t[i] * slopes[k] + offsets[k]
        for i in range(x.size):
            fraction = (np.float32(drawn[i]) + np.float32(0.5)) * np.float32(2.0**-16)
            code[i] = np.int32(min(t[i] + fraction, last))
        for i in range(t.size):
            t[i] = values[np.uint32(code[i])]
        for i in range(x.size):  # what is lost, to be rotated back
            x[i] = (x[i] * root - t[i]) * root
            own[i] = code[i]
        _hadamard(x, lanes)
        _flip(x, first + begin, signs)


@loop
def _rotate_back(
    start: int, stop: int, out: Any, sums: Any, first: int, size: int, lanes: int, step: Any,
    most: Any, signs: Any,
) -> None:  # fmt: skip
    root = np.float32(1 / np.sqrt(size / lanes))
    for begin in range(start, stop, size):
        x, own = out[begin : begin + size], sums[begin : begin + size]
        for i in range(x.size):
            x[i] = (np.float32(own[i]) * step - most) * root
        _hadamard(x, lanes)
        _flip(x, first + begin, signs)
