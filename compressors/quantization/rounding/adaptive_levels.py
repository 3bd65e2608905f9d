"""Common part of ALQ and AMQ: random rounding to a table that is fitted to the gradient at times.

Elements travel as in NUQSGD: the norm of each bucket and a code of `bits` bits for one of the
levels of a table. Every `update_every` steps, from step 0 on, the table is fitted to the
distribution F of the normalised elements r = v / norm, modelled by truncated normals on [-1, 1]:
one of the pooled mean and within-bucket variance ("single"), or a mixture of one for each of the
`components` buckets of largest norm, weighted by that norm ("mixture").

Workers agree by one small all-reduce of (sum of weights, weighted mean, weighted variance) for
each component: the k-th largest buckets of all workers make the k-th component. All then fit the
same table, on the host: the meter sees the statistics but not the fit.

A fitted table is used where it is no worse. The model knows two moments of a few buckets, and where
gradients have heavy tails or layers differ, its best table can have several times the error of
the table that the method starts from. So at each update a worker computes the error of both on
its own gradient, exactly (`table_error`, two passes), and each tensor is rounded to the better one
until the next update. A frame says which of the two its codes are of; that is no further byte.

State: one table for each DDP bucket, one bit a tensor. Unbiased whatever the table is.

Assumes that how workers agree on the statistics, which is open in the paper and its code, may be
that average. The paper has no such choice between two tables: it uses the fitted one.

Source: F. Faghri et al., "Adaptive Gradient Quantization for Data-Parallel SGD", NeurIPS 2020,
arXiv:2010.12460; code: Tabrizian/learning-to-quantize (estim/gestim.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from pydantic import Field

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.rounding.levels import Table
from gcsim.compressors.coding.rounding.norms import cell_norms, cell_sums, table_errors
from gcsim.compressors.coding.rounding.tables import TableParameters, add_decoded, encode_message
from gcsim.compressors.coding.rounding.truncated_normals import Numbers
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.compressors.segments import Segments


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
        self._levels: dict[int, Table] = {}
        """Table of the last fit, by DDP bucket."""
        self._taken: dict[int, int] = {}
        """Chosen table of each tensor: 0, the table of the start, or 1, the fitted one."""

    @classmethod
    @abstractmethod
    def initial(cls, parameters: P) -> Table:
        """The table before the first fit."""

    @classmethod
    @abstractmethod
    def fitted(cls, parameters: P, components: Numbers, before: Table) -> Table:
        """The table for a distribution: rows of mean, sigma, weight; `before` is the table now."""

    @classmethod
    def period(cls, parameters: P) -> int:
        return parameters.update_every

    @classmethod
    def phase(cls, parameters: P, step: int) -> str:
        return "update" if step % parameters.update_every == 0 else "step"

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        """Unbiased; the error is that of the table which is fitted to the tensor alone, or of the
        first one, if that has less.

        Although it is an equality it is not called one: a great part of it may be due to jumps to
        the highest level that are too rare to be seen in hundreds of trials.
        """

        def error(values: Tensor) -> float:
            alone = Segments.alone(values.numel())
            components = in_common(statistics(values, alone, parameters))
            first = cls.initial(parameters)
            fitted = cls.fitted(parameters, components, first) if components.size else first
            return float(_errors(values, alone, (first, fitted), parameters).min())

        return Properties(unbiased=True, error_bound=error)

    def levels_of(self, bucket: Bucket) -> Table:
        """The table last fitted to a DDP bucket: float32, ascending from -1 to 1."""
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
    """Error of each table on each tensor: float64 `[tables, tensors]`."""
    cells = segments.cells(chosen.bucket)
    norms = cell_norms(values, cells, chosen.norm)
    return np.stack([table_errors(values, cells, norms, table) for table in tables])


# --- statistics ---------------------------------------------------------------------------------


def statistics(values: Tensor, segments: Segments, chosen: AdaptiveParameters) -> Tensor:
    """Statistics that the workers add up: float64 `[components, 3]`, rows of weight w, w mean, w
    variance.

    `values` are a DDP bucket's. Buckets without a norm (all zero, or not finite) count for nothing.
    """
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
    """The sum; in host memory numpy's, whose order does not depend on the number of threads."""
    return torch.tensor(array(values).sum()) if values.is_cpu else values.sum()


def in_common(summed: Tensor) -> Numbers:
    """Rows of mean, sigma and weight (their sum 1) from the sums over workers; none if all zero."""
    rows = array(summed)
    rows = rows[rows[:, 0] > 0]
    weight = rows[:, 0]
    return np.stack(
        (rows[:, 1] / weight, np.sqrt(rows[:, 2] / weight), weight / weight.sum()), axis=1
    )
