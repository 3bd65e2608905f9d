"""What do ALQ and AMQ share? Random rounding to a table that is fitted to the gradient at times.

Elements travel as in NUQSGD: the norm of each bucket and a code of `bits` bits for one of the
levels of a table. Every `update_every` steps, from step 0 on, the table is fitted to the
distribution F of the normalised elements r = v / norm, modelled by truncated normals on [-1, 1]:
one of the pooled mean and within-bucket variance ("single"), or a mixture of one for each of the
`components` buckets of largest norm, weighted by that norm ("mixture").

Workers agree by one small all-reduce of (sum of weights, weighted mean, weighted variance) for
each component: the k-th largest buckets of all workers make the k-th component. All then fit the
same table, on the host: the meter sees the statistics but not the fit.

State: one table for each DDP bucket. Unbiased whatever the table is.

Assumes that how workers agree on the statistics, which is open in the paper and its code, may be
that average.

Source: F. Faghri et al., "Adaptive Gradient Quantization for Data-Parallel SGD", NeurIPS 2020,
arXiv:2010.12460; code: Tabrizian/learning-to-quantize (estim/gestim.py).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.rounding.levels import bucket_count, bucket_grain, bucket_norms
from gcsim.compressors.coding.rounding.tables import (
    Levels,
    TableParameters,
    add_decoded,
    encode_message,
    table_error,
)
from gcsim.compressors.coding.rounding.truncated_normals import Numbers
from gcsim.compressors.laws import Laws
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_parallel, loop, summing_loop, tensor
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.requests import AllGather, AllReduce, Exchange


class AdaptiveParameters(TableParameters):
    """Hyper-parameters that ALQ and AMQ share."""

    update_every: int = Field(
        1000, ge=1, description="steps between two fits of the levels, the first at step 0"
    )
    distribution: Literal["mixture", "single"] = Field(
        "mixture",
        description="model of the normalised elements: a mixture of truncated normals, one for "
        "each of the buckets of largest norm, or a single one",
    )
    components: int = Field(20, ge=1, description="truncated normals of the mixture")


P = TypeVar("P", bound=AdaptiveParameters)


class AdaptiveLevels(Compressor[P]):
    """Random rounding to a table that is fitted to the gradient's distribution."""

    def __init__(self, worker: Worker, parameters: P) -> None:
        super().__init__(worker, parameters)
        self._levels: dict[int, Levels] = {}

    @classmethod
    @abstractmethod
    def initial(cls, parameters: P) -> Levels:
        """The table before the first fit."""

    @classmethod
    @abstractmethod
    def fitted(cls, parameters: P, components: Numbers, before: Levels) -> Levels:
        """The table for a distribution: rows of mean, sigma, weight; `before` is the table now."""

    @classmethod
    def period(cls, parameters: P) -> int:
        return parameters.update_every

    @classmethod
    def phase(cls, parameters: P, step: int) -> str:
        return "update" if step % parameters.update_every == 0 else "step"

    @classmethod
    def laws(cls, parameters: P) -> Laws:
        """Unbiased; the error is that of the table which is fitted to the tensor alone.

        Although it is an equality it is not called one: a great part of it may be due to jumps to
        the highest level that are too rare to be seen in hundreds of trials.
        """

        def error(values: Tensor) -> float:
            components = in_common(statistics([values], parameters))
            levels = cls.initial(parameters)
            if components.size:
                levels = cls.fitted(parameters, components, levels)
            return table_error(values, levels, size=parameters.bucket, norm=parameters.norm)

        return Laws(unbiased=True, error_bound=error)

    def levels_of(self, bucket: Bucket) -> Levels:
        """The table of a DDP bucket: float32, ascending from -1 to 1."""
        return self._levels.setdefault(bucket.layout.index, self.initial(self.parameters))

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen = self.parameters
        if self.phase(chosen, step) == "update":
            parts = [values for _, values in batched(bucket.layout.views(bucket.gradient))]
            summed = yield AllReduce(tensor=statistics(parts, chosen))
            components = in_common(summed)
            if components.size:
                before = self.levels_of(bucket)
                self._levels[bucket.layout.index] = self.fitted(chosen, components, before)
        levels = self.levels_of(bucket)
        purpose = "adaptive levels rounding"
        message = encode_message(bucket, levels, chosen, self.worker, step, purpose)
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded, levels=levels, chosen=chosen)


# --- statistics ---------------------------------------------------------------------------------


def statistics(parts: list[Tensor], chosen: AdaptiveParameters) -> Tensor:
    """What the workers add up: float64 `[components, 3]`, rows of weight w, w mean, w variance.

    `parts` are a DDP bucket's tensors. Buckets without a norm (all zero, or not finite) count for
    nothing.
    """
    norms, means, squares, lengths = [], [], [], []
    for values in parts:
        size = chosen.bucket or max(1, values.numel())
        norm = array(bucket_norms(values, size, chosen.norm)).astype(np.float64)
        sums = array(bucket_sums(values, size))
        length = np.full(norm.size, size, dtype=np.float64)
        length[-1:] = values.numel() - size * (norm.size - 1)
        used = np.isfinite(norm) & (norm > 0)
        norms.append(norm[used])
        means.append(sums[used, 0] / norm[used] / length[used])
        squares.append(sums[used, 1] / norm[used] ** 2)
        lengths.append(length[used])
    norm, mean, length = np.concatenate(norms), np.concatenate(means), np.concatenate(lengths)
    within = np.maximum(np.concatenate(squares) - length * mean**2, 0.0)
    if chosen.distribution == "single":
        rows = np.array([[length.sum(), (length * mean).sum(), within.sum()]])
    else:
        rows = np.zeros((min(chosen.components, _bucket_total(parts, chosen.bucket)), 3))
        largest = np.argsort(-norm, kind="stable")[: len(rows)]
        variance = within[largest] / np.maximum(length[largest] - 1, 1)
        weight = norm[largest]
        rows[: largest.size] = np.stack((weight, weight * mean[largest], weight * variance), axis=1)
    return torch.from_numpy(rows)


def _bucket_total(parts: list[Tensor], size: int | None) -> int:
    return sum(bucket_count(values.numel(), size or max(1, values.numel())) for values in parts)


def in_common(summed: Tensor) -> Numbers:
    """Rows of mean, sigma and weight (their sum 1) from the sums over workers; none if all zero."""
    rows = array(summed)
    rows = rows[rows[:, 0] > 0]
    weight = rows[:, 0]
    return np.stack(
        (rows[:, 1] / weight, np.sqrt(rows[:, 2] / weight), weight / weight.sum()), axis=1
    )


@kernel("reduction")
def bucket_sums(values: Tensor, size: int) -> Tensor:
    """Sum of the elements and of their squares of each bucket: float64 `[buckets, 2]`."""
    data = np.ascontiguousarray(array(values))
    sums = np.zeros((bucket_count(data.size, size), 2), dtype=np.float64)
    in_parallel(_bucket_sums, data.size, data, size, sums, grain=bucket_grain(size))
    return tensor(sums, values)


@loop
def _bucket_sums(start: int, stop: int, values: Any, size: int, sums: Any) -> None:
    for first in range(start, stop, size):
        part = values[first : min(first + size, stop)]
        for at in range(0, part.size, SUM_BLOCK):
            total, squares = _sums(part[at : at + SUM_BLOCK])
            sums[first // size, 0] += total
            sums[first // size, 1] += squares


@summing_loop
def _sums(values: Any) -> tuple[float, float]:
    total = 0.0
    squares = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value
        squares += value * value
    return total, squares
