"""In which order do collectives run, and when does each rank enter and leave?

One communicator carries out collectives strictly one after another, as a process group with one
stream does. All ranks use one order, without which they would deadlock: a collective joins the
queue when the first rank asks for it; those that join at the same instant do so by bucket, then
by their place in the bucket's exchange. So the buckets' first collectives go strictly in bucket
order, and a bucket's later collectives (PowerSGD's second all-reduce) queue behind what has been
asked for already. The collective at the head waits for its last rank, and everything behind it
waits too.

A rank enters a collective when it has asked for it and has left the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, reading
from gcsim.simulator.instant import COLLECTIVES, Later

CarryOut = Callable[[CollectiveRecord, Times, Picoseconds], Times]
"""A collective's exit times `[p]`, given its record, entry times `[p]` and server time."""
Name = tuple[int, int]
"""Bucket, and place among the bucket's collectives."""


class UnequalExitsError(Exception):
    """Ranks that were simulated as one leave a collective at different times."""

    def __init__(self, finer: NDArray[np.int64]) -> None:
        super().__init__("classes of ranks must be finer")
        self.finer = finer
        """The class of each rank, so that members of a class leave together."""


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A collective that some rank has asked for."""

    record: CollectiveRecord
    server_time: Picoseconds
    asked: list[Picoseconds]
    """By class of ranks; -1 for those that have not."""
    turns: list[simpy.Event]
    missing: int


class Communicator:
    """The queue of collectives of all ranks; `classes[r]` is the class of rank r."""

    def __init__(
        self, env: simpy.Environment, classes: NDArray[np.int64], carry_out: CarryOut
    ) -> None:
        self._env, self._classes, self._carry_out = env, classes, carry_out
        self._count = int(classes.max()) + 1
        self._free = [0] * self._count
        """When each class has left the collective before."""
        self._joining: list[Name] = []
        self._queue: deque[Name] = deque()
        self._pending: dict[Name, _Pending] = {}
        self._settling = False
        self._last_bucket = -1

    def ask(
        self, member: int, name: Name, record: CollectiveRecord, server_time: Picoseconds
    ) -> simpy.Event:
        """An event that comes with (entry, exit) of this class once they are known."""
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = _Pending(
                record=record,
                server_time=server_time,
                asked=[-1] * self._count,
                turns=[self._env.event() for _ in range(self._count)],
                missing=self._count,
            )
            self._joining.append(name)
        if pending.asked[member] >= 0 or pending.record != record:
            raise InternalError(f"class {member} asks twice, or for something else, at {name}")
        pending.asked[member] = reading(self._env.now)
        pending.missing -= 1
        if not self._settling:
            self._settling = True
            Later(self._env, COLLECTIVES, self._settle)
        return pending.turns[member]

    def state(self) -> str:
        """What is waiting, for a report of a deadlock."""
        waiting = [
            f"bucket {bucket} collective {index} waits for {self._pending[bucket, index].missing}"
            f" of {self._count} classes of ranks"
            for bucket, index in [*self._queue, *sorted(self._joining)]
        ]
        return "; ".join(waiting) or "no collective is waiting"

    def _settle(self) -> None:
        self._settling = False
        for name in sorted(self._joining):
            bucket, index = name
            if index == 0:
                if bucket < self._last_bucket:
                    raise InternalError(f"bucket {bucket} after bucket {self._last_bucket}")
                self._last_bucket = bucket
            self._queue.append(name)
        self._joining.clear()
        while self._queue and self._pending[self._queue[0]].missing == 0:
            self._run(self._pending.pop(self._queue.popleft()))

    def _run(self, pending: _Pending) -> None:
        """Everybody has asked: nothing that happens later can change when they leave."""
        entry = list(map(max, pending.asked, self._free))
        times = np.array(entry, dtype=np.int64)[self._classes]
        exits = self._carry_out(pending.record, times, pending.server_time)
        if int(exits.min()) < max(entry):
            raise InternalError(
                f"{pending.record.kind}: a rank leaves at {exits.min()} ps, in the past of "
                f"{max(entry)} ps, when the last one enters"
            )
        left = np.empty(self._count, dtype=np.int64)
        left[self._classes[::-1]] = exits[::-1]  # of the lowest rank of each class
        if (left[self._classes] != exits).any():
            raise UnequalExitsError(_refine(self._classes, exits))
        self._free = left.tolist()
        for turn, start, end in zip(pending.turns, entry, self._free, strict=True):
            turn.succeed((start, end))


def _refine(classes: NDArray[np.int64], exits: Times) -> NDArray[np.int64]:
    """Classes of ranks that were alike and leave together, numbered by their lowest rank."""
    alike = list(zip(classes.tolist(), exits.tolist(), strict=True))
    number = {key: place for place, key in enumerate(dict.fromkeys(alike))}
    return np.array([number[key] for key in alike], dtype=np.int64)
