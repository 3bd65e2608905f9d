"""L-GreCo: a parameter for each tensor, so that bits are fewest and the error is as before.

Every `every` steps, worker 0 takes its gradients summed over the last `over` steps and tries the
inner compressor on each tensor with each candidate of the varied parameter: an error |x - Q(x)|^2
and a number of bytes. It then picks one candidate a tensor such that the bytes are fewest among
all choices whose errors add up to at most `alpha` times what the base parameter gives everywhere:
a knapsack, by dynamic programming over errors in `buckets` steps. From the next step on tensors use
their own parameter; an all-reduce of one int32 a tensor, to which only worker 0 contributes, tells
all workers.

Candidates lie between `lowest` and `highest` times the base (ratios, ranks, levels): whole numbers
all, or at most `candidates` of them; others on a geometric scale. Those that the inner compressor
refuses are left out.

Readings and assumptions: Q is the inner compressor's first settled step with an empty memory (for
PowerSGD one power iteration from a random Q). Bytes are counted as sent, headers included, and for
a parameter server as received. Errors are rounded up to whole steps, so the budget is never
exceeded, and the base stays where nothing better is found. One decision covers one bucket, as an
exchange knows no other: with the model in one bucket it is the paper's.

State: the inner compressor's; on worker 0, n floats during the last `over` steps before a decision.
A decision holds two tables of `buckets` numbers a tensor.

Source: I. Markov, K. Alimohammadi, E. Frantar, D. Alistarh, "L-GreCo: Layerwise-Adaptive Gradient
Compression for Efficient Data-Parallel Deep Learning", MLSys 2024, arXiv:2210.17357.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gcsim.compressors.base import About, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.controllers.inner import PerTensor, alone, check_inner, inner_parameters
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import Collectives, lockstep
from gcsim.compressors.registry import compressor_class
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.errors import InputError, did_you_mean


class LGrecoParameters(CompressorParameters):
    compressor: str = Field("powersgd", description="the compressor that is controlled")
    parameters: dict[str, Any] = Field({"rank": 4}, description="its parameters, with the base")
    vary: str = Field("rank", description="name of the parameter to choose for each tensor")
    lowest: float = Field(0.5, gt=0, le=1, description="smallest candidate, times the base")
    highest: float = Field(2.0, ge=1, description="largest candidate, times the base")
    candidates: int = Field(15, ge=2, le=1000, description="most candidates a tensor")
    alpha: float = Field(1.0, gt=0, description="allowed error, times that of the base everywhere")
    every: int = Field(100, ge=1, description="steps from a decision to the next")
    over: int = Field(10, ge=1, description="steps whose gradients are summed for a decision")
    buckets: int = Field(
        10_000, ge=1, le=1_000_000, description="steps in which errors are counted"
    )

    @model_validator(mode="after")
    def _check_inner(self) -> Self:
        if self.over > self.every:
            raise ValueError(f"over = {self.over} steps, but a decision every {self.every}")
        base = self.base()
        numbers = {key for key, value in base if type(value) in (int, float)}
        if self.vary not in numbers:
            raise InputError(
                f"{self.compressor} has no number {self.vary!r} to vary",
                place="vary",
                hint=did_you_mean(self.vary, numbers),
            )
        named = {f"{self.vary} = {getattr(p, self.vary)}": p for p in self.settings()}
        check_inner(self.compressor, named)
        if compressor_class(self.compressor).momentum(base)[0]:
            message = f"{self.compressor} has momentum: its error cannot be told from it"
            raise InputError(message)
        return self

    def base(self) -> CompressorParameters:
        """The inner compressor's parameters to begin with."""
        return inner_parameters(self.compressor, self.parameters, "parameters")

    def settings(self) -> list[CompressorParameters]:
        """The inner compressor's parameters for each candidate; the base is the first."""
        settings = [self.base()]
        for value in candidate_values(
            getattr(settings[0], self.vary), self.lowest, self.highest, self.candidates
        ):
            given = {**self.parameters, self.vary: value}
            with suppress(InputError):
                found = inner_parameters(self.compressor, given, "parameters")
                settings += [found] if found != settings[0] else []
        return settings


class LGreco(PerTensor[LGrecoParameters]):
    """The inner compressor's parameter is chosen for each tensor by a knapsack."""

    about = About(
        title="L-GreCo",
        family="controller",
        collective="those of the inner compressor; all-reduce of 4 bytes a tensor at decisions",
        bits="at most those of the inner compressor with its base parameter",
        state="the inner compressor's; on worker 0 a sum of gradients (n) before decisions",
        paper="Markov et al., L-GreCo, MLSys 2024, arXiv:2210.17357",
    )

    def __init__(self, worker: Worker, parameters: LGrecoParameters) -> None:
        super().__init__(worker, parameters)
        self._sums: dict[int, Tensor] = {}
        """Sums of the gradients since the last decision on worker 0, by bucket."""

    @classmethod
    def period(cls, parameters: LGrecoParameters) -> int:
        return math.lcm(parameters.every, super().period(parameters))

    @classmethod
    def phase(cls, parameters: LGrecoParameters, step: int) -> str:
        """Kind of step: the inner compressor's, followed by "decision" at those."""
        inner = super().phase(parameters, step)
        return f"{inner}, decision" if (step + 1) % parameters.every == 0 else inner

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        p, index = self.parameters, bucket.layout.index
        if self.worker.rank == 0 and step % p.every >= p.every - p.over:
            total = self._sums.get(index)
            grown = bucket.gradient.clone() if total is None else total.add_(bucket.gradient)
            self._sums[index] = grown
        update: Tensor = yield from self.exchange_tensors(bucket, step)
        if (step + 1) % p.every == 0:
            chosen = torch.zeros(len(bucket.layout.slices), dtype=torch.int32)
            if self.worker.rank == 0:
                numbers = self._decide(bucket, self._sums.pop(index))
                chosen = torch.tensor(numbers, dtype=torch.int32)
            chosen = yield AllReduce(tensor=chosen)
            for piece, number in zip(bucket.layout.slices, chosen.tolist(), strict=True):
                self.set_parameters(piece, self._settings[number])
        return update

    def _decide(self, bucket: Bucket, total: Tensor) -> list[int]:
        """Numbers of the chosen candidates, tensor by tensor."""
        summed = Bucket(layout=bucket.layout, gradient=total)
        trials = np.array([
            [self._trial(alone(summed, piece), setting) for setting in self._settings]
            for piece in bucket.layout.slices
        ])  # fmt: skip
        errors, sizes = trials[..., 0], trials[..., 1].astype(np.int64)
        return allocate(errors, sizes, self.parameters.alpha, self.parameters.buckets)

    def _trial(self, one: Bucket, setting: CompressorParameters) -> tuple[float, int]:
        """(squared error, bytes) of a bucket of one tensor with one candidate."""
        fresh = self._class(Worker(rank=0, count=1, seed=self.worker.seed), setting)
        counter = Collectives()
        (update,) = lockstep([fresh.exchange(one, self._class.warmup_steps(setting))], counter)
        nbytes = sum(record.sent[0] + record.pulled for record in counter.collectives)
        return energy(update.sub_(one.gradient)), nbytes


def candidate_values(base: float, lowest: float, highest: float, most: int) -> Sequence[float]:
    """Values from lowest * base to highest * base, of the base's type; about `most` of them."""
    if isinstance(base, int):
        first, last = max(1, math.ceil(lowest * base)), math.floor(highest * base)
        count = min(most, last - first + 1)
        return sorted({round(value) for value in np.linspace(first, last, count).tolist()})
    values: list[float] = np.geomspace(lowest * base, highest * base, most).tolist()
    return values


def allocate(
    errors: NDArray[np.float64], sizes: NDArray[np.int64], alpha: float, buckets: int
) -> list[int]:
    """One candidate a tensor, of the fewest bytes within the error that the base is allowed.

    Parameters
    ----------
    errors : `[tensors, candidates]`, of candidate 0 (the base) and the others
    sizes : `[tensors, candidates]`, in bytes
    alpha : allowed sum of errors, times that of the base
    buckets : steps in which errors are counted, rounded up

    Returns
    -------
    The candidates' numbers; all 0 when no choice within the budget is smaller than the base.
    """
    budget = alpha * float(errors[:, 0].sum())
    costs = np.full(errors.shape, buckets + 1, dtype=np.int64)
    costs[errors == 0] = 0
    if budget > 0:
        scaled = np.minimum(errors / budget * buckets, buckets + 1)
        costs = np.ceil(scaled).astype(np.int64)
    best = np.zeros(buckets + 1)
    """Fewest bytes of the tensors so far, by what they may cost."""
    chosen = np.zeros((len(errors), buckets + 1), dtype=np.int16)
    for tensor, (cost, size) in enumerate(zip(costs, sizes, strict=True)):
        after = np.full(buckets + 1, np.inf)
        for candidate in np.lexsort((np.arange(cost.size), errors[tensor])):
            c = int(cost[candidate])
            if c > buckets:
                continue
            total = best[: buckets + 1 - c] + size[candidate]
            better = total < after[c:]
            after[c:][better] = total[better]
            chosen[tensor, c:][better] = candidate
        best = after
    if not best[buckets] < sizes[:, 0].sum():
        return [0] * len(errors)
    found, left = [], buckets
    for tensor in reversed(range(len(errors))):
        candidate = int(chosen[tensor, left])
        found.append(candidate)
        left -= int(costs[tensor, candidate])
    return found[::-1]
