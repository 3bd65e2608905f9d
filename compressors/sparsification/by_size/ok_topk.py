"""Ok-Topk: a sparse all-reduce in which each worker sums one region of the large elements.

The bucket is one vector of n elements, a = e + g, k = max(1, round(n * ratio)); thresholds are
reused for many steps, so counts are only about k:

1. select |a| >= the local threshold; send what lies in region j to worker j (all-to-all);
2. each worker adds up its region, and keeps sums with |sum| >= the global threshold;
3. all workers gather what was kept: the update is that sum divided by N;
4. e = a, but zero where an element was both sent by this worker and kept. Nothing is lost: what
   was sent in vain stays in e.

Every 64 steps ("repartition") the boundaries are recomputed: each worker divides its selected
elements into N equal groups, and the boundaries are averaged. Every 32 steps ("thresholds", and
with each repartition) the local threshold is set to the k-th largest |a| and the global one to the
k-th largest of all |sums|, which are gathered for it. In between a threshold is multiplied by 1.012
(global: 1.008) if more than 5/4 k (4/3 k) elements pass, and divided by it if fewer than 2/3 k do.

With balanced regions a worker handles fewer than 6 k words per step, for any N. Indices are 32-bit
integers (the published code keeps them in a float32 buffer, exact only below 2^24 elements per
region).

Biased; with one worker the error is at most (1 - k/n) |v|^2 in steps that set thresholds. Memory
besides the residual: 16 bytes for each element that is selected or received.

Source: S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP
2022, arXiv:2201.07598; the steps 32 and 64 and the factors are those of the
authors' code (github.com/Shigangli/Ok-Topk).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from gcsim.compressors.base import (
    About,
    CompressorParameters,
    ErrorFeedback,
    Properties,
    Ratio,
    Worker,
)
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice, bucket_state
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, as_bytes, pack_frame, read_known
from gcsim.compressors.coding.indices.pairs import BEYOND, merged_pairs
from gcsim.compressors.coding.selecting.largest import largest, largest_of
from gcsim.compressors.coding.selecting.marks import at_least, passing
from gcsim.compressors.coding.selecting.selection import Elements, count_kept, deliver, flat_places
from gcsim.compressors.coding.sparse import lost_by_selection, read_raw, sparse_message
from gcsim.compressors.demands import when_known
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.meter import unpriced
from gcsim.compressors.on_device import handled
from gcsim.compressors.requests import AllReduce, AllToAll, Exchange, Request, gather_variable
from gcsim.compressors.segments import Column, Segments
from gcsim.compressors.sharing import once
from gcsim.errors import InputError

_LOCAL_FACTOR, _LOCAL_MOST = 1.012, 5 / 4
_GLOBAL_FACTOR, _GLOBAL_MOST = 1.008, 4 / 3
_LEAST = 2 / 3
_ANYTHING = 1e-45
"""The smallest float32, as least threshold: 0 (few nonzero elements) would pass zeros."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Schedule:
    """A bucket's state between steps; `regions` and `total` are equal on all workers."""

    regions: Segments
    """Parts of the bucket by the rank that sums them."""
    local: float
    """Local threshold, for |a|."""
    total: float
    """Global threshold, for |sum|."""


class OkTopKParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="target fraction of a DDP bucket's elements to send")
    threshold_interval: int = Field(32, ge=1, description="steps between exact thresholds")
    region_interval: int = Field(
        64, ge=1, description="steps between region updates: a multiple of threshold_interval"
    )

    @model_validator(mode="after")
    def _check_intervals(self) -> Self:
        if self.region_interval % self.threshold_interval:
            raise ValueError(
                f"region_interval {self.region_interval} is no multiple of "
                f"threshold_interval {self.threshold_interval}"
            )
        return self


class OkTopK(ErrorFeedback[OkTopKParameters]):
    """Sparse all-reduce of the largest elements with reused thresholds and balanced regions."""

    about = About(
        title="Ok-Topk",
        family="sparsification",
        collective="all-to-all, then all-gather of unequal parts",
        bits="about 2 * 64 * ratio",
        state="residual (n)",
        paper="Li & Hoefler, Ok-Topk, PPoPP 2022, arXiv:2201.07598",
    )

    def __init__(self, worker: Worker, parameters: OkTopKParameters) -> None:
        super().__init__(worker, parameters)
        self._schedules: dict[int, _Schedule] = {}

    @classmethod
    def properties(cls, parameters: OkTopKParameters) -> Properties:
        return Properties(
            conserves=True, error_bound=lambda v: lost_by_selection(v, parameters.ratio)
        )

    @classmethod
    def period(cls, parameters: OkTopKParameters) -> int:
        return parameters.region_interval

    @classmethod
    def phase(cls, parameters: OkTopKParameters, step: int) -> str:
        position = step % parameters.region_interval
        if position == 0:
            return "repartition"
        return "reuse" if position % parameters.threshold_interval else "thresholds"

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        n = bucket.layout.numel
        if n == 0:
            return torch.zeros_like(bucket.gradient)
        k = count_kept(n, self.parameters.ratio)
        residual = bucket_state(self.residual, bucket)
        phase = self.phase(self.parameters, step)
        schedule = self._schedules.get(bucket.layout.index)
        if schedule is None:  # a run that starts in the middle of a period sets up its state first
            cut = np.arange(self.worker.count + 1) * n // self.worker.count
            schedule = _Schedule(regions=Segments.behind(np.diff(cut)), local=0.0, total=0.0)
            self._schedules[bucket.layout.index] = schedule
            phase = "repartition"

        exact, layout = phase != "reuse", _as_one(bucket.layout)
        if exact:
            given = bucket.gradient, Segments.alone(n), np.array([k])
            chosen, values = largest(*given, memory=residual)
            if phase == "repartition":
                yield from self._repartition(chosen, schedule, n)
            ends = torch.from_numpy(schedule.regions.table.sum(axis=1)).to(chosen.device)
            cuts = torch.searchsorted(chosen, ends).double()
            # one wait for the device: indices are exact in float64, and so is the least magnitude
            schedule.local, *upto = torch.cat((values.abs().min().view(1), cuts)).tolist()
            bounds = np.array([0, *upto], dtype=np.int64)
            sizes = bounds[1:] - bounds[:-1]
        else:
            chosen, values, sizes = self._passing(bucket, residual, k, schedule)
        sums = yield from self._reduce(chosen, values, sizes, schedule, layout)
        kept = yield from self._survivors(*sums, k, schedule, layout, exact=exact)
        update, own = torch.zeros_like(bucket.gradient), (chosen, values, np.array([len(chosen)]))
        deliver(update, residual, Segments.of(layout), own, kept, 1.0 / self.worker.count)
        return update

    def _passing(
        self, bucket: Bucket, residual: Tensor, k: int, schedule: _Schedule
    ) -> tuple[Tensor, Tensor, Column]:
        """Select the elements with |a| >= the local threshold and adjust it; also return their
        number per region. The rest is e."""
        regions, limit = schedule.regions, max(schedule.local, _ANYTHING)
        chosen, values, sizes = passing(bucket.gradient, regions, limit, memory=residual)
        if chosen.numel() > _LOCAL_MOST * k:
            schedule.local *= _LOCAL_FACTOR
        elif chosen.numel() < _LEAST * k:
            schedule.local /= _LOCAL_FACTOR
        return flat_places(chosen, regions, sizes), values, sizes

    def _repartition(
        self, chosen: Tensor, schedule: _Schedule, n: int
    ) -> Generator[Request, Any, None]:
        """Average the quantiles of all workers' selected positions to new boundaries."""
        count = self.worker.count
        if count == 1:
            return
        places = torch.arange(1, count) * chosen.numel() // count
        own = chosen[places.to(chosen.device)].to(torch.float64)
        total: Tensor = yield AllReduce(tensor=own)
        bounds = array((total / count).round().to(torch.int64))
        schedule.regions = Segments.behind(np.diff(bounds, prepend=0, append=n))

    def _reduce(
        self, chosen: Tensor, values: Tensor, sizes: Column, schedule: _Schedule,
        layout: BucketLayout,
    ) -> Generator[Request, Any, tuple[Tensor, Tensor]]:  # fmt: skip
        """Sum all workers' selected elements of this worker's region."""
        regions = _as_one(layout, len(sizes))
        parts = _message(chosen, values, sizes, regions)
        received: list[Tensor] = yield AllToAll(payloads=parts, variable=True)
        indices, values, counts = _read_all(received, regions)
        low, length = schedule.regions.table[self.worker.rank].tolist()
        _demand_region(indices, low, low + length)
        whole, each = Segments.of(layout), counts.tolist()
        lists = zip(torch.split(indices, each), torch.split(values, each), strict=True)
        indices, sums = next(lists)
        for more in lists:
            room = np.array([len(indices) + len(more[0])])
            indices, sums, _ = merged_pairs(indices, sums, *more, whole, room)
        return indices, sums

    def _survivors(
        self, indices: Tensor, sums: Tensor, k: int, schedule: _Schedule, layout: BucketLayout,
        *, exact: bool,
    ) -> Generator[Request, Any, Elements]:  # fmt: skip
        """Return the sums of all regions that pass the global threshold."""
        if exact:
            own = as_bytes(sums[indices != BEYOND] if handled(sums) else sums)
            message = pack_frame(Codec.PAIRS, own, numel=layout.numel, nonzero=len(own) // 4)
            gathered = yield from gather_variable(message, part=True)
            everything = once(_all_sums, gathered, _as_one(layout, self.worker.count))
            top = largest_of(everything, min(k, everything.numel()))
            schedule.total = float(everything[top].abs().min()) if top.numel() else 0.0
        passed, large = at_least(sums, max(schedule.total, _ANYTHING))
        (survivors,) = _message(indices[passed], large, np.array([len(passed)]), layout)
        payloads = yield from gather_variable(survivors, part=True)
        kept = once(_read_all, payloads, _as_one(layout, self.worker.count))
        kept = *kept[:2], kept[2].sum(keepdims=True)
        count = len(kept[0])
        if count > _GLOBAL_MOST * k:
            schedule.total *= _GLOBAL_FACTOR
        elif count < _LEAST * k:
            schedule.total /= _GLOBAL_FACTOR
        return kept


def _message(indices: Tensor, values: Tensor, sizes: Column, layout: BucketLayout) -> list[Tensor]:
    """Return one frame of `sizes[t]` elements for each tensor t of the layout."""
    message, _ = sparse_message(
        Segments.of(layout), sizes, indices, values, values_as="fp32", coding="raw"
    )
    return list(torch.split(message, (HEADER_BYTES + 8 * sizes).tolist()))


def _all_sums(payloads: Iterable[Tensor], regions: BucketLayout) -> Tensor:
    """Return the sums of all regions, concatenated: float32."""
    message, lengths = _together(payloads)
    sizes = lengths - HEADER_BYTES
    found = read_known(message, regions, Codec.PAIRS, sizes, sizes // 4)
    return found.parts(message, (sizes, torch.float32))[0]


def _read_all(payloads: Iterable[Tensor], regions: BucketLayout) -> Elements:
    """Return the elements of all payloads, concatenated, and their number in each."""
    message, lengths = _together(payloads)
    return read_raw(message, regions, lengths)


def _together(payloads: Iterable[Tensor]) -> tuple[Tensor, Column]:
    """Return (the payloads as one message; bytes of each)."""
    each = list(payloads)
    message = torch.cat(each) if len(each) > 1 else each[0]
    return message, np.array([len(payload) for payload in each])


@unpriced
def _demand_region(indices: Tensor, low: int, high: int) -> None:
    """Raise `InputError` for elements that belong to another worker's region."""

    def check(least: int, most: int) -> None:
        if least < low or most >= high:
            raise InputError(f"damaged payload: elements outside the region {low}-{high}")

    if len(indices):
        when_known(torch.stack(torch.aminmax(indices)), check)


def _as_one(layout: BucketLayout, times: int = 1) -> BucketLayout:
    """Return a layout with the bucket as a single tensor, repeated `times` times."""
    if (_as_one, times) not in layout.facts:
        n = layout.numel
        whole = TensorSlice(name=f"bucket {layout.index}", shape=(n,), offset=0, index=0)
        layout.facts[_as_one, times] = replace(layout, slices=(whole,) * times)
    found: BucketLayout = layout.facts[_as_one, times]
    return found
