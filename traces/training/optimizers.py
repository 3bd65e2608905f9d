"""How does an update change the weights? SGD, Adam or AdamW of one flat vector, as in torch.optim.

By torch's functional forms, which its classes call too: the same bits. The classes load torch's
compiler for their first step, 2 s of a process, and nothing is compiled here.
"""

from __future__ import annotations

from typing import Any

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.traces.training.plan import Optimizer

_EPSILON = 1e-8
"""Added to Adam's root, as torch does unless told otherwise."""


class Stepper:
    """The optimiser of one replica: float32 `[n]`, changed in place."""

    def __init__(self, chosen: Optimizer, weights: Tensor, *, own_momentum: bool) -> None:
        """A method that has a momentum of its own takes plain SGD steps."""
        self._chosen, self._weights = chosen, weights
        self._adam = chosen.name != "sgd" and not own_momentum
        self._momentum = 0.0 if own_momentum else chosen.momentum
        self.state: dict[str, Any] = {}
        """What the next step depends on: vectors `[n]` and Adam's count of steps; empty before the
        first."""

    def step(self, gradient: Tensor, rate: float) -> None:
        """Apply a gradient `[n]`."""
        with torch.no_grad():
            if self._adam:
                self._adam_step(gradient, rate)
            else:
                self._sgd_step(gradient, rate)

    def restore_on(self, device: torch.device) -> None:
        """Vectors that were read on the CPU belong where the weights are."""
        for name, value in self.state.items():
            if isinstance(value, torch.Tensor) and value.dim():
                self.state[name] = value.to(device)

    def _sgd_step(self, gradient: Tensor, rate: float) -> None:
        from torch.optim.sgd import sgd

        buffers = [self.state.get("momentum_buffer")]
        sgd(
            [self._weights], [gradient], buffers,
            weight_decay=self._chosen.weight_decay, momentum=self._momentum, lr=rate,
            dampening=0.0, nesterov=False, maximize=False, foreach=False,
        )  # fmt: skip
        if self._momentum:
            self.state["momentum_buffer"] = buffers[0]

    def _adam_step(self, gradient: Tensor, rate: float) -> None:
        from torch.optim.adam import adam

        if not self.state:
            self.state["step"] = torch.zeros((), dtype=torch.float32)
            self.state["exp_avg"] = torch.zeros_like(self._weights)
            self.state["exp_avg_sq"] = torch.zeros_like(self._weights)
        adam(
            [self._weights], [gradient], [self.state["exp_avg"]], [self.state["exp_avg_sq"]], [],
            [self.state["step"]], foreach=False, amsgrad=False, maximize=False, lr=rate,
            decoupled_weight_decay=self._chosen.name == "adamw", eps=_EPSILON,
            beta1=self._momentum, beta2=self._chosen.beta2,
            weight_decay=self._chosen.weight_decay,
        )  # fmt: skip
