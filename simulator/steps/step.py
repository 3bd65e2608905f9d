"""How long do consecutive iterations of data-parallel training take, and where do they go?

A SimPy model of PyTorch's DistributedDataParallel, by the rules of `step_plan.py`: what a worker
does is in `worker.py`, its devices in `stream.py`, `cores.py` and `input_loader.py`, in which order
collectives run in `communicator.py` (one at a time) and `concurrent.py` (two), what comes first
when things happen at the same picosecond in `instant.py`.

Rank skew is kept, within an iteration and from one to the next: a collective takes a vector of
entry times and returns one of exit times. Ranks that do the same at the same time are simulated
as one; when a collective lets them leave at different times, or their paces differ, everything is
simulated again with finer classes.

Source: Li et al. 2020 (PVLDB 13(12)), "PyTorch Distributed", sec. 3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.errors import InputError, InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, Times, reading
from gcsim.simulator.steps.communicator import Communicator, UnlikeRanksError
from gcsim.simulator.steps.concurrent import Rings, TwoSlots
from gcsim.simulator.steps.cores import Share, shares
from gcsim.simulator.steps.ledger import PARTS, Ledger
from gcsim.simulator.steps.step_plan import CarryOut, Pace, Run, Span, StepPlan, even
from gcsim.simulator.steps.worker import Wait, Worker

Classes = NDArray[np.int64]
"""The class of each rank, numbered by their lowest rank."""
Row = tuple[Picoseconds, tuple[Picoseconds, ...], tuple[Picoseconds, ...]]
"""Of a class and an iteration: its finish, the loader's state then, and `PARTS`."""
Result = TypeVar("Result")

_LIMIT = 2**62


def simulate(
    plan: StepPlan,
    *,
    ranks: int,
    carry_out: CarryOut,
    iterations: int = 1,
    pace: Pace = even,
    seed: int = 0,
    collapse: bool = True,
    spans: bool = False,
    rings: Rings | None = None,
) -> Run:
    """Simulate consecutive iterations, which all ranks begin together at 0.

    `carry_out(record, entry, server_time, key)` gives a collective's exit times `[ranks]`,
    `rings(record)` says how it runs beside another one where the plan has two slots (None: it
    does not). `pace` and `seed`, of the keys of collectives, make iterations differ. With
    `collapse` ranks that behave alike are simulated once; the result is the same without. `spans`
    are those of the last iteration. Raises `InternalError` on a deadlock and when a collective
    ends before its last entry, `InputError` when the clock cannot hold the times.
    """

    def run(classes: Classes) -> Run:
        simulation = Simulation(
            plan, classes, carry_out=carry_out, pace=pace, seed=seed, rings=rings
        )
        simulation.run(iterations)
        return simulation.result(iterations, spans=spans)

    return with_classes(run, ranks=ranks, collapse=collapse)


def with_classes(run: Callable[[Classes], Result], *, ranks: int, collapse: bool) -> Result:
    """Run with classes of ranks that are as coarse as they may be, or one a rank."""
    classes = np.zeros(ranks, dtype=np.int64) if collapse else np.arange(ranks, dtype=np.int64)
    while True:
        try:
            return run(classes)
        except UnlikeRanksError as unlike:
            classes = unlike.finer


class Simulation:
    """Simulated iterations of classes of ranks."""

    def __init__(
        self,
        plan: StepPlan,
        classes: Classes,
        *,
        carry_out: CarryOut,
        pace: Pace = even,
        seed: int = 0,
        rings: Rings | None = None,
    ) -> None:
        if len(plan.buckets) != len(plan.compute.parts):
            raise InternalError(
                f"{len(plan.buckets)} exchanges for {len(plan.compute.parts)} buckets"
            )
        self.env, self._classes, self._pace = simpy.Environment(), classes, pace
        self._first = np.unique(classes, return_index=True)[1]
        self._communicator: Communicator | TwoSlots
        if plan.slots == 1 or rings is None:
            self._communicator = Communicator(self.env, classes, carry_out, seed)
        else:
            self._communicator = TwoSlots(
                self.env, plan, classes, carry_out=carry_out, rings=rings, seed=seed
            )
        share: Sequence[Share | None] = [None] * len(self._first)
        if plan.machines is not None:
            share = shares(self.env, plan.machines, classes)
        self.workers = [
            Worker(self.env, plan, member, self._communicator, share[member])
            for member in range(len(self._first))
        ]
        self.rows: list[list[Row | None]] = []
        """By iteration and class."""
        self._ledgers: list[list[Ledger | None]] = []
        """As `rows`; empty before the last iteration that all have finished."""
        self._stopped = False

    def run(self, most: int, settled: Callable[[int], bool] = lambda _: False) -> int:
        """Simulate until `settled` says so of an iteration that all have finished, or `most` are.

        The number of iterations that all have finished.
        """
        for member in range(len(self.workers)):
            self.env.process(self._train(member, most, settled))
        self.env.run()
        complete = sum(None not in row for row in self.rows)
        if complete < most and not self._stopped:
            raise InternalError(
                f"deadlock at {self.env.now} ps in iteration {complete}; "
                f"{self._communicator.state()}"
            )
        return complete

    def _train(self, member: int, most: int, settled: Callable[[int], bool]) -> Wait:
        worker = self.workers[member]
        for iteration in range(most):
            if self._stopped:
                return
            if iteration == len(self.rows):
                self.rows.append([None] * len(self.workers))
                self._ledgers.append([None] * len(self.workers))
            ledger = yield from worker.iteration(iteration, self._pace_of(member, iteration))
            finish = reading(self.env.now)
            if finish >= _LIMIT:
                raise InputError(
                    f"iteration {iteration} would end after {finish / PS_PER_SECOND:.3g} s, more "
                    "than the 53 days that the clock has room for"
                )
            row = self.rows[iteration]
            row[member] = (finish, worker.loader.ahead(finish), ledger.parts(finish))
            self._ledgers[iteration][member] = ledger
            if None not in row:
                if iteration:
                    self._ledgers[iteration - 1].clear()
                self._stopped = settled(iteration)

    def _pace_of(self, member: int, iteration: int) -> float:
        pace = self._pace(iteration)
        if pace is None:
            return 1.0
        if (pace[self._first][self._classes] != pace).any():
            raise UnlikeRanksError(self._classes, pace.tolist())
        return float(pace[self._first[member]])

    def finish(self, iteration: int) -> list[Picoseconds]:
        """By class, of an iteration that all have finished."""
        return [row[0] for row in self.rows[iteration] if row is not None]

    def result(self, iterations: int, *, spans: bool = False) -> Run:
        """The first iterations; `spans` only where they are all that everybody has finished."""
        rows = [[row for row in rows if row is not None] for rows in self.rows[:iterations]]
        finish: Times = np.array([[row[0] for row in line] for line in rows], dtype=np.int64)
        parts: Times = np.array([[row[2] for row in line] for line in rows], dtype=np.int64)
        return Run(
            finish=finish[:, self._classes],
            parts={part: parts[:, self._classes, k] for k, part in enumerate(PARTS)},
            spans=self._spans(iterations - 1) if spans else (),
        )

    def _spans(self, iteration: int) -> tuple[Span, ...]:
        by_class = [[] if ledger is None else ledger.spans() for ledger in self._ledgers[iteration]]
        return tuple(
            Span(rank=rank, resource=resource, name=name, start=start, end=end)
            for rank, member in enumerate(self._classes.tolist())
            for resource, name, start, end in by_class[member]
        )
