"""Measurement of stage 1: real compressors run on real gradients under the meter.

Compressors are measured one after another, so that each profile is available early. Buckets are
independent: memory holds the state of one bucket of one compressor at a time, and the gradients of
one iteration, besides a few that are kept (`_Shelf`).

Steps are numbered from the compressor's first settled one (0 unless it has a start-up), with empty
memories. The n-th uses the gradients of recorded iteration (n mod iterations), so a method with a
longer period than the trace sees it again. Gradients are those of dense training (open loop): the
compressor's updates do not change the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gcsim.compressors.base import Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.kernels import total
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.mistakes import is_users, location_of_class, new_member, own_mistakes
from gcsim.compressors.participation import Finite, participate
from gcsim.errors import InputError, InternalError, Problem
from gcsim.traces.profile import (
    Compute,
    Costs,
    Exchange,
    ModelFacts,
    Phase,
    Quality,
    Step,
    TrafficProfile,
)
from gcsim.traces.stage1.metered import metered_exchange
from gcsim.traces.stage1.quality import ErrorMeter, ErrorMetrics
from gcsim.traces.storage.store import Trace
from gcsim.traces.timing.allocator import give_back_freed_memory

KEPT_BYTES = 256 << 20
"""Bytes of gradients to keep in memory; others are drawn or read again for each compressor."""
MAX_STEPS = 512
"""Most steps for a phase to occur in; otherwise the method cannot be measured."""
MOST_PHASES = 1_000_000
"""Longest period whose phases are counted."""


class Gradients(Protocol):
    """The parts of a trace that stage 1 needs."""

    @property
    def facts(self) -> ModelFacts: ...  # noqa: D102

    @property
    def workers(self) -> int: ...  # noqa: D102

    @property
    def iterations(self) -> int: ...  # noqa: D102

    @property
    def moment_costs(self) -> Mapping[int, Costs]: ...  # noqa: D102

    def bucket(  # noqa: D102
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket: ...


_Found = tuple[list[Exchange], list[ErrorMetrics]]
"""A bucket's exchanges by step, and its errors by window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A compressor to measure."""

    kind: str
    compressor: type[Compressor]
    parameters: CompressorParameters


def measure(
    subjects: Sequence[Subject],
    gradients: Gradients,
    layouts: Sequence[BucketLayout],
    *,
    workers: int,
    seed: int,
    provenance: Mapping[str, object],
    weights: Sequence[float] = (),
    advance: Callable[[str], None] = lambda kind: None,
    made: Callable[[int, TrafficProfile], None] = lambda number, profile: None,
) -> list[TrafficProfile]:
    """Run each compressor on the gradients; return one profile each, in order. `weights` of the
    buckets in the errors are 1 by default. `advance` gets the compressor's kind after each bucket,
    `made` each new profile with the index of its subject. Raises `InputError` if the trace has too
    few workers, or a gradient contains NaN or infinity."""
    if workers > gradients.workers:
        raise InputError(
            f"gradients of {workers} workers are asked for, but the trace can serve "
            f"{gradients.workers}; lower gradients.workers or record more workers"
        )
    for subject in subjects:
        if is_users(subject.compressor):
            _meet_others(subject, min(layouts, key=lambda layout: layout.numel))
    steps = [steps_to_run(subject, gradients.iterations) for subject in subjects]
    shelf = _Shelf(gradients, workers)
    # the shortest first: it compiles loops, whose permanent memory would split large free blocks
    *longer, shortest = sorted(layouts, key=lambda layout: -layout.numel)
    counts = weights or [1.0] * len(layouts)
    profiles = []
    for number, subject in enumerate(subjects):
        found: dict[int, _Found] = {}
        for layout in (shortest, *longer):
            give_back_freed_memory()
            shelf.open(layout)
            found[layout.index] = _measure_bucket(subject, steps[number], shelf, seed)
            advance(subject.kind)
        parts = [found[layout.index] for layout in layouts]
        profiles.append(_profile(subject, parts, counts, gradients, layouts, workers, provenance))
        made(number, profiles[-1])
    return profiles


def steps_to_run(subject: Subject, iterations: int) -> int:
    """Return the number of steps to run, in whole windows: the trace's iterations, or more if a
    phase would otherwise not occur."""
    cls, parameters = subject.compressor, subject.parameters
    window = cls.window(parameters)
    period = cls.period(parameters)
    phases = _phases_of(subject, min(period, MOST_PHASES))
    needed = max(phases.index(name) for name in set(phases)) + 1
    needed += -needed % window
    if needed > MAX_STEPS or period > MOST_PHASES:
        raise InputError(
            f"{subject.kind}: not every kind of step occurs within {MAX_STEPS} steps; "
            "shorten its period"
        )
    return max(needed, iterations + -iterations % window)


def _phases(subject: Subject) -> list[str]:
    return _phases_of(subject, subject.compressor.period(subject.parameters))


def _phases_of(subject: Subject, steps: int) -> list[str]:
    cls, parameters = subject.compressor, subject.parameters
    first = cls.warmup_steps(parameters)
    with own_mistakes(cls, "phase"):
        return [cls.phase(parameters, first + number) for number in range(steps)]


class _Shelf:
    """Gradients of all workers, read per iteration; while there is room the first ones are kept for
    the next compressors."""

    def __init__(self, gradients: Gradients, workers: int) -> None:
        self.workers = workers
        self._gradients = gradients
        self._kept: dict[tuple[int, int], list[Bucket]] = {}
        """Gradients by bucket and iteration."""
        # the system caches files, so reading again costs only a copy
        self._room = 0 if isinstance(gradients, Trace) else KEPT_BYTES

    def open(self, layout: BucketLayout) -> None:
        """Switch to a bucket."""
        self.layout = layout
        indices = [piece.index for piece in layout.slices]
        self.moment_costs = [
            cost for index in indices for cost in self._gradients.moment_costs.get(index, ())
        ]

    def buckets(self, number: int, second_moments: bool) -> list[Bucket]:
        iteration = number % self._gradients.iterations
        kept = None if second_moments else self._kept.get((self.layout.index, iteration))
        if kept is not None:
            return kept
        read = [
            self._gradients.bucket(self.layout, iteration, worker, second_moments=second_moments)
            for worker in range(self.workers)
        ]
        nbytes = sum(bucket.gradient.nbytes for bucket in read)
        if not second_moments and nbytes <= self._room:  # few compressors use moments
            self._kept[self.layout.index, iteration] = read
            self._room -= nbytes
        return read


def _measure_bucket(subject: Subject, steps: int, shelf: _Shelf, seed: int) -> _Found:
    cls, parameters = subject.compressor, subject.parameters
    team = [
        new_member(cls, Worker(rank=rank, count=shelf.workers, seed=seed), parameters)
        for rank in range(shelf.workers)
    ]
    needs_moments = "second_moments" in cls.requires
    window = cls.window(parameters)
    replicas = cls.properties(parameters).replicas
    # skip passes over memory for gcsim's own methods: the trace has checked its gradients, the
    # error meter notices non-finite updates, and tests ensure that nothing is modified and that
    # updates are equal
    finite: Finite = True if is_users(cls) else "sums"
    errors = ErrorMeter(cls.momentum(parameters), replicas, compares=is_users(cls))
    exchanges, scores = [], []
    first = cls.warmup_steps(parameters)
    for number in range(steps):
        buckets = shelf.buckets(number, needs_moments)
        score = ErrorMetrics() if (number + 1) % window == 0 else None
        meter = Meter(shelf.workers)
        with torch.no_grad():
            updates = lockstep(
                [
                    participate(w, b, first + number, finite=finite, unmodified=is_users(cls))
                    for w, b in zip(team, buckets, strict=True)
                ],
                meter,
            )
            equal = errors.add(buckets, updates, score)
        moments = (
            Compute(stage="moments", fixed=total(shelf.moment_costs)) if needs_moments else None
        )
        exchanges.append(metered_exchange(meter, moments))
        if score is not None:
            _require_finite(cls, score, first + number)
            scores.append(score)
        if not equal:
            raise _apart(cls, first + number)
        del buckets, updates  # before the next are read
    return exchanges, scores


def _meet_others(subject: Subject, layout: BucketLayout) -> None:
    """Check that a user's workers with different gradients apply the same update, if so declared:
    on similar gradients, or with one worker, a method that applies its own gradient would look
    exact."""
    cls, parameters = subject.compressor, subject.parameters
    if cls.properties(parameters).replicas != "identical":
        return
    buckets = []
    for worker in range(2):
        generator = torch.Generator().manual_seed(worker)
        gradient = 0.1 * torch.randn(layout.numel, generator=generator)
        moment = 2 * gradient.square() if cls.requires else None
        buckets.append(Bucket(layout=layout, gradient=gradient, second_moment=moment))
    team = [new_member(cls, Worker(rank=rank, count=2, seed=0), parameters) for rank in range(2)]
    first = cls.warmup_steps(parameters)
    for step in range(first, first + 2):
        with torch.no_grad():
            exchanges = [participate(w, b, step) for w, b in zip(team, buckets, strict=True)]
            updates = lockstep(exchanges, share=False)  # each by itself
            if not torch.equal(*updates):
                raise _apart(cls, step)


def _require_finite(cls: type[Compressor], score: ErrorMetrics, step: int) -> None:
    if math.isfinite(score.update) and math.isfinite(score.difference):
        return
    found = f"the mean of its workers' updates at step {step} is beyond float32"
    place = f"{cls.about.title}, {location_of_class(cls)}" if is_users(cls) else cls.about.title
    raise InputError(found, place=place, hint="an update has about the size of the gradients")


def _apart(cls: type[Compressor], step: int) -> InputError | InternalError:
    title, found = cls.about.title, f"updates differ at step {step}"
    if not is_users(cls):
        return InternalError(f"{title}: {found}")
    return InputError(
        Problem(
            place=f"{title}, {location_of_class(cls)}",
            message=f"{found}: its workers do not train the same model",
            hint="make the update of what collectives return; "
            "where replicas are to differ, properties() says so",
        )
    )


def _profile(  # noqa: PLR0917 - everything that a profile is made of
    subject: Subject,
    found: Sequence[_Found],
    counts: Sequence[float],
    gradients: Gradients,
    layouts: Sequence[BucketLayout],
    workers: int,
    provenance: Mapping[str, object],
) -> TrafficProfile:
    cls, parameters = subject.compressor, subject.parameters
    names = _phases(subject)
    kinds = list(dict.fromkeys(names))
    first = cls.warmup_steps(parameters)
    by_step = list(zip(*(exchanges for exchanges, _ in found), strict=True))
    ran = _phases_of(subject, len(by_step))
    steps = [Step(number=first + n, exchanges=own) for n, own in enumerate(by_step)]
    scores = [ErrorMetrics()] * len(found[0][1])
    for (_, own), count in zip(found, counts, strict=True):
        scores = [so_far.plus(score, count) for so_far, score in zip(scores, own, strict=True)]
    phases = tuple(
        Phase(
            name=name,
            count=names.count(name),
            steps=tuple(step for step, phase in zip(steps, ran, strict=True) if phase == name),
        )
        for name in kinds
    )
    if cls.window(parameters) > 1:
        weights = [1.0] * len(scores)
    else:
        weights = [names.count(phase) / ran.count(phase) for phase in ran]
    return TrafficProfile(
        compressor=subject.kind,
        parameters=parameters.model_dump(mode="json"),
        model=gradients.facts,
        buckets=tuple(layouts),
        workers=workers,
        period=len(names),
        phases=phases,
        quality=Quality(
            nmse=_weighted([score.nmse for score in scores], weights),
            cosine_similarity=_weighted([score.cosine for score in scores], weights),
        ),
        gradients=dict(provenance),
        order=tuple(kinds.index(name) for name in names),
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
