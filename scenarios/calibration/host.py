"""Timing of whole stages of shipped methods on a GPU: host prices of launches, stages' factors.

A method has one stage before its last collective and one after it. Each stretch of a stage is timed
on the host's clock, from idle device to idle device, on a matrix of 1 to 61 million elements and on
one bucket each of BERT-base and ResNet-50.

At a million elements a GPU waits for its host, so launches are priced by

    T = kernels * host["kernel"] + operators * host["operator"] + waits * host["wait"]

fitted to minimise the factors of error over the stages of `METHODS`. `compressors/queued.py` counts
the launches; a price includes a compressor's work around a launch (table uploads, Python). Then
each stage gets factors on both clocks (`simulator/devices/clocks.py`) over all lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.lockstep import Observer, lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.queued import QUEUED, Queued, queued
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.compressors.streams import landed
from gcsim.simulator.devices.clocks import Clocks, fitted_clocks, stage_name
from gcsim.simulator.devices.device import Device, KernelRate
from gcsim.simulator.devices.kernel_fits import positive
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.profile import Compute
from gcsim.traces.timing.kernels import gradient, matrix_bucket, steps_of

METHODS = (
    "fp16", "topk", "qsgd", "ef_signsgd", "onebit_adam", "powersgd", "dgc", "terngrad", "natural",
    "gradient_sampling_bayes", "signsgd", "threshold", "cser",
)  # fmt: skip
"""Methods that determine the launch prices; they are timed first."""
ELEMENTS = 1_000_000
Watch = TypeVar("Watch", bound=Observer)
Data = int | tuple[str, int]  # elements of one matrix, or a model and the number of its bucket
DATA: tuple[Data, ...] = (
    ELEMENTS, 25_000_000, ("bert_base", 5), ("resnet50", 3), 7_000_000, 61_000_000,
)  # fmt: skip
_ENOUGH = 5  # number of methods that are timed at any cost
_ROUNDS = 7
_LONGEST = 0.3  # seconds of the rounds of one method on one bucket; one round is run in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A stage of one length."""

    name: str  # key of `Device.stages`
    elements: int
    computes: tuple[Compute, ...]  # stretches, of one payload
    seconds: float

    @property
    def launches(self) -> tuple[float, ...]:
        """Launches by `QUEUED`."""
        costs = [cost for each in self.computes for cost in each.fixed]
        each = [[0.0] * len(QUEUED)]
        each += [[cost.launches * float(count) for count in queued(cost)] for cost in costs]
        return tuple(sum(column) for column in zip(*each, strict=True))


def all_methods() -> tuple[str, ...]:
    """Return the shipped methods in the order of timing."""
    return (*METHODS, *(name for name in REGISTRY if name not in METHODS))


def time_stages(
    device: str,
    methods: Sequence[str],
    *,
    data: Sequence[Data] = DATA,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    advance: Callable[[str], None] = lambda note: None,
) -> list[Timed]:
    """Time the stages of all methods on one bucket, then on the next, for `seconds` of `clock`.
    Stages that exceed the device's memory are left out."""
    begun = clock()
    found: list[Timed] = []
    for number, each in enumerate(data):
        if isinstance(each, int):
            layout, elements = None, each
        else:
            layout = layout_of(*each)
            elements = layout.numel
        values = gradient(elements, 1).to(device)
        for place, name in enumerate(methods):
            if (number or place >= _ENOUGH) and clock() - begun >= seconds:
                return found
            try:
                found += _stages(name, values, layout)
            except torch.OutOfMemoryError:
                continue
            finally:
                advance(f"{name}, {values.numel():,} elements")
    return found


def host_prices(timed: Iterable[Timed], over: str, conditions: str) -> dict[Queued, KernelRate]:
    """Fit prices of launches; ranges scale all prices by one factor and include 8 of 10 stages."""
    used = [(one.launches, one.seconds) for one in timed if any(one.launches)]
    work, seconds = (np.array(each, dtype=float) for each in zip(*used, strict=True))
    prices = positive(work, seconds)
    off = seconds / (work @ prices)
    low, high = (float(each) for each in np.quantile(off, (0.1, 0.9)))
    error = float(np.median(np.abs(1 / off - 1)))
    source = f"Fitted over {len(used)} stages of {over}; median error {error:.0%}. {conditions}"
    ends = min(1.0, low), 1.0, max(1.0, high)
    found: dict[Queued, KernelRate] = {}
    for what, price in zip(QUEUED, prices, strict=True):
        lowest, launch, highest = (float(f"{price * end:.4g}") for end in ends)
        found[what] = KernelRate(launch=launch, launch_range=(lowest, highest), source=source)
    return found


def stage_clocks(timed: Iterable[Timed], device: Device) -> dict[str, Clocks]:
    """Return each stage's factors, relative to its times by `device` without factors."""
    prices = PriceList(device)
    lengths: dict[str, list[tuple[list[tuple[float, float]], float]]] = {}
    for one in timed:
        each = [prices.priced_by(compute, 1) for compute in one.computes]
        stretches = [(float(price.host), float(price.device)) for price in each]
        if any(map(any, stretches)):
            lengths.setdefault(one.name, []).append((stretches, one.seconds * 1e12))
    return {name: fitted_clocks(each) for name, each in lengths.items()}


def with_stages(device: Device, timed: Sequence[Timed], conditions: str) -> Device:
    """Return the device with the host prices and stage factors fitted to timed stages."""
    short = [one for one in timed if one.elements == ELEMENTS and one.name.split(",")[0] in METHODS]
    over = ", ".join(dict.fromkeys(one.name.split(",")[0] for one in short))
    device = replace(device, host=host_prices(short, over, conditions), stages={})
    return replace(device, stages=stage_clocks(timed, device))


def layout_of(model: str, number: int) -> BucketLayout:
    """Return the layout of one of DDP's buckets of a shipped model."""
    network = build_model(shipped_model(model), seed=0, device="meta")
    return bucket_layouts([(n, tuple(p.shape)) for n, p in trainable(network)])[number]


def _stages(name: str, values: torch.Tensor, layout: BucketLayout | None) -> Iterator[Timed]:
    """Time both stages of the second step of each kind: the minimum over several rounds."""
    cls, parameters = compressor_class(name), check_parameters(name, {})
    bucket = matrix_bucket(values, second_moments=bool(cls.requires))
    bucket = replace(bucket, layout=layout or bucket.layout)

    def run(watch: Callable[[], Watch]) -> dict[str, Watch]:
        member = cls(Worker(rank=0, count=1, seed=0), parameters)
        found: dict[str, Watch] = {}
        for step in steps_of(cls, parameters):
            watching = found[cls.phase(parameters, step)] = watch()
            with torch.no_grad():
                lockstep([member.exchange(bucket, step)], watching, share=False)
        return found

    meters = run(partial(Meter, 1))  # kernels are compiled
    lowest: dict[str, list[float]] = {}
    begun = time.perf_counter()
    for turn in range(_ROUNDS):
        if turn and time.perf_counter() - begun > _LONGEST:
            break
        for phase, clock in run(partial(_Clock, values.device)).items():
            before = lowest.get(phase, clock.seconds)
            lowest[phase] = [min(*two) for two in zip(before, clock.seconds, strict=True)]
    for phase, seconds in lowest.items():
        costs = [one.costs() for one in meters[phase].segments[0]]
        last = max(1, len(costs) - 1)
        stages: dict[Literal["encode", "decode"], slice] = {
            "encode": slice(last), "decode": slice(last, None),
        }  # fmt: skip
        for stage, places in stages.items():
            yield Timed(
                name=stage_name(name, phase, stage),
                elements=values.numel(),
                computes=tuple(Compute(stage=stage, fixed=each) for each in costs[places]),
                seconds=sum(seconds[places]),
            )


class _Clock(Observer):
    """Observer that measures host seconds of each stretch, from idle to idle device."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: list[float] = []
        self._device = device

    @contextmanager
    def compute(self, rank: int) -> Iterator[None]:
        landed(self._device)
        begun = time.perf_counter()
        yield
        landed(self._device)
        self.seconds.append(time.perf_counter() - begun)
