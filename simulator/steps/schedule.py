"""Schedule of iterations: the plan of each iteration, and the state in which it begins.

A schedule is a round of plans that repeats for ever; a `State` carries over between iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_room
from gcsim.simulator.steps.step_plan import Run, Span, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A sequence of plans that repeats for ever."""

    plans: tuple[StepPlan, ...]  # all different
    turns: tuple[int, ...]  # each iteration's plan, in the shortest repeated round

    @staticmethod
    def of(plans: Sequence[StepPlan], turns: Sequence[int]) -> Schedule:
        """Iteration i follows plan `turns[i mod len(turns)]`; plans may be equal. Raises
        `InternalError` where plans have different streams, cores or loaders."""
        numbers: dict[StepPlan, int] = {}
        number_of = [numbers.setdefault(plan, len(numbers)) for plan in plans]
        if not turns or len({_resources(plan) for plan in numbers}) > 1:
            raise InternalError("plans that follow each other have other slots, cores or loaders")
        return Schedule(
            plans=tuple(numbers), turns=shortest_round([number_of[turn] for turn in turns])
        )

    def __len__(self) -> int:
        return len(self.turns)

    def turn(self, iteration: int) -> int:
        """Number of an iteration's plan."""
        return self.turns[iteration % len(self.turns)]

    def groups(self) -> tuple[NDArray[np.int64], ...]:
        """Group of each rank, `[ranks]`; empty if all ranks follow the same plans."""
        counts = next(([n for n, _ in plan.groups] for plan in self.plans if plan.groups), None)
        if counts is None:
            return ()
        return (np.repeat(np.arange(len(counts), dtype=np.int64), counts),)

    @property
    def communicates(self) -> bool:
        """Whether ranks ever wait for each other."""
        return any(bucket.collectives for plan in self.plans for bucket in plan.buckets)

    @property
    def sharded(self) -> bool:
        """Whether its plans shard weights."""
        return self.plans[0].sharded

    @property
    def interacts(self) -> bool:
        """Whether ranks affect each other, through collectives or shared cores."""
        return self.communicates or self.plans[0].machines is not None


def schedule_of(plan: StepPlan | Schedule) -> Schedule:
    """Return a plan as a schedule of its own."""
    return Schedule.of([plan], [0]) if isinstance(plan, StepPlan) else plan


def shortest_round(turns: Sequence[int]) -> tuple[int, ...]:
    """Return the shortest part of a round that gives all of it when repeated."""
    for length in range(1, len(turns) // 2 + 1):
        if len(turns) % length == 0 and all(
            turns[place] == turns[place - length] for place in range(length, len(turns))
        ):
            return tuple(turns[:length])
    return tuple(turns)


def _resources(plan: StepPlan) -> tuple[object, ...]:
    return (plan.slots, plan.machines, plan.input_batch, plan.prefetch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """Times that later iterations depend on, up to a common shift (`cycles.py`)."""

    start: Times
    """`[ranks]`: begin of the next iteration, from the first rank's; 0 where ranks never meet."""
    ahead: Times
    """`[prefetch, ranks]`: `Loader.ahead` at each rank's start; `[0, ranks]` without a loader."""

    def digest(self) -> bytes:
        """Return a hash of 128 bits."""
        hashed = blake2b(self.start.tobytes(), digest_size=16)
        hashed.update(self.ahead.tobytes())
        return hashed.digest()

    def distance(self, other: State) -> Picoseconds:
        """Return the largest difference of two corresponding times."""
        apart = int(np.abs(self.start - other.start).max(initial=0))
        return max(apart, int(np.abs(self.ahead - other.ahead).max(initial=0)))


def beginning(schedule: Schedule, ranks: int) -> State:
    """Return the initial state, with empty loaders; `InputError` if batches exceed the clock."""
    plan = schedule.plans[0]
    prefetch = plan.prefetch if plan.input_batch else 0
    check_room(0, plan.input_batch * prefetch)
    made = plan.input_batch * np.arange(1, prefetch + 1, dtype=np.int64)
    return State(
        start=np.zeros(ranks, dtype=np.int64), ahead=np.repeat(made[:, None], ranks, axis=1)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Iteration:
    """One iteration of all ranks, in picoseconds."""

    durations: Times  # `[ranks]`
    parts: Mapping[str, Times]  # `Run.parts`, `[ranks]` each
    after: State
    elapsed: Picoseconds  # from the first rank's begin to the first rank's end


def run_of(iterations: Sequence[Iteration], *, spans: tuple[Span, ...] = ()) -> Run:
    """Join consecutive iterations to a run that begins at 0."""
    durations: Times = np.array([iteration.durations for iteration in iterations])
    return Run(
        finish=durations.cumsum(axis=0),
        parts={
            part: np.array([iteration.parts[part] for iteration in iterations])
            for part in iterations[0].parts
        },
        spans=spans,
    )
