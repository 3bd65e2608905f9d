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

from typing import Any

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
        _post(
            at[(piece - 1) % per_block],
            at[piece],
            active[:count],
            changed,
            pieces[piece],
            pieces[(piece - 2) % per_block],
            gone,
            serialization,
            latency,
            back,
            reductions,
            block,
            piece,
        )
        number += 1
        moved = int(number % per_block == 0)
        count = _ask(at[piece], active[:count], changed, moved, asked, number, coming)
        active, coming = coming, active
    done = number if count else posts
    block, piece = (done - 1) // per_block, (done - 1) % per_block
    newer, older = pieces[piece], pieces[(piece - 1) % per_block]
    for i in range(q):
        r, here, received = (i + block - shift) % q, at[piece, i], (i - 1) % q
        posted[r], left[r] = _at(here, _POSTED, block), _at(here, _LEFT, block)
        for slot in range(2):
            arrives[slot, r] = _at(here, _ARRIVES + slot, block)
            leaves[slot, r] = _at(here, _LEAVES + slot, block)
        first = received + (piece == 0)
        costs[0, r] = 0 if arrives[0, r] == NOTHING else reductions[older[first]]
        costs[1, r] = 0 if arrives[1, r] == NOTHING else reductions[newer[received]]
    return done


@loop
def _post(  # noqa: PLR0917
    before: NDArray[np.int64],
    now: NDArray[np.int64],
    active: Ints,
    changed: NDArray[np.bool_],
    size: Ints,
    oldest: Ints,
    gone: NDArray[np.bool_],
    serialization: Times,
    latency: Times,
    back: int,
    reductions: Times,
    block: int,
    piece: int,
) -> None:
    """Post a message at the active places: `now` from `before`, the places one message earlier.

    `size` and `oldest` are the size classes of the message and of the older one in flight, by
    block; `changed`, by number in `active`: whether the pace is another than a block before.
    """
    q = now.shape[0]
    moved = int(piece == 0)  # the rank that sends block i has sent block i + 1 before
    then = block - moved
    for n in range(active.size):
        i = active[n]
        own = i + moved if i + moved < q else i + moved - q
        pred = own - 1 if own else q - 1
        succ = own + 1 if own + 1 < q else 0
        received = i - 1 if i else q - 1
        first = received + int(piece < 2)  # what arrived as the older one
        mine = _waited(before[own], then, oldest[first], reductions)
        earlier = _waited(before[pred], then, oldest[first - 1 + q], reductions)
        later = _waited(before[succ], then, oldest[first + 1], reductions)
        leaving, arriving = _at(before[own], _LEFT, then), NOTHING
        kind = size[i]
        if not gone[kind]:
            leaving = max(leaving, mine, later + back) + serialization[kind]
        kind = size[received]
        if not gone[kind]:
            start = max(_at(before[pred], _LEFT, then), earlier, mine + back)
            arriving = start + serialization[kind] + latency[kind]
        arrives = _at(before[own], _ARRIVES + 1, then)
        leaves = _at(before[own], _LEAVES + 1, then)
        here = now[i]
        pace = _NO_PACE
        if here[_BLOCK] > -2:
            pace = mine - _at(here, _POSTED, block - 1)
        pace = _same(here, _LEFT, block - 1, leaving, pace)
        pace = _same(here, _ARRIVES, block - 1, arrives, pace)
        pace = _same(here, _ARRIVES + 1, block - 1, arriving, pace)
        pace = _same(here, _LEAVES, block - 1, leaves, pace)
        pace = _same(here, _LEAVES + 1, block - 1, leaving, pace)
        changed[n] = pace == _NO_PACE or pace != here[_PACE]
        here[_POSTED], here[_LEFT] = mine, leaving
        here[_ARRIVES], here[_ARRIVES + 1] = arrives, arriving
        here[_LEAVES], here[_LEAVES + 1] = leaves, leaving
        here[_BLOCK], here[_PACE] = block, pace


@loop
def _ask(  # noqa: PLR0917
    now: NDArray[np.int64],
    active: Ints,
    changed: NDArray[np.bool_],
    moved: int,
    asked: Ints,
    number: int,
    coming: Ints,
) -> int:
    """Into `coming` the places of the next message that look at one whose pace has changed, or at
    two that differ; how many. `asked` says for which message's number a place was last noted."""
    q, found = now.shape[0], 0
    for n in range(active.size):
        i = active[n]
        lower = changed[n] or now[i - 1 if i else q - 1, _PACE] != now[i, _PACE]
        upper = changed[n] or now[i + 1 if i + 1 < q else 0, _PACE] != now[i, _PACE]
        if not (lower or upper):
            continue
        for by in range(-1 if lower else 0, 2 if upper else 1):
            place = i - moved + by
            place += q if place < 0 else 0
            place -= q if place >= q else 0
            if asked[place] != number:
                asked[place] = number
                coming[found] = place
                found += 1
    return found


@inlined
def _at(place: Times, row: int, block: int) -> Any:
    """A place's time in a block number, not before it was last computed."""
    time = place[row]
    return time if time == NOTHING else time + place[_PACE] * (block - place[_BLOCK])


@inlined
def _waited(place: Times, block: int, kind: int, reductions: Times) -> Any:
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
