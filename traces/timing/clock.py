"""Time of a call on this device: the lowest of several repeats, and their spread.

On a CPU the wall clock runs around a loop of calls that is long against its resolution; with one
thread the thread's CPU time, which other processes do not disturb. On a GPU two events enclose the
loop, so that launches overlap with earlier work as in training; a host's own waits are timed by the
wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.streams import Clock, clock_of, landed

SHORTEST = 200e-6
"""Seconds of a loop of calls."""
_MOST_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Dispersion:
    """Seconds of one call: the lowest and the median of the repeats."""

    lowest: float
    median: float


class DeviceClock(Protocol):
    """Times calls on one device."""

    device: str
    """torch's name: "cpu" or "cuda"."""
    now: Clock
    """Instants on the device."""

    def time(self, call: Callable[[], object], repeats: int, *, waits: bool = False) -> Dispersion:
        """Run `call` often enough; `waits`: the call itself waits for the device."""


class CpuClock:
    """The wall clock, or the CPU time of the one thread that runs."""

    device = "cpu"

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        one = torch.get_num_threads() == 1
        self.now = now or (time.thread_time if one else time.perf_counter)

    def time(self, call: Callable[[], object], repeats: int, *, waits: bool = False) -> Dispersion:
        """Time a call, as `DeviceClock`."""
        return _repeated(lambda calls: _loop(call, calls, self.now), repeats)


class CudaClock:
    """Events on the current stream of a GPU."""

    device = "cuda"

    def __init__(self) -> None:
        self.now = clock_of(torch.device(self.device))

    def time(self, call: Callable[[], object], repeats: int, *, waits: bool = False) -> Dispersion:
        """Time a call, as `DeviceClock`."""
        landed(torch.device(self.device))
        now = time.perf_counter if waits else self.now
        return _repeated(lambda calls: _loop(call, calls, now), repeats)


def clock_for(device: str) -> DeviceClock:
    """The clock of "cpu" or "cuda"."""
    return CudaClock() if device == "cuda" else CpuClock()


def _loop(call: Callable[[], object], calls: int, now: Clock) -> float:
    started = now()
    for _ in range(calls):
        call()
    return float(now() - started)


def _repeated(run: Callable[[int], float], repeats: int) -> Dispersion:
    """The first run warms up, and says how many calls make a loop."""
    run(1)
    once = run(1)
    calls = min(_MOST_CALLS, max(1, round(SHORTEST / once) if once > 0 else _MOST_CALLS))
    found = sorted(run(calls) / calls for _ in range(repeats))
    return Dispersion(found[0], found[len(found) // 2])
