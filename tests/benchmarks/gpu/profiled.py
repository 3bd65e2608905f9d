"""Launches, waits and busy time of queued work, from PyTorch's profiler."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

COLUMNS = ("device_us", "launches", "triton_launches", "copies", "operators", "waits", "wait_us")
_MARK = "gcsim: "
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cuStreamSynchronize")
"""Without cudaDeviceSynchronize, which ends a mark."""


@contextmanager
def marked(name: str, device: torch.device) -> Iterator[None]:
    """Mark the work queued inside, until the device has finished it."""
    with record_function(_MARK + name):
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)


@contextmanager
def profiling(device: torch.device, rows: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Fill `rows` with the counts of each mark inside, by name."""
    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as profiler:
        yield
    events = [_Event(event) for event in profiler.events()]
    for mark in events:
        if mark.name.startswith(_MARK) and not mark.on_device:
            inside = [one for one in events if mark.begin <= one.begin <= mark.end]
            rows[mark.name.removeprefix(_MARK)] = _counts(inside)


class _Event:
    """Name, stream, and microseconds of an event."""

    def __init__(self, event: Any) -> None:
        self.name: str = event.name
        self.on_device = event.device_type.name != "CPU"
        self.begin, self.end = event.time_range.start, event.time_range.end
        self.inside = event.cpu_parent


def _counts(events: Sequence[_Event]) -> dict[str, Any]:
    kernels = [one for one in events if one.on_device and not one.name.startswith(_MARK)]
    calls = [one.name for one in events if not one.on_device]
    waits = [one for one in events if one.name in _WAITS]
    driver = sum(name.startswith("cuLaunchKernel") for name in calls)  # Triton's way
    return {
        "device_us": f"{sum(one.end - one.begin for one in kernels):.1f}",
        "launches": driver + sum(name.startswith("cudaLaunchKernel") for name in calls),
        "triton_launches": driver,
        "copies": sum(name.startswith(("cudaMemcpy", "cudaMemset")) for name in calls),
        "operators": sum(
            one.name.startswith("aten::")
            and not (one.inside is not None and one.inside.name.startswith("aten::"))
            for one in events
        ),
        "waits": len(waits),
        "wait_us": f"{sum(one.end - one.begin for one in waits):.1f}",
    }
