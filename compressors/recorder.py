"""What ran in one stretch of computation, and for whom? Kernels added up, and timed with a clock.

The meter has one recorder for each stretch; what runs between two payloads of a loop over them is
kept apart, because it grows with the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from gcsim.compressors.kernels import KernelClass, KernelCost, total
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.streams import Clock


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """One kernel that ran, and how long it took here."""

    cost: KernelCost
    seconds: float


class Recorder:
    """Adds up the kernels of one stretch of computation."""

    def __init__(self, clock: Clock | None = None, *, counting: bool = True) -> None:
        self._clock = clock
        self.counting = counting
        self._timed: list[tuple[KernelCost, Any, Any]] = []
        """With a clock: each launch by itself, with all that it stated, and its two instants."""
        self._left_out: list[tuple[Any, Any]] = []
        """With a clock: instants around what is `unpriced`."""
        self.running = ""
        """The name of the `kernel` that runs now."""
        self.fixed: list[KernelCost] = []
        self.per_payload: list[KernelCost] = []
        """The sum over all payloads."""
        self.payloads = 0
        self.per_part: list[KernelCost] = []
        """The sum over all parts of one whole: more workers launch more, and move as much."""
        self.parts = 0
        self.paused = False
        self._reading: list[KernelCost] | None = None
        self._stated = 0

    def add(self, cost: KernelCost) -> None:
        """Count a kernel where it belongs: to the payload being read, or to the exchange.

        That the host looks into a payload is not counted: it checks what a deployment leaves to
        the network, or reads a scale that an accelerator's kernel finds where it lies.
        """
        if self._reading is None:
            self.fixed.append(cost)
        elif cost.kind != "host_sync":
            self._reading.append(cost)

    def now(self) -> Any:
        """The clock's instant; always 0 without one."""
        return 0.0 if self._clock is None else self._clock()

    @property
    def timed(self) -> list[TimedKernel]:
        """Each launch that was timed; waits for a device that has not come so far."""
        return [TimedKernel(cost, end - begin) for cost, begin, end in self._timed]

    @property
    def left_out(self) -> float:
        """Seconds of what is `unpriced`; waits as `timed` does."""
        return float(sum(end - begin for begin, end in self._left_out))

    def leave_out(self, begin: Any) -> None:
        """What ran since then is not priced."""
        if self._clock is not None:
            self._left_out.append((begin, self.now()))

    def undisturbed(self) -> AbstractContextManager[Any]:
        """While a kernel is timed, torch runs as it does when nobody counts."""
        if self._clock is None or not self.counting:
            return nullcontext()
        from torch.utils._python_dispatch import _disable_current_modes

        modes: AbstractContextManager[Any] = _disable_current_modes()
        return modes

    def state(self, kind: KernelClass, nbytes: int) -> None:
        """Count bytes that the running kernel says it moves beside its operands."""
        self._stated += nbytes
        self.add(KernelCost(kind=kind, name=self.running, launches=0, elements=0, nbytes=nbytes))

    def launched(self, cost: KernelCost, begin: Any, end: Any) -> None:
        """Count a kernel that ran from one instant to another; with an `end` of None its time is
        not one of its device, and is not noted."""
        self.add(cost)
        if self._clock is not None and end is not None:
            nbytes = cost.nbytes + self._stated
            self._timed.append((replace(cost, nbytes=nbytes), begin, end))
        self._stated = 0

    def watch(self, received: Iterable[Tensor], *, parts: bool = False) -> Iterator[Tensor]:
        """Iterate over payloads, or parts of one whole; what runs until the next one is asked for
        belongs to them."""
        try:
            for payload in received:
                self._reading = self.per_part if parts else self.per_payload
                self.parts += parts
                self.payloads += not parts
                yield payload
        finally:
            self._reading = None

    def costs(self) -> tuple[KernelCost, ...]:
        """Everything that was counted, by class."""
        return total([*self.fixed, *self.per_payload, *self.per_part])
