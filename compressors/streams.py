"""Streams, events and clocks of a device.

The host only queues work on a GPU. A clock's instant is therefore an event in a stream: `end -
begin` gives seconds and waits for both. Work in two streams is ordered only if one waits for the
other's event. In host memory calls run in order, and all of this does nothing.
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
"""Returns the present instant; the difference of two instants is in seconds."""


def has_streams(device: torch.device) -> bool:
    """Whether calls on this device are only queued."""
    return device.type == "cuda"


class Instant:
    """An instant on a GPU: an event in its current stream."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
        self._event.record(torch.cuda.current_stream(device))

    def __sub__(self, earlier: Instant) -> float:
        for each in (earlier, self):
            each._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3  # from milliseconds


def clock_of(device: torch.device, host: Callable[[], float] = time.perf_counter) -> Clock:
    """Return a clock for this device; `host` if the device queues nothing."""
    return partial(Instant, device) if has_streams(device) else host


class Beside:
    """A second stream on a device, next to the stream that computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        queued = has_streams(device)
        self._stream: Any = torch.cuda.Stream(device) if queued else None  # type: ignore[no-untyped-call]

    def ready(self, tensor: Tensor) -> Any:
        """Return a token for `after`: the work that the current stream has queued up to `tensor`.
        The tensor's memory is not reused until this second stream is done with it."""
        if self._stream is None:
            return None
        tensor.record_stream(self._stream)
        return torch.cuda.current_stream(self._device).record_event()

    @contextmanager
    def after(self, ready: Any = None) -> Iterator[None]:
        """Run the enclosed calls on this stream, after `ready`."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):  # this also selects the device
            if ready is not None:
                self._stream.wait_event(ready)
            yield

    def future(self) -> Future:
        """Return a future to complete inside `after`. Its waiter continues as soon as that work is
        queued; the waiter's stream waits for this one."""
        return torch.futures.Future(devices=[] if self._stream is None else [self._device])


def landing(shape: Any, device: torch.device) -> Tensor:
    """Return float32 zeros in host memory as target of `copy_(..., non_blocking=True)` from
    `device`; the copy stays in the stream's order, and `landed` waits for it."""
    return torch.zeros(shape, dtype=torch.float32, pin_memory=has_streams(device))


def landed(device: torch.device) -> None:
    """Wait for all work queued on a device."""
    if has_streams(device):
        torch.cuda.synchronize(device)
