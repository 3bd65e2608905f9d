"""What if every coordinate has its turn, and the largest have it always? TK-CCD.

Top-k with cyclic coordinate descent, the theory's twin of gradient sampling with a prior. A stage
begins with a dense all-reduce, which is used as the update ("synchronisation"). It fixes S, the j
largest magnitudes of the mean gradient, and a random partition of the other coordinates into Q
groups U_0 … U_{Q-1}, the same on all workers. In trial q = 0 … Q-1 that follows, S and U_q travel
as one short all-reduce, without indices.

Each coordinate is sent at least once in the Q trials of a stage. Biased; what is not sent is lost;
the error of a trial is below that of the top j. Sizes of groups differ by at most 1:
k = j + (n - j) / Q, so j = (k Q - n) / (Q - 1) for k = ratio * n.

Bits of a trial: 16 (j + (n - j)/Q), or 32; of a stage 16 n more.

Where the paper leaves a choice: the dense all-reduce, whose result everybody then has, is a step of
its own, in addition to the Q trials. The partition is drawn run by run: each Q remaining
coordinates in a row are dealt to the Q groups in random order, so that each is in each group with
probability 1/Q and positions ascend. No values for Q and j are given; Q = 100 here, and a ratio of
.02, which makes j about half of what is sent (j = 0 at 1/Q).

Source: L. Song, K. Zhao, P. Pan, Y. Liu, Y. Zhang, Y. Xu, R. Jin, "Communication Efficient SGD via
Gradient Sampling with Bayes Prior", CVPR 2021, section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket, TensorSlice
from gcsim.compressors.coding.selecting.largest import largest_of
from gcsim.compressors.coding.sparse import ValueFormat
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop
from gcsim.compressors.meter import batched, count_random, kernel
from gcsim.compressors.on_device import on_device, within_reach
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import bits64, random_key
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.compressors.sparsification.by_chance.mean_shares import rounding_error, share_of_mean
from gcsim.errors import InternalError


@dataclass(slots=True, kw_only=True, eq=False)
class _Stage:
    """One tensor's sets in a stage, equal on all workers; on a GPU where kernels work there."""

    always: Tensor
    """S: int64 `[j]`, ascending."""
    dealt: Tensor
    """uint16 `[runs, Q]`: which element of the run each group has; at Q and above: none."""


class TkCcdParameters(CompressorParameters):
    ratio: Ratio = Field(0.02, description="fraction sent in a trial: the largest and one group")
    groups: int = Field(100, ge=2, le=60_000, description="Q, groups, and trials of a stage")
    values: ValueFormat = Field("fp16", description="format of the values on the wire")

    @model_validator(mode="after")
    def _group_fits(self) -> Self:
        if self.ratio * self.groups < 1.0 - 1e-9:
            raise ValueError(
                f"a group alone is 1/{self.groups} of the elements, more than ratio {self.ratio}"
            )
        return self


class TkCcd(Compressor[TkCcdParameters]):
    """The largest coordinates of the last dense gradient always, the others in turn."""

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
        """By tensor."""

    @classmethod
    def period(cls, parameters: TkCcdParameters) -> int:
        """See `Compressor.period`: a synchronisation and Q trials."""
        return parameters.groups + 1

    @classmethod
    def phase(cls, parameters: TkCcdParameters, step: int) -> str:
        return "trial" if step % cls.period(parameters) else "synchronisation"

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """The mean gradient, dense or at the coordinates whose turn it is, float32 `[n]`.

        Raises `InternalError` at a trial that no synchronisation came before.
        """
        trial = step % self.period(self.parameters) - 1
        if trial < 0:
            total: Tensor = yield AllReduce(tensor=self._travelling(bucket.gradient))
            mean = total.float()
            for piece, part in batched(bucket.layout.views(mean)):
                self._begin_stage(piece, part, step)
            return mean
        positions = torch.cat([self._turn(piece, trial) for piece in batched(bucket.layout.slices)])
        positions = positions.to(bucket.gradient.device)
        total = yield AllReduce(tensor=self._travelling(bucket.gradient[positions]))
        update = torch.zeros_like(bucket.gradient)
        update[positions] = total.float()
        return update

    def _begin_stage(self, piece: TensorSlice, mean: Tensor, step: int) -> None:
        n, groups = piece.numel, self.parameters.groups
        count = round((self.parameters.ratio * n * groups - n) / (groups - 1))
        always = within_reach(largest_of(mean, min(n, max(0, count))))
        key = random_key(self.worker.seed, step, piece.index, "tk-ccd groups")
        dealt = deal(always, n - always.numel(), groups, key)
        self.stages[piece.index] = _Stage(always=always, dealt=dealt)

    def _turn(self, piece: TensorSlice, trial: int) -> Tensor:
        """Positions in the bucket of what tensor `piece` sends: int64."""
        stage = self.stages.get(piece.index)
        if stage is None:
            raise InternalError(f"trial {trial} of {piece.name!r} before any synchronisation step")
        group = group_positions(stage.dealt, stage.always, trial)
        return torch.cat((stage.always, group)).add_(piece.offset)

    def _travelling(self, values: Tensor) -> Tensor:
        return share_of_mean(values, self.worker.count, self.parameters.values)

    @classmethod
    def properties(cls, parameters: TkCcdParameters) -> Properties:
        """See `Compressor.properties`; the first step is a synchronisation, which only rounds."""
        return Properties(error_bound=rounding_error(parameters.values))


@kernel("random", resident=("like",))
@on_device("methods.groups")
def deal(like: Tensor, n: int, groups: int, key: np.uint64) -> Tensor:
    """A random permutation of 0 … Q-1 for each run of Q of n elements: uint16 `[runs, Q]`.

    It lies where `like` does, which is not looked at.
    The last run, when it is short, is a permutation of its length, dealt to the groups in random
    order too; groups without an element of it have Q.
    """
    dealt = np.empty((-(-n // groups), groups), dtype=np.uint16)
    in_parallel(_shuffle, dealt.shape[0] * groups, dealt, n, key, grain=groups)
    count_random(n, 64)
    return torch.from_numpy(dealt)


@kernel("gather_scatter")
@on_device("methods.groups")
def group_positions(dealt: Tensor, always: Tensor, group: int) -> Tensor:
    """Where group `group` is among all elements but `always`: int64, ascending."""
    runs, groups = dealt.shape
    column = array(dealt)[:, group]
    ranks = np.arange(runs, dtype=np.int64) * groups + column
    ranks = ranks[column < groups]
    _skip(ranks, array(always))
    return torch.from_numpy(ranks)


@loop
def _shuffle(start: int, stop: int, dealt: Any, n: int, key: np.uint64) -> None:
    """Fisher and Yates, run by run."""
    groups = dealt.shape[1]
    for run in range(start // groups, stop // groups):
        row = dealt[run]
        length = min(groups, n - run * groups)
        for i in range(groups):
            row[i] = i if i < length else groups
        for i in range(groups - 1, 0, -1):
            # 32 random bits times i + 1: uniform on 0 … i up to 2^-16
            bits = bits64(key, run * groups + i) >> np.uint64(32)
            j = np.int64((bits * np.uint64(i + 1)) >> np.uint64(32))
            row[i], row[j] = row[j], row[i]


@loop
def _skip(ranks: Any, always: Any) -> None:
    """Turn ascending ranks among the other elements into positions, in place."""
    passed = 0
    for i in range(ranks.size):
        while passed < always.size and always[passed] <= ranks[i] + passed:
            passed += 1
        ranks[i] += passed
