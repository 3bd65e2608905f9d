"""What arithmetic does a compressor do? Kernels counted between two collectives.

A torch dispatch mode sees every tensor kernel that runs, with its operands, and adds its bytes
(read plus written) and FLOPs to its class. Code that leaves torch (bit packing and selection in
numpy) is wrapped by `kernel`, which counts one kernel with the bytes of the tensors that go in
and come out: what one fused kernel on an accelerator would move.

Cost that grows with the number of workers is told from cost that does not by watching the
payloads: what runs between two steps of an iteration over the received payloads belongs to a
payload. (Test: the cost at four workers equals fixed + 4 per payload as metered with two.)

Assumes that a kernel reads each operand once and writes each result once, and that views are
free. Indexed reads count the elements that are touched, not the whole operand.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gcsim.compressors.kernels import KernelClass, KernelCost, total
from gcsim.compressors.lockstep import CollectiveRecord

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


class Recorder:
    """Adds up the kernels of one stretch of computation."""

    def __init__(self) -> None:
        self.fixed: list[KernelCost] = []
        self.per_payload: list[KernelCost] = []
        """The sum over all payloads."""
        self.payloads = 0
        self.per_part: list[KernelCost] = []
        """The sum over all parts of one whole: more workers launch more, and move as much."""
        self.parts = 0
        self.paused = False
        self._reading: list[KernelCost] | None = None

    def add(self, cost: KernelCost) -> None:
        """Count a kernel where it belongs: to the payload being read, or to the exchange.

        That the host looks into a payload is not counted: it checks what a deployment leaves to
        the network, or reads a scale that an accelerator's kernel finds where it lies.
        """
        if self._reading is None:
            self.fixed.append(cost)
        elif cost.kind != "host_sync":
            self._reading.append(cost)

    def watch(self, received: Iterable[Tensor]) -> Iterator[Tensor]:
        """Iterate over payloads; what runs until the next one is asked for belongs to them."""
        try:
            for payload in received:
                self._reading = self.per_payload
                self.payloads += 1
                yield payload
        finally:
            self._reading = None

    def watch_parts(self, received: Iterable[Tensor]) -> Iterator[Tensor]:
        """`watch` for the parts of one whole."""
        try:
            for part in received:
                self._reading = self.per_part
                self.parts += 1
                yield part
        finally:
            self._reading = None

    def costs(self) -> tuple[KernelCost, ...]:
        """Everything that was counted, by class."""
        return total([*self.fixed, *self.per_payload, *self.per_part])


_active: list[Recorder] = []


@contextmanager
def segment() -> Iterator[Recorder]:
    """Count the kernels that run inside, on this thread."""
    from gcsim.compressors.meter_dispatch import CountingMode

    recorder = Recorder()
    _active.append(recorder)
    try:
        with CountingMode(recorder):
            yield recorder
    finally:
        _active.pop()


def kernel(
    kind: KernelClass, *, updates: tuple[str, ...] = (), resident: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Count a call of the decorated function as one kernel of class `kind`.

    Its tensor operands are read once, its tensor results written once, and the operands named in
    `updates` are written too. Those named in `resident` cost nothing: a kernel that is fused over
    its calls keeps them in registers. Torch kernels that it runs inside are not counted again.
    What it draws at random it says itself (`count_random`).
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        if unknown := {*updates, *resident} - set(signature.parameters):
            raise TypeError(f"{function.__name__} has no parameters {sorted(unknown)}")

        @functools.wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _active or _active[-1].paused:
                return function(*args, **kwargs)
            recorder = _active[-1]
            recorder.paused = True
            try:
                result = function(*args, **kwargs)
            finally:
                recorder.paused = False
            given = signature.bind(*args, **kwargs).arguments
            operands = list(_tensors(v for name, v in given.items() if name not in resident))
            results = [*_tensors([result]), *_tensors(given.get(name) for name in updates)]
            recorder.add(
                KernelCost(
                    kind=kind,
                    launches=1,
                    elements=max((t.numel() for t in [*operands, *results]), default=0),
                    nbytes=sum(t.nbytes for t in [*operands, *results]),
                )
            )
            return result

        return counted

    return decorate


def count_random(elements: int, bits: int) -> None:
    """Count numbers drawn inside a kernel: `elements` of `bits` random bits, without a launch."""
    if _active:
        nbytes = -(-elements * bits // 8)
        _active[-1].add(KernelCost(kind="random", launches=0, elements=elements, nbytes=nbytes))


def count_bytes(kind: KernelClass, nbytes: int) -> None:
    """Count bytes that a kernel moves of an operand that is `resident` for the most part."""
    if _active:
        _active[-1].add(KernelCost(kind=kind, launches=0, elements=0, nbytes=nbytes))


def unpriced(function: Callable[P, R]) -> Callable[P, R]:
    """Count nothing of what the decorated function does: checks that a deployment leaves out."""

    @functools.wraps(function)
    def silent(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _active or _active[-1].paused:
            return function(*args, **kwargs)
        _active[-1].paused = True
        try:
            return function(*args, **kwargs)
        finally:
            _active[-1].paused = False

    return silent


class Meter:
    """An observer of one lockstep exchange: the kernels between any two collectives."""

    def __init__(self, workers: int) -> None:
        self.segments: list[list[Recorder]] = [[] for _ in range(workers)]
        """By rank, then by position between the collectives."""
        self.collectives: list[CollectiveRecord] = []
        self.servers: list[list[Recorder]] = []
        """By collective: each time that a server answered, or two payloads were merged."""
        self._server: list[Recorder] = []

    @contextmanager
    def compute(self, rank: int) -> Iterator[None]:
        """See `Observer`."""
        with segment() as recorder:
            self.segments[rank].append(recorder)
            yield

    @contextmanager
    def serve(self) -> Iterator[None]:
        """See `Observer`."""
        with segment() as recorder:
            self._server.append(recorder)
            yield

    def payloads(self, received: list[Tensor]) -> Iterable[Tensor]:
        """See `Observer`."""
        return _Watched(received)

    def parts(self, received: list[Tensor]) -> Iterable[Tensor]:
        """See `Observer`."""
        return _Watched(received, parts=True)

    def collective(self, record: CollectiveRecord) -> None:
        """See `Observer`."""
        self.collectives.append(record)
        self.servers.append(self._server)
        self._server = []


class _Watched:
    """Payloads whose iteration tells the active recorder."""

    def __init__(self, received: list[Tensor], *, parts: bool = False) -> None:
        self._received = received
        self._parts = parts

    def __iter__(self) -> Iterator[Tensor]:
        if not _active:
            return iter(self._received)
        recorder = _active[-1]
        watch = recorder.watch_parts if self._parts else recorder.watch
        return watch(self._received)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    from gcsim.compressors.lazy_torch import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
