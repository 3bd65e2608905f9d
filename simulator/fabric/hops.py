"""What do the messages of one round see, each of the links that it takes?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Times
from gcsim.simulator.fabric.link_table import Bytes, Kinds, LinkTable, Ranks
from gcsim.simulator.network.links import Link


@dataclass(frozen=True, kw_only=True, eq=False)
class Hops:
    """The messages of one round, `[n]`, and their links."""

    senders: Ranks
    receivers: Ranks
    table: LinkTable
    kinds: tuple[Kinds, ...]
    """Numbers of links: of the whole path of each message, or of all that it passes, of which the
    slowest counts."""
    latencies: Times | None = None
    """None: those that the links say."""

    def serialization(self, nbytes: Bytes | int) -> Times:
        """For how long each message occupies its sender, unless that depends on the start."""
        if self.timed:
            return np.zeros(len(self.senders), dtype=np.int64)
        found = self.table.serialization(self.kinds[0], nbytes)
        for kinds in self.kinds[1:]:
            found = np.maximum(found, self.table.serialization(kinds, nbytes))
        return found

    def latency(self, nbytes: Bytes | int) -> Times:
        """The latency of each message, without its random delay."""
        if self.latencies is not None:
            return self.latencies
        return self.table.latency(self.kinds[0], nbytes)

    def draw_jitter(
        self, nbytes: Bytes | int, *, key: int, message: NDArray[np.int64] | int
    ) -> Times:
        """The random delay of each message, number `message` of its sender."""
        if not self.random:
            return np.zeros(len(self.senders), dtype=np.int64)
        return self.table.draw_jitter(
            self.kinds[0], nbytes, key=key, message=message, rank=self.senders
        )

    def departure(self, start: Times, nbytes: Bytes | int) -> Times:
        """When each message that may start at `start` has left, absolute times."""
        return self.table.departure(start, self.kinds[0], nbytes)

    def some(self, chosen: NDArray[np.bool_]) -> Hops:
        """Those messages that are chosen, `[n]`."""
        return Hops(
            senders=self.senders[chosen],
            receivers=self.receivers[chosen],
            table=self.table,
            kinds=tuple(kinds[chosen] for kinds in self.kinds),
            latencies=None if self.latencies is None else self.latencies[chosen],
        )

    @property
    def links(self) -> list[Link]:
        """The path of each message; not where what it passes is listed instead."""
        if self.latencies is not None:
            raise InternalError("messages whose paths were not looked for")
        return [self.table.links[kind] for kind in self.kinds[0].tolist()]

    @cached_property
    def random(self) -> bool:
        """Whether any message has a random delay."""
        return self.table.random(self.kinds[0])

    @cached_property
    def timed(self) -> bool:
        """Whether absolute time matters to any message."""
        return self.table.timed(self.kinds[0])
