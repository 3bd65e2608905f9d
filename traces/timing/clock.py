"""Time of a call on this device: the lowest of several repeats, and their spread.

On a CPU the wall clock measures a loop of calls that is long compared with its resolution; with one
thread it is the thread's CPU time, which other processes do not disturb. On a GPU two events
enclose the loop, so that launches overlap with earlier work as in training; calls that make the
host wait are timed by the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.streams import Clock, clock_of, has_streams, landed

SHORTEST = 200e-6
"""Least seconds of a loop of calls."""
_MOST_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Dispersion:
    """Seconds per call: the lowest and the median of the repeats."""

    lowest: float
    median: float


class DeviceClock:
    """Times calls on one device, "cpu" or "cuda"; `now` returns an instant on it."""

    def __init__(self, device: str, now: Clock | None = None) -> None:
        self.device, one = device, torch.get_num_threads() == 1
        host = time.thread_time if one else time.perf_counter
        self.now = now or clock_of(torch.device(device), host)

    def time(self, call: Callable[[], object], repeats: int, *, waits: bool = False) -> Dispersion:
        """Time `call` in sufficiently long loops; `waits`: the call itself waits for the device."""
        device = torch.device(self.device)
        landed(device)
        now = time.perf_counter if waits and has_streams(device) else self.now
        return _repeated(lambda calls: _loop(call, calls, now), repeats)


def _loop(call: Callable[[], object], calls: int, now: Clock) -> float:
    started = now()
    for _ in range(calls):
        call()
    return float(now() - started)


def _repeated(run: Callable[[int], float], repeats: int) -> Dispersion:
    """Run once to warm up, once to find how many calls make a loop, then time loops."""
    run(1)
    once = run(1)
    calls = min(_MOST_CALLS, max(1, round(SHORTEST / once) if once > 0 else _MOST_CALLS))
    found = sorted(run(calls) / calls for _ in range(repeats))
    return Dispersion(found[0], found[len(found) // 2])
