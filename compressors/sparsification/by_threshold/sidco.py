"""SIDCo: top-k whose threshold is estimated from an exponential fit to the magnitudes.

a = e + g; the elements with |a| > t are sent as (value, index), e = a - what was sent. With a
single stage the threshold for a target ratio d is the quantile 1 - d: t = mu ln(1 / d), mu = mean
|a|. With M > 1 stages the first aims only at 1/4; each of the other M - 1 fits the excess |a| - t
of the elements above t and raises t so that a share (4 d)^(1 / (M - 1)) of them remains. Every five
steps a tensor's number of stages falls by one if more than 1.2 d was sent on average, and rises by
one if less than 0.8 d was; it starts at 1 and stays within 1 … ceil(log2(1 / d)). This is the right
direction only for light tails (normal: .02, .63, 1.13 % for 1, 2, 3 stages; N(0, 1) exp(.8 N(0,
1)): 2.5, 1.19, .73 %). The paper's gamma and Pareto fits are left out.

64 m bits for m elements. Biased; for any a only |Q(a) - a|^2 <= |a|^2 holds. Sums run in host
memory.

Choices: the fit does not depend on the scale, so the published code's division by the norm is left
out; the excess is over the threshold, as in the paper; the code subtracts the smallest excess.
Without any excess the stages end. If no element passes, those of the largest magnitude are sent: a
tensor of one element, or of equal magnitudes, would never be sent.

Source: A. Abdelmoniem, A. Elzanaty, M. Alouini, M. Canini, "An efficient statistical-based gradient
compression technique for distributed training systems", MLSys 2021, arXiv:2101.10761; code
github.com/sands-lab/SIDCo (the classes with error correction).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import (
    About,
    CompressorParameters,
    ErrorFeedback,
    Properties,
    Ratio,
    Worker,
)
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.coding.selecting.marks import mark, take
from gcsim.compressors.coding.sparse import add_message, energy, sparse_message
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import SUM_BLOCK, array, in_tiles, loop, summing_loop
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments

Numbers = NDArray[np.float64]
"""One number per tensor."""
_EVERY = 5
_FIRST = 0.25


class SidcoParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="target fraction of a tensor's elements to send (d)")
    error_feedback: bool = Field(True, description="add the compression error to the next gradient")


class Sidco(ErrorFeedback[SidcoParameters]):
    about = About(
        title="SIDCo",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="about 64 ratio",
        state="residual (n)",
        paper="Abdelmoniem et al., MLSys 2021, arXiv:2101.10761",
    )

    def __init__(self, worker: Worker, parameters: SidcoParameters) -> None:
        super().__init__(worker, parameters)
        self._stages: dict[int, tuple[Numbers, list[Numbers]]] = {}
        """Number of stages, and the fractions sent in each step since it was set, by bucket."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        ratio, segments = self.parameters.ratio, Segments.of(bucket.layout)
        sums, index = self.corrected(bucket), bucket.layout.index
        stages, sent = self._stages.setdefault(index, (np.ones(len(segments.table)), []))
        limits = fitted(sums, segments, stages, ratio)
        marks = mark(sums, segments, limits)
        if (none := (marks.passed == 0) & (segments.length > 0)).any():
            most = array(cell_norms(sums, segments.whole, "max"))
            marks = mark(sums, segments, np.where(none & (most > 0), most, limits))
        indices, values = take(sums, segments, marks, clear=self.remembers)
        k = marks.passed
        sent.append(k / np.maximum(1, segments.length))
        if len(sent) == _EVERY:
            mean = np.mean(sent, axis=0) / ratio
            stages += (mean < 0.8).astype(int) - (mean > 1.2)
            stages.clip(1, max(1, math.ceil(math.log2(1 / ratio))), out=stages)
            sent.clear()
        message, _ = sparse_message(segments, k, indices, values, values_as="fp32", coding="raw")
        payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_message)

    @classmethod
    def properties(cls, parameters: SidcoParameters) -> Properties:
        return Properties(error_bound=energy, conserves=parameters.error_feedback)


def fitted(
    values: Tensor, segments: Segments, stages: Numbers, ratio: float
) -> NDArray[np.float32]:
    """Return the smallest float32 above t for each tensor: float32 `[tensors]`."""
    stages = np.where(ratio < _FIRST, stages, 1)
    limits, going = np.zeros(len(stages)), segments.length > 0
    share = np.where(stages > 1, _FIRST, ratio)
    for stage in range(int(stages.max(initial=0))):
        going &= stages > stage
        count, total = excess(values, segments, limits, going)
        going &= total > 0
        count = count if stage else segments.length
        limits[going] += total[going] / count[going] * np.log(1 / share[going])
        share = (ratio / _FIRST) ** (1 / np.maximum(1, stages - 1))
    return np.nextafter(np.fmin(limits, 3e38).astype(np.float32), np.float32(np.inf))


@counted_as(
    lambda _, values, *__: [launch("reduction", "sidco.excess", values.numel(), values.nbytes)]
)
def excess(values: Tensor, segments: Segments, limits: Numbers, rows: NDArray[np.bool_]) -> Numbers:
    """Return number and sum of positive |values| - limit in the given rows: `[2, tensors]`."""
    tiles = segments.tiles[rows[segments.tiles[:, 0]]]
    sums, low = np.zeros((2, len(tiles))), limits.astype(np.float32)
    in_tiles(_sum_tiles, tiles, array(values), segments.table, low, sums)
    return np.array([np.bincount(tiles[:, 0], each, len(low)) for each in sums])


@loop
def _sum_tiles(
    start: int, stop: int, tiles: Any, values: Any, table: Any, limits: Any, sums: Any
) -> None:
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        part = values[table[t, 0] + first : table[t, 0] + last]
        for at in range(0, part.size, SUM_BLOCK):
            count, total = _sums(part[at : at + SUM_BLOCK], limits[t])
            sums[0, tile] += count
            sums[1, tile] += total


@summing_loop
def _sums(values: Any, limit: Any) -> Any:
    count, total = np.int32(0), 0.0
    for i in range(values.size):
        over = abs(values[i]) - limit
        total += np.float64(over if over > np.float32(0) else np.float32(0))
        count += np.int32(over > np.float32(0))
    return count, total
