"""How does a long ring go on, most of whose ranks keep their pace? Only the others are computed.

Links are equal, so that what a message does to the times of the ranks is known by the block that
is sent, not by who sends it: where x[i] are the times of the rank that sends block i, behind piece
j, the next ones follow from x[i - 1], x[i] and x[i + 1], by a map f that is the same in every block
number b, and f(x + c) = f(x) + c. So a place i whose three are one constant c later than a block
before is c later as well, and need not be computed: its times are those of when it last was, and c
for each block since. Computed are the places at which paces differ or have just changed. In a ring
of full and empty segments those are a few ends of runs, so that a message of all ranks costs as
much as a few of single ones; from then on when none is left, nothing.

The rules of a message are those of `rings/announced.py`, with two in flight and p > 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop
from gcsim.simulator.clock import Times

Ints = NDArray[np.int64]
NOTHING = -(2**62)
"""When a message arrives that is none: earlier than any time."""
_NO_PACE = -(2**61)
"""Of times that have not all changed by one number."""
_MANY = 8
"""Of the places, this part may be without a pace; else all ranks together are cheaper."""
_SETTLING = 4
"""Blocks before that is looked at."""
_POSTED, _LEFT, _ARRIVES, _LEAVES, _BLOCK, _PACE, _WIDTH = 0, 1, 2, 4, 6, 7, 8
"""What is known of a place behind a piece: when its rank has posted the message, when that has
left, when the two in flight, the older one first, arrive and have left; in which block number that
was so; how much later it is a block later."""


@loop
def keep_paces(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    posted: Times,
    left: Times,
    arrives: Times,
    leaves: Times,
    costs: Times,
    pieces: Ints,
    gone: NDArray[np.bool_],
    serialization: Times,
    latency: Times,
    back: int,
    reductions: Times,
    shift: int,
    posts: int,
) -> int:
    """Post the messages of a phase, all `posts`, or as many as can be told so; how many.

    The first five are rows of `announced_loop.State`, with nothing in flight before and two
    messages after; `pieces` and `shift` are those of `announced_loop.post`. By size class: whether
    there is no message, how long it takes its link, its latency, and what it takes to add it.
    """
    per_block, q = pieces.shape[0], posted.size
    at = np.zeros((per_block, q, _WIDTH), dtype=np.int64)
    at[:, :, _BLOCK], at[:, :, _PACE] = -2, _NO_PACE
    for r in range(q):
        of_rank = at[per_block - 1, (r + shift + 1) % q]
        of_rank[_POSTED], of_rank[_LEFT], of_rank[_BLOCK] = posted[r], left[r], -1
        of_rank[_ARRIVES : _LEAVES + 2] = NOTHING
    active, coming = np.arange(q), np.empty(q, dtype=np.int64)
    changed, asked = np.empty(q, dtype=np.bool_), np.full(q, -1, dtype=np.int64)
    count, number = q, 0
    while number < posts and count:
        block, piece = number // per_block, number % per_block
        if piece == 0 and block > _SETTLING and count * _MANY > q:
            break
        # the rank that sends block i has sent block i + 1 before
        moved = 1 if piece == 0 else 0
        before, then = at[piece - 1 if piece else per_block - 1], block - moved
        size, oldest = pieces[piece], pieces[(piece - 2) % per_block]
        received = 0 if piece > 1 else 1  # of the oldest, one block before: another one
        now = at[piece]
        for n in range(count):
            i = active[n]
            own = i + moved if i + moved < q else i + moved - q
            pred = own - 1 if own else q - 1
            succ = own + 1 if own + 1 < q else 0
            above = i - 1 if i else q - 1  # the block that it receives
            # blocks of the oldest messages in flight, as they arrived
            first = above + received
            mine = _waited(before[own], then, oldest[first], reductions)
            earlier = _waited(before[pred], then, oldest[first - 1 + q], reductions)
            later = _waited(before[succ], then, oldest[first + 1], reductions)
            own_left, pred_left = _at(before[own], _LEFT, then), _at(before[pred], _LEFT, then)
            leaving, arriving = own_left, NOTHING
            kind = size[i]
            if not gone[kind]:
                leaving = max(own_left, max(mine, later + back)) + serialization[kind]
            kind = size[above]
            if not gone[kind]:
                start = max(pred_left, max(earlier, mine + back))
                arriving = start + serialization[kind] + latency[kind]
            here = now[i]
            pace = _NO_PACE
            if here[_BLOCK] > -2:
                pace = mine - _at(here, _POSTED, block - 1)
                if leaving - _at(here, _LEFT, block - 1) != pace:
                    pace = _NO_PACE
            new_arrival = _at(before[own], _ARRIVES + 1, then)
            new_leaving = _at(before[own], _LEAVES + 1, then)
            pace = _same(here, _ARRIVES, block - 1, new_arrival, pace)
            pace = _same(here, _ARRIVES + 1, block - 1, arriving, pace)
            pace = _same(here, _LEAVES, block - 1, new_leaving, pace)
            pace = _same(here, _LEAVES + 1, block - 1, leaving, pace)
            changed[n] = pace == _NO_PACE or pace != here[_PACE]
            here[_POSTED], here[_LEFT] = mine, leaving
            here[_ARRIVES], here[_ARRIVES + 1] = new_arrival, arriving
            here[_LEAVES], here[_LEAVES + 1] = new_leaving, leaving
            here[_BLOCK], here[_PACE] = block, pace
        number += 1
        moved = 1 if number % per_block == 0 else 0
        found = 0
        for n in range(count):
            i = active[n]
            pace = now[i, _PACE]
            lower = now[i - 1 if i else q - 1, _PACE] != pace
            upper = now[i + 1 if i + 1 < q else 0, _PACE] != pace
            # who looks at this place, or at two that differ
            for by in range(-1, 2):
                if changed[n] or (lower and by < 1) or (upper and by > -1):
                    j = i - moved + by
                    j += q if j < 0 else 0
                    j -= q if j >= q else 0
                    if asked[j] != number:
                        asked[j] = number
                        coming[found] = j
                        found += 1
        active, coming, count = coming, active, found
    done = posts if not count else number
    block, piece = (done - 1) // per_block, (done - 1) % per_block
    newer, older = pieces[piece], pieces[(piece - 1) % per_block]
    received = 0 if piece else 1
    for i in range(q):
        r, here = (i + block - shift) % q, at[piece, i]
        posted[r], left[r] = _at(here, _POSTED, block), _at(here, _LEFT, block)
        for slot in range(2):
            arrives[slot, r] = _at(here, _ARRIVES + slot, block)
            leaves[slot, r] = _at(here, _LEAVES + slot, block)
        above = i - 1 if i else q - 1
        costs[0, r] = 0 if arrives[0, r] == NOTHING else reductions[older[above + received]]
        costs[1, r] = 0 if arrives[1, r] == NOTHING else reductions[newer[above]]
    return done


@inlined
def _at(place: Times, row: int, block: int) -> int:
    """A place's time in a block number, not before it was last computed."""
    time = place[row]
    return time if time == NOTHING else time + place[_PACE] * (block - place[_BLOCK])


@inlined
def _waited(place: Times, block: int, kind: int, reductions: Times) -> int:
    """When its rank has waited for the older message in flight, of this size class."""
    arrives, time = _at(place, _ARRIVES, block), _at(place, _POSTED, block)
    if arrives != NOTHING:
        time = max(time, arrives) + reductions[kind]
    return max(time, _at(place, _LEAVES, block))


@inlined
def _same(place: Times, row: int, block: int, time: int, pace: int) -> int:
    """The pace, if that is this time's too."""
    if pace == _NO_PACE or (place[row] == NOTHING) != (time == NOTHING):
        return _NO_PACE
    if time != NOTHING and time - _at(place, row, block) != pace:
        return _NO_PACE
    return pace
