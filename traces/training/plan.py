"""The plan of a training: the `train` section of a scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from gcsim.errors import InputError
from gcsim.fields import POSITIVE, Count, Limits

Fraction01 = Annotated[float, Limits(above=0, most=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """torch.optim's SGD, Adam or AdamW; a method with its own momentum uses plain steps."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Annotated[float, Limits(least=0, below=1)] = 0.9
    """Momentum of SGD; Adam's beta1."""
    weight_decay: Annotated[float, Limits(least=0)] = 0.0
    beta2: Annotated[float, Limits(least=0, below=1)] = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate over the steps, as a fraction of the highest."""

    shape: Literal["constant", "step", "cosine"] = "constant"
    """step: a tenth after half of the steps, a hundredth after three quarters; cosine: down to zero
    (I. Loshchilov, F. Hutter, arXiv:1608.03983, without restarts)."""
    warmup: Annotated[int, Limits(least=0)] = 0
    """Steps in which the rate rises linearly from zero."""

    def factor(self, step: int, steps: int) -> float:
        """Return the factor at a step, counted from 0, of `steps`."""
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        if self.shape == "step":
            return (
                rise * (0.1 if step >= steps / 2 else 1.0) * (0.1 if step >= steps * 3 / 4 else 1)
            )
        if self.shape == "cosine":
            return rise * 0.5 * (1 + math.cos(math.pi * step / steps))
        return rise


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target on the held-out samples; exactly one of the three."""

    accuracy: Fraction01 | None = None
    """Share of correctly predicted labels."""
    loss: Annotated[float, POSITIVE] | None = None
    """At most this cross-entropy, in nats."""
    of_dense: Fraction01 | None = None
    """Fraction of dense training's last accuracy, median over seeds."""

    def __post_init__(self) -> None:
        stated = [v for v in (self.accuracy, self.loss, self.of_dense) if v is not None]
        if len(stated) != 1:
            raise InputError(
                f"states {len(stated)} targets", hint="write one: accuracy, loss or of_dense"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRates:
    """Rates to try for each method alike, and further ones if the best is the lowest or highest;
    the best is trained to the end."""

    values: Annotated[tuple[Annotated[float, POSITIVE], ...], Limits(least=1, most=64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Rules for ending trajectories early; their rows say why."""

    diverged: bool = True
    """The loss stays above 1.5 times that of untrained weights. (A loss or an update that is not a
    number always ends a trajectory.)"""
    hopeless: bool = True
    """More than half of the way to the target is left after half of the steps, and nothing has
    improved for a quarter of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Distribution of the data over the workers, or over clients, of which as many take part in a
    round as there are workers. A client owns only data: momentum, error feedback and batch
    statistics belong to the worker, so a client has no state that could get out of date."""

    clients: Count | None = None
    """Number of shares of the data, at least as many as workers; None: one share per worker."""
    round: Count = 1
    """Steps that a worker trains on a client's data; usually a local method's interval."""
    dirichlet: Annotated[float, POSITIVE] | None = None
    """The smaller, the more the classes of the shares differ (`shares.py`); None: iid."""

    def __post_init__(self) -> None:
        if self.clients is None and self.round > 1:
            message = f"a round of {self.round:,} steps has no effect without clients"
            raise InputError(message, hint="add clients, e.g. clients: 100, or leave round out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Data-parallel training, the same for all methods except for the learning rate."""

    workers: Count = 8
    steps: Count = 1000
    evaluate_every: Count = 50
    target: Target = Target(of_dense=0.995)
    patience: Count = 2
    """Number of last evaluations that must all be at the target for it to count as reached."""
    optimizer: Optimizer = Optimizer()
    learning_rate: LearningRates = LearningRates(values=(0.05,))
    schedule: Schedule = Schedule()
    clip: Annotated[float, POSITIVE] | None = None
    """Largest norm of a worker's gradient, over all tensors, before the exchange; None:
    unlimited."""
    seeds: Annotated[int, Limits(least=1, most=64)] = 3
    stop: Stop = Stop()
    partition: Partition = Partition()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the forward and backward passes; auto: a GPU if there is one."""
