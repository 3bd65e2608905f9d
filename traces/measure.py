"""What did the compressors send? Stage 1: real compressors on real gradients, metered.

Buckets are independent of one another, so they are the outer loop: a bucket's gradients are read
once for all compressors, and the state of one bucket of one compressor is alive at a time.

Steps are numbered from 0. A step takes the gradients of recorded iteration (step mod iterations):
a method whose period is longer than the trace sees the trace again. The gradients are those of
dense training (open loop): what a compressor delivers does not move the weights here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gcsim.compressors.base import Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.kernels import KernelCost, total
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter, Recorder
from gcsim.errors import InputError
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
from gcsim.traces.quality import Judge, Score

MAX_STEPS = 256
"""A method whose phases do not all occur within so many steps cannot be measured."""


class Gradients(Protocol):
    """What stage 1 needs of a trace."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A compressor to be measured."""

    kind: str
    compressor: type[Compressor]
    parameters: CompressorParameters


@dataclass(slots=True)
class _Notes:
    """What has been measured of one compressor so far."""

    steps: int
    exchanges: list[list[Exchange]] = field(default_factory=list)
    """By bucket, then by step."""
    scores: list[Score] = field(default_factory=list)
    """By window."""


def measure(
    subjects: Sequence[Subject],
    gradients: Gradients,
    layouts: Sequence[BucketLayout],
    *,
    workers: int,
    seed: int,
    provenance: Mapping[str, object],
    advance: Callable[[str], None] = lambda kind: None,
) -> list[TrafficProfile]:
    """Run each compressor on the gradients; one profile each, in the order given.

    `advance` is told the compressor's kind after each bucket. Raises `InputError` when the
    trace has fewer workers than asked for, or a gradient holds NaN or infinity.
    """
    if workers > gradients.workers:
        raise InputError(
            f"gradients of {workers} workers are asked for, but the trace can serve "
            f"{gradients.workers}; lower gradients.workers or record more workers"
        )
    notes = [_Notes(steps=steps_to_run(subject, gradients.iterations)) for subject in subjects]
    for layout in layouts:
        shelf = _Shelf(gradients, layout, workers)
        for subject, note in zip(subjects, notes, strict=True):
            _measure_bucket(subject, note, shelf, seed)
            advance(subject.kind)
    return [
        _profile(subject, note, gradients, layouts, workers, provenance)
        for subject, note in zip(subjects, notes, strict=True)
    ]


def steps_to_run(subject: Subject, iterations: int) -> int:
    """As many steps as the trace has iterations, more where a phase would not occur in them,
    and whole windows."""
    cls, parameters = subject.compressor, subject.parameters
    period, window = cls.period(parameters), cls.window(parameters)
    phases = [cls.phase(parameters, step) for step in range(period)]
    needed = max(phases.index(name) for name in set(phases)) + 1
    steps = max(needed, iterations)
    steps += -steps % window
    if steps > MAX_STEPS:
        raise InputError(
            f"{subject.kind}: not every kind of step occurs within {MAX_STEPS} steps; "
            "shorten its period"
        )
    return steps


class _Shelf:
    """One bucket's gradients of all iterations and workers, read when first asked for."""

    def __init__(self, gradients: Gradients, layout: BucketLayout, workers: int) -> None:
        self.layout = layout
        self.workers = workers
        self._gradients = gradients
        self._buckets: dict[tuple[int, int], Bucket] = {}
        indices = [piece.index for piece in layout.slices]
        self.moment_costs = [
            cost for index in indices for cost in gradients.moment_costs.get(index, ())
        ]

    def buckets(self, step: int, second_moments: bool) -> list[Bucket]:
        iteration = step % self._gradients.iterations
        if second_moments:  # used by few compressors: read again rather than kept
            return [
                self._gradients.bucket(self.layout, iteration, worker, second_moments=True)
                for worker in range(self.workers)
            ]
        for worker in range(self.workers):
            if (iteration, worker) not in self._buckets:
                self._buckets[iteration, worker] = self._gradients.bucket(
                    self.layout, iteration, worker
                )
        return [self._buckets[iteration, worker] for worker in range(self.workers)]


def _measure_bucket(subject: Subject, note: _Notes, shelf: _Shelf, seed: int) -> None:
    cls, parameters = subject.compressor, subject.parameters
    team = [
        cls(Worker(rank=rank, count=shelf.workers, seed=seed), parameters)
        for rank in range(shelf.workers)
    ]
    needs_moments = "second_moments" in cls.requires
    window = cls.window(parameters)
    judge = Judge(shelf.layout.numel, cls.momentum(parameters))
    exchanges = []
    for step in range(note.steps):
        buckets = shelf.buckets(step, needs_moments)
        meter = Meter(shelf.workers)
        with torch.no_grad():
            updates = lockstep(
                [worker.exchange(b, step) for worker, b in zip(team, buckets, strict=True)], meter
            )
            judge.add(buckets, updates)
        moments = (
            Compute(stage="moments", fixed=total(shelf.moment_costs)) if needs_moments else None
        )
        exchanges.append(_exchange(meter, moments))
        if (step + 1) % window == 0:
            index = step // window
            while len(note.scores) <= index:
                note.scores.append(Score())
            judge.settle(note.scores[index])
    note.exchanges.append(exchanges)


def _exchange(meter: Meter, moments: Compute | None) -> Exchange:
    """Mean over workers of what the meter saw."""
    positions = list(zip(*meter.segments, strict=True))
    last = len(positions) - 1
    return Exchange(
        computes=tuple(
            _compute(recorders, "decode" if position == last and last > 0 else "encode")
            for position, recorders in enumerate(positions)
        ),
        collectives=tuple(meter.collectives),
        moments=moments,
        servers=tuple(
            None if recorder is None else _compute([recorder], "server")
            for recorder in meter.servers
        ),
    )


def _compute(recorders: Sequence[Recorder], stage: str) -> Compute:
    fixed = [cost for recorder in recorders for cost in recorder.fixed]
    per_payload = [cost for recorder in recorders for cost in recorder.per_payload]
    payloads = sum(recorder.payloads for recorder in recorders)
    return Compute(
        stage=stage,  # type: ignore[arg-type]  # one of the literals above
        fixed=_divided(fixed, len(recorders)),
        per_payload=_divided(per_payload, payloads),
    )


def _divided(costs: Iterable[KernelCost], count: int) -> Costs:
    return tuple(
        KernelCost(
            kind=cost.kind,
            launches=round(cost.launches / count),
            elements=round(cost.elements / count),
            nbytes=round(cost.nbytes / count),
            flops=round(cost.flops / count),
        )
        for cost in total(costs)
    )


def _profile(  # noqa: PLR0917 - everything that a profile is made of
    subject: Subject,
    note: _Notes,
    gradients: Gradients,
    layouts: Sequence[BucketLayout],
    workers: int,
    provenance: Mapping[str, object],
) -> TrafficProfile:
    cls, parameters = subject.compressor, subject.parameters
    period, window = cls.period(parameters), cls.window(parameters)
    names = [cls.phase(parameters, step) for step in range(period)]
    ran = [cls.phase(parameters, step) for step in range(note.steps)]
    steps = [
        Step(number=number, exchanges=tuple(bucket[number] for bucket in note.exchanges))
        for number in range(note.steps)
    ]
    phases = tuple(
        Phase(
            name=name,
            count=names.count(name),
            steps=tuple(step for step, phase in zip(steps, ran, strict=True) if phase == name),
        )
        for name in dict.fromkeys(names)
    )
    if window > 1:
        weights = [1.0] * len(note.scores)
    else:
        weights = [names.count(phase) / ran.count(phase) for phase in ran]
    return TrafficProfile(
        compressor=subject.kind,
        parameters=parameters.model_dump(mode="json"),
        model=gradients.facts,
        buckets=tuple(layouts),
        workers=workers,
        period=period,
        phases=phases,
        quality=Quality(
            nmse=_weighted([score.nmse for score in note.scores], weights),
            cosine_similarity=_weighted([score.cosine for score in note.scores], weights),
        ),
        gradients=dict(provenance),
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
