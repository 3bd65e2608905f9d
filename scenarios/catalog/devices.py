"""What may an entry of a device say, and which simulator's value does it make?

The schema of `devices*.yaml`. A device is put together from its entry (kernels, and what it states
of training itself) and from the tables of `catalog/rates.py`, in which it stands under its `board`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from gcsim.compressors.kernels import KernelClass
from gcsim.scenarios.catalog.rates import (
    Board,
    boards,
    effective_range,
    layer_times,
    measured_times,
)
from gcsim.scenarios.reading.checking import Section, check_range, refuse
from gcsim.scenarios.reading.types import (
    TWO,
    Bandwidth,
    ComputeRate,
    Duration,
    Factor,
    PositiveDuration,
    Size,
)
from gcsim.simulator.devices.device import Device, KernelRate, TrainingRate
from gcsim.simulator.devices.ranges import Range
from gcsim.simulator.devices.training_rates import MeasuredTimes, Precision

_Text = Annotated[str, Field(min_length=1)]


class KernelEntry(Section):
    """One class of kernels."""

    launch: Duration
    launch_range: Annotated[list[Duration], TWO] | None = None
    bandwidth: Bandwidth | None = None
    bandwidth_range: Annotated[list[Bandwidth], TWO] | None = None
    flop_rate: ComputeRate | None = None
    flop_rate_range: Annotated[list[ComputeRate], TWO] | None = None
    estimate: bool
    source: _Text

    @model_validator(mode="after")
    def _within(self) -> KernelEntry:
        for name in ("launch", "bandwidth", "flop_rate"):
            check_range(name, getattr(self, name), getattr(self, f"{name}_range"))
        return self


class TrainingEntry(Section):
    """Whole steps of one model, in the entry's own words."""

    fixed: Duration
    per_sample: PositiveDuration
    time_range: Annotated[list[Factor], TWO] | None = None
    estimate: bool
    source: _Text

    @model_validator(mode="after")
    def _within(self) -> TrainingEntry:
        check_range("time", Fraction(1), self.time_range)
        return self


class ScaledEntry(Section):
    """Another board's measured steps, so many times as long."""

    board: _Text
    time: Factor
    time_range: Annotated[list[Factor], TWO] | None = None
    source: _Text

    @model_validator(mode="after")
    def _known(self) -> ScaledEntry:
        _check_board(self.board)
        check_range("time", Fraction(1), self.time_range)
        return self


_Point = Annotated[tuple[Size, PositiveDuration], Field(strict=False)]
"""Bytes of one launch, and its time."""


def _ascending(points: list[tuple[int, Fraction]]) -> list[tuple[int, Fraction]]:
    for (small, short), (large, long) in pairwise(points):
        if not (small < large and short <= long):
            raise refuse(
                "a kernel's points must ascend in bytes, and not descend in time",
                "sort them, and join those that do not",
            )
    return points


_Points = Annotated[list[_Point], Field(min_length=1), AfterValidator(_ascending)]


class DeviceEntry(Section):
    """One device."""

    board: _Text | None = None
    processor: Literal["gpu", "cpu"] | None = None
    title: _Text
    source: _Text
    effective_flop_rate: ComputeRate
    effective_flop_rate_range: Annotated[list[ComputeRate], TWO] | None = None
    backward_over_forward: float = Field(default=2.033, gt=0)
    scaled_from: ScaledEntry | None = None
    kernels: dict[KernelClass, KernelEntry]
    primitives: dict[str, _Points] = {}  # noqa: RUF012
    training: dict[str, TrainingEntry] | None = None

    @model_validator(mode="after")
    def _within(self) -> DeviceEntry:
        if self.board is not None:
            _check_board(self.board)
        check_range("effective_flop_rate", self.effective_flop_rate, self.effective_flop_rate_range)
        return self


class DeviceTable(Section):
    """A file of devices."""

    devices: dict[str, DeviceEntry]


def build_device(name: str, entry: DeviceEntry) -> Device:
    """The simulator's value of a checked entry."""
    kernels: dict[KernelClass, KernelRate] = {
        kind: _kernel(rate) for kind, rate in entry.kernels.items()
    }
    rate = float(entry.effective_flop_rate)
    board = _board(entry)
    return Device(
        name=name,
        title=entry.title,
        processor=entry.processor if board is None else board.processor,
        kernels=kernels,
        primitives={
            kernel: tuple((nbytes, float(time)) for nbytes, time in points)
            for kernel, points in entry.primitives.items()
        },
        training={model: _rate(model, each) for model, each in (entry.training or {}).items()},
        measured=_measured(entry),
        layer_times={} if board is None else layer_times(board, *_factors_of(entry)),
        effective_flop_rate=rate,
        effective_flop_rate_range=_range(entry.effective_flop_rate_range)
        or effective_range("gpu" if board is None else board.processor, rate),
        backward_over_forward=entry.backward_over_forward,
        source=entry.source,
    )


def merged_device(
    base: Mapping[str, Any], own: Mapping[str, Any], depth: int = 0
) -> dict[str, Any]:
    """`own` over `base`; tables inside an entry are merged by key, rates replaced whole."""
    merged = dict(base)
    for key, value in own.items():
        inherited = merged.get(key)
        if depth == 0 and isinstance(inherited, dict) and isinstance(value, dict):
            merged[key] = merged_device(inherited, value, depth + 1)
        else:
            merged[key] = value
    return merged


def _kernel(rate: KernelEntry) -> KernelRate:
    return KernelRate(
        launch=float(rate.launch),
        launch_range=_range(rate.launch_range),
        bandwidth=None if rate.bandwidth is None else float(rate.bandwidth),
        bandwidth_range=_range(rate.bandwidth_range),
        flop_rate=None if rate.flop_rate is None else float(rate.flop_rate),
        flop_rate_range=_range(rate.flop_rate_range),
        source=rate.source,
        estimate=rate.estimate,
    )


def _rate(model: str, rate: TrainingEntry) -> TrainingRate:
    return TrainingRate(
        model=model,
        fixed=float(rate.fixed),
        per_sample=float(rate.per_sample),
        time_range=_range(rate.time_range),
        source=rate.source,
        estimate=rate.estimate,
    )


def _measured(entry: DeviceEntry) -> dict[tuple[str, Precision, int], MeasuredTimes]:
    """The board's own curves over those that are scaled from another's."""
    found: dict[tuple[str, Precision, int], MeasuredTimes] = {}
    scaled = entry.scaled_from
    if scaled is not None:
        factor = float(scaled.time)
        for key, times in measured_times(scaled.board).items():
            found[key] = replace(
                times,
                steps=tuple(
                    replace(
                        step,
                        seconds=step.seconds * factor,
                        sources=(scaled.source, *step.sources),
                    )
                    for step in times.steps
                ),
                source=f"{scaled.source} They are: {times.source}",
                estimate=True,
                time_range=_range(scaled.time_range),
            )
    if entry.board is not None:
        found |= measured_times(entry.board)
    return found


def _board(entry: DeviceEntry) -> Board | None:
    """What the layer model knows of the device: the table's, or the entry's own kernel rates
    where it says that it is a GPU (of processors the model tells nothing without a factor)."""
    if entry.board is not None:
        return boards().get(entry.board)
    if entry.processor != "gpu":
        return None
    product, copy = entry.kernels.get("matmul"), entry.kernels.get("streaming")
    if product is None or copy is None or product.flop_rate is None or copy.bandwidth is None:
        return None
    return Board(
        processor="gpu",
        bandwidth=float(copy.bandwidth),
        flop_rates={"fp32": float(product.flop_rate)},
        estimate=product.estimate or copy.estimate,
        source="rates of matmul and streaming kernels of this device",
    )


def _factors_of(entry: DeviceEntry) -> list[str]:
    """Boards whose factor of the layer model is this one's: its own, else that of the board from
    which its times are scaled."""
    return [
        name
        for name in (entry.board, entry.scaled_from.board if entry.scaled_from else None)
        if name is not None
    ]


def _check_board(name: str) -> None:
    if name not in boards():
        raise refuse(
            f"no board {name!r} stands in hardware.csv", f"there are {', '.join(boards())}"
        )


def _range(bounds: list[Fraction] | None) -> Range | None:
    return None if bounds is None else (float(bounds[0]), float(bounds[1]))
