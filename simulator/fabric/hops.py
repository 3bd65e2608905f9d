"""Messages of one round, each on its path, and overheads of protocols on paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Times
from gcsim.simulator.fabric.link_table import Bytes, Kinds, LinkTable, Ranks
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import with_framing

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Overheads of a protocol on every path."""

    share: Fraction = Fraction(1)  # payload's share of the rate between nodes
    share_inside: Fraction = Fraction(1)  # payload's share of the rate inside a node
    network: Fraction = Fraction(0)  # seconds added to the latency between nodes
    inside: Fraction = Fraction(0)  # seconds added to the latency inside a node

    def of(self, link: Link, extra: Fraction, *, inside: bool) -> Link:
        """Return the link as it carries the protocol's payload."""
        return with_framing(link, self.share_inside if inside else self.share, extra)


def distinct(*columns: Integers) -> tuple[Integers, Integers]:
    """Return the first index of each distinct row of non-negative columns, and each row's kind."""
    kind = columns[0]
    places = np.zeros(min(1, len(kind)), dtype=np.int64)
    for number, column in enumerate(columns):
        if len(kind):
            rows = kind * (int(column.max()) + 1) + column if number else kind
            places, kind = _compact(rows)
    return places, kind


def _compact(values: Integers) -> tuple[Integers, Integers]:
    """Return `np.unique` with index and inverse, without sorting if values are small."""
    top = int(values.max()) + 1
    if top > 4 * len(values) + 1024:
        _, places, kinds = np.unique(values, return_index=True, return_inverse=True)
        return places, kinds
    place = np.full(top, -1, dtype=np.int64)
    place[values] = np.arange(len(values), dtype=np.int64)
    present = np.flatnonzero(place >= 0)
    number = np.empty(top, dtype=np.int64)
    number[present] = np.arange(len(present), dtype=np.int64)
    return place[present], number[values]


@dataclass(frozen=True, eq=False)
class Hops:
    """Messages of one round, `[n]`, and their links."""

    senders: Ranks
    receivers: Ranks
    table: LinkTable
    kinds: tuple[Kinds, ...]
    """Numbers of the whole path, or of all links that it crosses, the slowest of which counts."""
    latencies: Times | None = None  # None: the links'

    @staticmethod
    def joined(rounds: Sequence[Hops]) -> Hops:
        """Join the messages of consecutive rounds of one fabric."""
        most = max(len(each.kinds) for each in rounds)
        listed = any(each.latencies is not None for each in rounds)
        return Hops(
            senders=np.concatenate([each.senders for each in rounds]),
            receivers=np.concatenate([each.receivers for each in rounds]),
            table=rounds[0].table,
            kinds=tuple(
                np.concatenate([each.kinds[min(n, len(each.kinds) - 1)] for each in rounds])
                for n in range(most)
            ),
            # if links are listed in some round, all are plain, with one latency for all sizes
            latencies=np.concatenate([each.latency(0) for each in rounds]) if listed else None,
        )

    def serialization(self, nbytes: Bytes | int) -> Times:
        """Return how long each message occupies its sender; 0 if that depends on the start."""
        if self.timed:
            return np.zeros(len(self.senders), dtype=np.int64)
        found = self.table.serialization(self.kinds[0], nbytes)
        for kinds in self.kinds[1:]:
            found = np.maximum(found, self.table.serialization(kinds, nbytes))
        return found

    def latency(self, nbytes: Bytes | int) -> Times:
        """Return the latency of each message without its random delay."""
        if self.latencies is not None:
            return self.latencies
        return self.table.latency(self.kinds[0], nbytes)

    def draw_jitter(
        self, nbytes: Bytes | int, *, key: int, message: NDArray[np.int64] | int
    ) -> Times:
        """Draw the random delay of each message, which is number `message` of its sender."""
        if not self.random:
            return np.zeros(len(self.senders), dtype=np.int64)
        return self.table.draw_jitter(
            self.kinds[0], nbytes, key=key, message=message, rank=self.senders
        )

    def departure(self, start: Times, nbytes: Bytes | int) -> Times:
        """Return when messages leave that may start at the absolute times `start`."""
        return self.table.departure(start, self.kinds[0], nbytes)

    def flight(
        self, start: Times, nbytes: Bytes | int, *, key: int, message: NDArray[np.int64] | int
    ) -> tuple[Times, Times]:
        """Return when messages that may start at `start` have left, and when they arrive."""
        left = self.departure(start, nbytes) if self.timed else start + self.serialization(nbytes)
        delay = self.draw_jitter(nbytes, key=key, message=message)
        return left, left + self.latency(nbytes) + delay

    def select(self, chosen: Integers) -> Hops:
        """Return the `chosen` messages, `[n]`."""
        return Hops(
            senders=self.senders[chosen],
            receivers=self.receivers[chosen],
            table=self.table,
            kinds=tuple(kinds[chosen] for kinds in self.kinds),
            latencies=None if self.latencies is None else self.latencies[chosen],
        )

    @property
    def links(self) -> list[Link]:
        """Path of each message; `InternalError` where links are listed instead."""
        if self.latencies is not None:
            raise InternalError("messages whose paths were not looked for")
        return [self.table.links[kind] for kind in self.kinds[0].tolist()]

    @cached_property
    def random(self) -> bool:
        """Whether any message has a random delay."""
        return self.table.random(self.kinds[0])

    @cached_property
    def timed(self) -> bool:
        """Whether any message depends on absolute time."""
        return self.table.timed(self.kinds[0])
