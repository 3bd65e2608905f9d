"""A GPU that is none: tensors stay in host memory, streams and events only say who is behind whom.

    with pretended_gpu() as gpu:
        ...                     # `streams.has_streams` says yes to every device

A stream knows what it is behind: facts that somebody stated on it (`gpu.state`), and those of every
event that it has waited for. Nothing is past, and so no time is known, before somebody waits for
it. An event takes a millisecond from the one before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gcsim.compressors import streams


class _Stream:
    def __init__(self, gpu: PretendedGpu) -> None:
        self._gpu = gpu
        self.behind: set[str] = set()

    def record_event(self) -> _Event:
        event = _Event(self._gpu)
        event.record(self)
        return event

    def wait_event(self, event: _Event) -> None:
        self.behind |= event.behind


class _Event:
    def __init__(self, gpu: PretendedGpu) -> None:
        self._gpu = gpu

    def record(self, stream: _Stream) -> None:
        self.behind = set(stream.behind)
        self.at = self._gpu.tick()

    def query(self) -> bool:
        return self.at <= self._gpu.reached

    def synchronize(self) -> None:
        self._gpu.waits += not self.query()
        self._gpu.reached = max(self._gpu.reached, self.at)

    def elapsed_time(self, end: _Event) -> float:
        assert self.query()
        assert end.query(), "the device has not come so far"
        return float(end.at - self.at)


class PretendedGpu:
    """In the place of `torch` in `streams.py`; what is not `cuda` or `futures` is torch's own."""

    def __init__(self) -> None:
        self.cuda = self.futures = self
        self.computing = _Stream(self)
        self.kept: list[_Stream] = []
        """For which tensors' memory is kept."""
        self.made: list[Any] = []
        """Futures, with what they are `behind`."""
        self.reached = self.now = 0
        self.waits = 0
        """For the device, by the host."""
        self._local = threading.local()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tick(self) -> int:
        with self._lock:
            self.now += 1
            return self.now

    def catch_up(self) -> None:
        """The device has done all that was queued."""
        self.reached = self.now

    def state(self, fact: str) -> None:
        """Put all that the current stream does from here on behind this."""
        self.current_stream().behind.add(fact)

    def known(self) -> set[str]:
        """Everything that the current stream is behind."""
        return self.current_stream().behind

    # --- torch.cuda, torch.futures ----------------------------------------------------------

    def Stream(self, device: Any) -> _Stream:  # noqa: N802 - torch's names
        return _Stream(self)

    def Event(self, *, enable_timing: bool) -> _Event:  # noqa: N802
        assert enable_timing
        return _Event(self)

    def current_stream(self, device: Any = None) -> _Stream:
        found: _Stream = getattr(self._local, "stream", self.computing)
        return found

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        before, self._local.stream = self.current_stream(), stream
        yield
        self._local.stream = before

    def synchronize(self, device: Any = None) -> None:
        self.waits += 1
        self.catch_up()

    def zeros(self, *size: Any, pin_memory: bool, **options: Any) -> Any:
        assert pin_memory
        return torch.zeros(*size, **options)

    def Future(self, *, devices: list[Any]) -> Any:  # noqa: N802
        assert len(devices) == 1
        future: Any = torch.futures.Future()
        done = future.set_result

        def set_result(value: Any) -> None:
            future.behind = set(self.known())
            done(value)

        future.set_result = set_result
        self.made.append(future)
        return future


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """Inside, every device has streams: those of the stand-in."""
    gpu = PretendedGpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "torch", gpu)
        patch.setattr(streams, "has_streams", lambda device: True)
        patch.setattr(torch.Tensor, "record_stream", lambda self, stream: gpu.kept.append(stream))
        yield gpu
