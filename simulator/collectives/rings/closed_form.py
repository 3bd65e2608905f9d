"""When does each rank leave a ring of equal, constant links, without going through its steps?

What a rank waits for is a chain of sends. In a ring of n steps a chain stays at a rank, which then
sends the next lower block, or hops on with the block to the next rank: n sends, of which the stays
cost their block's serialisation B and the hops a latency L more. A chain that begins with block q,
at the rank that enters at `starts[q]`, and ends where the next send would be of block e, has stayed
k times, k congruent to q - e (mod p), with blocks q, q - 1, ..., e + 1, and has hopped n - k times,
best with the dearest block that it comes by, H = B + L:

    exit[e + n] = max over q of (entry[q] + B[q] + B[q-1] + ... + B[e+1] + (n - k) H)

Staying is never dearer than hopping, so that only the smallest k counts, but for one case: where
all blocks from q to e are small ones, a chain may go around once more, k + p, for the sake of the
large ones. With two kinds of blocks, neighbours of each kind, the maxima over q are running ones.

Two kinds are what an all-reduce has: its chunks differ by one element at most.

Source: critical paths in max-plus algebra, Baccelli, Cohen, Olsder and Quadrat 1992, ch. 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import Picoseconds, Times

_NEVER = -(2**62)
"""Earlier than any time, with room to add to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """Of a ring of `steps` steps, p - 1 at least, with two kinds of blocks at most."""

    steps: int
    first: int
    """The first large block."""
    large: int
    """How many blocks are large, p or fewer; they follow each other (mod p)."""
    serialization: tuple[Picoseconds, Picoseconds]
    """Serialisation of a large block and of a small one."""
    hop: tuple[Picoseconds, Picoseconds]
    """The same with the latency; a large one's is not smaller."""

    @staticmethod
    def of(
        sizes: NDArray[np.int64],
        serialization: Sequence[Picoseconds],
        latency: Sequence[Picoseconds],
        steps: int,
    ) -> ClosedForm | None:
        """For blocks of size classes `sizes` `[p]`; None where there are more kinds or runs."""
        ends = np.flatnonzero(sizes != np.concatenate((sizes[1:], sizes[:1])))
        if len(ends) > 2 or steps < len(sizes) - 1:
            return None
        if len(ends) == 0:
            one, ranks = int(sizes[0]), len(sizes)
            both, hop = (serialization[one],) * 2, (serialization[one] + latency[one],) * 2
            return ClosedForm(steps=steps, first=0, large=ranks, serialization=both, hop=hop)
        begins = [(int(end) + 1) % len(sizes) for end in ends]
        kinds = [int(sizes[start]) for start in begins]
        hops = [serialization[kind] + latency[kind] for kind in kinds]
        place = 0 if hops[0] >= hops[1] else 1
        return ClosedForm(
            steps=steps,
            first=begins[place],
            large=(begins[1 - place] - begins[place]) % len(sizes),
            serialization=(serialization[kinds[place]], serialization[kinds[1 - place]]),
            hop=(hops[place], hops[1 - place]),
        )

    def __call__(self, starts: Times) -> Times:
        """Exit times `[p]` for entry times `[p]`, int64, picoseconds."""
        finishes = np.empty(len(starts), dtype=np.int64)
        starts = np.ascontiguousarray(starts, dtype=np.int64)
        _finishes(
            starts, finishes, self.steps, self.first, self.large, *self.serialization, *self.hop
        )
        return finishes


@loop
def _finishes(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    starts: Times,
    finishes: Times,
    steps: int,
    first: int,
    large: int,
    serialization: int,
    small_serialization: int,
    hop: int,
    cheap_hop: int,
) -> None:
    """Blocks and ranks count from the first large block: the large ones are 0 ... `large` - 1.

    With P the running sum of the serialisation, a chain by way of a large block is worth
    (entry[q] + P[q] - q hop) + (e hop - P[e] + steps hop), with q + p and P of it for a chain that
    goes from block 0 to block p - 1. Straight lines are added in loops of their own, which run
    several ranks at a time; only running maxima go rank by rank.
    """
    ranks = starts.size
    around = large * serialization + (ranks - large) * small_serialization - ranks * hop
    to_cheap = large * (serialization - hop) + small_serialization
    worth = np.empty(ranks, dtype=np.int64)
    worth[: ranks - first] = starts[first:]
    worth[ranks - first :] = starts[:first]
    of_dear, of_small = worth[:large], worth[large:]
    small_alone = of_small.copy()
    _add_line(of_dear, serialization, serialization - hop)
    _add_line(of_small, to_cheap, small_serialization - hop)
    up_to = np.empty(ranks, dtype=np.int64)  # the best of blocks 0 ... q
    _running_maximum(worth, up_to)
    _running_maximum(worth[::-1], worth[::-1])
    over_the_end = of_dear[1:]
    for q in range(over_the_end.size):
        over_the_end[q] = max(over_the_end[q], up_to[q] + around)
    _add_line(of_dear, steps * hop - serialization, hop - serialization)
    if large < ranks:
        _add_line(small_alone, 0, small_serialization - cheap_hop)
        _running_maximum(small_alone[::-1], small_alone[::-1])
        _add_line(small_alone, steps * cheap_hop, cheap_hop - small_serialization)
        # blocks that a chain of `steps` sends reaches: from some small one on, all of them
        reached = up_to[large + steps - ranks : ranks]
        near = min(reached.size, of_small.size)
        of_small[:near] = reached[:near]
        of_small[near:] = up_to[ranks - 1]
        _add_line(of_small, around + steps * hop - to_cheap, hop - small_serialization)
        for q in range(of_small.size):
            of_small[q] = max(of_small[q], small_alone[q])
    at = (first + steps) % ranks
    finishes[at:] = worth[: ranks - at]
    finishes[:at] = worth[ranks - at :]


@loop
def _add_line(values: Times, start: int, slope: int) -> None:
    for q in range(values.size):
        values[q] += start + q * slope


@loop
def _running_maximum(values: Times, best: Times) -> None:
    """`best[q]` is the largest of `values[: q + 1]`; both may be the same array."""
    highest = _NEVER
    for q in range(values.size):
        highest = max(highest, values[q])
        best[q] = highest
