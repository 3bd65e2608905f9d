"""When does each rank leave a ring? The max-plus recurrence under every ring collective.

Rank r sends to rank r + 1 (mod p), and at step s it sends block (r - s) mod p. It starts the
send of step s when it has received (and reduced) what step s - 1 brought, and when the send of
step s - 1 has left. With F the end of a rank's send and R of its receive, both `entry` before
the first step:

    S = max(R[s-1], F[s-1])      F[s] = S + serialisation      R[s] = max(F[s] of r - 1 + latency,
                                                                        R[s-1]) + reduction

Assumptions: messages are buffered (a sender does not wait for its receiver, a receiver takes up
what arrived before it entered), links deliver in order, and an empty block still costs a
message's latency.

Source: the ring of Patarasuk and Yuan 2009 (J. Parallel Distrib. Comput. 69), sec. 3, with
alpha-beta links (Hockney 1994); max-plus form as in Baccelli et al. 1992, ch. 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InputError
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, Times
from gcsim.simulator.links import Link

NO_COST = Fraction(0)
_LIMIT = 2**60
"""Picoseconds, 13 days: sums of a few such times still fit 64 bits."""


def ring(
    entry: Times,
    blocks: Sequence[int],
    links: Sequence[Link],
    *,
    steps: int,
    gamma: Fraction = NO_COST,
    reducing_steps: int = 0,
) -> Times:
    """Exit times `[p]` of a ring of `steps` steps, in picoseconds.

    `entry` is int64 `[p]`; `blocks[b]` the bytes of the block that rank b sends first;
    `links[r]` leads from rank r to r + 1; `gamma` seconds a byte are spent on each block that
    arrives in the first `reducing_steps` steps. O(p) when links and blocks are equal, else
    O(p) memory and O(p) time a step. Raises `InputError` when the clock cannot hold the times.
    """
    messages = Messages.of(blocks, links, gamma=gamma)
    check_range(entry, steps * messages.slowest)
    if messages.uniform and (messages.reductions[0] == 0 or len(set(entry.tolist())) == 1):
        return _equal_ring(entry, messages, steps=steps, reducing_steps=reducing_steps)
    period = common_period(entry, messages.sizes, messages.kinds)
    exit_times = _recurrence(entry[:period], messages.first(period), steps, reducing_steps)
    return np.tile(exit_times, len(entry) // period)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Times of messages of few distinct sizes on links of few distinct kinds."""

    sizes: NDArray[np.int64]
    """Size class of the block that each rank sends first."""
    kinds: NDArray[np.int64]
    """Link class of the link that leaves each rank."""
    serialisation: NDArray[np.int64]
    """By size class and link class."""
    reductions: NDArray[np.int64]
    """By size class."""
    latency: NDArray[np.int64]
    """Of the link that leaves each rank."""
    slowest: Picoseconds
    """No message takes longer, its reduction included."""

    @staticmethod
    def of(blocks: Sequence[int], links: Sequence[Link], *, gamma: Fraction = NO_COST) -> Messages:
        """Of the blocks by rank, on the links by sender."""
        sizes, sizeclasses = classes(blocks)
        named = {id(link): link for link in links}
        names, kinds = classes([id(link) for link in links])
        distinct = [named[name] for name in names]
        serialisation = [[link.serialization(size) for link in distinct] for size in sizes]
        reductions = [round(gamma * size * PS_PER_SECOND) for size in sizes]
        latencies = [link.latency_ps for link in distinct]
        slowest = max(map(max, serialisation)) + max(latencies) + max(reductions)
        check_range(np.zeros(1, dtype=np.int64), slowest)
        return Messages(
            sizes=sizeclasses,
            kinds=kinds,
            serialisation=np.array(serialisation, dtype=np.int64),
            reductions=np.array(reductions, dtype=np.int64),
            latency=np.array(latencies, dtype=np.int64)[kinds],
            slowest=slowest,
        )

    @property
    def uniform(self) -> bool:
        """All blocks and all links are equal."""
        return self.serialisation.size == 1

    def first(self, ranks: int) -> Messages:
        """Of the first `ranks` ranks, for a ring that repeats itself after them."""
        return replace(
            self,
            sizes=self.sizes[:ranks],
            kinds=self.kinds[:ranks],
            latency=self.latency[:ranks],
        )


def common_period(*patterns: NDArray[np.int64]) -> int:
    """The smallest divisor q of p such that every pattern `[p]` repeats after q entries.

    Ranks r and r + q of such a ring do the same at the same time, so q ranks stand for all.
    """
    ranks = len(patterns[0])
    for period in range(1, ranks // 2 + 1):
        if ranks % period == 0 and all(
            (pattern.reshape(-1, period) == pattern[:period]).all() for pattern in patterns
        ):
            return period
    return ranks


def check_range(entry: Times, duration: Picoseconds) -> None:
    """Raise `InputError` when `duration` after the last entry is beyond the 64-bit clock."""
    if int(entry.max()) + duration >= _LIMIT:
        raise InputError(
            f"a collective would take up to {duration / PS_PER_SECOND:.3g} s, more than the 13 "
            "days that the clock has room for; check the link's bandwidth and latency"
        )


def from_predecessor(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """`values[r - 1]` at place r, along the first axis of a ring."""
    return np.concatenate((values[-1:], values[:-1]))


def classes(values: Sequence[int]) -> tuple[list[int], NDArray[np.int64]]:
    """The distinct values in order of appearance, and each value's place among them."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return list(places), np.array([places[value] for value in values], dtype=np.int64)


def _equal_ring(entry: Times, messages: Messages, *, steps: int, reducing_steps: int) -> Times:
    """Closed form for equal links and blocks.

    A chain of waits from rank q to rank r hops h times, h congruent to r - q (mod p), and stays
    at the sender for the other steps; each step costs a serialisation, each hop a latency more:

        exit[r] = steps * serialisation + max over q (entry[q] + h(q, r) * latency)

    with the largest h <= steps. With a reduction the closed form needs equal entries.
    """
    ranks = len(entry)
    serialisation, latency = int(messages.serialisation[0, 0]), int(messages.latency[0])
    if messages.reductions[0]:
        reduction = int(messages.reductions[0])
        return entry + (steps * (serialisation + latency) + reducing_steps * reduction)
    # A rank d places behind r reaches it with d + laps * p hops, or, when d is more than
    # steps % p, with one lap less.
    laps, last = divmod(steps, ranks)
    place = np.arange(2 * ranks, dtype=np.int64)
    start = np.concatenate((entry, entry)) - place * latency
    ahead = place[ranks:] * latency
    lap = ranks * latency
    exit_times = _window_maximum(start, last + 1)[ranks:] + ahead + laps * lap
    if laps:
        any_distance = _window_maximum(start, ranks)[ranks:] + ahead + (laps - 1) * lap
        exit_times = np.maximum(exit_times, any_distance)
    return exit_times + steps * serialisation


def _window_maximum(values: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """At each place the maximum of the last `width` values up to it (doubling, O(n log n))."""
    result, covered = values.copy(), 1
    while covered < width:
        shift = min(covered, width - covered)
        result[shift:] = np.maximum(result[shift:], result[:-shift].copy())
        covered += shift
    return result


def _recurrence(entry: Times, messages: Messages, steps: int, reducing_steps: int) -> Times:
    """One row of p numbers a step."""
    ranks = len(entry)
    twice = np.concatenate((messages.sizes, messages.sizes))
    sent, received = entry, entry
    for step in range(steps):
        shift = ranks - step % ranks
        size = twice[shift : shift + ranks]  # of block (r - step) mod p
        sent = np.maximum(received, sent) + messages.serialisation[size, messages.kinds]
        received = np.maximum(from_predecessor(sent + messages.latency), received)
        if step < reducing_steps:
            received = received + from_predecessor(messages.reductions[size])
    return np.maximum(sent, received)
