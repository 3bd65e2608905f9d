"""Order of collectives, and each rank's entries and exits.

A communicator runs collectives one after another, like a process group with one stream. All ranks
use the order of `gcsim.ddp_hook` (iteration, bucket, place in the bucket's exchange), as they would
deadlock otherwise; a rank that is early with a bucket cannot move it forward. A collective waits
for its last rank, and all later collectives wait as well. A rank enters a collective when it has
asked for it and left the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_room, reading
from gcsim.simulator.network.jitter import collective_key
from gcsim.simulator.steps.events.egress_queue import COLLECTIVES, EndOfInstant
from gcsim.simulator.steps.schedule import Schedule
from gcsim.simulator.steps.step_plan import CarryOut

Name = tuple[int, int, int]  # iteration, bucket, and place in the bucket's exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A rank's request for a collective."""

    record: CollectiveRecord
    server_time: Picoseconds = 0
    exit_delay: Picoseconds = 0  # `BucketWork.exit_delays`


class UnlikeRanksError(Exception):
    """Ranks that are simulated as one class act differently, or at different times."""

    def __init__(self, classes: NDArray[np.int64], differ: NDArray[np.generic]) -> None:
        """`differ` `[ranks]`: unequal for ranks of a class in `classes` that must be split."""
        super().__init__(classes, differ)  # SimPy makes a copy from these when a process raises it
        _, value = np.unique(differ, return_inverse=True)
        _, first, alike = np.unique(
            classes * len(classes) + value, return_index=True, return_inverse=True
        )
        self.finer = first.argsort().argsort()[alike]
        """Class of each rank, numbered by lowest rank."""


@dataclass(slots=True, kw_only=True)
class Pending:
    """A requested collective."""

    name: Name
    request: Request
    requested_at: list[Picoseconds]  # time of the request by class; -1: none yet
    turns: list[simpy.Event]
    missing: int  # number of classes that have not asked


def order(schedule: Schedule, first: int = 0) -> Iterator[Name]:
    """Yield the names of all collectives, in order, from iteration `first` of the schedule."""
    for iteration in count() if schedule.communicates else ():
        buckets = schedule.plans[schedule.turn(first + iteration)].buckets
        for bucket, work in enumerate(buckets):
            for place in range(len(work.collectives)):
                yield iteration, bucket, place


class CollectiveRequests:
    """Requested collectives that have not finished; `classes[r]` is the class of rank r."""

    def __init__(
        self, env: simpy.Environment, classes: NDArray[np.int64], execute: CarryOut, seed: int
    ) -> None:
        self._env, self._classes, self._execute, self._seed = env, classes, execute, seed
        self._count = int(classes.max()) + 1
        self._pending: dict[Name, Pending] = {}
        self._settling = False

    def ask(self, member: int, name: Name, request: Request) -> simpy.Event:
        """Request a collective; return the event of the class's exit. Its value: the class's entry,
        the last rank's entry, the class's exit."""
        self._settle_later()
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = Pending(
                name=name,
                request=request,
                requested_at=[-1] * self._count,
                turns=[self._env.event() for _ in range(self._count)],
                missing=self._count,
            )
        if pending.requested_at[member] >= 0 or pending.request != request:
            raise InternalError(f"class {member} asks twice, or for something else, at {name}")
        pending.requested_at[member] = reading(self._env.now)
        pending.missing -= 1
        return pending.turns[member]

    def state(self) -> str:
        """Waiting requests, to report a deadlock."""
        waiting = [
            f"iteration {name[0]} bucket {name[1]} collective {name[2]} "
            f"waits for {pending.missing} of {self._count} classes of ranks"
            for name, pending in sorted(self._pending.items())
        ]
        return "; ".join(waiting) or "no collective is waiting"

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            EndOfInstant(self._env, COLLECTIVES, self._settle)

    def _settle(self) -> None:
        """Let classes leave and enter, at the end of an instant."""
        self._settling = False

    def _finishes(self, pending: Pending, starts: Sequence[Picoseconds]) -> list[Picoseconds]:
        """Return the classes' exits from a collective that they enter at `starts`. Raises
        `UnlikeRanksError` when ranks of a class leave at different times, `InternalError` for an
        exit before the last entry."""
        classes, request = self._classes, pending.request
        check_room(pending.name[0], max(starts))  # before it must fit in 64 bits
        times: Times = np.array(starts, dtype=np.int64)[classes]
        key = collective_key(self._seed, *pending.name)
        finishes = (
            self._execute(request.record, times, request.server_time, key) + request.exit_delay
        )
        if int(finishes.min()) < max(starts):
            raise InternalError(
                f"{request.record.kind}: a rank leaves at {finishes.min()} ps, in the past of "
                f"{max(starts)} ps, when the last one enters"
            )
        left = np.empty(len(starts), dtype=np.int64)
        left[classes[::-1]] = finishes[::-1]  # exit of the lowest rank of each class
        if (left[classes] != finishes).any():
            raise UnlikeRanksError(classes, finishes)
        by_class: list[Picoseconds] = left.tolist()
        return by_class


class Communicator(CollectiveRequests):
    """Collectives of all ranks, one at a time."""

    def __init__(
        self,
        env: simpy.Environment,
        schedule: Schedule,
        classes: NDArray[np.int64],
        *,
        execute: CarryOut,
        seed: int = 0,
        first: int = 0,
    ) -> None:
        super().__init__(env, classes, execute, seed)
        self._free = [0] * self._count  # exit of each class from the collective before
        self._order = order(schedule, first)
        self._next = next(self._order, None)

    def _settle(self) -> None:
        """Run the next collective if all have asked; at their exit, ranks may ask for another."""
        super()._settle()
        pending = self._pending.get(self._next) if self._next else None
        if pending is not None and not pending.missing:
            del self._pending[pending.name]
            self._next = next(self._order, None)
            self._run(pending)
            self._settle_later()

    def _run(self, pending: Pending) -> None:
        """Determine all exits: every class has asked, so later events cannot change them."""
        starts = list(map(max, pending.requested_at, self._free))
        self._free = self._finishes(pending, starts)
        last = max(starts)
        for turn, start, end in zip(pending.turns, starts, self._free, strict=True):
            turn.succeed((start, last, end))
