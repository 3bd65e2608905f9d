"""Host time of a launch on a GPU, from whole stages of shipped methods.

On a million elements a GPU waits for its host: encoding takes about as long as on a sixth or
twenty-five times as many. Each stretch of a method between collectives is timed on the host's
clock, from idle to idle device, and launches are priced by

    T = kernels * host["kernel"] + operators * host["operator"] + waits * host["wait"]

with the least factors of error over all stretches (counts: `compressors/queued.py`). What a
compressor does around a launch (uploads of tables, Python) is in its price.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gcsim.compressors.base import Worker
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.lockstep import Observer, lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.queued import QUEUED, Queued, queued
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.compressors.streams import landed
from gcsim.simulator.devices.device import KernelRate
from gcsim.simulator.devices.kernel_fits import positive
from gcsim.traces.timing.kernels import gradient, matrix_bucket, steps_of

METHODS = (
    "fp16", "topk", "qsgd", "ef_signsgd", "onebit_adam", "powersgd", "dgc", "terngrad", "natural",
    "gradient_sampling_bayes", "signsgd", "threshold", "cser",
)  # fmt: skip
ELEMENTS = 1_000_000
_ROUNDS = 7

Stretch = tuple[tuple[float, ...], float]
"""Launches by `QUEUED`, and seconds."""


def time_host(
    device: str,
    conditions: str,
    *,
    methods: Sequence[str] = METHODS,
    elements: int = ELEMENTS,
    advance: Callable[[str], None] = lambda note: None,
) -> dict[Queued, KernelRate]:
    """Price a launch of each kind on this machine's host."""
    values = gradient(elements, 1).to(device)
    found: list[Stretch] = []
    for name in methods:
        found += _stretches(name, values)
        advance(name)
    return fitted(found, f"{len(found)} stretches of {', '.join(methods)}", conditions)


def fitted(stretches: Sequence[Stretch], over: str, conditions: str) -> dict[Queued, KernelRate]:
    """Prices, each with a range that holds 8 of 10 stretches, as if both prices were off alike."""
    used = [(counts, seconds) for counts, seconds in stretches if any(counts)]
    work, seconds = (np.array(each, dtype=float) for each in zip(*used, strict=True))
    prices = positive(work, seconds)
    off = seconds / (work @ prices)
    low, high = (float(each) for each in np.quantile(off, (0.1, 0.9)))
    error = float(np.median(np.abs(1 / off - 1)))
    source = f"Fitted over {over}; median error {error:.0%}. {conditions}"
    ends = min(1.0, low), 1.0, max(1.0, high)
    found: dict[Queued, KernelRate] = {}
    for what, price in zip(QUEUED, prices, strict=True):
        lowest, launch, highest = (float(f"{price * end:.4g}") for end in ends)
        found[what] = KernelRate(launch=launch, launch_range=(lowest, highest), source=source)
    return found


def _stretches(name: str, values: torch.Tensor) -> Iterator[Stretch]:
    """Stretches of the second step of each kind, lowest time of some rounds."""
    cls, parameters = compressor_class(name), check_parameters(name, {})
    bucket = matrix_bucket(values, second_moments=bool(cls.requires))
    steps = steps_of(cls, parameters)
    launches: dict[int, list[tuple[float, ...]]] = {}
    lowest: dict[int, list[float]] = {}
    for turn in range(1 + _ROUNDS):
        member = cls(Worker(rank=0, count=1, seed=0), parameters)
        for step in steps:
            meter = Meter(1) if turn == 0 else None  # and kernels are compiled
            clock = _Clock(values.device)
            with torch.no_grad():
                lockstep([member.exchange(bucket, step)], meter or clock, share=False)
            if meter is not None:
                launches[step] = [launched(one.costs()) for one in meter.segments[0]]
            else:
                before = lowest.get(step, clock.seconds)
                lowest[step] = [min(*two) for two in zip(before, clock.seconds, strict=True)]
    for step in {cls.phase(parameters, step): step for step in steps}.values():
        yield from zip(launches[step], lowest[step], strict=True)


def launched(costs: Iterable[KernelCost]) -> tuple[float, ...]:
    """Launches of metered kernels by `QUEUED`."""
    each = [[0.0] * len(QUEUED)]
    each += [[cost.launches * float(count) for count in queued(cost)] for cost in costs]
    return tuple(sum(column) for column in zip(*each, strict=True))


class _Clock(Observer):
    """Host seconds of each stretch, from idle to idle device."""

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
