"""The links of the event-by-event simulations of rings, and links of every kind to try them on.

A wire knows of a `Link` what it says of one message, and of `delays` what they say of one message.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import simpy
from hypothesis import strategies as st

from gcsim.simulator.network.delays import delays
from gcsim.simulator.network.links import Jitter, Link, Loss, RateTrace, SizeFactor
from tests.simulator.world import PS, link


class Wire:
    """One direction of one hop: messages leave one after the other and arrive in order."""

    def __init__(self, env: simpy.Environment, link: Link, sender: int, key: int = 0) -> None:
        self.env, self.link, self.sender, self.key = env, link, sender, key
        self.sent, self.latest = 0, 0

    def busy(self, nbytes: int) -> simpy.Event:
        """Until a message that starts now has left."""
        now = int(self.env.now)
        return self.env.timeout(self.link.left(now, nbytes) - now)

    def flight(self, nbytes: int) -> simpy.Event:
        """Until a message that has left now arrives."""
        late = delays(
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


def _with(bandwidth: int, latency: int, **more: object) -> Link:
    return link(bandwidth, latency * PS, **more)


TAILS = Loss(rate=Fraction(1, 8), model="sampled", segment=10)
CONSTANT = [
    link(10**12, 3 * PS),
    link(10**12 // 7, 1 * PS),
    link(5 * 10**11, Fraction(1, 10**6)),
    link(10**12, 40 * PS),
]
SIZED = [
    _with(
        10**12,
        30,
        factors=(
            SizeFactor(from_bytes=4, bandwidth=Fraction(1, 3), latency=Fraction(1, 10)),
            SizeFactor(from_bytes=9, bandwidth=Fraction(2, 3), latency=Fraction(5, 2)),
        ),
    ),
    _with(
        10**12, 200, overhead=5 * PS, factors=(SizeFactor(from_bytes=1, latency=Fraction(1, 9)),)
    ),
]
RANDOM = [
    _with(10**12, 3, jitter=(Jitter(distribution="exponential", mean=20 * PS),)),
    _with(10**12 // 7, 9, jitter=(Jitter(distribution="uniform", mean=50 * PS),)),
    _with(
        10**12,
        1,
        jitter=(
            Jitter(distribution="lognormal", mean=9 * PS),
            Jitter(
                distribution="pareto",
                mean=90 * PS,
                shape=Fraction(3, 2),
                probability=Fraction(1, 4),
            ),
        ),
    ),
    _with(10**12, 40, loss=TAILS),
    _with(
        10**12,
        400,
        loss=TAILS,
        factors=(SizeFactor(from_bytes=3, latency=Fraction(1, 20)),),
        jitter=(Jitter(distribution="exponential", mean=3 * PS),),
    ),
]
_TRACE = RateTrace(
    times=(Fraction(0), 20 * PS, 45 * PS),
    rates=(Fraction(10**12), Fraction(0), Fraction(10**12, 3)),
    duration=80 * PS,
    after="repeat",
)
TIMED = [
    _with(10**12, 4, trace=_TRACE),
    _with(10**12, 4, grant=25 * PS),
    _with(
        10**12,
        60,
        trace=_TRACE,
        grant=30 * PS,
        overhead=2 * PS,
        jitter=(Jitter(distribution="exponential", mean=20 * PS),),
        factors=(SizeFactor(from_bytes=5, bandwidth=Fraction(1, 2), latency=Fraction(1, 6)),),
    ),
]
KINDS = {
    "constant": CONSTANT,
    "sized": [*SIZED, CONSTANT[0]],
    "random": [*RANDOM, CONSTANT[0]],
    "timed": [*TIMED, CONSTANT[0], RANDOM[3]],
}
"""Pools to draw a ring's links from."""

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
