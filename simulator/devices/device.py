"""A device's prices of kernels and training steps, each with its source."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal, overload

from gcsim.compressors.kernels import KernelClass
from gcsim.compressors.queued import Queued
from gcsim.errors import InputError
from gcsim.fields import INTERNAL, POSITIVE, STATED, Bytes, Limits, RangeOf, Rule, Text
from gcsim.simulator.devices.clocks import Clocks
from gcsim.simulator.devices.ranges import (
    Bandwidth,
    End,
    FlopRate,
    PositiveTime,
    Range,
    Time,
    TimeRange,
    time_at,
)
from gcsim.simulator.devices.training_rates import PRECISIONS, LayerTimes, MeasuredTimes, Precision

__all__ = ["Curve", "Device", "End", "KernelRate", "Range", "TrainingRate"]

_SHAPE = re.compile(r"(.*\.\D*)([\d.]+)(_flop_per_byte|_columns)")


def _ascends(points: tuple[tuple[int, float], ...]) -> None:
    for (small, short), (large, long) in pairwise(points):
        if not (small < large and short <= long):
            message = "a kernel's points must ascend in bytes, and not descend in time"
            hint = "sort them, and join those that do not"
            raise InputError(message, hint=hint)


Curve = Annotated[tuple[tuple[Bytes, PositiveTime], ...], Limits(least=1), Rule(_ascends)]
"""Curve of a measured kernel: bytes and seconds of single launches, ascending in both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRate:
    """Coefficients of a kernel class: T = launches * launch + nbytes / bandwidth + flops / rate.
    A coefficient of None does not apply; one with a range of None is exact."""

    launch: Time
    bandwidth: Bandwidth | None = None  # bytes per second, read plus written
    flop_rate: FlopRate | None = None
    source: Text
    estimate: Annotated[bool, STATED] = False  # the figure was not measured on this device
    launch_range: RangeOf[Time] = None
    bandwidth_range: RangeOf[Bandwidth] = None
    flop_rate_range: RangeOf[FlopRate] = None

    def faster(self, times: float) -> KernelRate:
        """Return coefficients `times` as fast, without ranges."""
        return KernelRate(
            launch=self.launch / times,
            bandwidth=None if self.bandwidth is None else self.bandwidth * times,
            flop_rate=None if self.flop_rate is None else self.flop_rate * times,
            source=self.source,
            estimate=self.estimate,
        )

    def at(self, end: End) -> KernelRate:
        """Return the coefficients at one end of their ranges."""
        best = end == "fastest"
        return replace(
            self,
            launch=_end(self.launch, self.launch_range, largest=not best),
            bandwidth=_end(self.bandwidth, self.bandwidth_range, largest=best),
            flop_rate=_end(self.flop_rate, self.flop_rate_range, largest=best),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRate:
    """Catalogued seconds of a model's step in float32: fixed + per_sample * batch."""

    model: Annotated[str, INTERNAL]
    fixed: Time
    per_sample: PositiveTime
    source: Text
    estimate: Annotated[bool, STATED] = False
    time_range: TimeRange | None = None

    def at(self, end: End) -> TrainingRate:
        """Return the rate at one end of its range."""
        factor = time_at(self.time_range, end)
        return replace(self, fixed=self.fixed * factor, per_sample=self.per_sample * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Performance figures of a device."""

    name: Annotated[str, INTERNAL]
    title: Text
    kernels: Mapping[KernelClass, KernelRate]
    host: Mapping[Queued, KernelRate] = field(default_factory=dict, repr=False)
    """Host time of a launch, operator or wait on a GPU; empty on a CPU."""
    stages: Mapping[str, Clocks] = field(default_factory=dict, repr=False)
    """Factors on host and device time of stages that were timed whole (`clocks.stage_name`)."""
    processor: Literal["gpu", "cpu"] | None = None
    bus: str | None = field(default=None, repr=False)
    """The catalogue's usual link between a node's devices; None: PCIe 3, or unknown. It affects no
    time and is not part of `catalog.fingerprint`."""
    memory: Bytes | None = field(default=None, repr=False)
    """Nominal bytes; None: unknown, or the host's. Not part of the fingerprint either."""
    primitives: Mapping[str, Curve] = field(default_factory=dict)
    """Measured curves by metered kernel, which take precedence over the kernel's class."""
    training: Mapping[str, TrainingRate] = field(default_factory=dict)
    """Rates by model in the device's own entry, which take precedence over `measured`."""
    measured: Annotated[Mapping[tuple[str, Precision, int], MeasuredTimes], INTERNAL] = field(
        default_factory=dict
    )
    """Times by model, precision and sequence length (0 without tokens)."""
    layer_times: Annotated[Mapping[Precision, LayerTimes], INTERNAL] = field(default_factory=dict)
    """Layer models, for models or batches that were not measured but whose layers are known."""
    effective_flop_rate: FlopRate
    """FLOP per second of whole training steps, for models of which only the FLOPs are known."""
    effective_flop_rate_range: RangeOf[FlopRate] = None
    backward_over_forward: Annotated[float, POSITIVE] = 2.033
    """Ratio of the two passes' times (median of 37 measurements, jcjohnson/cnn-benchmarks)."""
    source: Text
    training_end: Annotated[End | None, INTERNAL] = None
    """End of the ranges at which training times are evaluated; None: the measured values."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions with training times; always fp32, at least by the effective rate."""
        found = {"fp32", *self.layer_times, *(key[1] for key in self.measured)}
        return tuple(precision for precision in PRECISIONS if precision in found)

    def knows(self, model: object) -> bool:
        """Whether whole steps of this model were measured."""
        return model in self.training or any(model == key[0] for key in self.measured)

    def primitive(self, name: str) -> Curve | None:
        """Return the curve of a metered kernel; else that of all its measured variants
        ("file.function:variant:reach"), or of the matrix product or factorization with the nearest
        shape; else None."""
        while name and name not in self.primitives:
            name = name.rpartition(":")[0] or self._nearest_shape(name)
        return self.primitives.get(name)

    def _nearest_shape(self, name: str) -> str:
        """Return the measured kernel that differs from `name` in a single number
        ("aten.mm.along_2_...", "aten.linalg_qr.4_columns") by the least ratio (of two the larger).

        BLAS pads thin matrices: two columns cost what four do, and one, a product with a vector,
        costs far less (1100 x 1100, oneMKL on one core: 0.10, 1.9 and 1.6 ms).
        """
        found = _SHAPE.fullmatch(name)
        if found is None:
            return ""
        before, number, behind = found[1], float(found[2]), found[3]
        measured = {
            float(other[2]): known
            for known in self.primitives
            if (other := _SHAPE.fullmatch(known)) and (other[1], other[3]) == (before, behind)
        }
        nearest = min(measured, key=lambda n: (abs(math.log(n / number)), -n), default=None)
        return "" if nearest is None else measured[nearest]

    def faster(self, times: Fraction) -> Device:
        """Return the device with kernels `times` as fast."""
        factor = float(times)
        return replace(
            self,
            kernels={kind: rate.faster(factor) for kind, rate in self.kernels.items()},
            host={what: rate.faster(factor) for what, rate in self.host.items()},
            primitives={
                name: tuple((nbytes, seconds / factor) for nbytes, seconds in curve)
                for name, curve in self.primitives.items()
            },
        )

    def at(self, *, kernels: End, training: End) -> Device:
        """Return the device with kernels and training steps at an end of their ranges."""
        return replace(
            self,
            kernels={kind: rate.at(kernels) for kind, rate in self.kernels.items()},
            host={what: rate.at(kernels) for what, rate in self.host.items()},
            training={model: rate.at(training) for model, rate in self.training.items()},
            layer_times={name: times.at(training) for name, times in self.layer_times.items()},
            training_end=training,
            effective_flop_rate=_end(
                self.effective_flop_rate,
                self.effective_flop_rate_range,
                largest=training == "fastest",
            ),
        )


@overload
def _end(value: float, range_: Range | None, *, largest: bool) -> float: ...
@overload
def _end(value: float | None, range_: Range | None, *, largest: bool) -> float | None: ...
def _end(value: float | None, range_: Range | None, *, largest: bool) -> float | None:
    if value is None or range_ is None:
        return value
    return range_[1] if largest else range_[0]
