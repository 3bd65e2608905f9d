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
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InputError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.links import Link

NO_COST = Fraction(0)
_LIMIT = 2**62


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
    messages = Messages(blocks, links, gamma=gamma)
    check_range(entry, steps * messages.slowest)
    if messages.uniform and (messages.reductions[0] == 0 or len(set(entry.tolist())) == 1):
        return _equal_ring(entry, messages, steps=steps, reducing_steps=reducing_steps)
    period = common_period(entry, messages.sizes, messages.kinds)
    exit_times = _recurrence(entry[:period], messages.first(period), steps, reducing_steps)
    return np.tile(exit_times, len(entry) // period)


class Messages:
    """Times of messages of few distinct sizes on links of few distinct kinds."""

    def __init__(
        self, blocks: Sequence[int], links: Sequence[Link], *, gamma: Fraction = NO_COST
    ) -> None:
        sizes, self.sizes = _classes(blocks)
        representatives = {id(link): link for link in links}
        kinds, self.kinds = _classes([id(link) for link in links])
        distinct = [representatives[kind] for kind in kinds]
        serialisation = [[link.serialization(size) for link in distinct] for size in sizes]
        reductions = [round(gamma * size * 10**12) for size in sizes]
        latencies = [link.latency_ps for link in distinct]
        self.slowest: Picoseconds = max(map(max, serialisation)) + max(latencies) + max(reductions)
        check_range(np.zeros(1, dtype=np.int64), self.slowest)
        self.serialisation = np.array(serialisation, dtype=np.int64)
        """By size class and link class."""
        self.reductions = np.array(reductions, dtype=np.int64)
        self.latency = np.array(latencies, dtype=np.int64)[self.kinds]
        """Of the link that leaves each rank."""

    @property
    def uniform(self) -> bool:
        return self.serialisation.size == 1

    def first(self, ranks: int) -> Messages:
        """The same for the first `ranks` ranks of a ring that repeats itself after them."""
        part = object.__new__(Messages)
        part.sizes, part.kinds = self.sizes[:ranks], self.kinds[:ranks]
        part.serialisation, part.reductions = self.serialisation, self.reductions
        part.latency, part.slowest = self.latency[:ranks], self.slowest
        return part


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
            f"a collective would take up to {duration / 10**12:.3g} s, more than the clock of "
            "53 days holds; check the link's bandwidth and latency"
        )


def from_predecessor(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """`values[r - 1]` at place r, along the first axis of a ring."""
    return np.concatenate((values[-1:], values[:-1]))


def _classes(values: Sequence[int]) -> tuple[list[int], NDArray[np.int64]]:
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
    # Ranks at distance d behind r reach it with d + p * laps(d) hops; laps is the same for all
    # distances up to `steps % p` and one less beyond.
    laps, last = divmod(steps, ranks)
    place = np.arange(2 * ranks, dtype=np.int64)
    start = np.concatenate((entry, entry)) - place * latency
    near = _window_maximum(start, last + 1)[ranks:] + (place[ranks:] + laps * ranks) * latency
    exit_times = near
    if laps:
        far = np.maximum.accumulate(start)[ranks:] + (place[ranks:] + (laps - 1) * ranks) * latency
        exit_times = np.maximum(near, far)
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
