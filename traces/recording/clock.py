"""Times of the passes and gradients in a user's training loop.

Hooks only record instants: around the model's forward, after each parameter's gradient is
accumulated, and around each step of a torch optimiser. On a CPU an instant is a host time, on a GPU
an event in the computing stream (`compressors/streams.py`).

The backward pass starts at the end of the model's forward, so it includes the loss. Of several
micro-batches the last is timed. If ranks exchange gradients, the wait between the last gradient and
the optimiser is left out, since gcsim simulates it.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gcsim.compressors.lazy_torch import nn, torch
from gcsim.compressors.streams import clock_of
from gcsim.traces.profile import PassTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePass:
    """Times of one micro-batch and the optimiser's step, in seconds."""

    forward: float
    ready: tuple[float, ...]
    """Seconds from the end of the forward pass, by parameter."""
    backward: float
    """From there to the end of the optimiser's step; without one, to the last gradient."""


def can_be_timed(parameters: Sequence[tuple[str, nn.Parameter]]) -> bool:
    """Whether all parameters are on the CPU, or all on one CUDA device."""
    devices = {parameter.device for _, parameter in parameters}
    return len(devices) == 1 and next(iter(devices)).type in ("cpu", "cuda")


class PassClock:
    """Times `model`'s passes between `start` and `stop`; `turn` ends an iteration. `parameters` are
    the trained ones, in order; see `can_be_timed`."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[tuple[str, nn.Parameter]],
        *,
        exchanges: bool = False,
    ) -> None:
        self._model = model
        self._parameters = [parameter for _, parameter in parameters]
        self._exchanges = exchanges
        """Whether the backward pass ends with waiting for other ranks."""
        self._now = clock_of(self._parameters[0].device)
        self._handles: list[Any] = []
        self._clear()

    def _clear(self) -> None:
        self._begin: Any = None
        self._turned: Any = None
        self._ready: dict[int, Any] = {}
        self._optimizers: list[tuple[Any, Any]] = []
        self._opened: Any = None

    def start(self) -> None:
        """Attach the hooks."""
        from torch.optim import optimizer as optimizers

        self._clear()
        keep = self._handles.append
        keep(self._model.register_forward_pre_hook(self._enters))
        keep(self._model.register_forward_hook(self._leaves))
        for number, parameter in enumerate(self._parameters):
            keep(parameter.register_post_accumulate_grad_hook(self._arrives(number)))  # type: ignore[no-untyped-call]  # torch's own
        keep(optimizers.register_optimizer_step_pre_hook(self._opens))
        keep(optimizers.register_optimizer_step_post_hook(self._closes))

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._clear()

    def turn(self) -> OnePass | None:
        """Return the times of the iteration that ends now; None if a part of it was missed."""
        begin, turned, ready, steps = self._begin, self._turned, self._ready, self._optimizers
        self._clear()
        if begin is None or turned is None or len(ready) < len(self._parameters):
            return None
        times = tuple(ready[number] - turned for number in range(len(ready)))
        last = max(times)
        steps = [(a, b) for a, b in steps if a - turned >= last]
        if not steps:
            backward = last
        elif self._exchanges:
            backward = last + sum(b - a for a, b in steps)
        else:
            backward = max(b - turned for _, b in steps)
        return OnePass(forward=turned - begin, ready=times, backward=backward)

    def _enters(self, _module: nn.Module, _given: Any) -> None:
        if not torch.is_grad_enabled():
            return  # an evaluation in between
        if self._begin is None or self._ready:
            self._clear()
            self._begin = self._now()

    def _leaves(self, _module: nn.Module, _given: Any, _output: Any) -> None:
        if torch.is_grad_enabled() and not self._ready:
            self._turned = self._now()

    def _arrives(self, number: int) -> Callable[[Any], None]:
        def hook(_parameter: Any) -> None:
            self._ready[number] = self._now()

        return hook

    def _opens(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._opened = self._now()

    def _closes(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._opened is not None:
            self._optimizers.append((self._opened, self._now()))
            self._opened = None


def median_pass(passes: Sequence[OnePass], device: torch.device, ranks: int = 1) -> PassTimes:
    """Return the median of one or more passes, separately for each time."""
    ready = tuple(
        statistics.median(one.ready[number] for one in passes)
        for number in range(len(passes[0].ready))
    )
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        threads = torch.get_num_threads()
        where = f"CPU ({platform.machine()}, {threads} thread{'s' if threads > 1 else ''})"
    of = f"{len(passes)} iterations" if ranks == 1 else f"{len(passes)} iterations of {ranks} ranks"
    return PassTimes(
        forward=statistics.median(one.forward for one in passes),
        backward=max(*ready, statistics.median(one.backward for one in passes)),
        ready=ready,
        processor="gpu" if device.type == "cuda" else "cpu",
        source=f"recorded on {where}, median of {of} in which nothing was copied",
    )
