"""Trajectories of training with a method: plain data, without torch, independent of the cluster.

Trajectory
  losses       : by step, on the batches that were learned
  evaluations  : now and then, on the samples that are held out
  windows      : what was sent meanwhile, from one evaluation to the next
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict

from gcsim.compressors.bucket import BucketLayout
from gcsim.fields import Count, Limits, Whole
from gcsim.traces.profile import AS_WRITTEN, ModelFacts, Phase, Quality, TrafficProfile
from gcsim.traces.training.plan import Target

Ended = Literal["", "finished", "diverged", "hopeless"]
"""End of a training; "" if it can continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation of the model on the held-out samples."""

    step: Whole
    """Steps trained so far."""
    loss: float
    """Mean over the samples; cross-entropy in nats unless the loss is another."""
    accuracy: float | None
    """None if labels are not classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Consecutive steps, and what they sent."""

    first: Whole
    steps: Count
    phases: Annotated[tuple[Phase, ...], Limits(least=1)]
    """The kinds of step, each with one example: the kernels of the kind's first step, and
    collectives with mean bytes."""
    order: tuple[Whole, ...]
    """Index of the phase, by step."""
    wire_bytes_per_worker: Annotated[float, Limits(least=0)]
    """Bytes sent per step: mean over all steps and workers."""
    quality: Quality | None
    """Quality of the metered steps; None if updates are not `Team.comparable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One training run."""

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    compressor: str
    parameters: dict[str, object]
    """The compressor's parameters, including defaults."""
    seed: Whole
    learning_rate: float
    workers: Count
    steps: Count
    """Number of planned steps."""
    data: str
    """Training data, as text."""
    model: ModelFacts
    buckets: tuple[BucketLayout, ...]
    losses: tuple[float, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    windows: tuple[Window, ...] = ()
    ended: Ended = ""
    why: str = ""
    """Reason for an early end, as text."""

    @property
    def own_steps(self) -> tuple[int, ...]:
        """Numbers of the steps that sent anything other than one float32 all-reduce of the gradient
        per bucket."""
        found: list[int] = []
        for window in self.windows:
            own = [not self._dense(phase) for phase in window.phases]
            found += [window.first + n for n, phase in enumerate(window.order) if own[phase]]
        return tuple(found)

    def _dense(self, phase: Phase) -> bool:
        (step,) = phase.steps
        return all(
            [(each.kind, each.dtype) for each in exchange.collectives]
            == [("all_reduce", "float32")]
            and {*exchange.collectives[0].sent} == {4 * bucket.numel}
            for exchange, bucket in zip(step.exchanges, self.buckets, strict=True)
        )

    def profile(self, window: Window) -> TrafficProfile:
        """Return the profile for simulating a cluster: the window as a repeating period."""
        counts = Counter(window.order)
        alone = len(window.phases) == 1
        return TrafficProfile(
            compressor=self.compressor,
            parameters=self.parameters,
            model=self.model,
            buckets=self.buckets,
            workers=self.workers,
            period=1 if alone else len(window.order),
            phases=tuple(
                Phase(name=phase.name, count=1 if alone else counts[number], steps=phase.steps)
                for number, phase in enumerate(window.phases)
            ),
            quality=window.quality or Quality(nmse=0.0, cosine_similarity=1.0),
            order=() if alone else window.order,
        )


def holds(target: Target, one: Evaluation, dense_accuracy: float | None = None) -> bool:
    """Whether an evaluation is at the target; `dense_accuracy` is the reference of `of_dense`."""
    if target.loss is not None:
        return one.loss <= target.loss
    wanted = target.accuracy
    if target.of_dense is not None:
        if dense_accuracy is None:
            return False
        wanted = target.of_dense * dense_accuracy
    assert wanted is not None
    return one.accuracy is not None and one.accuracy >= wanted


def steps_to(
    target: Target, found: Trajectory, patience: int, dense_accuracy: float | None = None
) -> int | None:
    """Return the steps until the first of the last evaluations, at least `patience`, that all hold
    the target; None if there are fewer or training ended early."""
    held: list[Evaluation] = []
    for one in found.evaluations:
        held = [*held, one] if holds(target, one, dense_accuracy) else []
    early = found.ended in ("diverged", "hopeless")
    return None if early or len(held) < patience else held[0].step
