"""Spans of every rank in one iteration of the vector engine.

Given all entries and exits of collectives (`vectors/ranks.py`), each rank's streams and loader are
independent. The spans equal those of `events/step.py` exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.steps import step_plan
from gcsim.simulator.steps.breakdown import Done, Exchanged, TimeBreakdown, in_order, spans_of
from gcsim.simulator.steps.events.input_loader import Loader
from gcsim.simulator.steps.events.step import coarsest
from gcsim.simulator.steps.schedule import Schedule, State
from gcsim.simulator.steps.vectors.ranks import LEFT, PARTS, Vectors

_Jobs = list[tuple[step_plan.Job, Picoseconds]]  # jobs with their times


def spans(
    schedule: Schedule,
    number: int,
    before: State,
    *,
    execute: step_plan.CarryOut,
    slowdown: NDArray[np.float64] | None = None,
    first: int | None = None,
) -> tuple[step_plan.Span, ...]:
    """Spans of iteration `number`, which begins in the state `before`, from its first rank's begin.
    Arguments and errors as in `vectors/step.py`, `first` as in `spans_of`."""
    ranks, plan = len(before.start), schedule.plans[schedule.turn(number)]
    vectors = _RecordingVectors(schedule, ranks, execute, 0)
    vectors.begin(number, before)
    vectors.iteration(slowdown, {part: np.empty(ranks, dtype=np.int64) for part in PARTS})
    paces = np.ones(ranks) if slowdown is None else slowdown
    times = [np.broadcast_to(each, (ranks,)) for _, *both in vectors.exchanged for each in both]
    classes = coarsest(ranks, before.start, before.ahead, paces, *schedule.groups(), *times)
    lowest = np.unique(classes, return_index=True)[1]
    groups = next(iter(schedule.groups()), np.zeros(ranks, dtype=np.int64))
    work: dict[tuple[int, float], _Work] = {}
    exchanged = (
        zip(*vectors.exchanges_of(plan, lowest), strict=True) if times else [()] * len(lowest)
    )
    found: list[TimeBreakdown] = []
    for rank, of_rank in zip(lowest.tolist(), exchanged, strict=True):
        alike = int(groups[rank]), float(paces[rank])
        if alike not in work:
            work[alike] = _Work(plan.of_rank(rank), alike[1])
        start = int(before.start[rank])
        loader = Loader(plan.input_batch, plan.prefetch, before.ahead[:, rank].tolist(), start)
        found.append(work[alike].followed(start, loader, of_rank))
    return spans_of(found, classes, first)


class _RecordingVectors(Vectors):
    """Vector engine that records entries and exits of the iteration's collectives."""

    def __init__(
        self, schedule: Schedule, ranks: int, execute: step_plan.CarryOut, seed: int
    ) -> None:
        super().__init__(schedule, ranks, execute, seed)
        self.exchanged: list[tuple[int, Times, Times]] = []
        """Number of the collective; entries and exits `[1 or ranks]`."""

    def _enter(self, number: int) -> None:
        super()._enter(number)
        self.exchanged.append((number, self._starts, self._state[LEFT].copy()))

    def exchanges_of(self, plan: step_plan.StepPlan, of: Times) -> Iterator[list[Exchanged]]:
        """Yield the exchanges of each rank in `of`."""
        for number, entries, exits in self.exchanged:
            bucket, place = self._step.layout.names[number]
            record, last = plan.buckets[bucket].collectives[place], int(entries.max())
            both = (
                np.broadcast_to(times, (self._ranks,))[of].tolist() for times in (entries, exits)
            )
            yield [
                (record, bucket, place, entry, last, left)
                for entry, left in zip(*both, strict=True)
            ]


class _Work:
    def __init__(self, plan: step_plan.StepPlan, pace: float) -> None:
        self._pace, self._buckets = pace, len(plan.buckets)
        self._slower = plan.side_slowdown if plan.side_stream else 1
        last, compute = plan.accumulation - 1, plan.compute
        self._micro: list[tuple[_Jobs, _Jobs]] = []
        """Forward and backward of each micro-batch; the last backward goes by bucket."""
        for micro in range(last + 1):
            of = f", micro-batch {micro}" if last else ""
            backward = plan.backward if micro < last else 0
            self._micro.append(
                (
                    self._job("forward", f"forward{of}", compute.forward),
                    self._job("backward", f"backward{of}", backward),
                )
            )
        parts = [self._job("backward", "backward", part) for part in compute.parts]
        parts.append(self._job("backward", "backward, rest", compute.rest))
        befores = [self._served(bucket.before) for bucket in plan.buckets]
        self._parts = parts if plan.side_stream else []
        """Parts of the backward pass, if the callbacks have their own stream."""
        if not plan.side_stream:
            befores = [part + job for part, job in zip(parts, [*befores, []], strict=True)]
        self._order = [
            (
                None if bucket == len(plan.buckets) else bucket,
                place == step_plan.BEFORE,
                befores[bucket]
                if place == step_plan.BEFORE
                else self._served([plan.buckets[bucket].after[place]]),
            )
            for bucket, place in step_plan.order_of_service(plan)
        ]
        self._optimizer = self._job("optimizer", "optimizer", plan.optimizer)

    def _job(self, kind: step_plan.Kind, name: str, duration: Picoseconds) -> _Jobs:
        job = step_plan.Job(kind=kind, name=name, duration=duration)
        return [(job, step_plan.slowed_by(duration, self._pace))]

    def _served(self, jobs: Sequence[step_plan.Job]) -> _Jobs:
        slower = self._slower
        return [
            (job, step_plan.slowed_by(round(job.duration * slower), self._pace)) for job in jobs
        ]

    def followed(
        self, start: Picoseconds, loader: Loader, exchanged: Sequence[Exchanged]
    ) -> TimeBreakdown:
        """Breakdown of a rank that begins at `start` and takes part in these collectives."""
        found = TimeBreakdown(begin=start, network=list(exchanged))
        now = start
        for forward, backward in self._micro:
            taken = loader.take(now)
            found.loads += loader.last_batch()
            if taken > now:
                found.waits.append((now, taken))
            now = _done(found.compute, None, forward, taken)
            now = _done(found.compute, None, backward, now)
        issued, ready = now, []
        for bucket, part in zip((*range(self._buckets), None), self._parts, strict=False):
            issued = _done(found.compute, bucket, part, issued)
            ready.append(issued)
        served = found.side if self._parts else found.compute
        free, left, coming = now, start, iter(exchanged)
        for bucket, precedes, jobs in self._order:
            if not precedes:
                arrival = left = next(coming)[-1]
            else:
                arrival = issued if bucket is None or not ready else ready[bucket]
            done = arrival
            if any(duration for _, duration in jobs):  # a piece without work does not queue
                done = free = _done(served, bucket, jobs, max(free, arrival))
            if precedes and not ready:
                issued = done
        ended = _done(found.compute, None, self._optimizer, max(free, issued, left))
        found.loads += loader.in_progress(ended)
        return found


def _done(done: list[Done], bucket: int | None, jobs: _Jobs, begin: Picoseconds) -> Picoseconds:
    """Append the jobs of a piece that starts at `begin`; return its end."""
    done += in_order(begin, bucket, jobs)
    return done[-1][-1]
