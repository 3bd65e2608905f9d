"""Which collective is next once all ranks have left one, and when does each rank enter it?

With `vectors/streams.py` the loops of `vectors/step.py`, whose docstring says why they are right.
What happened up to a rank's horizon, its exit from the last collective that has been carried out,
is kept; what may still change is computed again in the next round. Arrays that they share, all
int64:

| array  | shape                    | what                                                       |
|--------|--------------------------|------------------------------------------------------------|
| state  | [STATE_ROWS, ranks]      | see `STATE_ROWS`                                           |
| calls  | [3, collectives, ranks]  | when a rank asks for a collective and has left it; the     |
|        |                          | callbacks that have not been served, in order              |
| side   | [2 buckets + collectives,| of a side stream: when each bucket's part of the backward  |
|        | ranks]                   | pass is done; when each piece of work starts               |
| table  | [rows, ranks or 1]       | durations, as `vectors/layout.py` says                      |
| shape  | [4, ...]                 | `Layout.shape`                                             |
| joined | [buckets]                | how many collectives of each bucket have been carried out  |
| places | [6]                      | buckets; 1 for a side stream; where the pieces begin in    |
|        |                          | the table that the thread hands to the stream that serves  |
|        |                          | callbacks as well; where the callbacks' begin; written     |
|        |                          | here for `vector_streams.run`: the bucket up to which      |
|        |                          | first collectives may be next, and 1 if another one waits  |
|        |                          | for a callback                                             |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import Times

Rows = NDArray[np.int64]

FREE, ISSUED, PLACE, HEAD, TAIL, LEFT, SHARED, INPUT, MADE = range(9)
STATE_ROWS = 9
"""When the stream that serves callbacks is free; when the autograd thread issues its next piece
(side stream: when its backward pass ends); the number of that piece; the ends of the queue of
callbacks; when the rank left its last collective; time in collectives; time waiting for batches;
when the last batch was made."""
ASKED, RETURNED, QUEUE = range(3)
"""Of `calls`."""
COUNT, FIRST, BUCKET, FOLLOWS = range(4)
"""Rows of `shape`."""
NEVER = 2**62
DONE, EARLY, STREAMS = -1, -2, -3
"""In the place of a collective's number: there is none; a rank would leave before all entered; the
streams have to be run first."""
NOTHING = -2
"""In the place of a bucket: all collectives have been carried out."""


@loop
def advance(  # noqa: PLR0917 - a loop takes its arrays by position
    carried: int,
    have_run: bool,
    exits: Times,
    entry: Times,
    state: Rows,
    calls: NDArray[np.int64],
    table: Rows,
    shape: Rows,
    joined: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Let all ranks leave collective `carried` (below 0: none) at `exits`.

    The number of the next collective is returned, with its entry times in `entry`; or `STREAMS`
    where the streams have to be run before that is known, by `vector_streams.run`, and this again
    with `have_run` and without a collective; or `DONE` when there is none, and then everything has
    been done; or `EARLY`.
    """
    if carried >= 0:
        if exits.min() < entry.max():
            return EARLY
        joined[shape[BUCKET, carried]] += 1
        _leave(carried, exits, entry, state, calls, table[places[3] + carried], shape)
    needed = _needed(joined, shape, places)
    if not have_run:
        follows = False  # a bucket's next collective waits for the callback of the one before
        for b in range(places[0]):
            follows = follows or 0 < joined[b] < shape[COUNT, b]
        if needed == NOTHING or follows or state[PLACE].min() <= needed:
            places[4], places[5] = needed, follows
            return STREAMS
    if needed == NOTHING:
        return DONE
    chosen = _earliest(needed, calls, shape, joined, places)
    asked, left = calls[ASKED, chosen], state[LEFT]
    for r in range(entry.size):
        entry[r] = max(asked[r], left[r])
    return chosen


@loop
def _leave(  # noqa: PLR0917
    carried: int,
    exits: Times,
    entry: Times,
    state: Rows,
    calls: NDArray[np.int64],
    work: NDArray[np.int64],
    shape: Rows,
) -> None:
    """Callbacks join their ranks' queues: by exit, then bucket, then place.

    A rank leaves no collective before the one that it left last, so that only ties need looking at.
    """
    left, shared, returned = state[LEFT], state[SHARED], calls[RETURNED, carried]
    head, tail, queue = state[HEAD], state[TAIL], calls[QUEUE]
    ties, idle, slot = 0, 0, tail[0]
    for r in range(exits.size):
        ties += (exits[r] == left[r]) + (tail[r] != slot)
    for column in range(work.size):
        idle += work[column] == 0
    for r in range(exits.size):
        shared[r] += exits[r] - entry[r]
    returned[:] = exits
    if idle == work.size:  # nothing is launched, so nothing queues
        left[:] = exits
        if shape[FOLLOWS, carried]:
            calls[ASKED, carried + 1] = exits
        return
    if ties + idle == 0:  # every rank's queue grows by the same
        left[:] = exits
        queue[slot] = carried
        tail[:] = slot + 1
        return
    wide = 1 if work.size > 1 else 0
    for r in range(exits.size):
        now, before = exits[r], left[r]
        left[r] = now
        if work[r * wide] == 0:
            if shape[FOLLOWS, carried]:
                calls[ASKED, carried + 1, r] = now
            continue
        slot = tail[r]
        tail[r] += 1
        if now == before:
            while slot > head[r]:
                other = queue[slot - 1, r]
                if calls[RETURNED, other, r] < now or other < carried:
                    break
                queue[slot, r] = other
                slot -= 1
        queue[slot, r] = carried


@loop
def _needed(joined: NDArray[np.int64], shape: Rows, places: NDArray[np.int64]) -> int:
    """The bucket up to which first collectives may be next; -1 where all have been carried out.

    On the compute stream each rank asks for them in the order of buckets, and only one can be
    next. On a side stream a bucket with nothing to compute asks before those that wait.
    `NOTHING` where all collectives have been carried out.
    """
    needed, left = -1, False
    for b in range(places[0]):
        left = left or joined[b] < shape[COUNT, b]
        if joined[b] == 0 and shape[COUNT, b] and (places[1] or needed < 0):
            needed = b
    return needed if left else NOTHING


@loop
def _earliest(
    needed: int,
    calls: NDArray[np.int64],
    shape: Rows,
    joined: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Of the collectives that may be next the one that some rank asks for first."""
    chosen, earliest = -1, NEVER
    for b in range(places[0]):
        if joined[b] < shape[COUNT, b] and (joined[b] or places[1] or b == needed):
            candidate = shape[FIRST, b] + joined[b]
            first = calls[ASKED, candidate].min()
            if first < earliest:
                chosen, earliest = candidate, first
    return chosen
