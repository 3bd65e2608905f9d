"""How does training go on for ever, when every rank differs? `steady.py` with all ranks at once.

The same search for a state that comes again, of which `steady.py` says why it tells the rest; both
agree with `==`. States are compared by a digest of 128 bits; where a tolerance is enough, by their
largest difference.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Times
from gcsim.simulator.steps.steady import MOST, PATIENCE, Steady
from gcsim.simulator.steps.step_plan import CarryOut, StepPlan
from gcsim.simulator.steps.vector_ranks import Vectors
from gcsim.simulator.steps.vector_step import Rows


def simulate_steady(
    plan: StepPlan,
    *,
    ranks: int,
    carry_out: CarryOut,
    pace: NDArray[np.float64] | None = None,
    most: int = MOST,
    tolerance: float = 0.0,
    patience: int = PATIENCE,
) -> Steady:
    """Simulate until iterations repeat, `most` at most; as `steady.simulate_steady`.

    `carry_out` must depend neither on the key nor on absolute time; `pace` `[ranks]` is that of
    all iterations. After `patience` iterations a state may differ from an earlier one by a share
    `tolerance` of the time between them. Raises `InternalError` as `vector_step.simulate`.
    """
    vectors, together = Vectors(plan, ranks, carry_out, 0), any(b.collectives for b in plan.buckets)
    rows = Rows(most, ranks)
    seen = {_digest(np.zeros(ranks, dtype=np.int64), vectors.ahead(), together): -1}
    near = _Near(tolerance, patience)
    period, count, exact = 0, 0, False
    while count < most and not period:
        finish = vectors.iteration(pace, rows.parts_of(count))
        rows.finish[count] = finish
        ahead = vectors.ahead()
        state = _digest(rows.finish[count], ahead, together)
        period = count - seen.get(state, count)
        exact = period > 0
        seen[state] = count
        count += 1
        if tolerance and not exact:
            period = near.add(rows.finish[count - 1], ahead, together)
    run = rows.first(count)
    period = period or (count + 1) // 2
    before = count - period - 1
    begin = run.finish[before] if before >= 0 else np.zeros(ranks, dtype=np.int64)
    return Steady(run=run, period=period, shift=run.finish[-1] - begin, exact=exact)


class _Near:
    """Looks for a state that differs by little from that of half as many iterations."""

    def __init__(self, tolerance: float, patience: int) -> None:
        self._tolerance, self._patience = tolerance, patience
        self._states: list[tuple[int, Times]] = []

    def add(self, finish: Times, ahead: NDArray[np.int64], together: bool) -> int:
        """How many iterations ago the state after the next one was nearly the same; 0: never."""
        rows = np.broadcast_to(ahead, (len(ahead), len(finish)))
        relative = finish[None, :] - finish.min() if together else np.zeros_like(finish)[None, :]
        first = int(finish.min())
        self._states.append((first, np.concatenate([relative, rows])))
        number = len(self._states)
        if number < max(2, self._patience):
            return 0
        then, before = self._states[number // 2 - 1]
        differ = int(np.abs(self._states[-1][1] - before).max())
        return number - number // 2 if differ <= self._tolerance * (first - then) else 0


def _digest(finish: Times, ahead: NDArray[np.int64], together: bool) -> bytes:
    """Of what later iterations depend on, but for a shift."""
    ranks = len(finish)
    hashed = blake2b(digest_size=16)
    if together:
        hashed.update(finish - finish.min())
    for row in ahead:
        hashed.update(np.broadcast_to(row, ranks).tobytes())
    return hashed.digest()
