"""Times of encoding and decoding on a GPU, by host and by device, and what they queue.

A stage begins on an idle device and has three times: `total_us` by events around it, `host_us`
until the host has queued it (including its waits), and `device_us`, while the device is busy. All
include checksums and checks of received data, whose host time is `left_out_us`. Times are minima
over rounds; the rows `yardstick` give the cost of one wait, launch or operator.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.lockstep import Observer, lockstep
from gcsim.compressors.meter import segment
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.compressors.streams import clock_of, has_streams, landed
from gcsim.scenarios.calibration.host import layout_of
from gcsim.traces.timing.kernels import gradient, matrix_bucket, steps_of
from tests.benchmarks.gpu.crew import Row
from tests.benchmarks.gpu.profiled import COLUMNS as COUNTS
from tests.benchmarks.gpu.profiled import marked, profiling

COLUMNS = (
    "method", "phase", "data", "elements", "tensors", "stage", "total_us", "host_us",
    "left_out_us", *COUNTS, "rounds", "first_s",
)  # fmt: skip
ROUNDS = 15
_LONGEST = 0.15
"""Time limit in seconds for rounds of one method on one bucket; at least two run."""
host_clock: Callable[[], float] = time.perf_counter
_CALLS = 400
"""Calls of a yardstick: fewer than a stream's queue holds."""

Data = tuple[str, int | None]
"""A model and the number of its bucket; or elements of one matrix, and None."""


def stages(
    name: str, data: tuple[Data, ...], device: str, *, shrink: int = 1,
    begin: Callable[[], object] = list,
) -> Iterator[Row]:  # fmt: skip
    """Yield both stages of each kind of step of a method, on each bucket.

    Matrices have 1 / `shrink` of their rows and columns. `begin` is called before each run.
    """
    if name == "yardstick":
        yield from yardsticks(torch.device(device))
        return
    cls, parameters = compressor_class(name), check_parameters(name, {})
    steps = steps_of(cls, parameters)
    for title, number in data:
        layout = None if number is None else layout_of(title, number)
        elements = int(title) // shrink**2 if layout is None else layout.numel
        if layout is not None and shrink > 1:
            layout = _shrunk(layout, shrink)
            elements = layout.numel
        values = _gradient(elements).to(device)
        bucket = matrix_bucket(values, second_moments=bool(cls.requires))
        bucket = replace(bucket, layout=layout or bucket.layout)

        def run(watch: _Watch, bucket: Any = bucket) -> None:
            member = cls(Worker(rank=0, count=1, seed=0), parameters)
            begin()
            with torch.no_grad():
                for step in steps:
                    watch.phase = cls.phase(parameters, step)
                    watch.stretches[watch.phase] = []
                    exchange = participate(member, bucket, step, finite=False, unmodified=False)
                    lockstep([exchange], watch, share=False)

        begun = time.perf_counter()
        run(_Watch(values.device))
        first = time.perf_counter() - begun
        lowest: dict[tuple[str, str], list[float]] = {}
        rounds, begun = 0, time.perf_counter()
        while rounds < 2 or (rounds < ROUNDS and time.perf_counter() - begun < _LONGEST):
            watch = _Watch(values.device)
            run(watch)
            for key, times in watch.stages():
                lowest[key] = [min(*two) for two in zip(lowest.get(key, times), times, strict=True)]
            rounds += 1
        counts: dict[str, Row] = {}
        with profiling(values.device, counts):
            run(_Watch(values.device, marks=True))
        last = {phase: f"{phase} {len(each) - 1}" for phase, each in watch.stretches.items()}
        for (phase, stage), (total, host, left_out) in lowest.items():
            yield {
                "method": name,
                "phase": phase,
                "data": title if number is None else f"{title} bucket {number}",
                "elements": elements,
                "tensors": len(bucket.layout.slices),
                "stage": stage,
                "total_us": f"{total * 1e6:.1f}",
                "host_us": f"{host * 1e6:.1f}",
                "left_out_us": f"{left_out * 1e6:.1f}",
                "rounds": rounds,
                "first_s": f"{first:.2f}",
                **_added(
                    [
                        each
                        for mark, each in counts.items()
                        if mark.rpartition(" ")[0] == phase
                        and (mark == last[phase]) == (stage == "decode")
                    ]
                ),
            }


def _shrunk(layout: BucketLayout, by: int) -> BucketLayout:
    pieces = []
    for piece in layout.slices:
        rows = piece.shape[0] if len(piece.shape) > 1 else 1
        sides = rows, piece.numel // rows
        shape = tuple(max(1, side // by) for side in sides[2 - min(2, len(piece.shape)) :])
        pieces.append((piece.name, piece.index, shape))
    return BucketLayout.behind(layout.index, pieces)


_kept: dict[int, torch.Tensor] = {}


def _gradient(elements: int) -> torch.Tensor:
    if elements not in _kept:
        _kept[elements] = gradient(elements, 1)
    return _kept[elements]


class _Watch(Observer):
    """Observer that times one worker's stretches between collectives."""

    def __init__(self, device: torch.device, *, marks: bool = False) -> None:
        self.phase = ""
        self.stretches: dict[str, list[tuple[float, float, float]]] = {}
        self._device, self._marks = device, marks
        self._now = time.perf_counter if marks else clock_of(device)

    @contextmanager
    def compute(self, rank: int) -> Iterator[None]:
        found = self.stretches[self.phase]
        # the last stretch decodes; it is known only when the exchange has ended
        mark = marked(f"{self.phase} {len(found)}", self._device) if self._marks else nullcontext()
        landed(self._device)
        with mark, segment(time.perf_counter, counting=False) as recorder:
            begun, started = self._now(), host_clock()
            yield
            ended, done = self._now(), host_clock()
        found.append((ended - begun, done - started, recorder.left_out))

    def stages(self) -> Iterator[tuple[tuple[str, str], list[float]]]:
        """Yield ((phase, stage), [total, host, left out]) in seconds."""
        for phase, stretches in self.stretches.items():
            *before, last = stretches
            yield (phase, "encode"), [sum(each) for each in zip(*before, strict=True)]
            yield (phase, "decode"), list(last)


def _added(counts: list[Row]) -> Row:
    return {key: round(sum(float(each[key]) for each in counts), 1) for key in COUNTS}


def yardsticks(device: torch.device) -> Iterator[Row]:
    """Yield host and total microseconds of one launch, operator, wait and copy."""
    one = torch.ones(1, device=device)
    mega = torch.ones(1_000_000, device=device)
    calls: dict[str, Callable[[], object]] = {
        "torch operator in place": lambda: one.add_(1),
        "torch operator": lambda: one + 1,
        "torch view": lambda: mega[:1000].view(10, 100),
        "wait": one.item,
        "torch.empty": lambda: torch.empty(1000, device=device),
        "Python call": lambda: None,
    }
    if has_streams(device):
        from tests.benchmarks.gpu.nothing import launch

        pinned, there = torch.ones(1000).pin_memory(), torch.empty(1000, device=device)
        calls["Triton launch, 4 arguments"] = partial(launch, one, 4)
        calls["Triton launch, 12 arguments"] = partial(launch, one, 12)
        calls["copy from pinned memory"] = partial(there.copy_, pinned, non_blocking=True)
        calls["event"] = torch.cuda.current_stream(device).record_event
    for elements in (250_000, 1_000_000, 7_000_000, 25_000_000, 61_000_000):
        if has_streams(device) or elements < 1_000_000:
            source = torch.ones(elements, device=device)
            calls[f"copy of {elements:,} elements"] = partial(
                torch.empty_like(source).copy_, source
            )
            calls[f"sum of {elements:,} elements"] = source.sum
    now = clock_of(device)
    for title, call in calls.items():
        call()
        best: list[float] | None = None
        for _ in range(5):
            landed(device)
            begun, started = now(), time.perf_counter()
            for _ in range(_CALLS):
                call()
            host = time.perf_counter() - started
            times = [now() - begun, host]
            best = times if best is None else [min(*two) for two in zip(best, times, strict=True)]
        assert best is not None
        total, host = (1e6 * seconds / _CALLS for seconds in best)
        yield {
            "method": "yardstick", "data": title, "total_us": f"{total:.2f}",
            "host_us": f"{host:.2f}",
        }  # fmt: skip
