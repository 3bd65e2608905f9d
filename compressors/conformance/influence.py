"""Checks that updates depend on all workers' gradients, and on earlier ones and scale as stated."""

from __future__ import annotations

from dataclasses import dataclass

from gcsim.compressors.conformance.subject import (
    SHAPES,
    Subject,
    gradients,
    normal,
    numel,
)
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.lockstep import Collectives, lockstep
from gcsim.errors import InputError

N = numel(SHAPES)
STEPS = 4
MANY = 64
"""The most steps that a period is waited for."""
SCALES = (1e-6, 1.0, 1e4)
"""Of gradients, relative to the 0.1 that the other checks use."""
APART = 0.1
"""Bytes and errors that differ by more between scales, relatively, are told."""


def something_is_sent(subject: Subject) -> None:
    """Of two workers, within a period: not one byte handed over is no exchange."""
    crew = subject.crew()
    steps = subject.windows(max(STEPS, min(MANY, subject.compressor.period(subject.parameters))))
    collectives = Collectives()
    for t in range(subject.first, subject.first + steps):
        with torch.no_grad():
            lockstep(crew.exchanges(gradients(N, 2, t), t), collectives)
        if collectives.nbytes:
            return
    raise AssertionError(f"it sends nothing: no byte passed between two workers in {steps} steps")


def every_workers_gradient_counts(subject: Subject) -> None:
    """With another gradient of one of three workers, the next worker's updates are others.

    So an update is made of all gradients, not of one's own or of worker 0's.
    """
    crews = [subject.crew(workers=3) for _ in range(4)]
    without_effect = {0, 1, 2}
    for t in range(subject.windows(3 * STEPS)):
        given = gradients(N, 3, t)
        base = crews[3].step(given, subject.first + t)
        for rank in sorted(without_effect):
            changed = [*given[:rank], 3.0 * normal(N, 500_000 + t), *given[rank + 1 :]]
            updates, other = crews[rank].step(changed, subject.first + t), (rank + 1) % 3
            if not torch.equal(base[other], updates[other]):
                without_effect.remove(rank)
        if not without_effect:
            return
    rank = min(without_effect)
    raise AssertionError(
        f"worker {rank}'s gradients change nothing in the updates of worker {(rank + 1) % 3}"
    )


def steps_stand_alone_without_memory(subject: Subject) -> None:
    """Where `memory` is "none", two crews that saw other gradients before give equal updates.

    Both took as many steps with the same seeds, so that a generator that is kept is as far on.
    """
    if subject.compressor.memory(subject.parameters) != "none":
        return
    first, second = subject.crew(), subject.crew()
    for t in range(subject.first, subject.first + STEPS):
        first.step(gradients(N, 2, 100 + t), t)
        second.step([-5 * gradient for gradient in gradients(N, 2, 200 + t)], t)
        given = gradients(N, 2, t)
        updates = zip(first.step(given, t + 1), second.step(given, t + 1), strict=True)
        for one, other in updates:
            assert torch.equal(one, other), (
                f"step {t + 1} depends on the gradients of step {t}, but the memory is declared "
                "'none' (`about.state`, `memory`)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtScale:
    """What became of gradients of one scale."""

    scale: float
    error: float
    """|updates - mean gradients|^2 / |mean gradients|^2; 1 where nothing is delivered."""
    bits: float
    """That a worker sends, an element."""
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"{0.1 * self.scale:.0e}: {self.refused}"
        return f"{0.1 * self.scale:.0e}: error {self.error:.2g}, {self.bits:.3g} bits an element"


def scale_is_told(subject: Subject) -> str | None:
    """A note where gradients 10^-6 and 10^4 times as large are not treated alike: float16 has a
    range, a threshold a unit. A method may do so; its user must know."""
    found = [_at_scale(subject, scale) for scale in SCALES]
    middle = found[1]
    judged = [] if subject.properties.scale_free else [one.error for one in found]
    unlike = (
        any(one.refused for one in found)
        or any(abs(error - middle.error) > APART * max(middle.error, APART) for error in judged)
        or any(abs(one.bits - middle.bits) > APART * middle.bits for one in found)
    )
    if not unlike:
        return None
    each = "; ".join(map(str, found))
    return (
        f"what it does depends on the gradients' scale (standard deviation of an element {each}); "
        "error: |update - mean|^2 / |mean|^2"
    )


def _at_scale(subject: Subject, scale: float) -> _AtScale:
    steps = subject.windows(STEPS)
    crew = subject.crew()
    wanted = delivered = torch.zeros(N, dtype=torch.float64)
    collectives = Collectives()
    try:
        for t in range(subject.first, subject.first + steps):
            given = [scale * gradient for gradient in gradients(N, 2, t)]
            with torch.no_grad():
                updates = lockstep(crew.exchanges(given, t), collectives)
            wanted = wanted + (given[0].double() + given[1].double()) / 2
            delivered = delivered + updates[0].cpu().double()
    except InputError as error:
        return _AtScale(scale=scale, error=0.0, bits=0.0, refused=error.problems[0].message)
    lost = float((delivered - wanted).square().sum() / wanted.square().sum())
    return _AtScale(scale=scale, error=lost, bits=8 * collectives.nbytes / (2 * steps * N))


CHECKS = (something_is_sent, every_workers_gradient_counts, steps_stand_alone_without_memory)
