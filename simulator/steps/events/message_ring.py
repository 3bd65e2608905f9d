"""Ring collectives, simulated message by message.

A ring runs a program (`RingProgram`): each rank sends messages 0, 1, 2, ..., which are pieces of
blocks, to its successor. It posts send and receive of message i when it has posted i - 1 and waited
for i - `in_flight` (its own message has left, its predecessor's has arrived); at the end of a phase
it waits for all messages. A posted message may leave; with announcements it leaves after the
successor's announcement of its receive has arrived, a latency later. Announcements occupy no link.

An all-reduce adds the pieces of its first p - 1 blocks to the rank's own one after the other, in
`gamma` seconds per byte. With announcements (Gloo) a rank adds a message while it waits for it,
before it waits for its own message to leave; otherwise as messages arrive.

| ring           | blocks     | pieces per block     | in flight | announced |
|----------------|------------|----------------------|-----------|-----------|
| textbook       | one phase  | 1                    | 1         | no        |
| Gloo           | two phases | all-reduce: segments | 2         | yes       |

On unshared links the times equal those of `rings/recurrence.py` and of Gloo's rings; two
collectives share links by `events/egress_queue.py`. Their additions do not slow each other.

These have no program and so never overlap: collectives other than rings, Gloo's rings of two ranks
(announcements queue behind data on the only connection), empty rings, and all collectives if
messages cost processor time (`host.py`), which would add up over two collectives.

Source: `rings/allreduce.py`, `rings/allgather.py`, `rings/gloo_allreduce.py`,
`rings/gloo_allgather.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, reduce

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import NO_COST, PS_PER_SECOND, Picoseconds, Times, reading
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of, call_of, traffic_of
from gcsim.simulator.collectives.rings.program import Program
from gcsim.simulator.collectives.staging import copy_link, copy_times
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Link
from gcsim.simulator.steps.events.egress_queue import EgressQueue, Message, call_after

NOTHING = -1  # size that stands for no message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RingProgram:
    """Messages of all ranks of a ring collective. Place k sends to place k + 1 (mod p); in a phase
    it sends blocks k + first, k + first - 1, and so on."""

    backwards: bool = False  # place k is rank p - 1 - k, else rank k
    pieces: NDArray[np.int64]  # [p, pieces]: bytes of each piece of each block, or `NOTHING`
    phases: tuple[tuple[int, int], ...]
    """First block of each phase, relative to the place, and the number of blocks sent."""
    in_flight: int
    announced: bool
    links: tuple[Link, ...]  # link from each place to the next
    gamma: Fraction = NO_COST  # seconds per added byte
    reception: Fraction = NO_COST  # seconds per byte to take in a message that has arrived
    before: Times | None = None
    after: Times | None = None
    """Durations `[p]` of copies to the host `before` the first message, and back `after` all."""

    @property
    def ranks(self) -> int:
        """p."""
        return len(self.pieces)

    def rank(self, place: int) -> int:
        """The rank at a place."""
        return self.ranks - 1 - place if self.backwards else place

    def costs(self, sizes: Sequence[int]) -> list[Picoseconds]:
        """Return the time to add each of the messages that are added."""
        if not self.gamma:
            return []
        each, adds = self.gamma * PS_PER_SECOND, (self.ranks - 1) * self.pieces.shape[1]
        return [round(each * max(size, 0)) for size in sizes[:adds]]


class MessageRing:
    """A running ring collective; its first `period` ranks represent all."""

    def __init__(
        self,
        env: simpy.Environment,
        program: RingProgram,
        outlets: Sequence[EgressQueue],
        *,
        order: tuple[int, ...],
        jitter: Times | None,
        done: Callable[[int], None],
    ) -> None:
        """`outlets` are the first ranks'; `order`: place in a link's queue; `jitter`
        `[messages, ranks]` by sender; `done(rank)` is called when a rank leaves."""
        self.program, self.env, self.order, self.jitter = program, env, order, jitter
        period = len(outlets)
        self._done = done
        sizes = sizes_of(program, period)
        self._places = [
            _Place(self, rank=program.rank(place) % period, sizes=sizes[place])
            for place in range(period)
        ]
        for place, at_place in enumerate(self._places):
            after = self._places[(place + 1) % period]
            at_place.outlet = outlets[at_place.rank]
            at_place.link = program.links[place]
            at_place.successor, after.predecessor = after, at_place
            after.costs = program.costs(at_place.sizes)
        self._by_rank = {place.rank: place for place in self._places}

    def enter(self, rank: int) -> None:
        """Let one of the first ranks enter now."""
        place = self._by_rank[rank]
        call_after(self.env, _copy(self.program.before, rank), place.enter)

    def leave(self, rank: int) -> None:
        """Finish a rank's part."""
        call_after(self.env, _copy(self.program.after, rank), lambda: self._done(rank))


class _Place:
    outlet: EgressQueue
    link: Link
    successor: _Place
    predecessor: _Place
    costs: list[Picoseconds]  # time to add each of the predecessor's first messages

    def __init__(self, ring: MessageRing, *, rank: int, sizes: list[int]) -> None:
        self.ring, self.rank, self.sizes = ring, rank, sizes
        program = ring.program
        ends = np.cumsum([count for _, count in program.phases]) * program.pieces.shape[1]
        self._phase_ends = set(ends.tolist())
        self.real = _real(sizes)  # entry i: first message from i on that exists
        self._inside = False
        self._posted = self._waited = self._heard = 0
        self._sent = self._left = self.real[0]
        """First message that has not been handed to the link; first that has not left it."""
        self._arrived = 0
        """First message that has not arrived (without announcements: not been added)."""
        self._early: list[int] = []  # messages that arrived before the rank entered
        self._added = 0  # first message that has not been added, with announcements
        self._free = 0  # end of the additions that the rank has begun
        self._arrival = 0  # arrival of the last message at the successor; links keep the order

    def enter(self) -> None:
        """Begin."""
        self._inside = True
        self._arrived = max(self._arrived, self.predecessor.real[0])
        self._free = reading(self.ring.env.now)
        for number in self._early:
            self._take(number)
        self._go_on()

    def on_announcement(self, number: int) -> None:
        """Note that the successor has posted `number` receives."""
        self._heard = number
        self._send()

    def _go_on(self) -> None:
        """Wait and post as far as possible."""
        if not self._inside:
            return
        while True:
            full = self._posted - self._waited == self.ring.program.in_flight
            if (full or self._posted in self._phase_ends) and self._waited < self._posted:
                if self._waited >= self._arrived or self._adds() or self._waited >= self._left:
                    return
                self._waited += 1
            elif self._posted < len(self.sizes):
                self._post()
            else:
                self._inside = False
                self.ring.leave(self.rank)
                return

    def _post(self) -> None:
        self._posted += 1
        number, sender = self._posted, self.predecessor
        if self.ring.program.announced and sender.sizes[number - 1] != NOTHING:
            call_after(
                self.ring.env, sender.link.latency_for(0), lambda: sender.on_announcement(number)
            )
        self._send()

    def _send(self) -> None:
        known = self._heard if self.ring.program.announced else self._posted
        while self._sent < min(self._posted, known):
            self._submit(self._sent)
            self._sent = self.real[self._sent + 1]

    def _submit(self, number: int) -> None:
        self.outlet.send(
            Message(
                ready=reading(self.ring.env.now),
                order=(*self.ring.order, number),
                link=self.link,
                nbytes=self.sizes[number],
                leaves=lambda left: self._leaves(number, left),
                left=lambda: self._on_left(number),
            )
        )

    def _leaves(self, number: int, left: Picoseconds) -> None:
        size, delays = self.sizes[number], self.ring.jitter
        taken = round(self.ring.program.reception * max(size, 0) * PS_PER_SECOND)
        latency = self.link.latency_for(size) + taken
        late = 0 if delays is None else int(delays[number, self.rank])
        self._arrival = max(self._arrival, left + latency + late)
        delay = self._arrival - reading(self.ring.env.now)
        call_after(self.ring.env, delay, lambda: self.successor.receive(number))

    def _on_left(self, number: int) -> None:
        self._left = self.real[number + 1]
        self._go_on()

    def receive(self, number: int) -> None:
        """Take in an arrived message, if the rank has entered."""
        if not self.costs or self.ring.program.announced:
            self._on_arrival(number)
        elif self._inside:
            self._take(number)
        else:
            self._early.append(number)

    def _take(self, number: int) -> None:
        """Add a message after those before it."""
        now = reading(self.ring.env.now)
        cost = self.costs[number] if number < len(self.costs) else 0
        self._free = max(self._free, now) + cost
        if self._free == now:
            self._on_arrival(number)
        else:
            call_after(self.ring.env, self._free - now, lambda: self._on_arrival(number))

    def _on_arrival(self, number: int) -> None:
        # callbacks of the same instant may come in any order
        self._arrived = max(self._arrived, self.predecessor.real[number + 1])
        self._go_on()

    def _adds(self) -> bool:
        """Begin to add the awaited message if possible; return whether the rank is adding."""
        if not self.costs or not self.ring.program.announced:
            return False
        now, number = reading(self.ring.env.now), self._waited
        if self._added <= number < len(self.costs):
            self._added, self._free = number + 1, now + self.costs[number]
            if self._free > now:
                call_after(self.ring.env, self._free - now, self._go_on)
        return self._free > now


def _copy(copies: Times | None, rank: int) -> Picoseconds:
    return 0 if copies is None else int(copies[rank])


def _real(sizes: Sequence[int]) -> list[int]:
    real = list(range(len(sizes) + 1))
    for number in reversed(range(len(sizes))):
        if sizes[number] == NOTHING:
            real[number] = real[number + 1]
    return real


def sizes_of(program: RingProgram, places: int) -> list[list[int]]:
    """Bytes of each message, by place."""
    place = np.arange(places, dtype=np.int64)[:, None]
    blocks = [
        (place + first - np.arange(count, dtype=np.int64)) % program.ranks
        for first, count in program.phases
    ]
    sizes: NDArray[np.int64] = program.pieces[np.concatenate(blocks, axis=1)]
    by_place: list[list[int]] = sizes.reshape(places, -1).tolist()
    return by_place


class RingPrograms:
    """Ring programs of the collectives on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @cached_property
    def _fabric(self) -> Fabric:
        return Fabric.of(self._cluster)

    def __call__(self, record: CollectiveRecord) -> RingProgram | None:
        """Program of a collective; None: it runs exclusively."""
        cluster, ranks, host = self._cluster, self._cluster.workers, self._cluster.host
        ring = algorithm_of(record, cluster).ring
        if ranks == 1 or ring is None or (host is not None and host.interleaved):
            return None
        call = call_of(record, cluster, self._fabric)
        found = ring(call)
        if found is None or (found.announced and ranks == 2):
            return None
        sent, program = call.sent, in_messages(found, call.ring_links(backwards=found.backwards))
        if record.kind == "all_reduce":
            reception = call.reception if found.announced else NO_COST
            program = replace(program, gamma=call.gamma, reception=reception)
        if not cluster.collectives.stages and host is None:
            return program
        after = np.zeros(ranks, dtype=np.int64)
        if host is not None:
            after += host.work(traffic_of(record, cluster)).after
        if not cluster.collectives.stages:
            return replace(program, after=after)
        link = copy_link(cluster)
        received = sent if record.kind == "all_reduce" else [sum(sent)] * ranks
        return replace(
            program, before=copy_times(sent, link), after=after + copy_times(received, link)
        )

    def sending(self, record: CollectiveRecord) -> Picoseconds | None:
        """Return how long a rank sends in a collective from time 0 on, at most; None: it runs
        exclusively."""
        program = self(record)
        if program is None:
            return None
        return max(
            reduce(link.departure, (size for size in sizes if size != NOTHING), 0)
            for link, sizes in zip(program.links, sizes_of(program, program.ranks), strict=True)
        )


def in_messages(program: Program, links: Sequence[Link]) -> RingProgram:
    """Convert a program; `links[r]` leads from rank r to rank r + 1, or to r - 1 if `backwards`."""
    sizes = np.array(program.sizes, dtype=np.int64)
    if program.skips_empty:
        sizes = np.where(sizes > 0, sizes, NOTHING)
    return RingProgram(
        backwards=program.backwards,
        pieces=sizes[program.pieces],
        phases=tuple((phase.first, len(links) - 1) for phase in program.phases),
        in_flight=program.in_flight,
        announced=program.announced,
        links=tuple(links)[::-1] if program.backwards else tuple(links),
    )
