"""How far does every rank get before a collective returns of which nothing is known yet?

The loops of `vector_step.py`, whose docstring says why they are right. What happened up to a
rank's horizon, its exit from the last collective that has been carried out, is kept; what may
still change is computed again in the next round. Arrays that they share, all int64:

| array  | shape                    | what                                                       |
|--------|--------------------------|------------------------------------------------------------|
| state  | [STATE_ROWS, ranks]      | see `STATE_ROWS`                                           |
| calls  | [3, collectives, ranks]  | when a rank asks for a collective and has left it; the     |
|        |                          | callbacks that have not been served, in order              |
| side   | [2 buckets + collectives,| of a side stream: when each bucket's part of the backward  |
|        | ranks]                   | pass is done; when each piece of work starts               |
| table  | [rows, ranks or 1]       | durations, as `vector_layout.py` says                      |
| shape  | [4, ...]                 | `Layout.shape`                                             |
| joined | [buckets]                | how many collectives of each bucket have been carried out  |
| places | [4]                      | buckets; 1 for a side stream; where the pieces begin in    |
|        |                          | the table that the thread hands to the stream that serves  |
|        |                          | callbacks as well; where the callbacks' begin              |
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
DONE, EARLY = -1, -2
"""In the place of a collective's number: there is none; a rank would leave before all entered."""
_NOTHING = -2


@loop
def advance(  # noqa: PLR0917 - a loop takes its arrays by position
    carried: int,
    exits: Times,
    entry: Times,
    state: Rows,
    calls: NDArray[np.int64],
    side: Rows,
    table: Rows,
    shape: Rows,
    joined: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Let all ranks leave collective `carried` (below 0: none) at `exits`.

    The number of the next collective is returned, with its entry times in `entry`; or `DONE` when
    there is none, and then everything has been done; or `EARLY`.
    """
    if carried >= 0:
        if exits.min() < entry.max():
            return EARLY
        joined[shape[BUCKET, carried]] += 1
        _leave(carried, exits, entry, state, calls, table[places[3] + carried], shape)
    needed = _needed(joined, shape, places)
    follows = False  # a bucket's next collective waits for the callback of the one before
    for b in range(places[0]):
        follows = follows or 0 < joined[b] < shape[COUNT, b]
    if needed == _NOTHING or follows or _lowest(state[PLACE]) <= needed:
        _run(needed, follows, state, calls, side, table, shape, places)
    if needed == _NOTHING:
        return DONE
    chosen = _earliest(needed, calls, shape, joined, places)
    for r in range(entry.size):
        entry[r] = max(calls[ASKED, chosen, r], state[LEFT, r])
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
    wide = 1 if work.size > 1 else 0
    left, shared, returned = state[LEFT], state[SHARED], calls[RETURNED, carried]
    head, tail, queue = state[HEAD], state[TAIL], calls[QUEUE]
    for r in range(exits.size):
        now, before = exits[r], left[r]
        shared[r] += now - entry[r]
        left[r] = now
        returned[r] = now
        if work[r * wide] == 0:  # nothing is launched, so nothing queues
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
    `_NOTHING` where all collectives have been carried out.
    """
    needed, left = -1, False
    for b in range(places[0]):
        left = left or joined[b] < shape[COUNT, b]
        if joined[b] == 0 and shape[COUNT, b] and (places[1] or needed < 0):
            needed = b
    return needed if left else _NOTHING


@loop
def _run(  # noqa: PLR0912, PLR0917 - the order of service is one rule
    needed: int,
    follows: bool,
    state: Rows,
    calls: NDArray[np.int64],
    side: Rows,
    table: Rows,
    shape: Rows,
    places: NDArray[np.int64],
) -> None:
    """Serve pieces in the order of arrival, until all ranks have asked for what may be next.

    That can be left out where every rank certainly has: what waits in queues is served later.
    """
    buckets, on_side, after = places[0], places[1], places[3]
    rows, pieces = places[2], buckets if on_side else buckets + 1
    wide = 1 if table.shape[1] > 1 else 0
    asked, returns, queue = calls[ASKED], calls[RETURNED], calls[QUEUE]
    for r in range(state.shape[1]):
        column = r * wide
        horizon = NEVER if needed == _NOTHING else state[LEFT, r]
        free, issued, place = state[FREE, r], state[ISSUED, r], state[PLACE, r]
        head, tail, certain = state[HEAD, r], state[TAIL, r], True
        while True:
            issue, work, returned, callback = NEVER, 0, NEVER, 0
            if place < pieces:
                issue = side[place, r] if on_side else issued
                work = table[rows + place, column]
                if work == 0:  # nothing is launched, so nothing queues
                    if place < buckets and shape[COUNT, place]:
                        asked[shape[FIRST, place], r] = issue
                    place += 1
                    continue
            if head < tail:
                callback = queue[head, r]
                returned = returns[callback, r]
            first = issue < returned or (
                issue == returned and (on_side == 0 or place < shape[BUCKET, callback])
            )
            arrival = min(issue, returned)
            # What is not known yet arrives at the horizon at the earliest, and then only a piece of
            # the autograd thread is sure to come before it.
            if certain and (arrival > horizon or (arrival == horizon and (on_side or not first))):
                certain = False
                state[FREE, r], state[ISSUED, r] = free, issued
                state[PLACE, r], state[HEAD, r] = place, head
            if (head == tail or not (certain or follows)) and (
                place >= pieces or (not certain and place > needed)
            ):
                break
            start = max(free, arrival)
            if first:
                free = start + work
                if place < buckets and shape[COUNT, place]:
                    asked[shape[FIRST, place], r] = free
                if on_side:
                    side[buckets + place, r] = start
                else:
                    issued = free
                place += 1
            else:
                free = start + table[after + callback, column]
                if shape[FOLLOWS, callback]:
                    asked[callback + 1, r] = free
                if on_side:
                    side[2 * buckets + callback, r] = start
                head += 1
        if certain:
            state[FREE, r], state[ISSUED, r], state[PLACE, r] = free, issued, place
            state[HEAD, r] = head


@loop
def _lowest(values: Times) -> int:
    lowest = NEVER
    for r in range(values.size):
        lowest = min(lowest, values[r])
    return lowest


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
            first = _lowest(calls[ASKED, candidate])
            if first < earliest:
                chosen, earliest = candidate, first
    return chosen
