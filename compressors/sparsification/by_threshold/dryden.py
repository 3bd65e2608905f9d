"""Dryden et al.: what if a share of each sign travels, as one mean value for each sign?

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

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.frame import HEADER_BYTES, Codec, put_words, together, write_frame
from gcsim.compressors.coding.indices.words import add_signed
from gcsim.compressors.coding.scans import greatest_magnitude
from gcsim.compressors.coding.selecting.marks import (
    BLOCK,
    Marks,
    mark,
    mark_block,
    new_marks,
    take,
)
from gcsim.compressors.coding.selecting.selection import (
    SAMPLE_STRIDE,
    WORTH_A_SAMPLE,
    count_kept,
    kth_magnitude,
    kth_of_few,
    limit_of_few,
    safe_rank,
    strided_sample,
)
from gcsim.compressors.coding.sparse import (
    LEVELS_INSIDE,
    energy,
    pack_signed,
    sign_words,
    signed_words,
)
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable

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
        residual = bucket_state(self.residual, bucket)
        if together(residual):
            given = residual, bucket.gradient, bucket.layout, self.parameters.proportion
            if (message := _encoded_together(*given)) is not None:
                return message
        frames = []
        for piece, gradient in batched(bucket.layout.views(bucket.gradient)):
            memory = piece.of(residual)
            indices, values = add_and_select(memory, gradient, self.parameters.proportion)
            positive, negative = _means(values)
            words = signed_words(memory, indices, values, positive, negative)
            frames.append(pack_signed(words, piece.numel, (positive, negative)))
        return torch.cat(frames)

    @classmethod
    def properties(cls, parameters: DrydenParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            left = energy(vector)
            for side in (vector[vector > 0].double(), vector[vector < 0].double()):
                if n := side.numel():
                    left -= count_kept(n, parameters.proportion) * float(side.mean()) ** 2
            return left

        return Properties(error_bound=bound, conserves=True)


def _encoded_together(
    residual: Tensor, gradient: Tensor, layout: BucketLayout, proportion: float
) -> Tensor | None:
    """`Dryden.encode` in one loop; None, and nothing done, where it may not give the same bits."""
    table = layout.table
    most = len(table) * (HEADER_BYTES + 8) + 4 * int(layout.numel * proportion + 3 * len(table))
    message = np.empty(most, dtype=np.uint8)
    used = _encode_short(
        array(residual), array(gradient), table, proportion, message, int(Codec.SIGNED_INDEX),
        LEVELS_INSIDE,
    )  # fmt: skip
    return torch.from_numpy(message[:used]) if used else None


def add_and_select(memory: Tensor, gradient: Tensor, proportion: float) -> tuple[Tensor, Tensor]:
    """memory += gradient, and the largest share of each sign of the sum.

    Both float32 `[n]`. Returns (indices int64 `[k]`, ascending; values float32 `[k]`). Raises
    `InputError` when a selected value is not a number.
    """
    up, down = _bounds(memory, gradient, proportion)
    marks, sides = _add_and_count(memory, gradient, up, down)
    wanted = [count_kept(side, proportion) if side else 0 for side in sides]
    indices, values = take(memory, marks)
    if not _enough(values, wanted):  # the sample misled
        indices, values = take(memory, mark(memory, ANYTHING))
    return _largest_of_each_sign(indices, values, wanted)


@kernel("reduction")
@on_device("methods.each_sign")
def _enough(values: Tensor, wanted: list[int]) -> bool:
    positive = int(np.count_nonzero(array(values) > 0))
    return positive >= wanted[0] and values.numel() - positive >= wanted[1]


@kernel("selection")
@on_device("methods.each_sign")
def _largest_of_each_sign(
    indices: Tensor, values: Tensor, wanted: list[int]
) -> tuple[Tensor, Tensor]:
    """The k+ largest positive and the k- largest negative of values without zeros."""
    data = array(values)
    positive, negative = (np.empty(data.size + 1, dtype=np.float32) for _ in range(2))
    above, below = _split(data, positive, negative)
    up, up_ties = _limit(positive[:above], wanted[0])
    down, down_ties = _limit(negative[:below], wanted[1])
    found = np.empty(sum(wanted) + 1, dtype=np.int64)
    kept = np.empty(sum(wanted) + 1, dtype=np.float32)
    _keep(array(indices), data, up, down, up_ties, down_ties, found, kept)
    return tensor(found[:-1], values), tensor(kept[:-1], values)


def _limit(magnitudes: NDArray[np.float32], k: int) -> tuple[np.float32, int]:
    """The k-th largest, and how many of those that equal it are among the first k."""
    if k == 0:
        return np.float32(0), 0
    bits, ties = kth_of_few(magnitudes.view(np.uint32), k)
    return np.uint32(bits).view(np.float32), ties


@kernel("reduction")
@on_device("methods.each_sign")
def _means(values: Tensor) -> tuple[float, float]:
    """Mean of the positive and of the negative values, as float32; 0 of none."""
    data = array(values)
    levels = []
    for side in (data > 0, data < 0):
        total = data.sum(dtype=np.float64, where=side)
        levels.append(float(np.float32(total / max(1, int(side.sum())))))
    return levels[0], levels[1]


@on_device("methods.each_sign")
def _bounds(memory: Tensor, gradient: Tensor, proportion: float) -> tuple[float, float]:
    """(up, down) between which, most likely, lies none of the largest share of each sign.

    From a sample of memory + gradient.
    """
    stride = stride_of(memory.numel(), proportion)
    if not stride:
        return ANYTHING, -ANYTHING
    sample = array(strided_sample(0, stride, memory, gradient))
    found = []
    for side in (sample[sample > 0], sample[sample < 0]):
        expected = side.size * proportion
        rank = safe_rank(expected)
        enough = rank <= side.size
        found.append(kth_magnitude(torch.from_numpy(side), rank) if enough else ANYTHING)
    return found[0], -found[1]


def stride_of(n: int, proportion: float) -> int:
    """Of the sample; 0 where everything is looked at."""
    stride = min(SAMPLE_STRIDE, round(n * proportion / 32) | 1)  # 16 or more expected of each sign
    return 0 if n < WORTH_A_SAMPLE or stride < 3 else stride


@kernel("streaming", updates=("memory",))
@on_device("methods.each_sign")
def _add_and_count(
    memory: Tensor, gradient: Tensor, up: float, down: float
) -> tuple[Marks, tuple[int, int]]:
    """memory += gradient; what is not inside (down, up), and the elements above and below zero."""
    marks = new_marks(memory.numel(), up, down)
    sides = np.zeros((marks.counts.size, 2), dtype=np.int64)
    with written_back(memory) as sums:
        in_parallel(
            _add, sums.size, sums, array(gradient),
            marks.up, marks.down, marks.counts, marks.places, sides,
        )  # fmt: skip
    positive, negative = sides.sum(axis=0).tolist()
    return marks, (positive, negative)


@loop
def _add(
    start: int, stop: int, sums: Any, added: Any, up: Any, down: Any, counts: Any, places: Any,
    sides: Any,
) -> None:  # fmt: skip
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        part = sums[first : min(first + BLOCK, stop)]
        more = added[first : min(first + BLOCK, stop)]
        positive, negative = np.int32(0), np.int32(0)
        for i in range(part.size):
            value = part[i] + more[i]
            part[i] = value
            positive += np.int32(value > np.float32(0))
            negative += np.int32(value < np.float32(0))
        sides[block, 0] = positive
        sides[block, 1] = negative
        counts[block] = mark_block(part, up, down, mask, words, places[block])


@loop
def _encode_short(
    memory: Any, gradient: Any, table: Any, proportion: float, message: Any, codec: int, flags: int
) -> Any:  # fmt: skip
    """The bytes of all frames; 0, and nothing done, for sums that are not finite or not exact.

    Means are of sums in float64, in whatever order: they must need no rounding.
    """
    sums = np.empty(memory.size, dtype=np.float32)
    for i in range(sums.size):
        sums[i] = memory[i] + gradient[i]
    if greatest_magnitude(sums) >= np.uint32(0x7F800000):
        return 0
    limits = np.zeros((table.shape[0], 2), dtype=np.uint32)
    counts = np.zeros((2, table.shape[0], 2), dtype=np.int64)  # to be sent, of them at the limit
    sides = np.empty((2, sums.size + 1), dtype=np.float32)
    for t in range(table.shape[0]):
        part = sums[table[t, 0] : table[t, 0] + table[t, 1]]
        numbers = _split(part, sides[0], sides[1])
        for s in range(2):
            number = numbers[s]
            if number:
                k = min(number, max(1, np.int64(np.rint(number * proportion))))
                bits = sides[s, :number].view(np.uint32)
                limit, ties = limit_of_few(bits, k)
                highest = np.int64(greatest_magnitude(sides[s, :number]) >> np.uint32(23))
                spread = highest - max(np.int64(1), np.int64(limit) >> 23)
                if spread > 29 or k << spread > 1 << 29:  # of 53 bits, 24 are an element's own
                    return 0
                limits[t, s], counts[0, t, s], counts[1, t, s] = limit, k, ties
    everybody = np.empty(sums.size, dtype=np.int64)
    for i in range(sums.size):
        memory[i], everybody[i] = sums[i], i
    levels = np.empty(2, dtype=np.float32)
    at = 0
    for t in range(table.shape[0]):
        first, n = table[t]
        k = counts[0, t, 0] + counts[0, t, 1]
        found, kept = np.empty(k + 1, dtype=np.int64), np.empty(k + 1, dtype=np.float32)
        limit = limits[t].view(np.float32)
        part, ties = memory[first : first + n], counts[1, t]
        _keep(everybody[:n], part, limit[0], limit[1], ties[0], ties[1], found, kept)
        above, below = 0.0, 0.0
        for i in range(k):
            above += max(np.float64(kept[i]), 0.0)
            below += min(np.float64(kept[i]), 0.0)
        levels[0] = np.float32(above / max(1, counts[0, t, 0]))
        levels[1] = np.float32(below / max(1, counts[0, t, 1]))
        words = np.empty(k, dtype=np.uint32)
        sign_words(0, k, found, kept, levels[0], levels[1], part, words)
        frame = message[at : at + HEADER_BYTES + 8 + 4 * k]
        put_words(frame, put_words(frame, HEADER_BYTES, levels), words)
        write_frame(frame, codec, flags, 0, n, k)
        at += frame.size
    return at


@loop
def _split(values: Any, positive: Any, negative: Any) -> Any:
    """Magnitudes by sign, each in room for one more than all; how many there are."""
    above, below = 0, 0
    for i in range(values.size):
        positive[above] = values[i]
        negative[below] = -values[i]
        above += values[i] > np.float32(0)
        below += values[i] < np.float32(0)
    return above, below


@loop
def _keep(
    indices: Any, values: Any, up: Any, down: Any, up_ties: int, down_ties: int,
    found: Any, kept: Any,
) -> None:  # fmt: skip
    """What is above `up` or below -`down`, and the first of those that are equal."""
    at = 0
    for i in range(values.size):
        x = values[i]
        found[at] = indices[i]
        kept[at] = x
        chosen = (x > up) | (x < -down)
        if x == up:
            chosen = up_ties > 0
            up_ties -= 1
        elif x == -down:
            chosen = down_ties > 0
            down_ties -= 1
        at += chosen
