"""Iterations by the vector engine, which computes all ranks at once.

It simulates the step of `events/step.py` with one collective at a time, without an event per rank
and piece of work; results are equal (`==`). Since collectives and the pieces of a stream have the
same order on all ranks (`step_plan.py`), one loop over both computes each time as a sum or maximum
of earlier ones. A rank that begins iteration i + 1 has left all collectives of iteration i, which
all ranks have entered by then, so iterations are simulated one by one, each in O(ranks x (pieces +
collectives)). `sharded.py` has steps with sharded weights.

Source: conservative parallel simulation with the collective as barrier (Chandy and Misra 1979, IEEE
Trans. Softw. Eng. 5(5)).

Arrays, all int64 picoseconds:

| array | shape                            | content                                             |
|-------|----------------------------------|-----------------------------------------------------|
| state | [STATE_ROWS, ranks]              | see `STATE_ROWS`                                    |
| asked | [collectives, ranks]             | when a rank asks for a collective                   |
| side  | [2 buckets + collectives, ranks] | with a side stream: end of each bucket's backward   |
|       |                                  | part; start of each piece of work                   |
| table | [rows, ranks or 1]               | durations; each job is slowed down and rounded,     |
|       |                                  | then added to its piece                             |

| row of a table   | content                                                                   |
|------------------|---------------------------------------------------------------------------|
| FORWARD          | a micro-batch's forward pass                                              |
| BACKWARD         | a whole backward pass, of the micro-batches before the last               |
| OPTIMIZER        | the optimiser                                                             |
| THREAD + b       | bucket b's part of the backward pass, without a side stream with `before` |
| THREAD + buckets | the rest of the backward pass                                             |
| side + b         | with a side stream: bucket b's `before`                                   |
| after + c        | `after` of collective c (numbered by bucket, then place)                  |
| totals + kind    | all work of a kind except side streams', in the order of `_KINDS`         |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_room
from gcsim.simulator.network.jitter import collective_key
from gcsim.simulator.steps import sharded, step_plan
from gcsim.simulator.steps.breakdown import PARTS
from gcsim.simulator.steps.cycles import MOST, Search, Steady, settle
from gcsim.simulator.steps.events.input_loader import earliest
from gcsim.simulator.steps.schedule import Iteration, Schedule, State, beginning, schedule_of
from gcsim.simulator.steps.step_plan import CarryOut, Run, Slowdown, StepPlan, even

_KINDS: tuple[step_plan.Kind, ...] = get_args(step_plan.Kind)
_FORWARD, _BACKWARD, _OPTIMIZER, _THREAD = range(4)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layout:
    side_stream: bool
    buckets: int
    counts: tuple[int, ...]  # number of collectives by bucket
    first: tuple[int, ...]  # number of each bucket's first collective
    names: tuple[tuple[int, int], ...]  # bucket and place by collective
    order: tuple[step_plan.Piece, ...]  # pieces of the stream that serves callbacks
    side: int
    after: int
    totals: int
    jobs: NDArray[np.int64]
    """`[jobs, 4]`: duration, row, row of its kind's total (-1: none), times in an iteration."""
    side_jobs: NDArray[np.int64]
    """`[side jobs, 3]` by piece: duration, piece (`side + b` or `after + c`, less `side`), kind in
    `_KINDS`."""

    @staticmethod
    def of(plan: StepPlan) -> _Layout:
        """Layout of a plan; `InternalError` when its lists do not fit together."""
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
        side = _THREAD + len(buckets) + 1
        after = side + len(buckets)
        totals = after + len(names)
        micro = plan.accumulation - 1
        jobs = _Jobs(totals)
        jobs.add(_FORWARD, "forward", compute.forward, times=micro + 1)
        jobs.add(_BACKWARD, "backward", plan.backward, times=micro)
        jobs.add(_OPTIMIZER, "optimizer", plan.optimizer)
        for b, part in enumerate((*compute.parts, compute.rest)):
            jobs.add(_THREAD + b, "backward", part)
        befores = [(b, job) for b, bucket in enumerate(buckets) for job in bucket.before]
        afters = [job for bucket in buckets for job in bucket.after]
        side_jobs: list[tuple[int, int, int]] = []
        if plan.side_stream:
            placed = [(side + b, job) for b, job in befores]
            placed += [(after + c, job) for c, job in enumerate(afters)]
            for row, job in placed:
                duration = round(job.duration * plan.side_slowdown)
                jobs.rows.append((duration, row, -1, 0))
                side_jobs.append((duration, row - side, _KINDS.index(job.kind)))
        else:
            jobs.add_all((_THREAD + b, job) for b, job in befores)
            jobs.add_all((after + c, job) for c, job in enumerate(afters))
        return _Layout(
            side_stream=plan.side_stream,
            buckets=len(buckets),
            counts=tuple(counts),
            first=tuple(accumulate(counts, initial=0)),
            names=tuple(names),
            order=tuple(step_plan.order_of_service(plan)),
            side=side,
            after=after,
            totals=totals,
            jobs=_matrix(jobs.rows, 4),
            side_jobs=_matrix(side_jobs, 3),
        )

    def room(self, width: int) -> NDArray[np.int64]:
        """Empty table."""
        return np.empty((self.totals + len(_KINDS), width), dtype=np.int64)

    def table(
        self, factors: NDArray[np.float64], room: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Durations of pieces `[rows, width]` at factors `[width]`, written to `room` if given."""
        table = self.room(len(factors)) if room is None else room
        table[:] = 0
        _stretch(self.jobs, factors, table)
        return table

    def unhidden(
        self, begins: NDArray[np.int64], ended: Times, factors: NDArray[np.float64]
    ) -> dict[step_plan.Kind, Times]:
        """Return the side stream's work while the compute stream is idle, by kind.

        `begins` `[pieces, ranks]`: start of each piece; `ended`: end of backward; `factors` `[ranks
        or 1]`: slowdowns. The compute stream works from the last forward pass to the end of
        backward, and then not before the side stream is done.
        """
        durations, pieces, kinds = self.side_jobs.T
        slowed = np.rint(durations[:, None] * factors).astype(np.int64)
        slowed = np.where(factors == 1, durations[:, None], slowed)
        _, first = np.unique(pieces, return_index=True)
        past = slowed.cumsum(axis=0)
        before = np.repeat((past - slowed)[first], np.diff([*first, len(pieces)]), axis=0)
        done = begins[pieces] + past - before
        out = np.clip(done - ended, 0, slowed)  # only the part after the end of the backward pass
        return {kind: out[kinds == place].sum(axis=0) for place, kind in enumerate(_KINDS)}


class _Jobs:
    def __init__(self, totals: int) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self._totals = totals

    def add(self, row: int, kind: step_plan.Kind, duration: Picoseconds, times: int = 1) -> None:
        self.rows.append((duration, row, self._totals + _KINDS.index(kind), times))

    def add_all(self, jobs: Iterable[tuple[int, step_plan.Job]]) -> None:
        for row, job in jobs:
            self.add(row, job.kind, job.duration)


def _matrix(rows: Sequence[tuple[int, ...]], columns: int) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(len(rows), columns)


@loop
def _stretch(
    jobs: NDArray[np.int64], factors: NDArray[np.float64], table: NDArray[np.int64]
) -> None:
    """Add `step_plan.slowed_by` of each job to its rows."""
    for j in range(jobs.shape[0]):
        duration, row, total, times = jobs[j, 0], jobs[j, 1], jobs[j, 2], jobs[j, 3]
        if duration == 0:
            continue
        piece = table[row]
        # a job beside the passes (-1) counts only as far as it outlasts them (`_unhidden_side`)
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
    """`slowed_by`; a factor of 1 keeps durations that no float holds."""
    return duration if factor == 1.0 else int(np.rint(duration * factor))


_ONE = np.ones(1, dtype=np.float64)
FREE, ISSUED, LEFT, SHARED, INPUT, MADE = range(6)
STATE_ROWS = 6
"""Rows of a state: when the callbacks' stream is free; start of the autograd thread's next piece
(with a side stream: end of backward); last exit from a collective; total time in collectives; total
time waiting for batches; when the last batch was made."""


class Vectors:
    """State of all ranks between two collectives or iterations. While all ranks are equal, they
    share one column of the arrays. After they leave a collective at different times, or with
    different slowdowns, each has its own column until they begin an iteration together."""

    def __init__(self, schedule: Schedule, ranks: int, execute: CarryOut, seed: int) -> None:
        self._schedule, self._ranks, self._seed = schedule, ranks, seed
        self._execute = execute
        self._steps = [_PlanArrays(plan) for plan in schedule.plans]
        self._step, plan = self._steps[0], schedule.plans[0]
        self._number = 0  # number of the current or next iteration
        self._batches = 0  # number of batches taken
        self._width = 1  # columns: 1 or `ranks`
        self._state = _zeros(STATE_ROWS, 1)
        self._taken = _zeros(plan.prefetch if plan.input_batch else 1, 1)
        self._asked, self._side = self._step.room(1)
        self._starts, self._start = _zeros(1), _zeros(1)

    def begin(self, number: int, before: State) -> None:
        """Resume with iteration `number` in the state `before`; the first rank starts at 0."""
        start, ahead, batch = before.start, before.ahead, self._step.plan.input_batch
        if not any((row != row[0]).any() for row in (start, *ahead)):
            start, ahead = start[:1], ahead[:, :1]
        self._number, self._batches, self._width = number, 0, len(start)
        self._start, self._starts = start.copy(), _zeros(self._width)
        self._state = _zeros(STATE_ROWS, self._width)
        self._state[LEFT] = start
        self._taken = _zeros(len(self._taken), self._width)
        if batch:
            self._taken[:] = earliest(ahead, batch) + start - batch
            self._state[MADE] = self._taken[0]

    def iteration(self, slowdowns: NDArray[np.float64] | None, parts: dict[str, Times]) -> Times:
        """Simulate the next iteration with `slowdowns` `[ranks]`; return the finish `[ranks]`, or
        `[1]` if all ranks are equal, and fill in `parts` `[ranks]`. Raises `InputError` when the
        clock cannot hold the times."""
        self._step = self._steps[self._schedule.turn(self._number)]
        self._asked, self._side = self._step.room(self._width)
        factors, table = _ONE, self._step.even_table
        if slowdowns is None and self._step.parts:
            slowdowns = np.ones(self._ranks)
        if slowdowns is not None:
            factors = np.ascontiguousarray(slowdowns, dtype=np.float64)
            if factors.shape != (self._ranks,):
                raise InternalError(f"{factors.shape} paces for {self._ranks} ranks")
            if not self._step.parts and (factors == factors[0]).all():
                factors = factors[:1]
            table = self._step.table(factors)
        if self._width > 1 and len(factors) == 1:
            self._join()
        elif self._width < len(factors):
            self._part()
        # before the loops, whose sums would silently exceed 64 bits
        most = ceil(self._step.work * float(factors.max()))
        check_room(self._number, int(self._start.max()) + most)
        self._simulate(table)
        start = self._start  # read after `_part`, which may widen it to all ranks
        state = self._state
        ended = np.maximum(np.maximum(state[FREE], state[ISSUED]), state[LEFT])
        done: Times = ended + table[_OPTIMIZER]
        check_room(self._number, int(done.max()))
        self._account(parts, table, factors)
        exposed = parts["exposed"]
        exposed[:] = done - start
        for known in ("input", *_KINDS):
            exposed -= parts[known]
        self._start = done
        self._number += 1
        self._batches += self._step.plan.accumulation
        self._step.asked, self._step.side = self._asked, self._side
        return done

    def ahead(self) -> NDArray[np.int64]:
        """`Loader.ahead` after the last iteration, `[prefetch, 1 or ranks]`."""
        batch = self._step.plan.input_batch
        if not batch:
            return _zeros(0, self._width)
        ready, made = [], self._state[MADE]
        for taken in np.roll(self._taken, -(self._batches % len(self._taken)), axis=0):
            made = np.maximum(made, taken) + batch
            ready.append(np.maximum(made - self._start, 0))
        return np.array(ready)

    def _simulate(self, table: NDArray[np.int64]) -> None:
        layout, state = self._step.layout, self._state
        state[INPUT] = 0
        state[FREE] = state[ISSUED] = self._passed(table)
        if layout.side_stream:  # the compute stream runs only the backward pass until its end
            ends = state[FREE] + table[_THREAD : layout.side].cumsum(axis=0)
            self._side[: layout.buckets], state[ISSUED] = ends[:-1], ends[-1]
        state[SHARED] = 0
        for piece in layout.order:
            # the piece that requests the collective precedes the one that follows it
            if piece[1] != step_plan.BEFORE:
                self._enter(self._number_of(piece))
            self._serve(piece, table)

    def _passed(self, table: NDArray[np.int64]) -> Times:
        """Run all micro-batches to the end of the last forward pass, and return that. Batch b is
        taken at `_taken[b mod prefetch]`."""
        plan, state, now = self._step.plan, self._state, self._start
        for micro in range(plan.accumulation):
            if micro:
                now = now + table[_BACKWARD]
            if plan.input_batch:
                slot = self._taken[(self._batches + micro) % len(self._taken)]
                # begins when the previous batch is made and its prefetch slot is free
                state[MADE] = np.maximum(state[MADE], slot) + plan.input_batch
                slot[:] = np.maximum(state[MADE], now)
                state[INPUT] += slot - now
                now = slot
            now = now + table[_FORWARD]
        return now

    def _number_of(self, piece: step_plan.Piece) -> int:
        """Return the number of the collective that a piece follows, or of its bucket's first."""
        bucket, place = piece
        return self._step.layout.first[bucket] + max(place, 0)

    def _enter(self, number: int) -> None:
        """Run a collective of all ranks."""
        asked = self._asked[number]
        if number == len(self._asked) - 1 and self._step.plan.gathers:
            asked = np.maximum(self._state[FREE], self._state[ISSUED])  # all other work is done
        self._starts = np.maximum(asked, self._state[LEFT])
        finishes = self._carried_out(number)
        self._state[SHARED] += finishes - self._starts
        self._state[LEFT] = finishes

    def _serve(self, piece: step_plan.Piece, table: NDArray[np.int64]) -> None:
        """Run the next piece on all ranks."""
        layout, state, (bucket, place) = self._step.layout, self._state, piece
        number = self._number_of(piece)
        if place != step_plan.BEFORE:
            work, arrival, row = table[layout.after + number], state[LEFT], number
            asks = number + 1 if place + 1 < layout.counts[bucket] else None
        else:
            work = table[(layout.side if layout.side_stream else _THREAD) + bucket]
            arrival = self._side[bucket] if layout.side_stream else state[ISSUED]
            row, asks = bucket - layout.buckets, None
            if bucket < layout.buckets and layout.counts[bucket]:
                asks = number
        if work.any():
            begins = np.maximum(state[FREE], arrival)
            # a piece without work launches nothing and does not queue
            done = np.where(work > 0, begins + work, arrival)
            state[FREE] = np.where(work > 0, done, state[FREE])
        else:
            begins = done = arrival
        if layout.side_stream:
            self._side[2 * layout.buckets + row] = begins
        elif place == step_plan.BEFORE:
            state[ISSUED] = done
        if asks is not None:
            self._asked[asks] = done

    def _carried_out(self, number: int) -> Times:
        """Return the exit times `[_width]` of a collective that the ranks enter at `_starts`."""
        work, names = self._step.plan.buckets, self._step.layout.names
        bucket, place = names[number]
        record = work[bucket].collectives[place]
        server_time = work[bucket].server_times[place] if work[bucket].server_times else 0
        held = work[bucket].exit_delays[place] if work[bucket].exit_delays else 0
        key = collective_key(self._seed, self._number, bucket, place)
        alike = self._width < self._ranks
        starts = np.repeat(self._starts, self._ranks) if alike else self._starts.copy()
        finishes = np.ascontiguousarray(self._execute(record, starts, server_time, key)) + held
        if finishes.shape != (self._ranks,):
            raise InternalError(f"{finishes.shape} exit times of {self._ranks} ranks")
        if finishes.min() < self._starts.max():
            raise InternalError(
                f"{record.kind}, iteration {self._number}, bucket {bucket}: a rank leaves at "
                f"{finishes.min()} ps, in the past of {self._starts.max()} ps, when the last "
                "one enters"
            )
        if alike:
            if finishes.min() == finishes.max():
                return finishes[:1]
            self._part()
        return finishes

    def _part(self) -> None:
        for name in _COLUMNS:
            values = getattr(self, name)
            columns = (*values.shape[:-1], self._ranks)
            setattr(self, name, np.broadcast_to(values, columns).copy())
        self._width = self._ranks

    def _join(self) -> None:
        """Return to one column if the ranks' states are equal again."""
        matters = [self._start, self._state[MADE], *self._taken]
        if all((values == values[0]).all() for values in matters):
            for name in _COLUMNS:
                setattr(self, name, np.ascontiguousarray(getattr(self, name)[..., :1]))
            self._width = 1

    def _account(
        self, parts: dict[str, Times], table: NDArray[np.int64], factors: NDArray[np.float64]
    ) -> None:
        """Fill in an iteration's parts `[ranks]`, except the exposed communication."""
        totals = table[self._step.layout.totals :]
        for place, kind in enumerate(_KINDS):
            parts[kind][:] = totals[place]
        layout, begins = self._step.layout, self._side[self._step.layout.buckets :]
        for ranks, own in self._step.parts or ((slice(None), layout),):
            if layout.side_stream:
                paces = factors[ranks] if len(factors) > 1 else factors
                ended = self._state[ISSUED][ranks]
                for kind, times in own.unhidden(begins[:, ranks], ended, paces).items():
                    parts[kind][ranks] += times
        parts["communication"][:] = self._state[SHARED]
        parts["input"][:] = self._state[INPUT]


_COLUMNS = ("_state", "_taken", "_asked", "_side", "_starts", "_start")


def _zeros(*shape: int) -> NDArray[np.int64]:
    return np.zeros(shape, dtype=np.int64)


class _PlanArrays:
    def __init__(self, plan: StepPlan) -> None:
        if plan.machines is not None:
            raise InternalError("ranks that share cores: only events simulate that")
        if plan.slots != 1:
            raise InternalError(f"{plan.slots} collectives at a time: only events simulate that")
        if plan.input_batch and plan.prefetch < 1:
            raise InternalError(f"a loader that keeps {plan.prefetch} batches never makes one")
        self.work = max(_work(each) for each in (plan, *(own for _, own in plan.groups)))
        check_room(0, self.work)  # longer times fit no table
        self.plan, self.layout = plan, _Layout.of(plan)
        ends = list(accumulate((count for count, _ in plan.groups), initial=0))
        self.parts = [
            (slice(ends[number], ends[number + 1]), _Layout.of(own))
            for number, (_, own) in enumerate(plan.groups)
        ]
        """Number of ranks of each group and layout of its plan; empty: all follow one plan."""
        self.even_table = self.layout.table(_ONE)
        self.asked, self.side = _zeros(0, 0), _zeros(0, 0)
        self._uneven = _zeros(0, 0)

    def table(self, factors: NDArray[np.float64]) -> NDArray[np.int64]:
        """Durations at these factors; overwritten by the next call."""
        if self._uneven.shape[-1] != len(factors):
            self._uneven = self.layout.room(len(factors))
        if not self.parts:
            return self.layout.table(factors, self._uneven)
        for ranks, layout in self.parts:
            own = factors[ranks]
            self._uneven[:, ranks] = layout.table(_ONE if (own == 1).all() else own)
        return self._uneven

    def room(self, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return uninitialised arrays `asked` and `side` of this width."""
        if self.asked.shape[-1] != width or self.side.shape[-1] != width:
            layout, collectives = self.layout, len(self.layout.names)
            pieces = int(layout.side_stream) * (2 * layout.buckets + collectives)
            self.asked, self.side = _zeros(collectives, width), _zeros(pieces, width)
        return self.asked, self.side


def _work(plan: StepPlan) -> Picoseconds:
    """Return the work of a rank's streams and loader in an iteration, with a slowdown of 1."""
    jobs = [job for bucket in plan.buckets for job in (*bucket.before, *bucket.after)]
    exchanges = ceil(
        sum(job.duration for job in jobs) * max(Fraction(1), plan.side_slowdown)
    ) + len(jobs)
    backward = max(plan.compute.backward, plan.backward)  # with an exchange, or alone
    micro_batch = plan.compute.forward + backward + plan.input_batch
    return plan.accumulation * micro_batch + exchanges + plan.optimizer


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
            ahead=np.broadcast_to(vectors.ahead(), (len(begin.ahead), ranks))
            if len(begin.ahead)
            else begin.ahead,
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
