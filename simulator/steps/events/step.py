"""Consecutive iterations of data-parallel training, event by event.

A SimPy model of PyTorch's DistributedDataParallel, by the rules of `step_plan.py`: what a worker
does is in `events/worker.py`, cores and batches in `events/cores.py` and `events/input_loader.py`,
the order of collectives in `events/communicator.py` (one at a time) and `events/concurrent.py`
(two), and ties of a picosecond in `events/egress_queue.py`.

Rank skew is kept, within an iteration and from one to the next, whatever their plans: a collective
takes a vector of entry times and returns one of exit times. Ranks that do the same at the same time
are simulated as one; when a collective lets them leave at different times, or their paces differ,
everything is simulated again with finer classes.

Source: Li et al. 2020 (PVLDB 13(12)), "PyTorch Distributed", sec. 3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_room, reading
from gcsim.simulator.steps.breakdown import PARTS, TimeBreakdown
from gcsim.simulator.steps.events.communicator import Communicator, UnlikeRanksError
from gcsim.simulator.steps.events.concurrent import Rings, TwoSlots
from gcsim.simulator.steps.events.cores import Share, shares
from gcsim.simulator.steps.events.input_loader import Loader
from gcsim.simulator.steps.events.worker import Wait, Worker
from gcsim.simulator.steps.schedule import (
    Iteration,
    Schedule,
    State,
    beginning,
    run_of,
    schedule_of,
)
from gcsim.simulator.steps.step_plan import CarryOut, Run, Slowdown, Span, StepPlan, even

Classes = NDArray[np.int64]
"""The class of each rank, numbered by their lowest rank."""
Row = tuple[Picoseconds, tuple[Picoseconds, ...], tuple[Picoseconds, ...]]
"""Of a class and an iteration: its finish, the loader's state then, and `PARTS`."""
Result = TypeVar("Result")


def simulate(
    plan: StepPlan | Schedule,
    *,
    ranks: int,
    execute: CarryOut,
    iterations: int = 1,
    slowdown: Slowdown = even,
    seed: int = 0,
    collapse: bool = True,
    spans: bool = False,
    rings: Rings | None = None,
) -> Run:
    """Simulate consecutive iterations of a plan, or of several in turn; all ranks begin at 0.

    `execute(record, starts, server_time, key)` gives a collective's exit times `[ranks]`,
    `rings(record)` says how it runs beside another one where the plan has two slots (None: it
    does not). `slowdown` and `seed`, of the keys of collectives, make iterations differ. With
    `collapse` ranks that behave alike are simulated once; the result is the same without. `spans`
    are those of the last iteration. Raises `InternalError` on a deadlock and when a collective
    ends before its last entry, `InputError` when the clock cannot hold the times.
    """
    schedule = schedule_of(plan)

    def run(classes: Classes) -> Run:
        simulation = Simulation(
            schedule, classes, execute=execute, slowdown=slowdown, seed=seed, rings=rings
        )
        simulation.run(iterations)
        return simulation.result(iterations, spans=spans)

    return with_classes(run, coarsest(ranks) if collapse else np.arange(ranks, dtype=np.int64))


def coarsest(ranks: int, *differ: NDArray[np.generic]) -> Classes:
    """Ranks are alike where nothing tells them apart: each `[ranks]`, or `[..., ranks]`."""
    classes = np.zeros(ranks, dtype=np.int64)
    if any((row != row[..., :1]).any() for row in differ):
        number: dict[tuple[object, ...], int] = {}
        rows = [line for row in differ for line in row.reshape(-1, ranks).tolist()]
        for rank, key in enumerate(zip(*rows, strict=True)):
            classes[rank] = number.setdefault(key, len(number))
    return classes


def with_classes(run: Callable[[Classes], Result], classes: Classes) -> Result:
    """Run with classes of ranks that are as coarse as they may be, these or finer ones."""
    while True:
        try:
            return run(classes)
        except UnlikeRanksError as unlike:
            classes = unlike.finer


class Simulation:
    """Simulated iterations of classes of ranks."""

    def __init__(
        self,
        schedule: Schedule,
        classes: Classes,
        *,
        execute: CarryOut,
        slowdown: Slowdown = even,
        seed: int = 0,
        rings: Rings | None = None,
        begin: State | None = None,
        first: int = 0,
    ) -> None:
        """`first` is the number in the schedule of the first iteration, which begins in the state
        `begin`, in which ranks of a class must be alike."""
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
        self._communicator: Communicator | TwoSlots
        if plan.slots == 1 or rings is None:
            self._communicator = Communicator(
                self.env, schedule, classes, execute=execute, seed=seed, first=first
            )
        else:
            self._communicator = TwoSlots(
                self.env,
                schedule,
                classes,
                execute=execute,
                rings=rings,
                seed=seed,
                first=first,
            )
        share: Sequence[Share | None] = [None] * len(self._first)
        if plan.machines is not None:
            share = shares(self.env, plan.machines, classes)
        self._start: list[int] = begin.start[self._first].tolist()
        self._workers = [
            Worker(
                self.env,
                Loader(plan.input_batch, plan.prefetch, begin.ahead[:, rank].tolist(), start),
                member,
                self._communicator,
                share[member],
            )
            for member, (rank, start) in enumerate(zip(self._first, self._start, strict=True))
        ]
        self._rows: list[list[Row | None]] = []
        """By iteration and class."""
        self._breakdowns: list[list[TimeBreakdown | None]] = []
        """As `_rows`; empty before the last round of iterations that all have finished."""
        self._stopped = False

    def run(self, most: int, settled: Callable[[int], bool] = lambda _: False) -> int:
        """Simulate until `settled` says so of an iteration that all have finished, or `most` are.

        Until then ranks that share cores go on beyond `most`: training does not end there, and a
        rank that stopped would leave its share of the cores to those behind it. The number of
        iterations that all have finished.
        """
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

    def _train(self, member: int, most: int, settled: Callable[[int], bool]) -> Wait:
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
            breakdown = yield from worker.iteration(
                plan, iteration, self._pace_of(member, iteration)
            )
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
            raise UnlikeRanksError(self._classes, slowdown.tolist())
        return float(slowdown[self._first[member]])

    def iteration(self, number: int) -> Iteration:
        """One that all have finished."""
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

    def result(self, iterations: int, *, spans: bool = False) -> Run:
        """The first iterations; `spans` only where they are all that everybody has finished."""
        found = [self.iteration(number) for number in range(iterations)]
        return run_of(found, spans=self.spans(iterations - 1) if spans else ())

    def spans(self, iteration: int) -> tuple[Span, ...]:
        """Of one of the last round that all have finished."""
        breakdowns = [
            breakdown for breakdown in self._breakdowns[iteration] if breakdown is not None
        ]
        return tuple(
            span
            for rank, member in enumerate(self._classes.tolist())
            for span in breakdowns[member].spans(rank)
        )
