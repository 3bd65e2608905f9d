"""Messages of a ring: how long each occupies its sender, and when it arrives.

Times are looked up by size class and link class, of which there are few. For links whose rate
changes over time `Departures` replaces the table, or the same loop runs uncompiled and calls the
link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator import clock
from gcsim.simulator.network.departures import Departures
from gcsim.simulator.network.jitter import JitterDraws
from gcsim.simulator.network.links import Link

DRAWN_AT_A_TIME = 1 << 18  # random numbers per draw
Classes = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Blocks of p ranks by size."""

    sizes: tuple[int, ...]  # distinct, bytes
    classes: Classes  # [p]: each block's index in `sizes`

    @staticmethod
    def of(blocks: Sequence[int]) -> Blocks:
        """Size classes of the blocks' bytes."""
        sizes, places = classes(blocks)
        return Blocks(sizes=tuple(sizes), classes=places)

    @staticmethod
    @lru_cache(maxsize=64)
    def chunks(nbytes: int, parts: int, element: int = 1) -> Blocks:
        """Split a vector evenly into parts of whole elements, the larger ones first, a partial
        element last. O(1) Python operations; cached for clusters that differ in links."""
        elements, rest = divmod(nbytes, element)
        share, longer = divmod(elements, parts)
        sizes = [(share + 1) * element, share * element, share * element + rest]
        places = np.ones(parts, dtype=np.int64)
        places[:longer] = 0
        if rest:
            places[-1] = 2
        kept = np.unique(places)
        return Blocks(
            sizes=tuple(sizes[place] for place in kept.tolist()),
            classes=np.searchsorted(kept, places).astype(np.int64),
        )

    def tolist(self) -> list[int]:
        """Bytes of each block."""
        return [self.sizes[place] for place in self.classes.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Times of messages with few sizes on few kinds of links."""

    nbytes: NDArray[np.int64]  # [sizes]
    links: tuple[Link, ...]  # by link class
    kinds: Classes  # class of the link from each rank, [p]
    serialisation: NDArray[np.int64]
    """Picoseconds by size class and link class; zeros where a link is timed."""
    latency: NDArray[np.int64]  # picoseconds by size class and link class, reception included
    reductions: NDArray[np.int64]  # picoseconds by size class
    slowest: (
        clock.Picoseconds
    )  # bound on a message's time with its reduction, without random delays
    jitter: JitterDraws
    timed: bool  # some link's departures depend on absolute time
    table: Departures | None  # departures for compiled loops; None if links must be called

    @staticmethod
    def of(
        sizes: Sequence[int],
        links: Sequence[Link],
        *,
        gamma: Fraction = clock.NO_COST,
        reception: Fraction = clock.NO_COST,
    ) -> Messages:
        """Compute the times of messages of these sizes on the senders' links. Reducing costs
        `gamma`, taking in an arrived message `reception` seconds per byte."""
        named = {id(link): link for link in links}
        names, kinds = classes([id(link) for link in links])
        distinct = tuple(named[name] for name in names)
        timed = any(link.timed for link in distinct)
        takes = [[0 if timed else link.serialization(size) for link in distinct] for size in sizes]
        taken = [
            round(reception * size * clock.PS_PER_SECOND) if reception else 0 for size in sizes
        ]
        arrives = [
            [link.latency_for(size) + more for link in distinct]
            for size, more in zip(sizes, taken, strict=True)
        ]
        reductions = [round(gamma * size * clock.PS_PER_SECOND) if gamma else 0 for size in sizes]
        # before they must fit in 64 bits
        slowest = max(map(max, takes)) + max(map(max, arrives)) + max(reductions)
        clock.check_range(np.zeros(1, dtype=np.int64), slowest)
        return Messages(
            nbytes=np.array(sizes, dtype=np.int64),
            links=distinct,
            kinds=kinds,
            serialisation=np.array(takes, dtype=np.int64),
            latency=np.array(arrives, dtype=np.int64),
            reductions=np.array(reductions, dtype=np.int64),
            slowest=slowest,
            jitter=JitterDraws(distinct),
            timed=timed,
            table=Departures.of(sizes, distinct) if timed else None,
        )

    def serialization(self) -> NDArray[np.int64]:
        """Time from start to departure by size and link, flat."""
        if not self.timed:
            return self.serialisation.reshape(-1)
        table: Any = LinkDepartures(self) if self.table is None else self.table
        return cast("NDArray[np.int64]", table)

    def run(self, compiled: F) -> F:
        """Return the compiled or the Python form of a loop, whichever accepts `serialization`."""
        asked = self.timed and self.table is None
        return cast("F", getattr(compiled, "py_func", compiled)) if asked else compiled

    def check_departures(self, *times: clock.Times) -> None:
        """Raise `InputError` if a compiled loop's times exceed the clock."""
        if self.table is not None:
            clock.check_time(max(int(time.max()) for time in times))

    @property
    def constant(self) -> bool:
        """Whether no message's time depends on when it is sent."""
        return not (self.jitter.any or self.timed)

    def draw_jitter(
        self, sizes: Classes, *, key: int, message: NDArray[np.int64], rank: NDArray[np.int64]
    ) -> clock.Times:
        """Return random delays, int64, in the shape of `sizes` (size classes), to which `message`
        (numbers) and `rank` (senders) are broadcast."""
        kinds, message, rank = (
            np.array(np.broadcast_to(values, sizes.shape), dtype=np.int64)
            for values in (self.kinds[rank], message, rank)
        )
        return self.jitter(kinds, self.nbytes[sizes], key=key, message=message, rank=rank)

    def check_jitter(self, now: clock.Picoseconds, rounds: int, drawn: clock.Times) -> None:
        """Raise `InputError` if the clock may not hold `rounds` rounds after `now`, if in each a
        rank waits for at most one message."""
        if drawn.size == 0:
            return
        worst = int(drawn.max()) * rounds
        if (
            now + worst >= clock.COLLECTIVE_LIMIT // 2
        ):  # rare, since not all messages are as late as the latest
            latest = np.partition(drawn.reshape(-1), -min(rounds, drawn.size))
            worst = sum(latest[-rounds:].tolist())
        clock.check_time(now + rounds * self.slowest + worst)


class LinkDepartures:
    """Departures by size and link class: `start + asked[place]` is when a message has left."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def __getitem__(self, place: int) -> Departure:
        size, kind = divmod(int(place), len(self._messages.links))
        return Departure(self._messages.links[kind], int(self._messages.nbytes[size]))


class Departure:
    """Departure of a message of one size from one link."""

    __array_ufunc__ = None  # numpy then calls `__radd__`

    def __init__(self, link: Link, nbytes: int) -> None:
        self._link, self._nbytes = link, nbytes

    def __radd__(self, start: clock.Picoseconds) -> clock.Picoseconds:
        left = self._link.departure(int(start), self._nbytes)
        clock.check_time(left)
        return left


def classes(values: Sequence[int]) -> tuple[list[int], Classes]:
    """Distinct values in order of appearance, and each value's index."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return list(places), np.array([places[value] for value in values], dtype=np.int64)


def common_period(*patterns: NDArray[np.int64], multiple_of: int = 1) -> int:
    """Return the smallest divisor q of p, a multiple of `multiple_of`, for which every pattern
    `[p]` repeats after q entries. Ranks r and r + q then act alike."""
    ranks = len(patterns[0])
    for period in range(multiple_of, ranks // 2 + 1, multiple_of):
        if ranks % period == 0 and all(
            pattern[period] == pattern[0]
            and (pattern.reshape(-1, period) == pattern[:period]).all()
            for pattern in patterns
        ):
            return period
    return ranks
