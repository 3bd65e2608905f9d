"""The links of the event-by-event simulations of rings.

A wire knows of a `Link` what it says of one message, and of `draw_jitter` what it says of one.
"""

from __future__ import annotations

import numpy as np
import simpy
from hypothesis import strategies as st

from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Link
from tests.simulator.links import KINDS


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
