"""Streams, events and clocks of a device.

A GPU's host only queues work. An instant there is an event in a stream: `end - begin` are seconds
and waits for both. Two streams are ordered where one waits for the other's event. In host memory
calls run in order, and nothing here does anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from gcsim.compressors.lazy_torch import Tensor, torch

if TYPE_CHECKING:
    Future = torch.futures.Future[Any]

Clock = Callable[[], Any]
"""Gives the present instant; the difference of two is seconds."""


def has_streams(device: torch.device) -> bool:
    """Whether calls there are only queued."""
    return device.type == "cuda"


class Instant:
    """Event in a GPU's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
        self._event.record(torch.cuda.current_stream(device))

    def __sub__(self, earlier: Instant) -> float:
        for each in (earlier, self):
            each._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3  # milliseconds


def clock_of(device: torch.device, host: Callable[[], float] = time.perf_counter) -> Clock:
    """Instants on that device; those of `host` where nothing is queued."""
    return partial(Instant, device) if has_streams(device) else host


class Beside:
    """A second stream of a device, beside the computing one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        queued = has_streams(device)
        self._stream: Any = torch.cuda.Stream(device) if queued else None  # type: ignore[no-untyped-call]

    def ready(self, tensor: Tensor) -> Any:
        """Token for `after`: the current stream's work before `tensor` is complete. The tensor's
        memory is not reused until this stream is done with it."""
        if self._stream is None:
            return None
        tensor.record_stream(self._stream)
        return torch.cuda.current_stream(self._device).record_event()

    @contextmanager
    def after(self, ready: Any = None) -> Iterator[None]:
        """Run the calls inside on this stream, after `ready`."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):  # and on its device
            if ready is not None:
                self._stream.wait_event(ready)
            yield

    def future(self) -> Future:
        """A future to complete inside `after`: a waiter continues once the completing work is
        queued, and its stream waits for this one."""
        return torch.futures.Future(devices=[] if self._stream is None else [self._device])


def landing(shape: Any, device: torch.device) -> Tensor:
    """Float32 zeros in host memory for `copy_(..., non_blocking=True)` from `device`, which keeps
    the copy in the stream's order; `landed` waits for it."""
    return torch.zeros(shape, dtype=torch.float32, pin_memory=has_streams(device))


def landed(device: torch.device) -> None:
    """Wait for all work queued on a device."""
    if has_streams(device):
        torch.cuda.synchronize(device)
