"""Calibration of this machine before the predictions: costs of kernels, passes and messages; load.

No bound judges these: kernels run in this process, passes on one rank alone, and the host's costs
come from collectives with other sizes and another rate.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcsim.analysis.live.launch import Loopback, run_tasks, times_of
from gcsim.analysis.live.namespaces import network
from gcsim.analysis.live.plan import AloneTask, CollectiveTask, Plan, Round, StreamTask
from gcsim.scenarios.progress import Progress
from gcsim.traces.stage1.machine import usable

SECONDS = 120.0  # time limit of each part; each takes ten seconds or less
_KERNELS = 4.0  # seconds for the compressors' own kernels
_SIDES = (95, 375, 1060, 1500)
_ALONE = 50  # steps of a rank alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds of one rank's passes, with DDP's work, while other ranks use cores and memory."""

    forward: float
    backward: float
    optimizer: float
    variation: float = 0.0  # standard deviation over mean of their sum, across steps
    hooks: Mapping[str, float] = field(default_factory=dict)
    """Extra seconds of a step with a method's hook but without exchange, by label: kernels of one
    payload, Python, the hook's thread, copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A collective measured for calibration."""

    ranks: int
    rate: int
    task: CollectiveTask
    seconds: float  # median of repeats


def calibrate_kernels(compressors: Sequence[str], progress: Progress) -> Any:
    """Calibrate this machine as a `Device`: kernels by class, and of compressors; one thread."""
    from gcsim.compressors.lazy_torch import torch
    from gcsim.scenarios.calibration.device import primitive_curves
    from gcsim.scenarios.calibration.kernel_classes import SIZES, class_rates, time_cases
    from gcsim.scenarios.calibration.kernels import time_compressors
    from gcsim.scenarios.calibration.machine import processor
    from gcsim.simulator.devices.device import Device
    from gcsim.traces.timing.clock import DeviceClock
    from gcsim.traces.timing.kernel_cases import CASES

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        clock = DeviceClock("cpu")
        with progress.task("live: kernel classes", len(CASES)) as task:
            cases = time_cases(
                clock, sizes=SIZES[:-2], repeats=3, advance=lambda note: task.advance(note=note)
            )
        sites = time_compressors(
            progress,
            seconds=_KERNELS,
            compressors=tuple(dict.fromkeys(compressors)),
            sizes=[side**2 for side in _SIDES],
            clock=clock.now,
        )
    finally:
        torch.set_num_threads(before)
    conditions = f"{processor()}, one thread, CPU time, torch {torch.__version__}"
    rates = class_rates(cases, conditions)
    products = rates["matmul"].flop_rate
    return Device(
        name="here",
        title=conditions,
        processor="cpu",
        kernels=rates,
        primitives=primitive_curves([one.timed for one in cases], sites),
        effective_flop_rate=products or 1e9,
        source="measured by `gcsim validate --live` before anything was predicted",
    )


def calibrate_passes(plan: Plan, trace: Path, progress: Progress) -> Passes:
    """Measure a rank's passes; record the gradients of a round's ranks in `trace`."""
    task = AloneTask(
        steps=_ALONE, workers=plan.most_ranks, trace=str(trace), methods=plan.training
    )  # fmt: skip
    at_once = Round(ranks=min(cores(), plan.most_ranks), rate=0, tasks=(task,))
    with progress.task("live: steps without exchange", 1) as watched:
        [found] = run_tasks(Loopback(), at_once, batch=plan.batch, seed=plan.seed, seconds=SECONDS)
        watched.advance()
    return Passes(
        **{
            name: statistics.median(of_rank[name] for of_rank in found)
            for name in ("forward", "backward", "optimizer", "variation")
        },
        hooks={
            label: statistics.median(of_rank["hooks"][label] for of_rank in found)
            for label in found[0]["hooks"]
        },
    )


def calibrate_links(plan: Plan, progress: Progress) -> dict[int, float]:
    """Measure the bytes per second that one of two ranks receives while it sends as much, by link
    rate. If the machine pauses for longer than the shaper's burst, that time is lost."""
    found = {}
    with progress.task("live: links", len(plan.links)) as watched:
        for one in plan.links:
            with network(one.ranks, one.rate) as place:
                [of_ranks] = run_tasks(
                    place, one, batch=plan.batch, seed=plan.seed, seconds=SECONDS
                )  # fmt: skip
            nbytes = sum(task.nbytes for task in one.tasks if isinstance(task, StreamTask))
            found[one.rate] = nbytes / statistics.median(times_of(of_ranks).seconds)
            watched.advance()
    return found


def calibrate_messages(plan: Plan, progress: Progress) -> list[Sample]:
    """Measure collectives on links so fast that the host is the bottleneck."""
    found = []
    for one in plan.calibration:
        with (
            progress.task(f"live: messages, {one.ranks} ranks", len(one.tasks)) as watched,
            network(one.ranks, one.rate) as place,
        ):
            found_by_task = run_tasks(
                place,
                one,
                batch=plan.batch,
                seed=plan.seed,
                seconds=SECONDS,
                advance=lambda number: watched.advance(),
            )
        found += [
            Sample(
                ranks=one.ranks,
                rate=one.rate,
                task=task,
                seconds=statistics.median(times_of(of_ranks).seconds),
            )
            for task, of_ranks in zip(one.tasks, found_by_task, strict=True)
            if isinstance(task, CollectiveTask)
        ]
    return found


_KINDS = 8  # kinds of processor time that are read


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(usable())


def machine() -> str:
    """Return processor, cores, kernel and torch in words."""
    from gcsim.compressors.lazy_torch import torch
    from gcsim.scenarios.calibration.machine import processor

    return f"{processor()}, {cores()} cores, Linux {platform.release()}, torch {torch.__version__}"


def busy_share(seconds: float = 1.0) -> float | None:
    """Return the share of processor time that others use, in [0, 1], if known."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def stolen() -> tuple[int, int] | None:
    """Return the processor time since boot that the hypervisor gave to others, and the total, in
    ticks of all cores (proc(5), /proc/stat), if known."""
    counts = _counts()
    return None if counts is None else (counts[7], sum(counts))


def _ticks() -> tuple[int, int] | None:
    """Return busy and total ticks since boot."""
    counts = _counts()
    return None if counts is None else (sum(counts) - counts[3] - counts[4], sum(counts))


def _counts() -> list[int] | None:
    """Return times of all cores since boot: user, nice, system, idle, waiting, interrupts (2),
    stolen; guests are part of the first two."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return None
    counts = [int(word) for word in first[1:9]]
    return counts if len(counts) == _KINDS else None
