"""In which order do collectives run, and when does each rank enter and leave?

One communicator carries out collectives strictly one after another, as a process group with one
stream does. All ranks use one order, without which they would deadlock: a collective joins the
queue when the first rank asks for it; those that join at the same instant do so by iteration,
bucket, and place in the bucket's exchange. So a bucket's later collectives (PowerSGD's second
all-reduce) queue behind what has been asked for already. The collective at the head waits for its
last rank, and everything behind it waits too.

A rank enters a collective when it has asked for it and has left the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, reading
from gcsim.simulator.network.jitter import collective_key
from gcsim.simulator.steps.events.priorities import COLLECTIVES, Later
from gcsim.simulator.steps.step_plan import CarryOut

Name = tuple[int, int, int]
"""Iteration, bucket, and place among the bucket's collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a rank asks for."""

    record: CollectiveRecord
    server_time: Picoseconds = 0
    held: Picoseconds = 0
    """`BucketWork.held`."""


class Asking(Protocol):
    """What workers see of a communicator."""

    def ask(self, member: int, name: Name, request: Request) -> simpy.Event:
        """An event that comes with (own entry, last rank's entry, own exit) of this class once they
        are known."""


class UnlikeRanksError(Exception):
    """Ranks that were simulated as one do different things, or at different times."""

    def __init__(self, classes: NDArray[np.int64], differ: Sequence[float]) -> None:
        """By rank: its class, and what tells it from others of its class."""
        super().__init__(classes, differ)  # SimPy makes a copy from these when a process raises it
        alike = list(zip(classes.tolist(), differ, strict=True))
        number = {key: place for place, key in enumerate(dict.fromkeys(alike))}
        self.finer = np.array([number[key] for key in alike], dtype=np.int64)
        """The class of each rank, numbered by their lowest rank."""


@dataclass(slots=True, kw_only=True)
class Pending:
    """A collective that some rank has asked for."""

    name: Name
    request: Request
    asked: list[Picoseconds]
    """By class of ranks; -1 for those that have not."""
    turns: list[simpy.Event]
    missing: int
    """Classes that have not asked."""
    joined: Picoseconds = -1
    """The instant at which the first class asked."""


class Queue:
    """The collectives that have been asked for, in the order that all ranks use."""

    def __init__(self, env: simpy.Environment, classes: int) -> None:
        self._env, self._count = env, classes
        self._joining: list[Name] = []
        self._known: dict[Name, Pending] = {}
        self.waiting: deque[Pending] = deque()

    def ask(self, member: int, name: Name, request: Request) -> simpy.Event:
        """Note that a class asks now; its turn."""
        pending = self._known.get(name)
        if pending is None:
            pending = self._known[name] = Pending(
                name=name,
                request=request,
                asked=[-1] * self._count,
                turns=[self._env.event() for _ in range(self._count)],
                missing=self._count,
            )
            self._joining.append(name)
        if pending.asked[member] >= 0 or pending.request != request:
            raise InternalError(f"class {member} asks twice, or for something else, at {name}")
        pending.asked[member] = reading(self._env.now)
        pending.missing -= 1
        return pending.turns[member]

    def join(self) -> list[Pending]:
        """Those that were first asked for at this instant queue up, by name; the new ones."""
        now = reading(self._env.now)
        new = [self._known[name] for name in sorted(self._joining)]
        self._joining.clear()
        for pending in new:
            pending.joined = now
        together = list(new)
        while self.waiting and self.waiting[-1].joined == now:
            together.append(self.waiting.pop())
        self.waiting += sorted(together, key=lambda pending: pending.name)
        return new

    def pop(self) -> Pending:
        """The one at the head, which all classes have asked for."""
        pending = self.waiting.popleft()
        return self._known.pop(pending.name)

    def state(self) -> str:
        """What is waiting, for a report of a deadlock."""
        waiting = [
            f"iteration {pending.name[0]} bucket {pending.name[1]} collective {pending.name[2]} "
            f"waits for {pending.missing} of {self._count} classes of ranks"
            for pending in [*self.waiting, *map(self._known.__getitem__, sorted(self._joining))]
        ]
        return "; ".join(waiting) or "no collective is waiting"


class Communicator:
    """The collectives of all ranks, one at a time; `classes[r]` is the class of rank r."""

    def __init__(
        self,
        env: simpy.Environment,
        classes: NDArray[np.int64],
        execute: CarryOut,
        seed: int = 0,
    ) -> None:
        self._env, self._classes, self._execute, self._seed = env, classes, execute, seed
        count = int(classes.max()) + 1
        self._free = [0] * count
        """When each class has left the collective before."""
        self._queue = Queue(env, count)
        self._settling = False

    def ask(self, member: int, name: Name, request: Request) -> simpy.Event:
        """As `Asking.ask`."""
        self._settle_later()
        return self._queue.ask(member, name, request)

    def state(self) -> str:
        """What is waiting, for a report of a deadlock."""
        return self._queue.state()

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            Later(self._env, COLLECTIVES, self._settle)

    def _settle(self) -> None:
        """One at a time: who leaves it at once may ask for another at this very instant."""
        self._settling = False
        self._queue.join()
        if self._queue.waiting and not self._queue.waiting[0].missing:
            self._run(self._queue.pop())
            self._settle_later()

    def _run(self, pending: Pending) -> None:
        """Everybody has asked: nothing that happens later can change when they leave."""
        starts = list(map(max, pending.asked, self._free))
        self._free = finishes_by_class(pending, starts, self._classes, self._execute, self._seed)
        last = max(starts)
        for turn, start, end in zip(pending.turns, starts, self._free, strict=True):
            turn.succeed((start, last, end))


def finishes_by_class(
    pending: Pending,
    starts: Sequence[Picoseconds],
    classes: NDArray[np.int64],
    execute: CarryOut,
    seed: int,
) -> list[Picoseconds]:
    """When each class leaves a collective that it enters at `starts`.

    Raises `UnlikeRanksError` when members of a class leave at different times, `InternalError`
    when a rank leaves before the last one has entered.
    """
    times: Times = np.array(starts, dtype=np.int64)[classes]
    key = collective_key(seed, *pending.name)
    request = pending.request
    finishes = execute(request.record, times, request.server_time, key) + request.held
    if int(finishes.min()) < max(starts):
        raise InternalError(
            f"{request.record.kind}: a rank leaves at {finishes.min()} ps, in the past of "
            f"{max(starts)} ps, when the last one enters"
        )
    left = np.empty(len(starts), dtype=np.int64)
    left[classes[::-1]] = finishes[::-1]  # of the lowest rank of each class
    if (left[classes] != finishes).any():
        raise UnlikeRanksError(classes, finishes.tolist())
    by_class: list[Picoseconds] = left.tolist()
    return by_class
