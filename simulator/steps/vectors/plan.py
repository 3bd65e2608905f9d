"""What does a step read of its plan, and where does it write while it follows it?

The arrays of `vectors/ranks.py` that belong to a plan.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, check_room
from gcsim.simulator.steps.step_plan import StepPlan
from gcsim.simulator.steps.vectors.layout import Layout

_ONE = np.ones(1, dtype=np.float64)


class PlanArrays:
    """One plan, for one simulation at a time."""

    def __init__(self, plan: StepPlan) -> None:
        if plan.machines is not None:
            raise InternalError("ranks that share cores: only events simulate that")
        if plan.slots != 1:
            raise InternalError(f"{plan.slots} collectives at a time: only events simulate that")
        if plan.input_batch and plan.prefetch < 1:
            raise InternalError(f"a loader that keeps {plan.prefetch} batches never makes one")
        self.work = _work(plan)
        check_room(0, self.work)  # longer times fit no table
        self.plan, self.layout = plan, Layout.of(plan)
        self.even_table = self.layout.table(_ONE)
        self.asked, self.side = _zeros(0, 0), _zeros(0, 0)
        self._uneven = _zeros(0, 0)

    def table(self, factors: NDArray[np.float64]) -> NDArray[np.int64]:
        """The durations at these factors; until the next call."""
        if self._uneven.shape[-1] != len(factors):
            self._uneven = self.layout.room(len(factors))
        return self.layout.table(factors, self._uneven)

    def room(self, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`asked` and `side`, whatever is in them, with as many columns."""
        if self.asked.shape[-1] != width or self.side.shape[-1] != width:
            layout, collectives = self.layout, len(self.layout.names)
            pieces = int(layout.side_stream) * (2 * layout.buckets + collectives)
            self.asked, self.side = _zeros(collectives, width), _zeros(pieces, width)
        return self.asked, self.side


def _work(plan: StepPlan) -> Picoseconds:
    """All that a rank's streams and its loader do in an iteration, at a pace of 1."""
    jobs = [job for bucket in plan.buckets for job in (*bucket.before, *bucket.after)]
    exchanges = ceil(
        sum(job.duration for job in jobs) * max(Fraction(1), plan.side_slowdown)
    ) + len(jobs)
    micro_batch = plan.compute.total + plan.backward + plan.input_batch
    return plan.accumulation * micro_batch + exchanges + plan.optimizer


def _zeros(*shape: int) -> NDArray[np.int64]:
    return np.zeros(shape, dtype=np.int64)
