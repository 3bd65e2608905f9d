"""Real gradients of a model, from training with virtual workers in one process.

Training is data-parallel SGD with momentum (as in torch.optim.SGD: v = momentum v + g, w = w - rate
v): workers share the weights, each has its own mini-batches, and the weights are updated with the
dense mean of the gradients. Compressors see these gradients afterwards; their updates do not change
the weights.

A warm-up step uses a quarter of one worker's batch: its gradient has the same mean, the weights
only have to leave their random start, and recording starts from the same weights for any number of
workers.

A step is a function of (seed, worker, step): batches, dropout and initial weights are keyed. Equal
seeds give equal bits on a CPU with the same number of threads, and on a GPU as far as torch's
kernels are deterministic (cuDNN is set to be).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.errors import InputError
from gcsim.traces.models.building import trainable
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.own_code import own_mistakes
from gcsim.traces.models.ready_order import noted_order, whole_order
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.moments import Moments, second_moments
from gcsim.traces.profile import Costs
from gcsim.traces.tasks.registry import Task

_WARM_UP = 4
"""A warm-up step uses this fraction of a batch, and at least two samples, for batch norm."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerGradients:
    """One worker's gradients in one iteration, on the model's device."""

    iteration: int
    """Counted from 0, after the warm-up."""
    worker: int
    loss: float
    """Mean loss of the mini-batch, before the weights are updated."""
    gradients: tuple[Tensor, ...]
    """Gradients by trainable parameter, float32 in its shape: means over the mini-batch."""
    second_moments: tuple[Tensor, ...] | None = None
    """sum_z (g_z / B)^2 by parameter, if requested."""
    moment_costs: dict[int, Costs] = field(default_factory=dict)
    """Kernels of each parameter's second moments, metered in the first pass (all are alike)."""


def pick_device(name: str) -> str:
    """Return "cpu" or "cuda" for "auto", "cpu" or "cuda". Raises `InputError` for another word, or
    if torch sees no GPU."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {name!r}", place="device", hint="auto, cpu or cuda")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        hint = 'use device "auto" or "cpu", or install a build of torch for your GPU'
        raise InputError("torch sees no GPU here", place="device", hint=hint)
    return "cuda" if there and name != "cpu" else "cpu"


class LiveTrainer:
    """Trains `model`, built from `entry`, in place and on its device, and yields the workers'
    gradients."""

    def __init__(
        self,
        entry: ModelEntry,
        model: nn.Module,
        task: Task,
        *,
        batch_size: int,
        learning_rate: float,
        momentum: float,
        seed: int,
    ) -> None:
        self._entry = entry
        self._model = model
        self._task = task
        self._batch_size = batch_size
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._seed = seed
        self._names = [name for name, _ in trainable(model)]
        self._parameters = [parameter for _, parameter in trainable(model)]
        self._velocity: list[Tensor] = []
        self._device = self._parameters[0].device
        self._step = 0
        self.ready_order: tuple[int, ...] = ()
        """Indices of the parameters in the order of their gradients in the first pass."""

    def warm_up(self, steps: int) -> Iterator[float]:
        """Train for `steps` steps on a quarter of a worker's batch each; yield each step's loss.
        Raises `InputError` if it is not finite."""
        samples = min(self._batch_size, max(2, self._batch_size // _WARM_UP))
        for number in range(steps):
            loss, _ = self._pass(0, samples)
            if not math.isfinite(loss):
                with own_mistakes(self._entry, self._model, "training"):
                    message = f"training diverged: the loss of warm-up step {number} is {loss}"
                    hint = f"choose a lower one than {self._learning_rate:g}"
                    raise InputError(message, place="learning_rate", hint=hint)
            self._advance(self._gradients())
            yield loss

    def gradients(
        self, iterations: int, workers: int, *, with_second_moments: bool = False
    ) -> Iterator[WorkerGradients]:
        """Yield the gradients of consecutive iterations, worker by worker, even if not finite.
        Raises `InputError` if a parameter gets no gradient."""
        for iteration in range(iterations):
            mean: list[Tensor] = []
            for worker in range(workers):
                first = iteration == worker == 0
                loss, moments = self._pass(worker, self._batch_size, with_second_moments, first)
                own = self._gradients()
                if mean:
                    torch._foreach_add_(mean, own, alpha=1 / workers)
                else:
                    mean = [gradient / workers for gradient in own]
                yield WorkerGradients(
                    iteration=iteration,
                    worker=worker,
                    loss=loss,
                    gradients=tuple(own),
                    second_moments=moments.values if moments else None,
                    moment_costs=moments.costs if moments else {},
                )
                del own, moments
            self._advance(mean)

    def _pass(
        self, worker: int, samples: int, with_second_moments: bool = False, first: bool = False
    ) -> tuple[float, Moments | None]:
        """Run forward and backward on a worker's next batch, which fills the parameters' `grad`."""
        inputs, labels = self._task.batch(samples, worker=worker, step=self._step)
        inputs, labels = inputs.to(self._device), labels.to(self._device)
        for parameter in self._parameters:
            parameter.grad = None
        watching: AbstractContextManager[Any] = (
            second_moments(self._model) if with_second_moments else nullcontext()
        )
        key = {"step": self._step, "rank": worker}
        with (
            keyed_generator(self._seed, "dropout", device=self._device, **key),
            deterministic(self._device),
            watching as watched,
            own_mistakes(self._entry, self._model, "training"),
        ):
            output = self._model(inputs)
            losses = sample_losses(self._entry, output, labels) / samples
            with noted_order([] if self.ready_order else self._parameters) as order:
                if watched is None:
                    losses.sum().backward()  # type: ignore[no-untyped-call]  # torch's own
                else:
                    watched.backward(losses)
            self.ready_order = self.ready_order or whole_order(order, len(self._parameters))
            moments = None if watched is None else watched.accumulate(metered=first, check=first)
            return float(losses.detach().sum()), moments

    def _gradients(self) -> list[Tensor]:
        found = [parameter.grad for parameter in self._parameters]
        idle = [name for name, g in zip(self._names, found, strict=True) if g is None]
        if idle:
            with own_mistakes(self._entry, self._model, "training"):
                message = "gets no gradient: the output does not depend on it"
                hint = "freeze it with requires_grad_(False), or take it out of the model"
                raise InputError(message, place=f"parameter {idle[0]}", hint=hint)
        return [gradient for gradient in found if gradient is not None]

    def _advance(self, mean: list[Tensor]) -> None:
        with torch.no_grad():
            if not self._velocity:
                self._velocity = [gradient.clone() for gradient in mean]
            else:
                for velocity, gradient in zip(self._velocity, mean, strict=True):
                    velocity.mul_(self._momentum).add_(gradient)
            for parameter, velocity in zip(self._parameters, self._velocity, strict=True):
                parameter.add_(velocity, alpha=-self._learning_rate)
        self._step += 1


def deterministic(device: torch.device) -> AbstractContextManager[Any]:
    """Make cuDNN avoid algorithm search, atomics and TF32; a no-op on a CPU."""
    if device.type != "cuda":
        return nullcontext()
    flags: AbstractContextManager[Any] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return flags
