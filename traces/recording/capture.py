"""Copies of each worker's own gradient, taken from an ordinary training loop.

A hook on every parameter copies its gradient to the CPU as soon as autograd has accumulated it:
before clipping, scaling or DistributedDataParallel's averaging, so it is each rank's own. On a GPU
the copy goes to pinned memory in the computing stream, and the host waits once, at the end of the
iteration.

Several backward passes in an iteration are one worker's micro-batches, whose sum is kept, or N
virtual workers, one pass each; then the gradient is copied before it is added to the parameter's.
Hooks do not raise, as errors would surface in the user's `backward()`: they are reported at the end
of the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.compressors.streams import landed, landing
from gcsim.errors import Problem

_NAMED = 4
"""Number of parameters that a message names."""


class GradientCapture:
    """Copies the gradients of `parameters` between `start` and `stop`. `workers` are virtual;
    `allow_unused` stores zeros for a gradient that never arrives."""

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], *, workers: int, allow_unused: bool
    ) -> None:
        self._parameters = list(parameters)
        self._workers = workers
        self._allow_unused = allow_unused
        self._held: list[list[Tensor]] = []
        self._counts = [0] * len(self._parameters)
        self.arrived: dict[int, None] = {}
        """Indices of the parameters in the order of their very first gradients."""
        self._handles: list[Any] = []
        self._faults: dict[str, Problem] = {}
        self.on_first: Callable[[], None] = lambda: None
        """Called when the first gradient of an iteration arrives."""

    def start(self) -> None:
        """Attach the hooks and allocate memory for the copies."""
        self._held = [
            [landing(parameter.shape, parameter.device) for _, parameter in self._parameters]
            for _ in range(self._workers)
        ]
        for number, (_, parameter) in enumerate(self._parameters):
            if self._workers > 1:
                handle = parameter.register_hook(self._own(number))  # type: ignore[no-untyped-call]
                self._handles.append(handle)
            arrived = self._arrived(number)
            handle = parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
            self._handles.append(handle)

    def stop(self) -> None:
        """Remove the hooks and drop the copies."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._held = []

    @property
    def passes(self) -> int:
        """Number of backward passes in this iteration so far."""
        return max(self._counts)

    def problems(self) -> list[Problem]:
        """Return the faults of the iteration that ends now."""
        if self._faults:
            return list(self._faults.values())
        passes = self.passes
        if passes == 0:
            return [
                Problem(
                    message="no gradient arrived in this iteration",
                    place="recording.step",
                    hint="call it once after each backward(), with the model that is trained",
                )
            ]
        if self._workers > 1 and passes != self._workers:
            return [
                Problem(
                    message=f"the iteration had {passes} backward pass"
                    f"{'es' if passes > 1 else ''}; workers={self._workers} needs one for each "
                    "virtual worker",
                    place="recording.step",
                    hint=f"call backward() on {self._workers} mini-batches before the optimiser's "
                    "step, or record one worker",
                )
            ]
        late = [
            name
            for (name, _), count in zip(self._parameters, self._counts, strict=True)
            if count == 0 or (self._workers > 1 and count < passes)
        ]
        if not late or self._allow_unused:
            return []
        shown = ", ".join(late[:_NAMED]) + (
            f" and {len(late) - _NAMED} more" * (len(late) > _NAMED)
        )
        return [
            Problem(
                message=f"no gradient arrived for {shown}: the loss does not depend on "
                f"{'it' if len(late) == 1 else 'them'}",
                place=f"parameter {late[0]}",
                hint="freeze it with requires_grad_(False), as DDP would ask for, or record with "
                "allow_unused=True (zeros in its place)",
            )
        ]

    def gradients(self) -> list[tuple[Tensor, ...]]:
        """Return the copies by worker, then parameter; the next iteration overwrites them."""
        for device in {parameter.device for _, parameter in self._parameters}:
            landed(device)
        if self._allow_unused:
            for held in self._held:
                for copy, count in zip(held, self._counts, strict=True):
                    if count == 0:
                        copy.zero_()
        return [tuple(held) for held in self._held]

    def clear(self) -> None:
        """Start a new iteration."""
        self._counts = [0] * len(self._parameters)
        self._faults.clear()

    def _arrived(self, number: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            if not any(self._counts):
                self.on_first()
            self._counts[number] += 1
            self.arrived[number] = None
            if self._workers == 1 and parameter.grad is not None:
                self._take(number, 0, parameter.grad)

        return hook

    def _own(self, number: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            # Also called if the gradient goes elsewhere (autograd.grad): it counts only when it
            # arrives, and until then the next one replaces it.
            if self._counts[number] < self._workers:  # too many are reported at the end
                self._take(number, self._counts[number], gradient)

        return hook

    def _take(self, number: int, worker: int, gradient: Tensor) -> None:
        name = self._parameters[number][0]
        if gradient.layout != torch.strided:
            self._fault(name, "its gradient is sparse", "build the layer with sparse=False")
            return
        copy = self._held[worker][number]
        if gradient.shape != copy.shape:
            self._fault(
                name,
                f"its shape changed from {list(copy.shape)} to {list(gradient.shape)} while it "
                "was recorded",
                "record a stretch of training in which the model stays as it is",
            )
            return
        with torch.no_grad():
            copy.copy_(gradient, non_blocking=True)

    def _fault(self, name: str, what: str, hint: str) -> None:
        self._faults.setdefault(name, Problem(message=what, place=f"parameter {name}", hint=hint))
