"""ALQ: what if the levels of random rounding follow the distribution of the gradient?

Elements travel as in NUQSGD: the norm of each bucket and a code of `bits` bits for one of the
levels of a table, rounded at random. The table is fitted anew every `update_every` steps: to the
normalised elements r = v / norm, whose distribution F is modelled by truncated normals on [-1, 1],
such that the expected variance Psi = sum_j integral (l_{j+1} - r) (r - l_j) dF is least. Coordinate
descent: with its neighbours a and b held, the best place of a level is

    l = F^-1( F(b) - integral_a^b (r - a) / (b - a) dF ),

level by level, `sweeps` times; from uniform, exponential and quantile tables, of which the best
end is kept. Psi never grows. Unbiased whatever the table; the variance is
sum (|v| - lo) (hi - |v|), levels times the norm, exactly.

Symmetric tables hold zero: 2^bits - 1 levels, fitted to |r|. Otherwise 2^bits levels are free but
for -1 and 1.

F is one truncated normal of the pooled mean and within-bucket variance ("single"), or a mixture of
one for each of the `components` buckets of largest norm, weighted by that norm ("mixture").
Workers agree by one small all-reduce of (sum of weights, weighted mean, weighted variance) for
each component: the k-th largest buckets of all workers make the k-th component. F is kept as a
histogram, as in the published code, here of 4096 cells that are shorter near zero.

State: one table for each DDP bucket, exponential (p = 1/2) before the first update at step 0.

Assumes that how workers agree on the statistics, which is open in the paper and its code, may be
that average. The published code descends by finite differences unless told to use the formula.

Source: F. Faghri et al., "Adaptive Gradient Quantization for Data-Parallel SGD", NeurIPS 2020,
arXiv:2010.12460, section 3; code: Tabrizian/learning-to-quantize (nuq/quantize.py, estim/dist.py).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.levels import Norm, bucket_count, bucket_norms
from gcsim.compressors.coding.tables import (
    MAX_BITS,
    add_decoded,
    encode_message,
    exponential_levels,
    table_error,
)
from gcsim.compressors.laws import Laws
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_parallel, loop, summing_loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.requests import AllGather, AllReduce, Exchange

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from gcsim.compressors.coding.tables import Levels

    Numbers = NDArray[np.float64]

_CELLS = 4096
_FIRST_CELL = 1e-6
"""Length of the histogram's shortest cell, next to zero."""
_LEAST_SIGMA = 1e-6
_NO_MASS = 1e-13
"""Of the neighbourhood of a level that is left where it is."""
_MARGIN = 1e-6
"""Of the distance between its neighbours, that a level keeps from either."""


class AdaptiveParameters(CompressorParameters):
    """Hyper-parameters that ALQ and AMQ share."""

    bits: int = Field(4, ge=2, le=MAX_BITS, description="of an element's code")
    bucket: int | None = Field(
        1024,
        ge=1,
        le=65535,
        description="elements that share one norm (32 bits a bucket); null: one norm a tensor",
    )
    norm: Norm = Field("l2", description="a bucket's norm: l2 (the paper's), or its maximum |v|")
    update_every: int = Field(
        1000, ge=1, description="steps between two fits of the levels, the first at step 0"
    )
    distribution: Literal["mixture", "single"] = Field(
        "mixture",
        description="model of the normalised elements: a mixture of truncated normals, one for "
        "each of the buckets of largest norm, or a single one",
    )
    components: int = Field(20, ge=1, description="truncated normals of the mixture")


class AlqParameters(AdaptiveParameters):
    """Hyper-parameters of `Alq`."""

    symmetric: bool = Field(
        True, description="levels 0 and ±, fitted to |r|; else all but -1 and 1 are free"
    )
    sweeps: int = Field(10, ge=1, description="of coordinate descent over all levels")


class AdaptiveLevels(Compressor):
    """Random rounding to a table that is fitted to the gradient's distribution."""

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, AdaptiveParameters)
        self.parameters = parameters
        self._levels: dict[int, Levels] = {}

    @classmethod
    @abstractmethod
    def initial(cls, parameters: CompressorParameters) -> Levels:
        """The table before the first fit."""

    @classmethod
    @abstractmethod
    def fitted(
        cls, parameters: CompressorParameters, components: Numbers, before: Levels
    ) -> Levels:
        """The table for a distribution: rows of mean, sigma, weight; `before` is the table now."""

    @classmethod
    def period(cls, parameters: CompressorParameters) -> int:
        """See `Compressor.period`."""
        assert isinstance(parameters, AdaptiveParameters)
        return parameters.update_every

    @classmethod
    def phase(cls, parameters: CompressorParameters, step: int) -> str:
        """See `Compressor.phase`."""
        assert isinstance(parameters, AdaptiveParameters)
        return "update" if step % parameters.update_every == 0 else "step"

    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        """Unbiased; the error is that of the table which is fitted to the tensor alone.

        Although it is an equality it is not called one: a great part of it may be due to jumps to
        the highest level that are too rare to be seen in hundreds of trials.
        """
        assert isinstance(parameters, AdaptiveParameters)
        chosen = parameters

        def error(values: Tensor) -> float:
            components = in_common(statistics([values], chosen))
            levels = cls.initial(chosen)
            if components.size:
                levels = cls.fitted(chosen, components, levels)
            return table_error(values, levels, size=chosen.bucket, norm=chosen.norm)

        return Laws(unbiased=True, error_bound=error)

    def levels_of(self, bucket: Bucket) -> Levels:
        """The table of a DDP bucket: float32, ascending from -1 to 1."""
        return self._levels.setdefault(bucket.layout.index, self.initial(self.parameters))

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        chosen = self.parameters
        if self.phase(chosen, step) == "update":
            parts = [values for _, values in bucket.layout.views(bucket.gradient)]
            summed = yield AllReduce(tensor=statistics(parts, chosen))
            components = in_common(summed)
            if components.size:
                before = self.levels_of(bucket)
                self._levels[bucket.layout.index] = self.fitted(chosen, components, before)
        levels = self.levels_of(bucket)
        message = encode_message(
            bucket,
            levels,
            bits=chosen.bits,
            size=chosen.bucket,
            norm=chosen.norm,
            worker=self.worker,
            step=step,
            purpose="adaptive levels rounding",
        )
        payloads = yield AllGather(payload=message)
        update = torch.zeros_like(bucket.gradient)
        for payload in payloads:
            add_decoded(
                payload,
                bucket.layout,
                update,
                1.0 / self.worker.count,
                levels,
                bits=chosen.bits,
                size=chosen.bucket,
            )
        return update


class Alq(AdaptiveLevels):
    """Levels at a coordinate-wise minimum of the expected variance."""

    Parameters = AlqParameters
    about = About(
        title="ALQ",
        family="quantization",
        collective="all-gather (and an all-reduce of statistics every update_every steps)",
        bits="bits + 32 / bucket",
        unbiased=True,
        state="levels (2^bits a DDP bucket)",
        paper="Faghri et al., NeurIPS 2020, arXiv:2010.12460",
    )

    @classmethod
    def initial(cls, parameters: CompressorParameters) -> Levels:
        """See `AdaptiveLevels.initial`."""
        assert isinstance(parameters, AlqParameters)
        return exponential_levels(parameters.bits, 0.5, zero=parameters.symmetric)

    @classmethod
    def fitted(
        cls, parameters: CompressorParameters, components: Numbers, before: Levels
    ) -> Levels:
        """See `AdaptiveLevels.fitted`; the table now has no influence."""
        assert isinstance(parameters, AlqParameters)
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


def separate(levels: Numbers) -> Numbers:
    """The levels a little apart, if any coincide: the gaps are at least 1e-6 of the range."""
    levels = levels.copy()
    least = _MARGIN * (levels[-1] - levels[0])
    for j in range(1, levels.size - 1):
        levels[j] = max(levels[j], levels[j - 1] + least)
    for j in range(levels.size - 2, 0, -1):
        levels[j] = min(levels[j], levels[j + 1] - least)
    return levels


def coordinate_descent(model: Histogram, levels: Numbers, sweeps: int) -> Numbers:
    """Levels after `sweeps` passes of the closed form over all but the first and the last."""
    found = levels.copy()
    _descend(found, sweeps, model.edges, model.masses_above, model.means_above, model.density)
    return found


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
    grain = max(1, SUM_BLOCK // size) * size
    in_parallel(_bucket_sums, data.size, data, size, sums, grain=grain)
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


# --- the distribution of normalised elements ----------------------------------------------------


class Histogram:
    """A mixture of normals that are truncated to [-1, 1], as constant density in cells.

    `components` are rows of mean, sigma and weight. With `folded`, of |r| on [0, 1].
    """

    def __init__(self, components: Numbers, *, folded: bool) -> None:
        right = np.concatenate(([0.0], np.geomspace(_FIRST_CELL, 1.0, _CELLS)))
        means, sigmas, weights = components.T
        masses = _masses(right, means, sigmas) @ weights
        left = _masses(right, -means, sigmas) @ weights
        if folded:
            self.edges, masses = right, masses + left
        else:
            self.edges = np.concatenate((-right[:0:-1], right))
            masses = np.concatenate((left[::-1], masses))
        masses = masses / masses.sum()
        low, high = self.edges[:-1], self.edges[1:]
        self.density = masses / (high - low)
        moments = np.stack(
            (masses, masses * (low + high) / 2, masses * (low**2 + low * high + high**2) / 3)
        )
        # By edge: integral of dF, r dF and r^2 dF from there to 1.
        above = np.zeros((3, self.edges.size))
        above[:, :-1] = moments[:, ::-1].cumsum(axis=1)[:, ::-1]
        self.masses_above, self.means_above, self.squares_above = above

    def tails(self, x: Any) -> tuple[Any, Any, Any]:
        """Integrals of dF, r dF and r^2 dF from x to 1; x a number or an array in the range."""
        cell = np.clip(np.searchsorted(self.edges, x, side="right") - 1, 0, self.edges.size - 2)
        high, density = self.edges[cell + 1], self.density[cell]
        return (
            self.masses_above[cell + 1] + density * (high - x),
            self.means_above[cell + 1] + density * (high**2 - x**2) / 2,
            self.squares_above[cell + 1] + density * (high**3 - x**3) / 3,
        )

    def variance(self, levels: Numbers) -> float:
        """Psi: the expected variance of rounding at random to ascending levels."""
        low, high = levels[:-1], levels[1:]
        zeroth, first, second = (-np.diff(tail) for tail in self.tails(levels))
        return float(((low + high) * first - low * high * zeroth - second).sum())

    def quantiles(self, shares: Numbers) -> Numbers:
        """x with F(x) = share; the range's ends for 0 and 1."""
        found = np.interp(1.0 - shares, self.masses_above[::-1], self.edges[::-1])
        found[0], found[-1] = self.edges[0], self.edges[-1]
        return found


@loop
def _descend(
    levels: Any, sweeps: int, edges: Any, masses_above: Any, means_above: Any, density: Any
) -> None:
    for _ in range(sweeps):
        for j in range(1, levels.size - 1):
            a, b = levels[j - 1], levels[j + 1]
            low, high = _cell(edges, a), _cell(edges, b)
            mass = masses_above[low + 1] + density[low] * (edges[low + 1] - a)
            above_b = masses_above[high + 1] + density[high] * (edges[high + 1] - b)
            mean = means_above[low + 1] + density[low] * (edges[low + 1] ** 2 - a**2) / 2
            mean -= means_above[high + 1] + density[high] * (edges[high + 1] ** 2 - b**2) / 2
            mass -= above_b
            if mass <= _NO_MASS:
                continue  # nothing is there: all places are equal
            share = (mean - a * mass) / (b - a)  # F(b) - F(l)
            place = _place(edges, masses_above, density, above_b + share)
            margin = _MARGIN * (b - a)
            levels[j] = min(max(place, a + margin), b - margin)


@loop
def _cell(edges: Any, x: float) -> int:
    """The last cell that does not begin above x."""
    low, high = 0, edges.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if edges[middle] <= x:
            low = middle
        else:
            high = middle
    return low


@loop
def _place(edges: Any, masses_above: Any, density: Any, mass: float) -> Any:
    """Where so much mass is above; exact, as it is linear inside of a cell."""
    low, high = 0, edges.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if masses_above[middle] >= mass:
            low = middle
        else:
            high = middle
    if density[low] <= 0:
        return edges[high]
    return edges[high] - (mass - masses_above[high]) / density[low]


def _masses(edges: Numbers, means: Numbers, sigmas: Numbers) -> Numbers:
    """Probability of each cell under each truncated normal: `[cells, components]`."""
    from scipy.special import ndtr  # type: ignore[import-untyped]  # scipy has no annotations

    sigmas = np.maximum(sigmas, _LEAST_SIGMA)
    above = ndtr((means - edges[:, None]) / sigmas)  # P(r > edge), exact where it is small
    inside = ndtr((1 - means) / sigmas) - ndtr((-1 - means) / sigmas)
    masses: Numbers = (above[:-1] - above[1:]) / inside
    return masses
