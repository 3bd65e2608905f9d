"""Which pieces of work does a step consist of? A plan as a table of durations.

A table of int64 `[rows, width]`, with a column for each rank or one for all ranks:

| rows             | what                                                                     |
|------------------|--------------------------------------------------------------------------|
| FORWARD          | a micro-batch's forward pass                                             |
| BACKWARD         | a whole backward pass, of the micro-batches before the last              |
| OPTIMIZER        | the optimiser                                                            |
| THREAD + b       | bucket b's part of the backward pass, without a side stream with `before` |
| THREAD + buckets | the rest of the backward pass                                            |
| side + b         | with a side stream: bucket b's `before`                                  |
| after + c        | what follows collective c (numbered by bucket, then place)               |
| totals + kind    | all work of a kind (side streams' left out), in the order of `KINDS`     |

Each job is stretched and rounded on its own and then added to its piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.steps.step_plan import Job, Kind, Piece, StepPlan, order_of_service

KINDS: tuple[Kind, ...] = get_args(Kind)
FORWARD, BACKWARD, OPTIMIZER, THREAD = range(4)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The pieces of one plan."""

    side_stream: bool
    buckets: int
    counts: tuple[int, ...]
    """By bucket: its number of collectives."""
    first: tuple[int, ...]
    """By bucket: the number of its first collective, or of the next bucket's."""
    names: tuple[tuple[int, int], ...]
    """By number of the collective: bucket, and place in it."""
    order: tuple[Piece, ...]
    """Of the stream that serves callbacks."""
    side: int
    after: int
    totals: int
    jobs: NDArray[np.int64]
    """`[jobs, 4]`: duration, row, row of its kind's total (-1: none), times in an iteration."""
    side_jobs: NDArray[np.int64]
    """`[side jobs, 3]` in the order of their pieces: duration, piece (`side + b` or `after + c`,
    less `side`), place of its kind in `KINDS`."""

    @staticmethod
    def of(plan: StepPlan) -> Layout:
        """Raises `InternalError` when the plan's lists do not fit together."""
        compute, buckets = plan.compute, plan.buckets
        if len(buckets) != len(compute.parts):
            raise InternalError(f"{len(buckets)} exchanges for {len(compute.parts)} buckets")
        for number, bucket in enumerate(buckets):
            if len(bucket.after) != len(bucket.collectives):
                raise InternalError(
                    f"bucket {number}: {len(bucket.after)} computations after "
                    f"{len(bucket.collectives)} collectives"
                )
        counts = [len(bucket.collectives) for bucket in buckets]
        names = [(b, index) for b, count in enumerate(counts) for index in range(count)]
        side = THREAD + len(buckets) + 1
        after = side + len(buckets)
        totals = after + len(names)
        micro = plan.accumulation - 1
        jobs = _Jobs(totals)
        jobs.add(FORWARD, "forward", compute.forward, times=micro + 1)
        jobs.add(BACKWARD, "backward", plan.backward, times=micro)
        jobs.add(OPTIMIZER, "optimizer", plan.optimizer)
        for b, part in enumerate((*compute.parts, compute.rest)):
            jobs.add(THREAD + b, "backward", part)
        befores = [(b, job) for b, bucket in enumerate(buckets) for job in bucket.before]
        afters = [job for bucket in buckets for job in bucket.after]
        side_jobs: list[tuple[int, int, int]] = []
        if plan.side_stream:
            placed = [(side + b, job) for b, job in befores]
            placed += [(after + c, job) for c, job in enumerate(afters)]
            for row, job in placed:
                duration = side_duration(job, plan.side_slowdown)
                jobs.rows.append((duration, row, -1, 0))
                side_jobs.append((duration, row - side, KINDS.index(job.kind)))
        else:
            jobs.add_all((THREAD + b, job) for b, job in befores)
            jobs.add_all((after + c, job) for c, job in enumerate(afters))
        return Layout(
            side_stream=plan.side_stream,
            buckets=len(buckets),
            counts=tuple(counts),
            first=tuple(accumulate(counts, initial=0)),
            names=tuple(names),
            order=tuple(order_of_service(plan)),
            side=side,
            after=after,
            totals=totals,
            jobs=_matrix(jobs.rows, 4),
            side_jobs=_matrix(side_jobs, 3),
        )

    def room(self, width: int) -> NDArray[np.int64]:
        """For a table."""
        return np.empty((self.totals + len(KINDS), width), dtype=np.int64)

    def table(
        self, factors: NDArray[np.float64], room: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """The pieces' durations `[rows, width]`, stretched by the factors `[width]`.

        They are written to `room` if there is any.
        """
        table = self.room(len(factors)) if room is None else room
        table[:] = 0
        _stretch(self.jobs, factors, table)
        return table


def side_duration(job: Job, slowdown: Fraction) -> Picoseconds:
    """Of a job on the side stream, at the pace 1."""
    return round(job.duration * slowdown)


class _Jobs:
    """Rows of `Layout.jobs` in the making."""

    def __init__(self, totals: int) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self._totals = totals

    def add(self, row: int, kind: Kind, duration: Picoseconds, times: int = 1) -> None:
        self.rows.append((duration, row, self._totals + KINDS.index(kind), times))

    def add_all(self, jobs: Iterable[tuple[int, Job]]) -> None:
        for row, job in jobs:
            self.add(row, job.kind, job.duration)


def _matrix(rows: Sequence[tuple[int, ...]], columns: int) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(len(rows), columns)


@loop
def _stretch(
    jobs: NDArray[np.int64], factors: NDArray[np.float64], table: NDArray[np.int64]
) -> None:
    """`step_plan.slowed_by` of each job, added to its rows."""
    for j in range(jobs.shape[0]):
        duration, row, total, times = jobs[j, 0], jobs[j, 1], jobs[j, 2], jobs[j, 3]
        if duration == 0:
            continue
        piece = table[row]
        if total < 0:
            for column in range(factors.size):
                piece[column] += _stretched(duration, factors[column])
        else:
            kind = table[total]
            for column in range(factors.size):
                time = _stretched(duration, factors[column])
                piece[column] += time
                kind[column] += times * time


@inlined
def _stretched(duration: int, factor: float) -> int:
    """A factor of exactly 1 leaves even durations alone that no float holds."""
    return duration if factor == 1.0 else int(np.rint(duration * factor))
