"""TK-CCD: the largest coordinates are sent in every step, all others in turn.

Top-k with cyclic coordinate descent is the theoretical counterpart of gradient sampling with a
prior. A stage begins with a dense all-reduce, which is used as the update ("synchronisation"). It
determines S, the j largest magnitudes of the mean gradient, and a random partition of the other
coordinates into Q groups U_0 … U_{Q-1}, the same on all workers. In trial q = 0 … Q-1, S and U_q
are sent in one short all-reduce, without indices.

Each coordinate is sent at least once in the Q trials of a stage. Biased; elements not sent in a
trial are lost; the error is below that of the top j. Sizes of groups differ by at most 1: k = j +
(n - j) / Q, so j = (k Q - n) / (Q - 1) for k = ratio * n. Bits of a trial: 16 (j + (n - j)/Q), or
32; a stage has 16 n more.

Choices where the paper is open: the dense all-reduce is a separate step, in addition to the Q
trials. The partition is drawn in runs: every Q consecutive remaining coordinates are dealt to the Q
groups in random order, so that each is in each group with probability 1/Q and positions ascend. No
values for Q and j are given; Q = 100 here, and a ratio of .02, which makes j about half of what is
sent (j = 0 at 1/Q).

Source: L. Song, K. Zhao, P. Pan, Y. Liu, Y. Zhang, Y. Xu, R. Jin, "Communication Efficient SGD via
Gradient Sampling with Bayes Prior", CVPR 2021, section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from gcsim.compressors.base import (
    About,
    Compressor,
    CompressorParameters,
    Properties,
    Ratio,
    Worker,
)
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.selecting.groups import deal, turn
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.sparse import ValueFormat
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.compressors.segments import Column, Segments, keys_of
from gcsim.compressors.sparsification.by_chance.mean_shares import rounding_error, share_of_mean
from gcsim.errors import InternalError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stage:
    """A bucket's sets in one stage, equal on all workers."""

    always: Tensor
    """S of each tensor: indices within it, int64 `[sum of j]`, ascending."""
    count: Column
    """j of each tensor."""
    dealt: Tensor
    """Groups of the other coordinates, made by `deal`."""


class TkCcdParameters(CompressorParameters):
    ratio: Ratio = Field(0.02, description="fraction sent per short step: largest and one group")
    groups: int = Field(100, ge=2, le=60_000, description="groups of the rest, one per step (Q)")
    values: ValueFormat = Field("fp16", description="format of the values on the wire")

    @model_validator(mode="after")
    def _group_fits(self) -> Self:
        if self.ratio * self.groups < 1.0 - 1e-9:
            raise ValueError(
                f"a group alone is 1/{self.groups} of the elements, more than ratio {self.ratio}"
            )
        return self


class TkCcd(Compressor[TkCcdParameters]):
    about = About(
        title="Top-k with cyclic coordinate descent (TK-CCD)",
        family="sparsification",
        collective="all-reduce (dense once a stage, short between)",
        bits="16 * (1 + groups * ratio) / (groups + 1)",
        state="order of the groups (n/2)",
        paper="Song et al., Gradient Sampling with Bayes Prior, CVPR 2021, section 3.4",
    )

    def __init__(self, worker: Worker, parameters: TkCcdParameters) -> None:
        super().__init__(worker, parameters)
        self.stages: dict[int, _Stage] = {}

    @classmethod
    def period(cls, parameters: TkCcdParameters) -> int:
        return parameters.groups + 1

    @classmethod
    def phase(cls, parameters: TkCcdParameters, step: int) -> str:
        return "trial" if step % cls.period(parameters) else "synchronisation"

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Return the mean gradient, dense or at the trial's coordinates, float32 `[n]`. Raises
        `InternalError` at a trial before any synchronisation."""
        layout, groups = bucket.layout, self.parameters.groups
        segments = Segments.of(layout)
        trial = step % self.period(self.parameters) - 1
        if trial < 0:
            total: Tensor = yield AllReduce(tensor=self._travelling(bucket.gradient))
            mean = total.float()
            n = segments.length
            share = np.rint((self.parameters.ratio * n * groups - n) / (groups - 1))
            count = np.clip(share.astype(np.int64), 0, n)  # j of each tensor
            always, _ = largest(mean, segments, count)
            keys = keys_of(layout, self.worker.seed, step, "tk-ccd groups", None)
            dealt = deal(always, n - count, groups, keys)
            self.stages[layout.index] = _Stage(always=always, count=count, dealt=dealt)
            return mean
        stage = self.stages.get(layout.index)
        if stage is None:
            name = layout.slices[0].name
            raise InternalError(f"trial {trial} of {name!r} before any synchronisation step")
        positions = turn(stage.always, stage.dealt, segments, stage.count, trial)
        total = yield AllReduce(tensor=self._travelling(bucket.gradient[positions]))
        update = torch.zeros_like(bucket.gradient)
        update[positions] = total.float()
        return update

    def _travelling(self, values: Tensor) -> Tensor:
        return share_of_mean(values, self.worker.count, self.parameters.values)

    @classmethod
    def properties(cls, parameters: TkCcdParameters) -> Properties:
        """Return the properties: the first step is a synchronisation, which only rounds."""
        return Properties(error_bound=rounding_error(parameters.values))
