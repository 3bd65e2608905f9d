"""SIDCo: the threshold of top-k is read off a distribution fitted to the magnitudes.

a = e + g; the elements with |a| > t travel as (value, index), e = a - what was sent. For a target
ratio d the threshold of a single stage is the quantile 1 - d of the fitted distribution:
    exponential         t = mu ln(1 / d)                             mu = mean |a|
    generalised Pareto  t = s (1 - d^k) / k,   k = (mu^2 / sigma^2 - 1) / 2,
                                               s = mu (mu^2 / sigma^2 + 1) / 2
    gamma               the quantile of Gamma(alpha, mu / alpha),
                        alpha = (3 - z + sqrt((z - 3)^2 + 24 z)) / (12 z),  z = ln mu - mean ln |a|
With M > 1 stages the first aims at `first_ratio` only; each of the other M - 1 fits the excess
|a| - t of what is above t (exponential; after gamma the generalised Pareto) and moves t so that
(d / first_ratio)^(1 / (M - 1)) of it remains. Every five steps a tensor's number of stages falls
by one when more than 1.2 d was sent on average, and rises by one when less than 0.8 d was; it
starts at 1 and stays within 1 … ceil(log2(1 / d)). That is the right direction for light tails only
(normal: .02, .63, 1.13 % for 1, 2, 3 exponential stages; N(0, 1) exp(.8 N(0, 1)): 2.5, 1.19,
.73 %); `adaptation: searched` turns round whenever the last change made it worse.

Known: the exponential fit is exact on Laplace data, for any number of stages. At d = 1 % two stages
send 1.19 % (exponential) or 1.03 % (generalised Pareto) of N(0, 1) exp(.8 N(0, 1)), 1.15 % and
0.96 % of exp(N(0, 1)). m (32 + bits per index) bits for m elements.
Biased; nothing sharper than |Q(a) - a|^2 <= |a|^2 holds for any a.

Readings: the fits do not depend on the scale, so that the published code's division by the norm
is left out; ln |a| of a zero is taken as ln(2^-52 |a|_2), what that code's offset makes of it;
excess is over the threshold, as in the paper, where the code subtracts its smallest. Without any
excess the stages end. When no element passes, the largest is sent: a tensor of one element, or
one of equal magnitudes, would never be.

Source: A. Abdelmoniem, A. Elzanaty, M. Alouini, M. Canini, "An efficient statistical-based gradient
compression technique for distributed training systems", MLSys 2021, arXiv:2101.10761;
code github.com/sands-lab/SIDCo (the classes with error correction).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket, TensorSlice
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.selecting.largest import largest_of
from gcsim.compressors.coding.selecting.marks import at_least
from gcsim.compressors.coding.sparse import ValueFormat, add_message, energy, sparse_message
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_threshold.magnitude_fits import (
    Distribution,
    Moments,
    excess_of,
    moments_of,
    quantile,
)
from gcsim.compressors.sparsification.by_threshold.threshold import just_above

_EVERY = 5
_TOLERANCE = 0.2


class SidcoParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="d, the fraction of each tensor to aim at")
    distribution: Distribution = Field(
        "exponential", description="what is fitted; gamma: in the first stage, then Pareto"
    )
    stages: int | None = Field(
        None, ge=1, le=64, description="M, fits after one another; null: adapted every 5 steps"
    )
    adaptation: Literal["fixed", "searched"] = Field(
        "fixed",
        description="too little sent: one stage more (fixed), or whatever helped last (searched)",
    )
    first_ratio: Ratio = Field(0.25, description="what the first of several stages aims at")
    error_feedback: bool = Field(True, description="add what was not sent to the next step")
    values: ValueFormat = Field("fp32", description="format of the values on the wire")
    indices: IndexCoding = Field("raw", description="how indices travel: raw is 32 bits each")


@dataclass(slots=True)
class _Stages:
    """Stages of a tensor, and what they have sent since their number was decided."""

    count: int = 1
    sent: float = 0.0
    """Sum over steps of the sent fraction, in units of the target."""
    steps: int = 0
    last: float | None = None
    """What was sent in the five steps before, in units of the target."""
    more: int = 1
    """The change that is to make it more."""


class Sidco(ErrorFeedback[SidcoParameters]):
    """Elements above a threshold from a fitted distribution."""

    about = About(
        title="SIDCo",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="about ratio * (32 + bits per index)",
        state="residual (n)",
        paper="Abdelmoniem et al., MLSys 2021, arXiv:2101.10761",
    )

    def __init__(self, worker: Worker, parameters: SidcoParameters) -> None:
        super().__init__(worker, parameters)
        self._stages: dict[int, _Stages] = {}
        """By tensor."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, add_message)

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient and take out what is above the threshold: uint8, a frame a tensor."""
        chosen, sums = self.parameters, self.corrected(bucket)
        memory = sums if chosen.error_feedback else None
        pairs = [self._select(*pair) for pair in bucket.layout.views(sums)]
        indices, values = (torch.cat(each) for each in zip(*pairs, strict=True))
        k = np.array([len(each) for each, _ in pairs])
        return sparse_message(
            Segments.of(bucket.layout), k, indices, values, values_as=chosen.values,
            coding=chosen.indices, memory=memory,
        )[0]  # fmt: skip

    def _select(self, piece: TensorSlice, sums: Tensor) -> tuple[Tensor, Tensor]:
        """(indices, values) of what is above a tensor's threshold, cleared where it remains."""
        state = self._stages.setdefault(piece.index, _Stages())
        moments = moments_of(sums, logarithms=self.parameters.distribution == "gamma")
        threshold = self._threshold(sums, moments, self.parameters.stages or state.count)
        indices = at_least(sums, float(just_above(min(threshold, 3e38))))
        if not len(indices) and moments.mean > 0:
            indices = largest_of(sums, 1)
        if piece.numel:
            self._adapt(state, len(indices) / piece.numel)
        values = sums[indices]
        if self.parameters.error_feedback:
            sums[indices] = 0.0
        return indices, values

    def _threshold(self, values: Tensor, moments: Moments, stages: int) -> float:
        """t of `values`, whose moments over zero are known."""
        target, first = self.parameters.ratio, self.parameters.first_ratio
        distribution = self.parameters.distribution
        if target >= first:
            stages = 1
        threshold = quantile(moments, target if stages == 1 else first, distribution)
        tail: Distribution = (
            "exponential" if distribution == "exponential" else "generalised_pareto"
        )
        for _ in range(stages - 1):
            excess = excess_of(values, threshold)
            if not excess.count:
                break
            threshold += quantile(excess, (target / first) ** (1 / (stages - 1)), tail)
        return threshold

    def _adapt(self, state: _Stages, sent: float) -> None:
        state.sent += sent / self.parameters.ratio
        state.steps += 1
        if state.steps < _EVERY:
            return
        mean = state.sent / state.steps
        most = max(1, math.ceil(math.log2(1 / self.parameters.ratio)))
        worse = state.last is not None and abs(mean - 1) > abs(state.last - 1)
        if worse and self.parameters.adaptation == "searched":
            state.more = -state.more
        wanted = (mean < 1 - _TOLERANCE) - (mean > 1 + _TOLERANCE)
        state.count = min(max(state.count + wanted * state.more, 1), most)
        state.sent, state.steps, state.last = 0.0, 0, mean

    @classmethod
    def properties(cls, parameters: SidcoParameters) -> Properties:
        return Properties(error_bound=energy, conserves=parameters.error_feedback)
