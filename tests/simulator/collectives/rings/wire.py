"""The links of the event-by-event simulations of rings, and the ring in which blocks are passed on.

A wire knows of a `Link` what it says of one message, and of `draw_jitter` what it says of one. The
ring is written from the protocol: each rank sends, receives and adds real blocks (sets of
contributions), so that it also shows that the protocol gathers and reduces.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import simpy
from hypothesis import strategies as st

from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Link
from tests.simulator.links import KINDS
from tests.simulator.world import Wait


class Wire:
    """One direction of one hop: messages leave one after the other and arrive in order."""

    def __init__(self, env: simpy.Environment, link: Link, sender: int, key: int = 0) -> None:
        self.env, self.link, self.sender, self.key = env, link, sender, key
        self.sent, self.latest = 0, 0

    def serialization(self, nbytes: int) -> simpy.Event:
        """Until a message that starts now has left."""
        now = int(self.env.now)
        return self.env.timeout(self.link.departure(now, nbytes) - now)

    def flight(self, nbytes: int) -> simpy.Event:
        """Until a message that has left now arrives."""
        late = draw_jitter(
            [self.link],
            np.zeros(1, dtype=np.int64),
            np.array([nbytes], dtype=np.int64),
            key=self.key,
            message=self.sent,
            rank=np.array([self.sender], dtype=np.int64),
        )
        self.sent += 1
        return self.in_order(self.link.latency_for(nbytes) + int(late[0]))

    def word(self) -> simpy.Event:
        """Until an announcement that has left now arrives."""
        return self.in_order(self.link.latency_for(0))

    def in_order(self, after: int) -> simpy.Event:
        """What would overtake arrives with the last that it would overtake."""
        now = int(self.env.now)
        self.latest = max(self.latest, now + after)
        return self.env.timeout(self.latest - now)


class Ring:
    """One sending and one receiving process a rank, one delivery process a message.

    At each step a rank passes on the block that the step before brought, in the first p - 1 of
    `reduces` with its own contribution; the ring ends when every rank has every block.
    """

    def __init__(
        self,
        starts: Sequence[int],
        sizes: Sequence[int],
        links: Sequence[Link],
        *,
        reduces: bool,
        gamma: Fraction = Fraction(0),
        key: int = 0,
    ) -> None:
        ranks = range(len(starts))
        self.p, self.env = len(starts), simpy.Environment()
        self.starts, self.sizes, self.gamma, self.reduces = starts, sizes, gamma, reduces
        self.wires = [Wire(self.env, link, rank, key) for rank, link in enumerate(links)]
        self.held = [[{rank} if reduces or rank == k else set() for k in ranks] for rank in ranks]
        self.inbox = [simpy.Store(self.env) for _ in ranks]
        steps = (1 + reduces) * (self.p - 1)
        self.received = [[self.env.event() for _ in range(steps)] for _ in ranks]
        self.finishes: list[float] = [0] * self.p
        for rank in ranks:
            self.env.process(self.send(rank, steps))
            self.env.process(self.receive(rank, steps))
        self.env.run()
        assert self.held == [[set(ranks) if reduces else {k} for k in ranks]] * self.p

    def send(self, rank: int, steps: int) -> Wait:
        yield self.env.timeout(self.starts[rank])
        for step in range(steps):
            if step:
                yield self.received[rank][step - 1]
            block = (rank - step) % self.p
            content = set(self.held[rank][block])
            yield self.wires[rank].serialization(self.sizes[block])
            self.env.process(self.deliver(rank, block, content))
        self.finishes[rank] = max(self.finishes[rank], self.env.now)

    def deliver(self, rank: int, block: int, content: set[int]) -> Wait:
        yield self.wires[rank].flight(self.sizes[block])
        yield self.inbox[(rank + 1) % self.p].put((block, content))

    def receive(self, rank: int, steps: int) -> Wait:
        yield self.env.timeout(self.starts[rank])
        for step in range(steps):
            block, content = yield self.inbox[rank].get()
            if self.reduces and step < self.p - 1:
                yield self.env.timeout(round(self.gamma * self.sizes[block] * 10**12))
                self.held[rank][block] |= content
            else:
                self.held[rank][block] = content
            self.received[rank][step].succeed()
        self.finishes[rank] = max(self.finishes[rank], self.env.now)


entries = st.integers(0, 40) | st.integers(0, 10**6)


def rows_of(ranks: int) -> st.SearchStrategy[list[Link]]:
    """Links of a ring: of one kind, now equal, now different, now repeating."""
    return st.sampled_from(sorted(KINDS)).flatmap(
        lambda kind: (
            st.lists(st.sampled_from(KINDS[kind]), min_size=ranks, max_size=ranks)
            | st.sampled_from(KINDS[kind]).map(lambda link: [link] * ranks)
        )
    )


def entries_of(ranks: int) -> st.SearchStrategy[list[int]]:
    """Entry times: different, tied, or all equal."""
    return st.lists(entries, min_size=ranks, max_size=ranks) | entries.map(
        lambda time: [time] * ranks
    )
