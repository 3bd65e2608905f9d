"""Iterations by the vector engine, which computes all ranks at once.

It simulates the step of `events/step.py` with one collective at a time, without an event per rank
and piece of work; results are equal (`==`). Since collectives and the pieces of a stream have the
same order on all ranks (`step_plan.py`), one loop over both computes each time as a sum or maximum
of earlier ones. A rank that begins iteration i + 1 has left all collectives of iteration i, which
all ranks have entered by then, so iterations are simulated one by one, each in O(ranks x (pieces +
collectives)). `sharded.py` has steps with sharded weights.

Source: conservative parallel simulation with the collective as barrier (Chandy and Misra 1979, IEEE
Trans. Softw. Eng. 5(5)).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.steps import sharded
from gcsim.simulator.steps.cycles import MOST, Search, Steady, settle
from gcsim.simulator.steps.schedule import Iteration, Schedule, State, beginning, schedule_of
from gcsim.simulator.steps.step_plan import CarryOut, Run, Slowdown, StepPlan, even
from gcsim.simulator.steps.vectors.ranks import PARTS, Vectors


def simulate(
    plan: StepPlan | Schedule,
    *,
    ranks: int,
    execute: CarryOut,
    iterations: int = 1,
    slowdown: Slowdown = even,
    seed: int = 0,
) -> Run:
    """Simulate consecutive iterations of a plan, or of several in turn; all ranks begin at 0.

    `execute` returns a collective's exits; its key consists of `seed`, iteration, bucket and place.
    `slowdown(i)`: the ranks' factors in iteration i. Raises `InternalError` for two slots, or an
    exit before the last entry, `InputError` when the clock cannot hold the times.
    """
    vectors = _vectors(schedule_of(plan), ranks, execute, seed)
    finish, *rows_of_parts = np.empty((1 + len(PARTS), iterations, ranks), dtype=np.int64)
    parts = dict(zip(PARTS, rows_of_parts, strict=True))
    for iteration in range(iterations):
        rows = {part: times[iteration] for part, times in parts.items()}
        finish[iteration] = vectors.iteration(slowdown(iteration), rows)
    return Run(finish=finish, parts=parts)


def simulate_steady(
    plan: StepPlan | Schedule,
    *,
    ranks: int,
    execute: CarryOut,
    slowdown: NDArray[np.float64] | None = None,
    most: int = MOST,
    tolerance: float = 0.0,
) -> Steady:
    """Simulate until iterations are periodic (`cycles.py`); `most` and `tolerance` as in `Search`.
    `execute` must depend neither on the key nor on absolute time; `slowdown` `[ranks]` is the same
    in all iterations. Raises as `simulate`."""
    schedule = schedule_of(plan)
    vectors = _vectors(schedule, ranks, execute, 0)
    begin = beginning(schedule, ranks)
    coming, finish = (0, begin), np.zeros(ranks, dtype=np.int64)

    def simulate(number: int, before: State) -> Iteration:
        nonlocal coming, finish
        if number != coming[0] or before is not coming[1]:  # known ones were skipped
            vectors.begin(number, before)
            finish = before.start
        parts = {part: np.empty(ranks, dtype=np.int64) for part in PARTS}
        start, finish = finish, vectors.iteration(slowdown, parts)
        first = int(finish.min())
        relative = finish - (first if schedule.interacts else finish)
        after = State(
            start=np.broadcast_to(relative, (ranks,)),
            ahead=np.broadcast_to(vectors.ahead(), (len(begin.ahead), ranks)),
        )
        coming = (number + 1, after)
        return Iteration(
            durations=np.broadcast_to(finish - start, (ranks,)),
            parts=parts,
            after=after,
            elapsed=first - int(start.min()),
        )

    search = Search(schedule, begin, most=most, tolerance=tolerance)
    return settle(schedule, search, simulate)


def _vectors(
    schedule: Schedule, ranks: int, execute: CarryOut, seed: int
) -> Vectors | sharded.Ranks:
    """Return the engine for the schedule's plans."""
    by = sharded.Ranks if schedule.sharded else Vectors
    return by(schedule, ranks, execute, seed)
