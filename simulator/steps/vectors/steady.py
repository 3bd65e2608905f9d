"""How does training go on for ever, when every rank differs? `events/steady.py`, all ranks at once.

The same search (`cycles.py`) among iterations that `vectors/step.py` simulates; both agree with
`==`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.steps.cycles import MOST, Search, Steady, settle
from gcsim.simulator.steps.schedule import Iteration, Schedule, State, beginning, schedule_of
from gcsim.simulator.steps.step_plan import CarryOut, StepPlan
from gcsim.simulator.steps.vectors.ranks import PARTS, Vectors


def simulate_steady(
    plan: StepPlan | Schedule,
    *,
    ranks: int,
    execute: CarryOut,
    slowdown: NDArray[np.float64] | None = None,
    most: int = MOST,
    tolerance: float = 0.0,
) -> Steady:
    """Simulate until iterations repeat, `most` or a round of them; as `steady.simulate_steady`.

    `execute` must depend neither on the key nor on absolute time; `slowdown` `[ranks]` is that of
    all iterations. After `PATIENCE` iterations a state may differ from an earlier one by a share
    `tolerance` of the time between them. Raises `InternalError` as `vector_step.simulate`.
    """
    schedule = schedule_of(plan)
    vectors = Vectors(schedule, ranks, execute, 0)
    begin = beginning(schedule, ranks)
    coming, finish = (0, begin), np.zeros(ranks, dtype=np.int64)

    def simulate(number: int, before: State) -> Iteration:
        nonlocal coming, finish
        if number != coming[0] or before is not coming[1]:  # some need not be simulated
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
