"""One worker in an iteration: its training loop and its device.

The training loop of one rank, or of ranks that do the same at the same time, as SimPy processes;
the rules are those of `step_plan.py`.

- The autograd thread: for each micro-batch it waits for a batch, then issues forward, and in the
  end backward, bucket by bucket; when everything is exchanged, the optimiser.
- An exchange, one a bucket: collective, computation, collective, ...

A CUDA stream seen from above. The pieces that go with an iteration's buckets are served in an order
that is given (`steps/step_plan.py`): the stream waits for the one that is next. All others come one
at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import simpy

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, reading
from gcsim.simulator.steps.breakdown import Done, TimeBreakdown, in_order
from gcsim.simulator.steps.events.communicator import Asking, Request
from gcsim.simulator.steps.events.cores import Share
from gcsim.simulator.steps.events.input_loader import Loader
from gcsim.simulator.steps.step_plan import (
    BEFORE,
    BucketWork,
    Job,
    Kind,
    Piece,
    StepPlan,
    order_of_service,
    slowed_by,
)

Wait = Generator[simpy.Event, Any, None]


class Worker:
    """The device, the loader and the training loop of class `member`."""

    def __init__(
        self,
        env: simpy.Environment,
        loader: Loader,
        member: int,
        communicator: Asking,
        share: Share | None = None,
    ) -> None:
        """`share` is the class's place on the cores of its machines, where the plan has some."""
        self.env, self.loader, self.member, self.communicator = env, loader, member, communicator
        self.stream, self.side = _Stream(env, share), _Stream(env, share)

    def iteration(
        self, plan: StepPlan, number: int, slowdown: float
    ) -> Generator[simpy.Event, Any, TimeBreakdown]:
        """One iteration, from now until everything is done; what was done when."""
        return (yield from _Iteration(self, plan, number, slowdown).train())


class _Iteration:
    def __init__(self, worker: Worker, plan: StepPlan, number: int, slowdown: float) -> None:
        self.worker, self.plan, self.env = worker, plan, worker.env
        self.number, self.slowdown, self.loader = number, slowdown, worker.loader
        self.breakdown = TimeBreakdown(begin=reading(self.env.now))

    def train(self) -> Generator[simpy.Event, Any, TimeBreakdown]:
        """The autograd thread."""
        compute, last = self.plan.compute, self.plan.accumulation - 1
        for micro in range(last + 1):
            of = f", micro-batch {micro}" if last else ""
            yield from self._wait_for_batch()
            yield from self._issue("forward", f"forward{of}", compute.forward)
            if micro < last:
                yield from self._issue("backward", f"backward{of}", self.plan.backward)
        exchanges: list[simpy.Event] = []
        self._serve()
        for bucket, work in enumerate(self.plan.buckets):
            jobs = self._thread_jobs(bucket)
            piece = None if self.plan.side_stream else (bucket, BEFORE)
            yield from self._work(self.worker.stream, self.breakdown.compute, piece, bucket, jobs)
            if work.collectives or self.plan.side_stream:
                behind = exchanges[-1:] if self.plan.in_turn else []
                exchanges.append(self.env.process(self._exchange(bucket, work, behind)))
        piece = None if self.plan.side_stream else (len(self.plan.buckets), BEFORE)
        rest = self._thread_jobs(len(self.plan.buckets))
        yield from self._work(self.worker.stream, self.breakdown.compute, piece, None, rest)
        yield self.env.all_of(exchanges)
        yield from self._issue("optimizer", "optimizer", self.plan.optimizer)
        self.breakdown.loads += self.loader.under_way(reading(self.env.now))
        return self.breakdown

    def _wait_for_batch(self) -> Wait:
        now = reading(self.env.now)
        taken = self.loader.take(now)
        self.breakdown.loads += self.loader.made_last()
        if taken > now:
            yield self.env.timeout(taken - now)
            self.breakdown.waits.append((now, taken))

    def _exchange(self, bucket: int, work: BucketWork, behind: Sequence[simpy.Event]) -> Wait:
        """The callbacks of one bucket, behind another's."""
        yield from behind
        if self.plan.side_stream:
            yield from self._callback((bucket, BEFORE), work.before)
        for index, (record, job) in enumerate(zip(work.collectives, work.after, strict=True)):
            request = Request(
                record=record,
                server_time=work.server_times[index] if work.server_times else 0,
                held=work.held[index] if work.held else 0,
            )
            entry, last, left = yield self.worker.communicator.ask(
                self.worker.member, (self.number, bucket, index), request
            )
            now = reading(self.env.now)
            if left > now:
                yield self.env.timeout(left - now)
            self.breakdown.network.append((record, bucket, index, entry, last, left))
            yield from self._callback((bucket, index), [job])

    def _issue(self, kind: Kind, name: str, duration: Picoseconds) -> Wait:
        """What the autograd thread computes beside no exchange."""
        job = Job(kind=kind, name=name, duration=duration)
        return self._work(self.worker.stream, self.breakdown.compute, None, None, [job])

    def _thread_jobs(self, bucket: int) -> list[Job]:
        """The bucket's part of the backward pass, with `before` where no side stream does that;
        behind the last bucket the rest of it."""
        if bucket == len(self.plan.buckets):
            rest = self.plan.compute.rest
            return [Job(kind="backward", name="backward, rest", duration=rest)]
        duration = self.plan.compute.parts[bucket]
        part = Job(kind="backward", name=f"backward, bucket {bucket}", duration=duration)
        return [part, *(() if self.plan.side_stream else self.plan.buckets[bucket].before)]

    def _callback(self, piece: Piece, jobs: Sequence[Job]) -> Wait:
        """A piece of an exchange's."""
        if self.plan.side_stream:
            return self._work(self.worker.side, self.breakdown.side, piece, piece[0], jobs)
        return self._work(self.worker.stream, self.breakdown.compute, piece, piece[0], jobs)

    def _serve(self) -> None:
        """Tell the stream that serves the callbacks in which order."""
        side, buckets = self.plan.side_stream, self.plan.buckets
        stream = self.worker.side if side else self.worker.stream
        order: list[Piece] = []
        for bucket, place in order_of_service(self.plan):
            if place != BEFORE:
                jobs: Sequence[Job] = [buckets[bucket].after[place]]
            else:
                jobs = buckets[bucket].before if side else self._thread_jobs(bucket)
            if any(self._durations(stream, jobs)):
                order.append((bucket, place))
        stream.serve(order)

    def _durations(self, stream: _Stream, jobs: Sequence[Job]) -> list[Picoseconds]:
        slower = self.plan.side_slowdown if stream is self.worker.side else 1
        return [slowed_by(round(job.duration * slower), self.slowdown) for job in jobs]

    def _work(
        self,
        stream: _Stream,
        done: list[Done],
        piece: Piece | None,
        bucket: int | None,
        jobs: Sequence[Job],
    ) -> Wait:
        """One piece of work: jobs that follow each other on the stream without a gap."""
        durations = self._durations(stream, jobs)
        total, machines = sum(durations), self.plan.machines
        if total == 0:  # nothing is launched, so nothing queues
            return
        if machines is None:
            start = yield stream.work(piece, total)
            done += in_order(start, bucket, list(zip(jobs, durations, strict=True)))
            return
        on_cores = [job.kind in machines.kinds for job in jobs]
        instants = yield stream.work(piece, list(zip(durations, on_cores, strict=True)))
        of = [bucket] * len(jobs)
        done += zip(jobs, of, instants[:-1], instants[1:], strict=True)


_Jobs = Sequence[tuple[Picoseconds, bool]]
"""Durations, and whether a job is done on the cores of the machine, which others may use too."""


class _Stream:
    """The stream of one rank, or of ranks that do the same at the same time."""

    def __init__(self, env: simpy.Environment, share: Share | None = None) -> None:
        """`share` is that of the cores of a machine, for work that is done there."""
        self._env, self._share = env, share
        self._coming: deque[Piece] = deque()
        """In this order."""
        self._waiting: dict[Piece, tuple[Picoseconds | _Jobs, simpy.Event]] = {}
        self._busy = False

    def serve(self, order: Iterable[Piece]) -> None:
        """From now on the pieces of an iteration, in this order, and nothing else until they are
        done."""
        if self._coming or self._busy:
            raise InternalError(f"the stream has not served {[*self._coming]}")
        self._coming.extend(order)

    def work(self, piece: Piece | None, work: Picoseconds | _Jobs) -> simpy.Event:
        """An event that comes when the work, issued now, is done: with the time at which it began,
        or, of jobs that follow each other, with that and those at which each ended.

        `piece` is its place in the order of an iteration; None: it is beside no other work.
        """
        done = self._env.event()
        if piece is None:
            if self._coming or self._busy:
                raise InternalError(f"work beside {[*self._coming]} on one stream")
            self._begin(work, done)
        else:
            self._waiting[piece] = work, done
            self._go_on()
        return done

    def _go_on(self) -> None:
        if not self._busy and self._coming and self._coming[0] in self._waiting:
            self._begin(*self._waiting.pop(self._coming.popleft()))

    def _begin(self, work: Picoseconds | _Jobs, done: simpy.Event) -> None:
        self._busy = True
        if isinstance(work, int):
            end: simpy.Event = self._env.timeout(work, value=reading(self._env.now))
        else:
            end = self._env.process(self._one_by_one(work))
        assert end.callbacks is not None
        end.callbacks.append(lambda end: self._end(end, done))

    def _one_by_one(self, jobs: _Jobs) -> Generator[simpy.Event, object, list[Picoseconds]]:
        instants = [reading(self._env.now)]
        for duration, on_cores in jobs:
            if duration:
                if on_cores and self._share is not None:
                    yield self._share.compute(duration)
                else:
                    yield self._env.timeout(duration)
            instants.append(reading(self._env.now))
        return instants

    def _end(self, end: simpy.Event, done: simpy.Event) -> None:
        self._busy = False
        done.succeed(end.value)
        self._go_on()
