"""Iterations of an endless training by the event engine, until they are periodic (`cycles.py`).

Each is simulated from the state that the previous one left; with shared cores all in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.steps.cycles import MOST, Search, Steady, settle
from gcsim.simulator.steps.events.communicator import Rings
from gcsim.simulator.steps.events.step import Classes, Result, Simulation, coarsest, with_classes
from gcsim.simulator.steps.schedule import Iteration, Schedule, State, beginning, schedule_of
from gcsim.simulator.steps.step_plan import CarryOut, Span, StepPlan


def simulate_steady(
    plan: StepPlan | Schedule,
    *,
    ranks: int,
    execute: CarryOut,
    slowdown: NDArray[np.float64] | None = None,
    collapse: bool = True,
    rings: Rings | None = None,
    most: int = MOST,
    tolerance: float = 0.0,
) -> Steady:
    """Simulate until iterations are periodic; arguments and errors as `step.simulate`.

    `execute` must depend neither on the key nor on absolute time; `slowdown` `[ranks]` is the same
    in all iterations; `most` and `tolerance` as in `Search`.
    """
    schedule = schedule_of(plan)
    events = Events(schedule, execute=execute, slowdown=slowdown, collapse=collapse, rings=rings)
    begin = beginning(schedule, ranks)
    if schedule.plans[0].machines is None:
        search = Search(schedule, begin, most=most, tolerance=tolerance)
        return settle(schedule, search, events.iteration)

    def in_one_go(classes: Classes) -> Steady:
        search = Search(schedule, begin, most=most, tolerance=tolerance)
        simulation = events.simulation(0, begin, classes)
        simulation.run(search.limit, lambda number: search.add(simulation.iteration(number)))
        return replace(search.result(), spans=simulation.spans)

    return events.with_classes(in_one_go, begin)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Iterations with constant slowdowns; fields as the arguments of `simulate_steady`."""

    schedule: Schedule
    _: KW_ONLY
    execute: CarryOut
    slowdown: NDArray[np.float64] | None = None
    collapse: bool = True
    rings: Rings | None = None

    def iteration(self, number: int, before: State) -> Iteration:
        """Simulate iteration `number` from the state in which it begins."""
        return self._once(number, before, lambda simulation: simulation.iteration(0))

    def spans(self, number: int, before: State, first: int | None = None) -> tuple[Span, ...]:
        """Spans of an iteration from the first rank's begin; `first` as in `spans_of`."""
        return self._once(number, before, lambda simulation: simulation.spans(0, first))

    def _once(self, number: int, before: State, then: Callable[[Simulation], Result]) -> Result:
        def run(classes: Classes) -> Result:
            simulation = self.simulation(number, before, classes)
            simulation.run(1)
            return then(simulation)

        return self.with_classes(run, before)

    def simulation(self, number: int, before: State, classes: Classes) -> Simulation:
        """Simulation from iteration `number` on."""
        return Simulation(
            self.schedule,
            classes,
            execute=self.execute,
            slowdown=lambda _: self.slowdown,
            rings=self.rings,
            begin=before,
            first=number,
        )

    def with_classes(self, run: Callable[[Classes], Result], before: State) -> Result:
        """Call `run` with classes of ranks that have equal states and slowdowns."""
        ranks = len(before.start)
        if not self.collapse:
            return with_classes(run, np.arange(ranks, dtype=np.int64))
        differ = (
            self.schedule.groups()
            if self.slowdown is None
            else (*self.schedule.groups(), self.slowdown)
        )
        return with_classes(run, coarsest(ranks, before.start, before.ahead, *differ))
