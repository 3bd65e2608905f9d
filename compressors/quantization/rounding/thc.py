"""THC: a parameter server adds up 4-bit codes without decoding them.

A worker has a = g + e (error feedback) for each tensor of n elements, and an all-reduce finds the
largest of the workers' norms |a|. Then, with the same random signs and range on all workers,

    y = H D a            randomised Hadamard transform: elements are about N(0, |a|^2 / n)
    t = clamp(y / M, -1, 1) on a grid of 0 … 30,  M = t_p max|a| / sqrt(n)
    t becomes one of the two neighbouring integers of `TABLE`, at random without bias

Workers send their 4-bit indices. The server returns the sums of the integers (8 bits up to 8
workers, then 16), from which every worker computes the mean; e = a - what it sent itself. Only the
clamp causes a bias: 1 / 32 of a normal variable lies beyond t_p.

The transform works in parts, without padding (`rotation.py`), in host memory; workers round
independently.

Source: M. Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic
Compression", NSDI 2024, arXiv:2302.08545.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, packed, read
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.rounding.levels import KNOWN, Levels, add_rounded, round_levels
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.coding.rounding.rotation import rotate
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import FLOAT32_MAX, array
from gcsim.compressors.requests import AllReduce, Exchange, PushPull
from gcsim.compressors.segments import Segments, keys_of, starts
from gcsim.compressors.sharing import fill_once

GRID = 30
HALF_RANGE = -NormalDist().inv_cdf(1 / 64)
"""t_p: a standard normal variable lies beyond -t_p … t_p with probability 1 / 32."""
TABLE = np.array((0, 3, 5, 7, 9, 11, 13, 15, 16, 17, 19, 21, 23, 25, 27, 30), dtype=np.float32)
"""Integers that the codes stand for, with the least rounding error on N(0, 1)."""
_LEVELS = TABLE / (GRID / 2) - 1
"""The same integers, scaled to -1 … 1."""
_FORM = fixed(4)
_LEAST = 1e-38
"""Smallest M: its inverse is finite."""


class ThcParameters(CompressorParameters):
    error_feedback: bool = Field(True, description="add the compression error to the next gradient")


class Thc(ErrorFeedback[ThcParameters]):
    """Rotates, clamps and rounds to integers that a server can add."""

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
        most = np.minimum(np.maximum(most, _LEAST), FLOAT32_MAX)
        signs = keys_of(layout, me.seed, step, "thc signs", None)
        keys = keys_of(layout, me.seed, step, "thc rounding", me.rank)
        rotate(held, segments, signs, 1 / most)  # t, from -1 to 1
        ones = torch.ones_like(norms)
        levels = Levels(kind=KNOWN, cells=segments.whole, numbers=ones, tables=[_LEVELS])
        sizes = _FORM.nbytes(segments.length)
        codes, at = held.new_empty(int(sizes.sum()), dtype=torch.uint8), starts(sizes)
        round_levels(held, levels, keys, codes, at, _FORM)
        add_rounded(held, levels, codes, at, _FORM, -1.0)
        rotate(held, segments, signs, most, back=True)  # e

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            # integers minus 15, which float32 adds exactly but for the rounding of the levels
            total, dtype = torch.zeros_like(held), sum_dtype(me.count)
            for payload in payloads:
                found = read(payload, layout, Codec.THC)
                found.demand_sizes(sizes)
                add_rounded(total, levels, payload, found.at, _FORM, GRID / 2)
            sums = total.add_(GRID / 2 * me.count).round_().to(dtype)
            return packed(held, Codec.THC, segments, (sums, dtype.itemsize * segments.length))

        message = packed(held, Codec.THC, segments, (codes, sizes))
        answer = yield PushPull(payload=message, server=serve, without_server="alltoall_allgather")
        update = torch.empty_like(bucket.gradient)
        return fill_once(write_update, answer, update, layout, me.count, most, signs)


def write_update(
    answer: Tensor, out: Tensor, layout: BucketLayout, count: int, most: NDArray[np.float64],
    signs: NDArray[np.uint64],
) -> None:  # fmt: skip
    """Compute the mean of `count` workers, float32 `[numel]`, from the server's answer. Raises
    `InputError` if its sums of integers are out of range."""
    segments, dtype, found = Segments.of(layout), sum_dtype(count), read(answer, layout, Codec.THC)
    found.demand_sizes(dtype.itemsize * segments.length)
    (sums,) = found.parts(answer, (found.size, dtype))
    if sums.numel() and not 0 <= int(sums.min()) <= int(sums.max()) <= GRID * count:
        raise damaged(f"a sum outside 0 … {GRID * count}")
    middle = GRID / 2 * count
    out.copy_(sums).sub_(middle)
    rotate(out, segments, signs, most / middle, back=True)


def sum_dtype(count: int) -> torch.dtype:
    """Return the dtype for a sum of `count` integers 0 … `GRID`."""
    most = GRID * count
    return torch.uint8 if most < 1 << 8 else torch.int16 if most < 1 << 15 else torch.int32
