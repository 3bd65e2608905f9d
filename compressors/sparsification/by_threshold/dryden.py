"""Dryden et al.: a share of each sign travels, as one mean value for each sign.

a = r + g. Of the n+ positive elements of a tensor the k+ = max(1, round(pi n+)) largest are sent,
and of the n- negative ones the k- = max(1, round(pi n-)) of largest magnitude, each as one word of
32 bits: its index in 31 bits and its sign. The level of a sign is the mean of what is selected of
it; the two levels travel as float32. r = a - decoded. Among equal values the lowest index wins.

Bits: 32 (k+ + k-) + 64 a tensor. Biased: with the mean mu+ of all positive elements (mu- of all
negative), |Q(a) - a|^2 <= |a|^2 - k+ mu+^2 - k- mu-^2, with equality when the elements of a sign
are equal: k elements at their mean M take k M^2 from the energy, and M >= mu.

The k largest are selected exactly: a sample bounds both thresholds from below, one pass marks a
little more than k+ and k-, and a selection among those follows.

Assumes all-gather, each message decoded as it was sent; the paper's recursive all-reduce, which
sparsifies sums again on their way, is not modelled.

Source: N. Dryden, T. Moon, S. Jacobs, B. Van Essen, "Communication quantization for data-parallel
training of deep neural networks", MLHPC 2016 (adaptive quantization).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding.indices.words import add_signed, signed_message, signed_words
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit.signs import fold_signs
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.marks import mark, mark_again, mark_and_count, take
from gcsim.compressors.coding.selecting.selection import (
    SAMPLE_STRIDE,
    WORTH_A_SAMPLE,
    count_kept,
    counts_kept,
    flat_places,
    kth_magnitude,
    safe_rank,
    strided,
    sum_of,
)
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import kernel, unpriced
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Column, Segments, starts

ANYTHING = float(np.nextafter(np.float32(0), np.float32(1)))
"""The smallest threshold: what is not zero."""


class DrydenParameters(CompressorParameters):
    proportion: Ratio = Field(
        0.01, description="pi, the fraction of the positive and of the negative elements sent"
    )


class Dryden(ErrorFeedback[DrydenParameters]):
    """The largest of each sign as that sign's mean, with a residual."""

    about = About(
        title="Dryden's adaptive quantisation",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="32 proportion + 64 a tensor",
        state="residual (n)",
        paper="Dryden et al., Communication quantization, MLHPC 2016",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, add_signed)

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient and take out what is decoded: uint8, one frame a tensor."""
        residual, segments = bucket_state(self.residual, bucket), Segments.of(bucket.layout)
        given = bucket.gradient, segments, self.parameters.proportion
        indices, values, k, levels = largest_of_each_sign(*given, memory=residual)
        words = signed_words(residual, segments, indices, values, k, levels)
        return signed_message(words, segments, k, levels)

    @classmethod
    def properties(cls, parameters: DrydenParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            left = energy(vector)
            for side in (vector[vector > 0].double(), vector[vector < 0].double()):
                if n := side.numel():
                    left -= count_kept(n, parameters.proportion) * float(side.mean()) ** 2
            return left

        return Properties(error_bound=bound, conserves=True)


def largest_of_each_sign(
    values: Tensor, segments: Segments, proportion: float, *, memory: Tensor
) -> tuple[Tensor, Tensor, Column, Tensor]:
    """memory += values, and the largest share of each sign of each tensor's sums.

    Returns (indices within the tensor, int64, ascending; values float32; how many of each tensor;
    means of the positive and of the negative ones, float32 `[tensors, 2]`, 0 of none). Raises
    `InputError` when a selected value is not a number.
    """
    marks, sides = mark_and_count(
        values, segments, *_bounds(memory, values, segments, proportion), memory
    )
    wanted = np.where(sides > 0, counts_kept(sides, proportion), 0).T.reshape(-1)  # + then -
    for _ in range(2):
        indices, taken = take(memory, segments, marks)
        both = _by_sign(taken)
        rows = Segments.behind(np.tile(marks.passed, 2))
        k = np.minimum(wanted, rows.length)
        places, sizes = _selected(both, rows, k)
        if (k == wanted).all() and _enough(sizes):
            break
        marks.up[:], marks.down[:] = ANYTHING, -ANYTHING  # the sample misled
        mark_again(memory, segments, marks, np.arange(len(marks.up)))
    levels = _means(sizes, k)
    return indices[places], taken[places], k.reshape(2, -1).sum(axis=0), levels


@unpriced  # part of the kernels that look at one sign
def _by_sign(values: Tensor) -> Tensor:
    """Magnitudes of the positive values, then those of the negative ones; 0 for the others."""
    return torch.cat((values, -values)).clamp_(min=0.0)


@kernel("selection", name="dryden._largest_of_each_sign")
def _selected(both: Tensor, rows: Segments, k: Column) -> tuple[Tensor, Tensor]:
    """(places of the k largest of each sign, ascending; their magnitudes, a sign a row)."""
    chosen, sizes = largest(both, rows, k)
    half = both.numel() // 2
    mask = torch.zeros(half, dtype=torch.bool, device=both.device)
    mask[flat_places(chosen, rows, k) % max(1, half)] = True
    return mask.nonzero().view(-1), sizes


@kernel("reduction", name="dryden._enough")
def _enough(sizes: Tensor) -> bool:
    """Whether there were as many of each sign as were asked for."""
    return bool((sizes > 0).all())


@kernel("reduction", name="dryden._means")
def _means(sizes: Tensor, k: Column) -> Tensor:
    """Mean of the positive and of the negative values: float32 `[tensors, 2]`, 0 of none."""
    cells = Segments.behind(k).cells(None)
    scratch = packed_bytes(k, 1)
    bits = sizes.new_empty(int(scratch.sum()), dtype=torch.uint8)
    means = sizes.new_zeros(len(k))
    means[torch.from_numpy(cells.owner).to(sizes.device)] = fold_signs(
        sizes, cells, bits, starts(scratch)
    )
    positive, negative = means.view(2, -1)
    return torch.stack((positive, 0.0 - negative), dim=1)


def _bounds(
    memory: Tensor, values: Tensor, segments: Segments, proportion: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(up, down) between which, most likely, lies none of the largest share of each sign.

    From samples of memory + values; float32 `[tensors]`.
    """
    limits = np.full((2, len(segments.table)), ANYTHING, dtype=np.float32)
    strides = np.array([stride_of(n, proportion) for n in segments.length.tolist()])
    long = np.flatnonzero(strides)
    if long.size:
        rows, stride = segments.rows(long), strides[long]
        count = -(-rows.length // stride)
        sample = sum_of(strided((memory, values), rows, rows.column(0), stride, count))
        both, sides = _by_sign(sample), Segments.behind(np.tile(count, 2))
        available = _positive(both, sides)
        rank = np.array([safe_rank(each * proportion) for each in available])
        some = np.flatnonzero(rank <= available)
        found = np.full(len(rank), ANYTHING, dtype=np.float32)
        found[some] = kth_magnitude(both, sides.rows(some), rank[some])
        limits[:, long] = found.reshape(2, -1)
    return limits[0], -limits[1]


@unpriced  # part of the selection that follows
def _positive(values: Tensor, segments: Segments) -> Column:
    """Elements above zero of each tensor of which none is negative."""
    return mark(values, segments, ANYTHING).passed


def stride_of(n: int, proportion: float) -> int:
    """Of the sample; 0 where everything is looked at."""
    stride = min(SAMPLE_STRIDE, round(n * proportion / 32) | 1)  # 16 or more expected of each sign
    return 0 if n < WORTH_A_SAMPLE or stride < 3 else stride
