"""Schedule of iterations: the plan that each follows, and the state in which it begins.

A schedule is a round of plans that goes on for ever: synchronise, nine local steps, synchronise,
nine local steps. What one iteration leaves behind for the next, whatever their plans, is a `State`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_room
from gcsim.simulator.steps.step_plan import Run, Span, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Plans that follow each other, again and again."""

    plans: tuple[StepPlan, ...]
    """All different."""
    turns: tuple[int, ...]
    """The number of each iteration's plan, in the shortest round that is repeated."""

    @staticmethod
    def of(plans: Sequence[StepPlan], turns: Sequence[int]) -> Schedule:
        """Iteration i follows plan `turns[i mod len(turns)]`, where plans may be equal.

        Raises `InternalError` where plans do not run on the same streams, cores and loaders.
        """
        numbers: dict[StepPlan, int] = {}
        number_of = [numbers.setdefault(plan, len(numbers)) for plan in plans]
        if not turns or len({_resources(plan) for plan in numbers}) > 1:
            raise InternalError("plans that follow each other have other slots, cores or loaders")
        return Schedule(
            plans=tuple(numbers), turns=shortest_round([number_of[turn] for turn in turns])
        )

    def __len__(self) -> int:
        """Iterations of a round."""
        return len(self.turns)

    def turn(self, iteration: int) -> int:
        """The number of an iteration's plan."""
        return self.turns[iteration % len(self.turns)]

    @property
    def communicates(self) -> bool:
        """Whether ranks ever wait for each other."""
        return any(bucket.collectives for plan in self.plans for bucket in plan.buckets)

    @property
    def interacts(self) -> bool:
        """Whether what a rank does can matter to another: they talk, or share cores."""
        return self.communicates or self.plans[0].machines is not None


def schedule_of(plan: StepPlan | Schedule) -> Schedule:
    """A plan by itself is repeated."""
    return Schedule.of([plan], [0]) if isinstance(plan, StepPlan) else plan


def shortest_round(turns: Sequence[int]) -> tuple[int, ...]:
    """The shortest part of a round that, repeated, is all of it."""
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
    """State that the following iterations depend on, up to a shift (why: `cycles.py`)."""

    start: Times
    """`[ranks]`: when each begins the next iteration, from when the first one does. All 0 where
    ranks never meet: each is a system of its own."""
    ahead: Times
    """`[prefetch, ranks]`: from a rank's start, when its loader will have made its next batches,
    as `Loader.ahead`; `[0, ranks]` without a loader."""

    def digest(self) -> bytes:
        """The same of equal states, of 128 bits."""
        hashed = blake2b(self.start.tobytes(), digest_size=16)
        hashed.update(self.ahead.tobytes())
        return hashed.digest()

    def distance(self, other: State) -> Picoseconds:
        """The largest difference of a time."""
        apart = int(np.abs(self.start - other.start).max(initial=0))
        return max(apart, int(np.abs(self.ahead - other.ahead).max(initial=0)))


def beginning(schedule: Schedule, ranks: int) -> State:
    """All begin together, and no loader has anything. Raises `InputError` for batches that take
    longer than the clock can tell."""
    plan = schedule.plans[0]
    prefetch = plan.prefetch if plan.input_batch else 0
    check_room(0, plan.input_batch * prefetch)
    made = plan.input_batch * np.arange(1, prefetch + 1, dtype=np.int64)
    return State(
        start=np.zeros(ranks, dtype=np.int64), ahead=np.repeat(made[:, None], ranks, axis=1)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Iteration:
    """Activity of all ranks between two states, in picoseconds."""

    durations: Times
    """`[ranks]`: from a rank's begin to its end."""
    parts: Mapping[str, Times]
    """`[ranks]` each, as `Run.parts`."""
    after: State
    elapsed: Picoseconds
    """From when the first rank begins it to when the first one ends it."""


def run_of(iterations: Sequence[Iteration], *, spans: tuple[Span, ...] = ()) -> Run:
    """Iterations that follow each other from a beginning at 0."""
    durations: Times = np.array([iteration.durations for iteration in iterations])
    return Run(
        finish=durations.cumsum(axis=0),
        parts={
            part: np.array([iteration.parts[part] for iteration in iterations])
            for part in iterations[0].parts
        },
        spans=spans,
    )
