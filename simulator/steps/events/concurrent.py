"""Entries and exits of ranks with two collectives at a time.

As with Gloo's two threads, a rank enters a collective when it has asked for it, entered the
previous one and left all but one of those before, in the order of `events/communicator.py`. Ring
all-reduces and all-gathers, textbook or Gloo's, are simulated message by message
(`events/message_ring.py`) and share each rank's network link (`events/egress_queue.py`). All other
collectives, and Gloo's rings of two ranks, run exclusively: a rank enters them after it has left
all earlier ones, and enters the next one after it has left them.

Assumptions: copies of two collectives between device and host do not slow each other, nor do their
messages on a rack's uplink; both directions of Gloo's rings (all-reduces run backwards, all-gathers
forwards) share a rank's link, whichever node it leads to.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (`Options::threads`, 2 by default).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, reading
from gcsim.simulator.collectives.rings.messages import common_period
from gcsim.simulator.network.jitter import collective_key, draw_jitter
from gcsim.simulator.steps.events import communicator
from gcsim.simulator.steps.events.egress_queue import COLLECTIVES, EgressQueue, EndOfInstant
from gcsim.simulator.steps.events.message_ring import NOTHING, MessageRing, RingProgram, sizes_of
from gcsim.simulator.steps.schedule import Schedule
from gcsim.simulator.steps.step_plan import CarryOut

Rings = Callable[[CollectiveRecord], RingProgram | None]
"""Returns the program of a collective; None: it runs exclusively."""
SLOTS = 2


@dataclass(slots=True, kw_only=True)
class _Running:
    """A collective that some class has entered."""

    pending: communicator.Pending
    ring: MessageRing | None  # None: runs exclusively
    entered: list[Picoseconds]  # entry by class of ranks; -1: not yet
    left: list[int] = field(default_factory=list)
    """Simulated ranks that have left while their class has not."""


class TwoSlots(communicator.CollectiveRequests):
    """Collectives of all ranks, two at a time."""

    def __init__(
        self,
        env: simpy.Environment,
        schedule: Schedule,
        classes: NDArray[np.int64],
        *,
        execute: CarryOut,
        rings: Rings,
        seed: int = 0,
        first: int = 0,
    ) -> None:
        super().__init__(env, classes, execute, seed)
        buckets = [bucket for plan in schedule.plans for bucket in plan.buckets]
        records = dict.fromkeys(c for bucket in buckets for c in bucket.collectives)
        self._programs = {record: rings(record) for record in records}
        programs = [program for program in self._programs.values() if program is not None]
        period = _period(classes, programs)
        self._outlets = [EgressQueue(env) for _ in range(period)]
        self._members: list[list[int]] = [[] for _ in range(self._count)]
        for rank, member in enumerate(classes[:period].tolist()):
            self._members[member].append(rank)
        self._running: dict[communicator.Name, _Running] = {}
        """Collectives that some but not all classes have entered."""
        self._order = [communicator.order(schedule, first) for _ in range(self._count)]
        self._ahead = [next(names, None) for names in self._order]  # next collective of each class
        self._inside: list[list[_Running]] = [[] for _ in range(self._count)]
        """Collectives that each class has entered and not left."""

    def state(self) -> str:
        """Describe waiting requests, to report a deadlock."""
        inside = [
            f"class {member} is in collective {running.pending.name}"
            for member, all_inside in enumerate(self._inside)
            for running in all_inside
        ]
        return "; ".join([super().state(), *inside])

    def _settle(self) -> None:
        """Let classes leave, then let waiting classes enter."""
        super()._settle()
        for member in range(self._count):
            for running in list(self._inside[member]):
                self._leave(member, running)
        for member in range(self._count):
            while (coming := self._next_to_enter(member)) is not None:
                self._enter(member, coming)

    def _next_to_enter(self, member: int) -> _Running | None:
        """Return the next collective of the class, if it may enter now."""
        name, inside = self._ahead[member], self._inside[member]
        pending = self._pending.get(name) if name else None
        if pending is None or pending.requested_at[member] < 0:
            return None
        running = self._running.get(pending.name) or self._new(pending)
        beside = len(inside) < SLOTS and all(one.ring is not None for one in (running, *inside))
        return running if beside or not inside else None

    def _new(self, pending: communicator.Pending) -> _Running:
        program, delay = self._programs[pending.request.record], pending.request.exit_delay
        running = _Running(pending=pending, ring=None, entered=[-1] * self._count)
        if program is not None:
            if delay:
                back = np.zeros(program.ranks, np.int64) if program.after is None else program.after
                program = replace(program, after=back + delay)
            running.ring = MessageRing(
                self._env,
                program,
                self._outlets,
                order=pending.name,
                jitter=_jitter(program, collective_key(self._seed, *pending.name)),
                done=lambda rank: self._done(running, rank),
            )
        self._running[pending.name] = running
        return running

    def _enter(self, member: int, running: _Running) -> None:
        running.entered[member] = reading(self._env.now)
        self._inside[member].append(running)
        self._ahead[member] = next(self._order[member], None)
        if -1 not in running.entered:
            name = running.pending.name
            del self._running[name], self._pending[name]
        if running.ring is not None:
            for rank in self._members[member]:
                running.ring.enter(rank)
        elif -1 not in running.entered:
            self._run_alone(running)

    def _run_alone(self, running: _Running) -> None:
        """Schedule all exits: every class has entered, so later events cannot change them."""
        for member, left in enumerate(self._finishes(running.pending, running.entered)):
            for rank in self._members[member]:
                delay = left - reading(self._env.now)
                EndOfInstant(self._env, COLLECTIVES, partial(self._done, running, rank), delay)

    def _done(self, running: _Running, rank: int) -> None:
        running.left.append(rank)
        self._settle_later()

    def _leave(self, member: int, running: _Running) -> None:
        """Let a class leave; raise `UnlikeRanksError` if its ranks leave at different times."""
        members = self._members[member]
        left = [rank for rank in members if rank in running.left]
        if not left:
            return
        if len(left) < len(members):
            # split into single ranks: the later ones would otherwise be split off one at a time
            place = np.arange(len(self._classes)) % len(self._outlets)
            apart = np.where(self._classes == member, place, 0)
            raise communicator.UnlikeRanksError(self._classes, apart)
        running.left = [rank for rank in running.left if rank not in left]
        self._inside[member].remove(running)
        now, entered = reading(self._env.now), running.entered
        last = now if -1 in entered else max(entered)  # may leave before all have entered
        running.pending.turns[member].succeed((entered[member], last, now))


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
