"""Order of collectives, and each rank's entries and exits.

All ranks use the order of `gcsim.ddp_hook` (iteration, bucket, place in the bucket's exchange), as
they would deadlock otherwise; a rank that is early with a bucket cannot move it forward. A rank
enters a collective when it has asked for it and left all earlier ones, like a process group with
one stream: a collective waits for its last rank, and all later collectives wait as well.

With two slots, as with Gloo's two threads, a rank enters a ring when it has asked for it, entered
the previous collective and left all but one of those before, if that one is a ring. Ring
all-reduces and all-gathers, textbook or Gloo's, are then simulated message by message
(`events/message_ring.py`) and share each rank's network link (`events/egress_queue.py`). All other
collectives, and Gloo's rings of two ranks, run exclusively.

Assumptions: copies of two collectives between device and host do not slow each other, nor do their
messages on a rack's uplink; both directions of Gloo's rings (all-reduces run backwards, all-gathers
forwards) share a rank's link, whichever node it leads to.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (`Options::threads`, 2 by default).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_room, reading
from gcsim.simulator.collectives.rings.messages import common_period
from gcsim.simulator.network.jitter import collective_key, draw_jitter
from gcsim.simulator.steps.events.egress_queue import (
    COLLECTIVES,
    EgressQueue,
    EndOfInstant,
    call_after,
)
from gcsim.simulator.steps.events.message_ring import NOTHING, MessageRing, RingProgram, sizes_of
from gcsim.simulator.steps.schedule import Schedule
from gcsim.simulator.steps.step_plan import CarryOut

Name = tuple[int, int, int]  # iteration, bucket, and place in the bucket's exchange
Rings = Callable[[CollectiveRecord], RingProgram | None]
"""Returns the program of a collective; None: it runs exclusively."""
SLOTS = 2


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


@dataclass(slots=True, kw_only=True, eq=False)
class _Collective:
    """A collective that some class has asked for; lists are by class of ranks."""

    name: Name
    request: Request
    requested: list[bool]
    turns: list[simpy.Event]
    entered: list[Picoseconds]  # -1: not yet
    outside: int  # number of classes that have not entered
    last: Picoseconds = -1  # last entry
    left: Counter[int] = field(default_factory=Counter)  # simulated ranks that have left
    ring: MessageRing | None = None  # None: runs exclusively


def order(schedule: Schedule, first: int = 0) -> Iterator[Name]:
    """Yield the names of all collectives, in order, from iteration `first` of the schedule."""
    for iteration in count() if schedule.communicates else ():
        buckets = schedule.plans[schedule.turn(first + iteration)].buckets
        for bucket, work in enumerate(buckets):
            for place in range(len(work.collectives)):
                yield iteration, bucket, place


class Communicator:
    """Collectives of all ranks; `classes[r]` is the class of rank r."""

    def __init__(
        self,
        env: simpy.Environment,
        schedule: Schedule,
        classes: NDArray[np.int64],
        *,
        execute: CarryOut,
        rings: Rings | None = None,
        seed: int = 0,
        first: int = 0,
    ) -> None:
        """`rings` of two slots; None: all collectives run exclusively."""
        self._env, self._classes, self._execute, self._seed = env, classes, execute, seed
        self._count = int(classes.max()) + 1
        buckets = [bucket for plan in schedule.plans for bucket in plan.buckets] if rings else []
        records = dict.fromkeys(c for bucket in buckets for c in bucket.collectives)
        self._programs = {record: rings(record) if rings else None for record in records}
        programs = [program for program in self._programs.values() if program is not None]
        period = _period(classes, programs)
        self._outlets = [EgressQueue(env) for _ in range(period)]
        self._members: list[list[int]] = [[] for _ in range(self._count)]
        for rank, member in enumerate(classes[:period].tolist()):
            self._members[member].append(rank)
        self._waiting: dict[Name, _Collective] = {}
        """Collectives that some but not all classes have entered or asked for."""
        self._order = [order(schedule, first) for _ in range(self._count)]
        self._ahead = [next(names, None) for names in self._order]  # next collective of each class
        self._inside: list[list[_Collective]] = [[] for _ in range(self._count)]
        """Collectives that each class has entered and not left."""
        self._changed: set[int] = set()  # classes that have asked or left at this instant

    def ask(self, member: int, name: Name, request: Request) -> simpy.Event:
        """Request a collective; return the event of the class's exit. Its value: the class's entry,
        the last rank's entry, the class's exit."""
        known = self._waiting.get(name)
        if known is None:
            known = self._waiting[name] = self._collective(name, request)
        if known.requested[member] or known.request != request:
            raise InternalError(f"class {member} asks twice, or for something else, at {name}")
        known.requested[member] = True
        self._settle_later(member)
        return known.turns[member]

    def state(self) -> str:
        """Describe waiting requests, to report a deadlock."""
        waiting = [
            f"iteration {name[0]} bucket {name[1]} collective {name[2]} "
            f"waits for {known.requested.count(False)} of {self._count} classes of ranks"
            for name, known in sorted(self._waiting.items())
        ]
        inside = [
            f"class {member} is in collective {each.name}"
            for member, all_inside in enumerate(self._inside)
            for each in all_inside
        ]
        return "; ".join(waiting + inside) or "no collective is waiting"

    def _collective(self, name: Name, request: Request) -> _Collective:
        made = _Collective(
            name=name,
            request=request,
            requested=[False] * self._count,
            turns=[self._env.event() for _ in range(self._count)],
            entered=[-1] * self._count,
            outside=self._count,
        )
        program, delay = self._programs.get(request.record), request.exit_delay
        if program is not None:
            if delay:
                back = np.zeros(program.ranks, np.int64) if program.after is None else program.after
                program = replace(program, after=back + delay)
            made.ring = MessageRing(
                self._env,
                program,
                self._outlets,
                order=name,
                jitter=_jitter(program, collective_key(self._seed, *name)),
                done=lambda rank: self._done(made, int(self._classes[rank]), 1),
            )
        return made

    def _settle_later(self, member: int) -> None:
        if not self._changed:
            EndOfInstant(self._env, COLLECTIVES, self._settle)
        self._changed.add(member)

    def _settle(self) -> None:
        """At the end of an instant, let classes leave, then let waiting classes enter."""
        changed, self._changed = sorted(self._changed), set()
        for member in changed:
            for collective in list(self._inside[member]):
                self._leave(member, collective)
        for member in changed:
            while (coming := self._next_to_enter(member)) is not None:
                self._enter(member, coming)

    def _next_to_enter(self, member: int) -> _Collective | None:
        """Return the next collective of the class, if it may enter now."""
        name, inside = self._ahead[member], self._inside[member]
        coming = self._waiting.get(name) if name else None
        if coming is None or not coming.requested[member]:
            return None
        beside = len(inside) < SLOTS and all(one.ring is not None for one in (coming, *inside))
        return coming if beside or not inside else None

    def _enter(self, member: int, collective: _Collective) -> None:
        collective.entered[member] = collective.last = reading(self._env.now)
        self._inside[member].append(collective)
        self._ahead[member] = next(self._order[member], None)
        collective.outside -= 1
        if not collective.outside:
            del self._waiting[collective.name]
        if collective.ring is not None:
            for rank in self._members[member]:
                collective.ring.enter(rank)
        elif not collective.outside:
            self._run_alone(collective)

    def _run_alone(self, collective: _Collective) -> None:
        """Schedule all exits: every class has entered, so later events cannot change them."""
        for member, left in enumerate(self._finishes(collective)):
            done = partial(self._done, collective, member, len(self._members[member]))
            call_after(self._env, left - reading(self._env.now), done)

    def _finishes(self, collective: _Collective) -> list[Picoseconds]:
        """Return the classes' exits from a collective that all have entered. Raises
        `UnlikeRanksError` when ranks of a class leave at different times, `InternalError` for an
        exit before the last entry."""
        classes, request, starts = self._classes, collective.request, collective.entered
        check_room(collective.name[0], max(starts))  # before it must fit in 64 bits
        times: Times = np.array(starts, dtype=np.int64)[classes]
        key = collective_key(self._seed, *collective.name)
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

    def _done(self, collective: _Collective, member: int, ranks: int) -> None:
        collective.left[member] += ranks
        self._settle_later(member)

    def _leave(self, member: int, collective: _Collective) -> None:
        """Let a class leave; raise `UnlikeRanksError` if its ranks leave at different times."""
        left = collective.left[member]
        if not left:
            return
        if left < len(self._members[member]):
            # split into single ranks: the later ones would otherwise be split off one at a time
            place = np.arange(len(self._classes)) % len(self._outlets)
            apart = np.where(self._classes == member, place, 0)
            raise UnlikeRanksError(self._classes, apart)
        self._inside[member].remove(collective)
        now = reading(self._env.now)
        last = now if collective.outside else collective.last  # may leave before all have entered
        collective.turns[member].succeed((collective.entered[member], last, now))


def _period(classes: NDArray[np.int64], programs: Sequence[RingProgram]) -> int:
    """Return the number of first ranks to simulate: the others repeat them."""
    patterns = [classes]
    for program in programs:
        if program.ranks != len(classes):
            raise InternalError(f"a ring of {program.ranks} for {len(classes)} ranks")
        if any(link.random for link in program.links):
            return len(classes)
        places = {link: number for number, link in enumerate(dict.fromkeys(program.links))}
        patterns.append(np.array([places[link] for link in program.links], dtype=np.int64))
        patterns += [*program.pieces.T]
        patterns += [copies for copies in (program.before, program.after) if copies is not None]
    return common_period(*patterns)


def _jitter(program: RingProgram, key: int) -> Times | None:
    """Return random extra latencies `[messages, ranks]` by sender; None without randomness."""
    if not any(link.random for link in program.links):
        return None
    rank = np.array([program.rank(place) for place in range(program.ranks)], dtype=np.int64)
    sizes = np.array(sizes_of(program, program.ranks), dtype=np.int64).T
    real = sizes != NOTHING
    by_place = draw_jitter(
        program.links,
        np.arange(program.ranks, dtype=np.int64),
        np.maximum(sizes, 0),
        key=key,
        message=np.cumsum(real, axis=0) - real,
        rank=rank,
    )
    by_rank = np.empty_like(by_place)
    by_rank[:, rank] = by_place
    return by_rank
