"""ALQ and AMQ: random rounding to a table of levels that is refitted to the gradient now and then.

Messages are as in NUQSGD: the norm of each bucket, and for each element a code of `bits` bits for a
level of the table. Every `update_every` steps, from step 0 on, the table is fitted to the
distribution F of the normalised elements r = v / norm, modelled by truncated normals on [-1, 1]:
one with the pooled mean and within-bucket variance ("single"), or a mixture with one for each of
the `components` buckets of largest norm, weighted by that norm ("mixture"). Unbiased with any
table; the variance is exactly sum (|v| - lo) (hi - |v|), with lo, hi the levels times the norm.

Workers agree through one small all-reduce of (sum of weights, weighted mean, weighted variance) per
component: the k-th largest buckets of all workers form the k-th component. All then fit the same
table on the host, unmetered. Before the first fit it is exponential, p = 1/2.

ALQ: coordinate descent on the expected variance, Psi = sum_j integral (l_{j+1} - r) (r - l_j) dF.
Between fixed neighbours a and b the best level is

    l = F^-1( F(b) - integral_a^b (r - a) / (b - a) dF ),

level by level, `sweeps` times, from uniform, exponential and quantile tables; the best result is
kept. Psi never grows. Symmetric tables contain zero: 2^bits - 1 levels, fitted to |r|; others have
2^bits levels, all free except ±1.

AMQ: the table is ±1, ±p, …, ±p^m (and 0 with `zero`); p is fitted by gradient descent on Psi. With
A the distribution of |r|, and no level between ±p^m,

    Psi(p)  = sum_{j<m} integral_{p^{j+1}}^{p^j} (p^j - r) (r - p^{j+1}) dA
              + integral_0^{p^m} (p^{2m} - r^2) dA,
    Psi'(p) = sum_{j<m} integral (j p^{j-1} + (j+1) p^j) r - (2j+1) p^{2j} dA
              + 2 m p^{2m-1} A(p^m).

With zero the last terms are integral_0^{p^m} (p^m - r) r dA and m p^{m-1} integral_0^{p^m} r dA.
Descent makes `epochs` steps with rate `learning_rate` from .1, .2, …, .9 and from the current p;
the best result is kept. m = 2^(bits-1) - 1, with zero 2^(bits-1) - 2.

A fitted table is used only if it is not worse. The model knows two moments of a few buckets and
puts few levels at the large elements of heavy-tailed gradients: with 4 bits and buckets of 1024
ALQ's table has an NMSE of .038 on normal gradients (the exponential table .095), but .13 on Laplace
gradients (.10) and .72 on cubed normals (.10). At each update a worker therefore computes the exact
error of both on its own gradient (`table_errors`, two passes) and uses the better one for each
tensor until the next update. The frame's header tells which.

State: a table per DDP bucket, a bit per tensor.

Paper and code leave the averaging open. ALQ uses the closed form, the published code finite
differences by default. Multipliers are within .01 … .99. The paper always uses the fitted table.

Source: F. Faghri et al., "Adaptive Gradient Quantization for Data-Parallel SGD", NeurIPS 2020,
arXiv:2010.12460; code: Tabrizian/learning-to-quantize (nuq/quantize.py, estim/).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, Properties, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.rounding.levels import Table
from gcsim.compressors.coding.rounding.norms import cell_norms, cell_sums, table_errors
from gcsim.compressors.coding.rounding.truncated_normals import (
    Histogram,
    Numbers,
    coordinate_descent,
    separate,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.quantization.rounding.nuqsgd import (
    TableParameters,
    add_decoded,
    encode_message,
    exponential_levels,
)
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.compressors.segments import Segments

_STARTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_LEAST, _MOST = 0.01, 0.99


class AdaptiveParameters(TableParameters):
    """Hyper-parameters of both ALQ and AMQ."""

    update_every: int = Field(
        1000, ge=1, description="steps between fits of the levels, the first at step 0"
    )
    distribution: Literal["mixture", "single"] = Field(
        "mixture",
        description="model of the normalised elements: a mixture of truncated normals, one for "
        "each of the buckets with the largest norms, or a single one",
    )
    components: int = Field(20, ge=1, description="truncated normals in the mixture")


P = TypeVar("P", bound=AdaptiveParameters)


class AdaptiveLevels(Compressor[P]):
    def __init__(self, worker: Worker, parameters: P) -> None:
        super().__init__(worker, parameters)
        self._levels: dict[int, Table] = {}
        """Last fitted table, by DDP bucket."""
        self._taken: dict[int, int] = {}
        """Table in use for each tensor: 0 (initial) or 1 (fitted)."""

    @classmethod
    @abstractmethod
    def initial(cls, parameters: P) -> Table:
        """Return the table that is used before the first fit."""

    @classmethod
    @abstractmethod
    def fitted(cls, parameters: P, components: Numbers, before: Table) -> Table:
        """Fit a table to a distribution: rows of mean, sigma, weight; `before` is the old table."""

    @classmethod
    def period(cls, parameters: P) -> int:
        return parameters.update_every

    @classmethod
    def phase(cls, parameters: P, step: int) -> str:
        return "update" if step % parameters.update_every == 0 else "step"

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        """Return the properties: unbiased; the error is that of the better of the first table and
        the one fitted to this tensor. It is not called exact: much of it may come from jumps to the
        highest level, too rare for hundreds of trials."""

        def error(values: Tensor) -> float:
            alone = Segments.alone(values.numel())
            components = in_common(statistics(values, alone, parameters))
            first = cls.initial(parameters)
            fitted = cls.fitted(parameters, components, first) if components.size else first
            return float(_errors(values, alone, (first, fitted), parameters).min())

        return Properties(unbiased=True, error_bound=error)

    def levels_of(self, bucket: Bucket) -> Table:
        """Return the table last fitted to a DDP bucket: float32, ascending from -1 to 1."""
        return self._levels.setdefault(bucket.layout.index, self.initial(self.parameters))

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen, layout = self.parameters, bucket.layout
        segments, update = Segments.of(layout), self.phase(chosen, step) == "update"
        if update:
            summed = yield AllReduce(tensor=statistics(bucket.gradient, segments, chosen))
            components = in_common(summed)
            if components.size:
                before = self.levels_of(bucket)
                self._levels[layout.index] = self.fitted(chosen, components, before)
        tables = self.initial(chosen), self.levels_of(bucket)
        if update:
            better = _errors(bucket.gradient, segments, tables, chosen).argmin(axis=0).tolist()
            self._taken.update(zip((p.index for p in layout.slices), better, strict=True))
        purpose = "adaptive levels rounding"
        message = encode_message(bucket, tables, chosen, self.worker, step, purpose, self._taken)
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded, tables=tables, chosen=chosen)


def _errors(
    values: Tensor, segments: Segments, tables: Sequence[Table], chosen: AdaptiveParameters
) -> Numbers:
    """Return the error of each table on each tensor: float64 `[tables, tensors]`."""
    cells = segments.cells(chosen.bucket)
    norms = cell_norms(values, cells, chosen.norm)
    return np.stack([table_errors(values, cells, norms, table) for table in tables])


# --- statistics ---------------------------------------------------------------------------------


def statistics(values: Tensor, segments: Segments, chosen: AdaptiveParameters) -> Tensor:
    """Return the statistics of a DDP bucket's `values` for the workers to add up: float64
    `[components, 3]`, rows of weight w, w mean, w variance. Buckets whose norm is zero or not
    finite do not count."""
    cells = segments.cells(chosen.bucket)
    norm = cell_norms(values, cells, chosen.norm).double()
    used = norm.isfinite() & (norm > 0)
    norm, length = norm[used], torch.from_numpy(cells.length).to(norm)[used]
    total, square = cell_sums(values, cells)[used].T
    mean = total / norm / length
    within = (square / norm**2 - length * mean**2).clamp(min=0.0)
    if chosen.distribution == "single":
        return torch.stack([_sum(each) for each in (length, length * mean, within)])[None]
    rows = norm.new_zeros((min(chosen.components, cells.total), 3))
    weight, largest = norm.sort(descending=True, stable=True)
    weight, largest = weight[: len(rows)], largest[: len(rows)]
    variance = within[largest] / (length[largest] - 1).clamp(min=1)
    rows[: len(weight)] = torch.stack((weight, weight * mean[largest], weight * variance), dim=1)
    return rows


def _sum(values: Tensor) -> Tensor:
    """Return the sum; in host memory by numpy, whose order does not depend on threads."""
    return torch.tensor(array(values).sum()) if values.is_cpu else values.sum()


def in_common(summed: Tensor) -> Numbers:
    """Return rows of mean, sigma, weight (adding up to 1), given sums; none if all are zero."""
    rows = array(summed)
    rows = rows[rows[:, 0] > 0]
    weight = rows[:, 0]
    return np.stack(
        (rows[:, 1] / weight, np.sqrt(rows[:, 2] / weight), weight / weight.sum()), axis=1
    )


# --- ALQ -----------------------------------------------------------------------------------------


class AlqParameters(AdaptiveParameters):
    symmetric: bool = Field(
        True, description="levels are zero and ± pairs; else all but -1 and 1 are fitted freely"
    )
    sweeps: int = Field(10, ge=1, description="sweeps of coordinate descent over all levels")


class Alq(AdaptiveLevels[AlqParameters]):
    about = About(
        title="ALQ",
        family="quantization",
        collective="all-gather (and an all-reduce of statistics every update_every steps)",
        bits="bits + 32 / bucket",
        unbiased=True,
        state="levels (2^bits a DDP bucket), which table (1 bit a tensor)",
        paper="Faghri et al., NeurIPS 2020, arXiv:2010.12460",
    )

    @classmethod
    def initial(cls, parameters: AlqParameters) -> Table:
        return exponential_levels(parameters.bits, 0.5, zero=parameters.symmetric)

    @classmethod
    def fitted(cls, parameters: AlqParameters, components: Numbers, before: Table) -> Table:
        """Return the table with the least expected variance, whatever the current one is."""
        chosen = parameters
        model = Histogram(components, folded=chosen.symmetric)
        first = 0.0 if chosen.symmetric else -1.0
        exponential = exponential_levels(chosen.bits, 0.5, zero=chosen.symmetric)
        exponential = exponential[exponential >= first]
        uniform = np.linspace(first, 1.0, exponential.size)
        quantiles = model.quantiles(np.linspace(0.0, 1.0, exponential.size))
        ends = [
            coordinate_descent(model, start, chosen.sweeps)
            for start in (uniform, exponential.astype(np.float64), separate(quantiles))
        ]
        best = min(ends, key=model.variance).astype(np.float32)
        return np.concatenate((-best[:0:-1], best)) if chosen.symmetric else best


# --- AMQ -----------------------------------------------------------------------------------------


class AmqParameters(AdaptiveParameters):
    zero: bool = Field(
        False, description="zero is a level; else another power of the multiplier is"
    )
    epochs: int = Field(
        50, ge=1, le=10_000, description="gradient-descent steps on the multiplier, from each start"
    )
    learning_rate: float = Field(0.1, gt=0, description="learning rate of this gradient descent")


class Amq(AdaptiveLevels[AmqParameters]):
    about = replace(Alq.about, title="AMQ")

    @classmethod
    def initial(cls, parameters: AmqParameters) -> Table:
        return exponential_levels(parameters.bits, 0.5, zero=parameters.zero)

    @classmethod
    def fitted(cls, parameters: AmqParameters, components: Numbers, before: Table) -> Table:
        chosen = parameters
        powers = powers_of(chosen)
        if powers == 0:  # 2 bits with zero: levels -1, 0, 1 for any p
            return before
        model = Histogram(components, folded=True)
        present = min(max(float(before[-2]), _LEAST), _MOST)  # levels end with p, 1
        multipliers = np.array((*_STARTS, present))
        for _ in range(chosen.epochs):
            slopes = slope(model, multipliers, powers, zero=chosen.zero)
            multipliers = np.clip(multipliers - chosen.learning_rate * slopes, _LEAST, _MOST)
        ends = expected_variance(model, multipliers, powers, zero=chosen.zero)
        best = float(np.float32(multipliers[int(ends.argmin())]))  # as the next update reads it
        return exponential_levels(chosen.bits, best, zero=chosen.zero)


def powers_of(parameters: AmqParameters) -> int:
    """Return m, the largest power of the multiplier in the table."""
    return int(2 ** (parameters.bits - 1)) - 1 - int(parameters.zero)


def expected_variance(model: Histogram, p: Numbers, powers: int, *, zero: bool) -> Numbers:
    """Return Psi for each multiplier in `p`; `model` is the distribution of |r|."""
    levels = p[:, None] ** np.arange(powers + 1)  # descending
    high, low = levels[:, :-1], levels[:, 1:]
    zeroth, first, second = (np.diff(tail, axis=1) for tail in model.tails(levels))
    between: Numbers = ((high + low) * first - high * low * zeroth - second).sum(axis=1)
    mass, mean, square = _below(model, levels[:, -1])
    least = levels[:, -1]
    bottom: Numbers = least * mean - square if zero else least**2 * mass - square
    return between + bottom


def slope(model: Histogram, p: Numbers, powers: int, *, zero: bool) -> Numbers:
    """Return Psi' for each multiplier in `p`."""
    levels = p[:, None] ** np.arange(powers + 1)
    zeroth, first, _ = (np.diff(tail, axis=1) for tail in model.tails(levels))
    j = np.arange(powers)
    weights = j * p[:, None] ** (j - 1.0) + (j + 1) * p[:, None] ** j
    between: Numbers = (weights * first - (2 * j + 1) * p[:, None] ** (2 * j) * zeroth).sum(axis=1)
    mass, mean, _ = _below(model, levels[:, -1])
    bottom: Numbers = (
        powers * p ** (powers - 1) * mean if zero else 2 * powers * p ** (2 * powers - 1) * mass
    )
    return between + bottom


def _below(model: Histogram, x: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the integrals of dA, r dA and r^2 dA from 0 to x."""
    zeroth, first, second = model.tails(x)
    every = model.whole
    return every[0] - zeroth, every[1] - first, every[2] - second
