"""Consecutive iterations of data-parallel training, event by event.

A SimPy model of PyTorch's DistributedDataParallel by the rules of `step_plan.py`. Rank skew
persists within and between iterations: collectives map entry times by rank to exit times. Ranks
that act alike form a class, which is simulated as one worker; if they leave a collective at
different times, or their slowdowns differ, everything is simulated again with finer classes.

A worker's SimPy processes are its autograd thread (batch, forward, backward by bucket, optimiser)
and one exchange per bucket (collective, computation, collective, ...). A stream serves the pieces
of an iteration's buckets in the given order, waiting for the next one.

Source: Li et al. 2020 (PVLDB 13(12)), "PyTorch Distributed", sec. 3.2 and 4.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import count
from typing import Any, TypeVar

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_room, reading
from gcsim.simulator.steps import step_plan
from gcsim.simulator.steps.breakdown import PARTS, Done, TimeBreakdown, in_order, spans_of
from gcsim.simulator.steps.events.communicator import Communicator, Request, Rings, UnlikeRanksError
from gcsim.simulator.steps.events.cores import Share, shares
from gcsim.simulator.steps.events.input_loader import Loader
from gcsim.simulator.steps.schedule import (
    Iteration,
    Schedule,
    State,
    beginning,
    run_of,
    schedule_of,
)

Classes = NDArray[np.int64]  # class of each rank, numbered by lowest rank
Row = tuple[Picoseconds, tuple[Picoseconds, ...], tuple[Picoseconds, ...]]
"""Finish of a class in an iteration, its loader's state then, and its times by `PARTS`."""
Result = TypeVar("Result")


def simulate(
    plan: step_plan.StepPlan | Schedule,
    *,
    ranks: int,
    execute: step_plan.CarryOut,
    iterations: int = 1,
    slowdown: step_plan.Slowdown = step_plan.even,
    seed: int = 0,
    collapse: bool = True,
    spans: bool = False,
    rings: Rings | None = None,
) -> step_plan.Run:
    """Simulate consecutive iterations of a plan, or of several in turn; all ranks begin at 0.

    `execute(record, starts, server_time, key)` returns a collective's exit times `[ranks]`. With
    two slots `rings(record)` returns its program, or None if it runs exclusively. `slowdown`, and
    `seed` (for the collectives' keys) make iterations differ. `collapse` simulates equal ranks
    once, with the same result. `spans` adds those of the last iteration. Raises `InternalError` for
    a deadlock or an exit before the last entry, `InputError` when the clock cannot hold the times.
    """
    schedule = schedule_of(plan)

    def run(classes: Classes) -> step_plan.Run:
        simulation = Simulation(
            schedule, classes, execute=execute, slowdown=slowdown, seed=seed, rings=rings
        )
        simulation.run(iterations)
        return simulation.result(iterations, spans=spans)

    coarse = coarsest(ranks, *schedule.groups())
    return with_classes(run, coarse if collapse else np.arange(ranks, dtype=np.int64))


def coarsest(ranks: int, *differ: NDArray[np.generic]) -> Classes:
    """Group ranks with equal values in all of `differ`, each `[ranks]` or `[..., ranks]`."""
    classes = np.zeros(ranks, dtype=np.int64)
    if any((row != row[..., :1]).any() for row in differ):
        number: dict[tuple[object, ...], int] = {}
        rows = [line for row in differ for line in row.reshape(-1, ranks).tolist()]
        for rank, key in enumerate(zip(*rows, strict=True)):
            classes[rank] = number.setdefault(key, len(number))
    return classes


def with_classes(run: Callable[[Classes], Result], classes: Classes) -> Result:
    """Call `run` with `classes`, and again with finer ones while it raises `UnlikeRanksError`."""
    while True:
        try:
            return run(classes)
        except UnlikeRanksError as unlike:
            classes = unlike.finer


class Simulation:
    """Simulation of classes of ranks over consecutive iterations."""

    def __init__(
        self,
        schedule: Schedule,
        classes: Classes,
        *,
        execute: step_plan.CarryOut,
        slowdown: step_plan.Slowdown = step_plan.even,
        seed: int = 0,
        rings: Rings | None = None,
        begin: State | None = None,
        first: int = 0,
    ) -> None:
        """Begin with iteration `first` of the schedule in state `begin`, equal within classes."""
        for plan in schedule.plans:
            if len(plan.buckets) != len(plan.compute.parts):
                raise InternalError(
                    f"{len(plan.buckets)} exchanges for {len(plan.compute.parts)} buckets"
                )
        self.env, self._classes, self._slowdown = simpy.Environment(), classes, slowdown
        self._schedule, self._turn = schedule, first
        begin = begin or beginning(schedule, len(classes))
        self._first = np.unique(classes, return_index=True)[1]
        plan = schedule.plans[0]  # they have the same resources
        self._communicator = Communicator(
            self.env,
            schedule,
            classes,
            execute=execute,
            rings=rings if plan.slots == 2 else None,
            seed=seed,
            first=first,
        )
        share: Sequence[Share | None] = [None] * len(self._first)
        if plan.machines is not None:
            share = shares(self.env, plan.machines, classes)
        self._start: list[int] = begin.start[self._first].tolist()
        self._workers = [
            _Worker(
                self.env,
                Loader(plan.input_batch, plan.prefetch, begin.ahead[:, rank].tolist(), start),
                member,
                self._communicator,
                share[member],
            )
            for member, (rank, start) in enumerate(zip(self._first, self._start, strict=True))
        ]
        self._rows: list[list[Row | None]] = []  # by iteration and class
        self._breakdowns: list[list[TimeBreakdown | None]] = []
        """Breakdowns of `_rows`; removed before the last finished round of iterations."""
        self._stopped = False

    def run(self, most: int, settled: Callable[[int], bool] = lambda _: False) -> int:
        """Simulate until `settled(iteration)` is true for a finished iteration, or `most` are
        finished; return how many all ranks have finished. Early ranks go on until then, since those
        behind would otherwise get their share of the cores."""
        for member in range(len(self._workers)):
            self.env.process(self._train(member, most, settled))
        self.env.run()
        complete = sum(None not in row for row in self._rows)
        if complete < most and not self._stopped:
            raise InternalError(
                f"deadlock at {self.env.now} ps in iteration {complete}; "
                f"{self._communicator.state()}"
            )
        return complete

    def _train(self, member: int, most: int, settled: Callable[[int], bool]) -> _Wait:
        worker, schedule = self._workers[member], self._schedule
        if self._start[member]:
            yield self.env.timeout(self._start[member])
        shared = schedule.plans[0].machines is not None
        for iteration in count() if shared else range(most):
            if self._stopped:
                return
            if iteration == len(self._rows):
                self._rows.append([None] * len(self._workers))
                self._breakdowns.append([None] * len(self._workers))
            plan = schedule.plans[schedule.turn(self._turn + iteration)]
            own, pace = plan.of_rank(int(self._first[member])), self._pace_of(member, iteration)
            breakdown = yield from _Iteration(worker, own, iteration, pace).train()
            finish = reading(self.env.now)
            check_room(iteration, finish)
            row = self._rows[iteration]
            row[member] = (finish, worker.loader.ahead(finish), breakdown.parts(finish))
            self._breakdowns[iteration][member] = breakdown
            if None not in row:
                if iteration >= len(schedule):
                    self._breakdowns[iteration - len(schedule)].clear()
                self._stopped = settled(iteration) or iteration + 1 == most

    def _pace_of(self, member: int, iteration: int) -> float:
        slowdown = self._slowdown(iteration)
        if slowdown is None:
            return 1.0
        if (slowdown[self._first][self._classes] != slowdown).any():
            raise UnlikeRanksError(self._classes, slowdown)
        return float(slowdown[self._first[member]])

    def iteration(self, number: int) -> Iteration:
        """Return an iteration that all ranks have finished."""
        rows = [row for row in self._rows[number] if row is not None]
        before = self._start
        if number:
            before = [row[0] for row in self._rows[number - 1] if row is not None]
        finish: Times = np.array([row[0] for row in rows], dtype=np.int64)
        ahead: Times = np.array([row[1] for row in rows], dtype=np.int64).T
        parts = np.array([row[2] for row in rows], dtype=np.int64)
        first = int(finish.min())
        return Iteration(
            durations=(finish - np.array(before))[self._classes],
            parts={part: parts[self._classes, k] for k, part in enumerate(PARTS)},
            after=State(
                start=(finish - (first if self._schedule.interacts else finish))[self._classes],
                ahead=ahead[:, self._classes],
            ),
            elapsed=first - min(before),
        )

    def result(self, iterations: int, *, spans: bool = False) -> step_plan.Run:
        """Return the first `iterations`; `spans` requires that no more are finished."""
        found = [self.iteration(number) for number in range(iterations)]
        return run_of(found, spans=self.spans(iterations - 1) if spans else ())

    def spans(self, iteration: int, first: int | None = None) -> tuple[step_plan.Span, ...]:
        """Spans of an iteration of the last finished round; `first` as in `spans_of`."""
        breakdowns = [
            breakdown for breakdown in self._breakdowns[iteration] if breakdown is not None
        ]
        return spans_of(breakdowns, self._classes, first)


_Wait = Generator[simpy.Event, Any, None]


class _Worker:
    def __init__(
        self,
        env: simpy.Environment,
        loader: Loader,
        member: int,
        communicator: Communicator,
        share: Share | None = None,
    ) -> None:
        self.env, self.loader, self.member, self.communicator = env, loader, member, communicator
        self.stream, self.side = _Stream(env, share), _Stream(env, share)


class _Iteration:
    def __init__(
        self, worker: _Worker, plan: step_plan.StepPlan, number: int, slowdown: float
    ) -> None:
        self.worker, self.plan, self.env = worker, plan, worker.env
        self.number, self.slowdown, self.loader = number, slowdown, worker.loader
        self.breakdown = TimeBreakdown(begin=reading(self.env.now))

    def train(self) -> Generator[simpy.Event, Any, TimeBreakdown]:
        """Run the autograd thread."""
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
            piece = None if self.plan.side_stream else (bucket, step_plan.BEFORE)
            yield from self._work(self.worker.stream, self.breakdown.compute, piece, bucket, jobs)
            if work.collectives or self.plan.side_stream:
                behind = exchanges[-1:] if self.plan.in_turn else []
                exchanges.append(self.env.process(self._exchange(bucket, work, behind)))
        piece = None if self.plan.side_stream else (len(self.plan.buckets), step_plan.BEFORE)
        rest = self._thread_jobs(len(self.plan.buckets))
        yield from self._work(self.worker.stream, self.breakdown.compute, piece, None, rest)
        yield self.env.all_of(exchanges)
        if self.plan.gathers:
            bucket = len(self.plan.buckets) - 1
            yield from self._collective(bucket, len(self.plan.buckets[bucket].collectives) - 1)
        yield from self._issue("optimizer", "optimizer", self.plan.optimizer)
        self.breakdown.loads += self.loader.in_progress(reading(self.env.now))
        return self.breakdown

    def _wait_for_batch(self) -> _Wait:
        now = reading(self.env.now)
        taken = self.loader.take(now)
        self.breakdown.loads += self.loader.last_batch()
        if taken > now:
            yield self.env.timeout(taken - now)
            self.breakdown.waits.append((now, taken))

    def _exchange(
        self, bucket: int, work: step_plan.BucketWork, behind: Sequence[simpy.Event]
    ) -> _Wait:
        """Run the callbacks of one bucket, after another's, without the gather of weights."""
        yield from behind
        if self.plan.side_stream:
            yield from self._callback((bucket, step_plan.BEFORE), work.before)
        for index, record in enumerate(work.collectives):
            if not isinstance(record, step_plan.WeightGather):
                yield from self._collective(bucket, index)

    def _collective(self, bucket: int, index: int) -> _Wait:
        """Request a collective of a bucket, then run the job after it."""
        work = self.plan.buckets[bucket]
        record = work.collectives[index]
        request = Request(
            record=record,
            server_time=work.server_times[index] if work.server_times else 0,
            exit_delay=work.exit_delays[index] if work.exit_delays else 0,
        )
        entry, last, left = yield self.worker.communicator.ask(
            self.worker.member, (self.number, bucket, index), request
        )
        self.breakdown.network.append((record, bucket, index, entry, last, left))
        yield from self._callback((bucket, index), [work.after[index]])

    def _issue(self, kind: step_plan.Kind, name: str, duration: Picoseconds) -> _Wait:
        """Run a job of the autograd thread that belongs to no exchange."""
        job = step_plan.Job(kind=kind, name=name, duration=duration)
        return self._work(self.worker.stream, self.breakdown.compute, None, None, [job])

    def _thread_jobs(self, bucket: int) -> list[step_plan.Job]:
        """Return the jobs of a bucket's part of backward, with `before` unless a side stream runs
        it; after the last bucket, the rest of backward."""
        if bucket == len(self.plan.buckets):
            rest = self.plan.compute.rest
            return [step_plan.Job(kind="backward", name="backward, rest", duration=rest)]
        duration = self.plan.compute.parts[bucket]
        part = step_plan.Job(kind="backward", name="backward", duration=duration)
        return [part, *(() if self.plan.side_stream else self.plan.buckets[bucket].before)]

    def _callback(self, piece: step_plan.Piece, jobs: Sequence[step_plan.Job]) -> _Wait:
        if self.plan.side_stream:
            return self._work(self.worker.side, self.breakdown.side, piece, piece[0], jobs)
        return self._work(self.worker.stream, self.breakdown.compute, piece, piece[0], jobs)

    def _serve(self) -> None:
        """Set the order in which the callbacks' stream serves them."""
        side, buckets = self.plan.side_stream, self.plan.buckets
        stream = self.worker.side if side else self.worker.stream
        order: list[step_plan.Piece] = []
        for bucket, place in step_plan.order_of_service(self.plan):
            if place != step_plan.BEFORE:
                jobs: Sequence[step_plan.Job] = [buckets[bucket].after[place]]
            else:
                jobs = buckets[bucket].before if side else self._thread_jobs(bucket)
            if any(self._durations(stream, jobs)):
                order.append((bucket, place))
        stream.serve(order)

    def _durations(self, stream: _Stream, jobs: Sequence[step_plan.Job]) -> list[Picoseconds]:
        slower = self.plan.side_slowdown if stream is self.worker.side else 1
        return [step_plan.slowed_by(round(job.duration * slower), self.slowdown) for job in jobs]

    def _work(
        self,
        stream: _Stream,
        done: list[Done],
        piece: step_plan.Piece | None,
        bucket: int | None,
        jobs: Sequence[step_plan.Job],
    ) -> _Wait:
        """Run jobs back to back on the stream as one piece."""
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
"""Durations, and whether each job runs on the machine's shared cores."""


class _Stream:
    def __init__(self, env: simpy.Environment, share: Share | None = None) -> None:
        self._env, self._share = env, share
        self._coming: deque[step_plan.Piece] = deque()
        self._waiting: dict[step_plan.Piece, tuple[Picoseconds | _Jobs, simpy.Event]] = {}
        self._busy = False

    def serve(self, order: Iterable[step_plan.Piece]) -> None:
        """Serve an iteration's pieces in this order, and nothing else until they are done."""
        if self._coming or self._busy:
            raise InternalError(f"the stream has not served {[*self._coming]}")
        self._coming.extend(order)

    def work(self, piece: step_plan.Piece | None, work: Picoseconds | _Jobs) -> simpy.Event:
        """Issue work now; return the event of its end, whose value is the begin, or for jobs begin
        and ends. `piece`: place in the iteration's order; None: the stream is otherwise idle."""
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
