"""Times of many messages on many links, computed with arrays; equal to those of each `Link`.

A link without size factors and changes over time takes overhead + bytes / rate, which is evaluated
exactly on arrays; other links are called once per size.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import LIMIT, PS_PER_SECOND, Times, check_range
from gcsim.simulator.network.jitter import JitterDraws
from gcsim.simulator.network.links import Link

Kinds = NDArray[np.int64]  # numbers of links
Ranks = NDArray[np.int64]
Bytes = NDArray[np.int64]
_FEW = 32  # most links that are called one by one, and most sizes that are cached
_ZERO = np.zeros(1, dtype=np.int64)


class LinkTable:
    """Links numbered in order of addition."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self._columns: _Columns | None = None
        self._times: dict[int, Times] = {}

    def add(self, link: Link) -> int:
        """Add a link and return its number."""
        self.links.append(link)
        return len(self.links) - 1

    def serialization(self, kinds: Kinds, nbytes: Bytes | int) -> Times:
        """Return how long each message `[n]` occupies its sender; one size, or one per message.
        `timed` links need `departure`. Raises `InputError` beyond the clock."""
        columns = self._arrays()
        if isinstance(nbytes, int) and len(self.links) <= _FEW:
            return self._of_few(nbytes)[kinds]
        sizes = np.broadcast_to(np.asarray(nbytes, dtype=np.int64), kinds.shape)
        straight = columns.straight[kinds]
        if straight.all():
            return columns.serialization(kinds, sizes)
        found = np.empty(kinds.shape, dtype=np.int64)
        found[straight] = columns.serialization(kinds[straight], sizes[straight])
        found[~straight] = self._asked("serialization", kinds[~straight], sizes[~straight])
        return found

    def latency(self, kinds: Kinds, nbytes: Bytes | int) -> Times:
        """Return the latency of each message `[n]`."""
        columns = self._arrays()
        found = columns.latency[kinds]
        asked = columns.factors[kinds]
        if asked.any():
            sizes = np.broadcast_to(np.asarray(nbytes, dtype=np.int64), kinds.shape)
            found[asked] = self._asked("latency_for", kinds[asked], sizes[asked])
        return found

    def departure(self, start: Times, kinds: Kinds, nbytes: Bytes | int) -> Times:
        """Return when messages `[n]` leave that may start at the absolute times `start`."""
        sizes = np.broadcast_to(np.asarray(nbytes, dtype=np.int64), kinds.shape)
        messages = zip(kinds.tolist(), start.tolist(), sizes.tolist(), strict=True)
        found = [self.links[kind].departure(begin, size) for kind, begin, size in messages]
        check_range(_ZERO, max(found, default=0))
        return _times(found)

    def draw_jitter(
        self,
        kinds: Kinds,
        nbytes: Bytes | int,
        *,
        key: int,
        message: NDArray[np.int64] | int,
        rank: Ranks,
    ) -> Times:
        """Draw extra latencies (`jitter.py`): `[n]`, or `[k, n]` for k numbers of messages."""
        shape = np.broadcast_shapes(np.shape(message), kinds.shape)
        return self._arrays().draw_jitter(
            np.broadcast_to(kinds, shape),
            nbytes if isinstance(nbytes, int) else np.broadcast_to(nbytes, shape),
            key=key,
            message=np.broadcast_to(np.asarray(message, dtype=np.int64), shape),
            rank=np.broadcast_to(rank, shape),
        )

    def random(self, kinds: Kinds) -> bool:
        """Whether any message has a random delay."""
        return bool(self._arrays().random[kinds].any())

    def timed(self, kinds: Kinds) -> bool:
        """Whether any message depends on absolute time."""
        return bool(self._arrays().timed[kinds].any())

    def _arrays(self) -> _Columns:
        if self._columns is None or len(self._columns.latency) < len(self.links):
            self._columns = _Columns(self.links)
            self._times.clear()
        return self._columns

    def _of_few(self, nbytes: int) -> Times:
        """Return the serialisation on each link, 0 if timed."""
        if nbytes not in self._times:
            if len(self._times) >= _FEW:
                self._times.clear()
            asked = [0 if link.timed else link.serialization(nbytes) for link in self.links]
            check_range(_ZERO, max(asked, default=0))
            self._times[nbytes] = _times(asked)
        return self._times[nbytes]

    def _asked(self, question: str, kinds: Kinds, sizes: Bytes) -> Times:
        """Call the method `question` of each link once per size."""
        pairs, places = np.unique(np.stack((kinds, sizes)), axis=1, return_inverse=True)
        answers = [
            getattr(self.links[kind], question)(size)
            for kind, size in zip(*pairs.tolist(), strict=True)
        ]
        check_range(_ZERO, max(answers))
        return _times(answers)[places.reshape(-1)]


class _Columns:
    def __init__(self, links: list[Link]) -> None:
        self._links = links[:]
        self.factors = np.array([bool(link.factors) for link in links], dtype=bool)
        self.random = np.array([link.random for link in links], dtype=bool)
        self.timed = np.array([link.timed for link in links], dtype=bool)
        self.straight = ~(self.factors | self.timed)
        self.latency = _times([link.latency_for(0) for link in links])

    @cached_property
    def draw_jitter(self) -> JitterDraws:
        return JitterDraws(self._links)

    @cached_property
    def _lines(self) -> list[tuple[int, int, int]]:
        return [_line(link) for link in self._links]

    @cached_property
    def _line(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        over, under, base = zip(*self._lines, strict=True)
        return np.array(over), np.array(under), np.array(base)

    @cached_property
    def _rough(self) -> NDArray[np.float64]:
        return np.array([[over / under, base / under] for over, under, base in self._lines])

    def serialization(self, kinds: Kinds, sizes: Bytes) -> Times:
        """Return the serialisation on links without size factors and changes over time."""
        if not len(sizes):
            return sizes.copy()
        if len(self._lines) == 1:
            [(one, under_one, base_one)] = self._lines
            check_range(_ZERO, (int(sizes.max()) * one + base_one) // under_one)
            return scaled(sizes, one, under_one, base_one)
        rough = self._rough[kinds]
        longest = int((sizes * rough[:, 0] + rough[:, 1]).max())
        check_range(_ZERO, longest)
        over, under, base = self._line
        return scaled(sizes, over[kinds], under[kinds], base[kinds])


def _line(link: Link) -> tuple[int, int, int]:
    """Return the coefficients of picoseconds = (bytes * over + base) / under."""
    each, once = PS_PER_SECOND / link.rate, link.overhead * PS_PER_SECOND
    under = math.lcm(each.denominator, once.denominator)
    return int(each * under), under, int(once * under)


def _times(values: list[int]) -> Times:
    return np.array(values, dtype=np.int64)


def scaled(
    values: NDArray[np.int64],
    over: NDArray[Any] | int,
    under: NDArray[Any] | int,
    base: NDArray[Any] | int = 0,
) -> Times:
    """Return `(values * over + base) / under` of non-negative integers, rounded half to even. Exact
    for any size: integers beyond 64 bits are in arrays of objects."""
    if values.size == 0:
        return values
    product = int(np.max(over)) * max(1, int(values.max())) + int(np.max(base))
    if max(product, 2 * int(np.max(under))) >= LIMIT:
        values = values.astype(object)
    numerator = values * over + base
    whole = numerator // under
    twice = 2 * (numerator - whole * under)
    whole = whole + ((twice > under) | ((twice == under) & (whole % 2 == 1)))
    rounded: Times = whole.astype(np.int64, copy=False)
    return rounded
