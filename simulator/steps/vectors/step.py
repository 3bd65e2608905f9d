"""How long do iterations take when every rank has a pace of its own? All ranks at once.

The same step as `events/step.py`, with one collective at a time (`StepPlan.slots == 1`), without an
event for each rank and piece of work. Both agree with `==`.

Collectives have one order (`step_plan.py`), and so have the pieces of a stream: one
loop over both, in which each time is a sum or a maximum of times before it, of all ranks at once.
A rank that begins iteration i + 1 has left all collectives of iteration i, so that all ranks have
entered those: iterations are simulated one after the other, though ranks are in different ones at
the same time. Work is O(ranks x (pieces + collectives)) an iteration.

Source: the rules are those of `step_plan.py`; a conservative parallel simulation with the
collective as barrier (Chandy and Misra 1979, IEEE Trans. Softw. Eng. 5(5)).
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.steps.schedule import Schedule, schedule_of
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

    `execute` gives a collective's exits; the key that it is given is made of `seed`, iteration,
    bucket and place. `slowdown(i)` are the ranks' factors in iteration i. Raises `InternalError`
    for two slots, and when a collective lets a rank leave before its last entry, `InputError` when
    the clock cannot hold the times.
    """
    vectors = Vectors(schedule_of(plan), ranks, execute, seed)
    finish, *rows_of_parts = np.empty((1 + len(PARTS), iterations, ranks), dtype=np.int64)
    parts = dict(zip(PARTS, rows_of_parts, strict=True))
    for iteration in range(iterations):
        rows = {part: times[iteration] for part, times in parts.items()}
        finish[iteration] = vectors.iteration(slowdown(iteration), rows)
    return Run(finish=finish, parts=parts)
