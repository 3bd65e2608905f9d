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
2^stages elements that are 32 apart. The last elements of a tensor are transformed in parts of
powers of two, so that nothing is padded. A worker's own rounding is independent of the others'.

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
from gcsim.compressors.coding.frame import Codec, from_bytes, pack_frame
from gcsim.compressors.coding.integers.packing import pack_bits, unpack_bits
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.rounding.rotated import rotate_back, round_rotated
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
    written_back,
)
from gcsim.compressors.meter import kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllReduce, Exchange, PushPull
from gcsim.compressors.sharing import fill_once
from gcsim.errors import InputError

_ANSWER = 128  # added to the flags of what the server returns


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
