"""The meter: it counts a compressor's kernels between collectives, with bytes, FLOPs and names.

A torch dispatch mode adds each tensor kernel's bytes (read plus written) and FLOPs to its class and
name. Code outside torch is wrapped by `kernel`, which counts one kernel with the bytes of the
tensors that enter and leave, as a fused kernel on an accelerator would. With a clock, a recorder
also times each kernel. Costs that grow with the number of workers are separated by watching the
payloads: work between two steps of an iteration over them belongs to a payload.

Assumes that a kernel reads each operand and writes each result once, and that views are free;
indexed reads count only touched elements.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from gcsim.compressors import on_device
from gcsim.compressors.kernels import KernelClass, KernelCost, TimedKernel, spread, total
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.lockstep import CollectiveRecord, Observer
from gcsim.compressors.streams import Clock

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Recorder:
    """Summed kernels of one stretch of computation, timed if there is a clock."""

    def __init__(self, clock: Clock | None = None, *, counting: bool = True) -> None:
        self._clock = clock
        self.counting = counting
        self._left_out: list[tuple[Any, Any]] = []
        self._timed: list[tuple[KernelCost, Any, Any]] = []
        self.running = ""
        self.paused = False
        self.fixed: list[KernelCost] = []
        self.per_payload: list[KernelCost] = []
        self.payloads = 0
        self.per_part: list[KernelCost] = []
        """Sum over all parts of one whole: more workers mean more launches but the same bytes."""
        self.parts = 0
        self._reading: list[KernelCost] | None = None

    def add(self, cost: KernelCost) -> None:
        """Count a kernel for the payload being read, or else for the exchange. The host's reads of
        values in a payload are not counted: in a deployment the network or a kernel does that."""
        if self._reading is None:
            self.fixed.append(cost)
        elif cost.kind != "host_sync":
            self._reading.append(cost)

    def now(self) -> Any:
        return 0.0 if self._clock is None else self._clock()

    @property
    def timed(self) -> list[TimedKernel]:
        """Each timed launch; reading this waits for the device."""
        return [TimedKernel(cost, end - begin) for cost, begin, end in self._timed]

    @property
    def left_out(self) -> float:
        """Seconds spent in `unpriced` functions; waits as `timed` does."""
        return float(sum(end - begin for begin, end in self._left_out))

    def undisturbed(self) -> AbstractContextManager[Any]:
        """Return a context in which torch runs uncounted, for timing a kernel."""
        if self._clock is None or not self.counting:
            return nullcontext()
        from torch.utils._python_dispatch import _disable_current_modes

        modes: AbstractContextManager[Any] = _disable_current_modes()
        return modes

    def launched(self, cost: KernelCost, begin: Any, end: Any) -> None:
        """Count a kernel between two instants; `end=None` if that is not the device's time."""
        self.add(cost)
        if self._clock is not None and end is not None:
            self._timed.append((cost, begin, end))

    def watch(self, received: Iterable[Tensor], *, parts: bool = False) -> Iterator[Tensor]:
        """Iterate over payloads, or parts of one whole; attribute the kernels in between."""
        try:
            for payload in received:
                self._reading = self.per_part if parts else self.per_payload
                self.parts += parts
                self.payloads += not parts
                yield payload
        finally:
            self._reading = None

    def costs(self) -> tuple[KernelCost, ...]:
        return total([*self.fixed, *self.per_payload, *self.per_part])


_active: list[Recorder] = []


@contextmanager
def segment(clock: Clock | None = None, *, counting: bool = True) -> Iterator[Recorder]:
    """Count the kernels that run inside on this thread; with a clock, time them. Without
    `counting`, only time `unpriced` work, in `left_out`."""
    from gcsim.compressors.meter_dispatch import CountingMode

    recorder = Recorder(clock, counting=counting)
    _active.append(recorder)
    try:
        with CountingMode(recorder) if counting else nullcontext():
            yield recorder
    finally:
        _active.pop()


def kernel(
    kind: KernelClass, *, updates: tuple[str, ...] = (), name: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Count a call of the decorated function as one kernel of class `kind`: it reads tensor
    operands once, writes results and operands in `updates` once; torch kernels inside do not count.
    The function counts its random draws (`count_random`). `name` defaults to `kernel_name`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        called = name or kernel_name(function)
        signature = inspect.signature(function)
        if unknown := set(updates) - set(signature.parameters):
            raise TypeError(f"{function.__name__} has no parameters {sorted(unknown)}")

        def cost(result: object, *args: Any, **kwargs: Any) -> Iterator[KernelCost]:
            given = signature.bind(*args, **kwargs).arguments
            moved = [*_tensors([*given.values(), result]), *_tensors(given.get(k) for k in updates)]
            elements = max((t.numel() for t in moved), default=0)
            reach = f":{spread(elements)}" if kind == "gather_scatter" else ""
            yield launch(kind, called + reach, elements, sum(t.nbytes for t in moved))

        return counted_as(cost, called)(function)

    return decorate


def counted_as(
    launches: Callable[..., Iterable[KernelCost]], running: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Count one call of a primitive (for all tensors of a bucket) as the kernels that
    `launches(result, *args, **kwargs)` returns; torch's kernels inside are not counted. The time of
    the call is assigned to the last kernel. `running`: name for counts made inside."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _active or _active[-1].paused:
                return function(*args, **kwargs)
            recorder = _active[-1]
            recorder.paused, recorder.running = True, running
            try:
                with recorder.undisturbed():
                    visits = on_device.host_visits
                    started = recorder.now()
                    result = function(*args, **kwargs)
                    ended = recorder.now() if on_device.host_visits == visits else None
                costs = list(launches(result, *args, **kwargs)) if recorder.counting else []
                for number, cost in enumerate(costs, 1):
                    recorder.launched(cost, started, ended if number == len(costs) else None)
            finally:
                recorder.paused, recorder.running = False, ""
            return result

        return counted

    return decorate


def launch(kind: KernelClass, name: str, elements: ArrayLike, *nbytes: ArrayLike) -> KernelCost:
    """Return the cost of one launch for a bucket; elements and bytes may be columns."""
    moved = sum(int(np.sum(each)) for each in nbytes)
    return KernelCost(
        kind=kind, name=name, launches=1, elements=int(np.sum(elements)), nbytes=moved
    )


def drawn(name: str, elements: ArrayLike, bits: int) -> KernelCost:
    """Return the cost of numbers of `bits` random bits that kernel `name` draws."""
    n = int(np.sum(elements))
    nbytes = -(-n * bits // 8)
    return KernelCost(kind="random", name=name, part=True, launches=0, elements=n, nbytes=nbytes)


def kernel_name(function: Callable[..., object]) -> str:
    """Return file and function for gcsim's own, e.g. "signs.fold"; else the whole path."""
    module = function.__module__
    if module.startswith("gcsim.compressors."):
        module = module.rpartition(".")[2]
    return f"{module}.{function.__qualname__}"


def count_random(elements: int, bits: int) -> None:
    """Count numbers drawn inside a kernel: `elements` of `bits` random bits, no launch."""
    if _active:
        name = _active[-1].running
        _active[-1].add(replace(drawn(name, elements, bits), part=bool(name)))


def batched(tensors: Iterable[T]) -> Iterator[T]:
    """Iterate over a bucket's tensors, in methods written tensor by tensor."""
    yield from tensors


def unpriced(function: Callable[P, R]) -> Callable[P, R]:
    """Exclude the decorated function from the count: checks that a deployment leaves out."""

    @functools.wraps(function)
    def silent(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _active or _active[-1].paused:
            return function(*args, **kwargs)
        recorder = _active[-1]
        recorder.paused = True
        started = recorder.now()
        try:
            return function(*args, **kwargs)
        finally:
            recorder.paused = False
            recorder._left_out.append((started, recorder.now()))

    return silent


class Meter(Observer):
    """Observer of one lockstep exchange that counts the kernels between any two collectives."""

    def __init__(self, workers: int, clock: Clock | None = None) -> None:
        self._clock = clock
        self.segments: list[list[Recorder]] = [[] for _ in range(workers)]
        """Recorders by rank, then by stretch between collectives."""
        self.collectives: list[CollectiveRecord] = []
        self.servers: list[list[Recorder]] = []
        """Recorders by collective, one for each answer of a server or merge of two payloads."""
        self._server: list[Recorder] = []

    @contextmanager
    def compute(self, rank: int) -> Iterator[None]:
        with segment(self._clock) as recorder:
            self.segments[rank].append(recorder)
            yield

    @contextmanager
    def serve(self) -> Iterator[None]:
        with segment(self._clock) as recorder:
            self._server.append(recorder)
            yield

    def payloads(self, received: list[Tensor], *, parts: bool = False) -> Iterable[Tensor]:
        return _Watched(received, parts=parts)

    def collective(self, record: CollectiveRecord) -> None:
        self.collectives.append(record)
        self.servers.append(self._server)
        self._server = []


class _Watched:
    """Payloads that report each iteration to the active recorder."""

    def __init__(self, received: list[Tensor], *, parts: bool = False) -> None:
        self._received = received
        self._parts = parts

    def __iter__(self) -> Iterator[Tensor]:
        if _active:
            return _active[-1].watch(self._received, parts=self._parts)
        return iter(self._received)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    from gcsim.compressors.lazy_torch import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
