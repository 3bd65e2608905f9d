"""Which collective is next once all ranks have left one, and when does each rank enter it?

The loops of `vectors/step.py`, whose docstring says why they are right: `advance` finds the next
collective, `run` says how far the streams get with what is known to have arrived. What happened up
to a rank's horizon, its exit from the last collective that has been carried out, is kept; what may
still change is computed again in the next round. All in one file, since numba's cache does not
notice when constants change that a loop has from another. Arrays, all int64:

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
|        |                          | by `advance` for `run`: the bucket up to which             |
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
_WIDE = 16
"""Ranks from which on it pays to look whether all do the same."""


@loop
def advance(  # noqa: PLR0917 - a loop takes its arrays by position
    carried: int,
    have_run: bool,
    finishes: Times,
    starts: Times,
    state: Rows,
    calls: NDArray[np.int64],
    table: Rows,
    shape: Rows,
    joined: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Let all ranks leave collective `carried` (below 0: none) at `finishes`.

    The number of the next collective is returned, with its entry times in `starts`; or `STREAMS`
    where the streams have to be run before that is known, by `run`, and this again with
    `have_run` and without a collective; or `DONE` when there is none, and then everything has been
    done; or `EARLY`.
    """
    if carried >= 0:
        if finishes.min() < starts.max():
            return EARLY
        joined[shape[BUCKET, carried]] += 1
        _leave(carried, finishes, starts, state, calls, table[places[3] + carried], shape)
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
    for r in range(starts.size):
        starts[r] = max(asked[r], left[r])
    return chosen


@loop
def _leave(  # noqa: PLR0917
    carried: int,
    finishes: Times,
    starts: Times,
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
    for r in range(finishes.size):
        ties += (finishes[r] == left[r]) + (tail[r] != slot)
    for column in range(work.size):
        idle += work[column] == 0
    for r in range(finishes.size):
        shared[r] += finishes[r] - starts[r]
    returned[:] = finishes
    if idle == work.size:  # nothing is launched, so nothing queues
        left[:] = finishes
        if shape[FOLLOWS, carried]:
            calls[ASKED, carried + 1] = finishes
        return
    if ties + idle == 0:  # every rank's queue grows by the same
        left[:] = finishes
        queue[slot] = carried
        tail[:] = slot + 1
        return
    wide = 1 if work.size > 1 else 0
    for r in range(finishes.size):
        now, before = finishes[r], left[r]
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


@loop
def run(  # noqa: PLR0917 - a loop takes its arrays by position
    state: Rows,
    calls: NDArray[np.int64],
    side: Rows,
    table: Rows,
    shape: Rows,
    places: NDArray[np.int64],
) -> None:
    """Serve pieces in the order of arrival, until all ranks have asked for what may be next.

    That can be left out where every rank certainly has: what waits in queues is served later. As
    long as all ranks do the same next, a piece is served on all of them by loops over contiguous
    rows, which become vector instructions; where they part, each goes on alone from what all have
    done for certain.
    """
    needed, follows = places[4], places[5] == 1
    if state.shape[1] >= _WIDE and _together(
        needed, follows, state, calls, side, table, shape, places
    ):
        return
    _one_by_one(needed, follows, state, calls, side, table, shape, places)


@loop
def _together(  # noqa: PLR0912, PLR0915, PLR0917 - the order of service is one rule
    needed: int,
    follows: bool,
    state: Rows,
    calls: NDArray[np.int64],
    side: Rows,
    table: Rows,
    shape: Rows,
    places: NDArray[np.int64],
) -> bool:
    """`_one_by_one` for ranks that all do the same; False where they part.

    What all have done for certain is in `state` then.
    """
    buckets, on_side, rows, after = places[0], places[1], places[2], places[3]
    pieces = buckets if on_side else buckets + 1
    ranks, horizon, free, issued = state.shape[1], state[LEFT], state[FREE], state[ISSUED]
    place, head, tail, certain = state[PLACE, 0], state[HEAD, 0], state[TAIL, 0], True
    agree = _equal(state[PLACE]) and _equal(state[HEAD]) and _equal(state[TAIL])
    for slot in range(head, tail):
        agree = agree and _equal(calls[QUEUE, slot])
    if not agree:
        return False
    while place < pieces or head < tail:
        # two things may be next: the thread's piece number `place`, which arrives when the one
        # before was issued (side stream: when its part of the backward pass is done), and the
        # callback at the head of the queue, which arrives when its collective is left
        asks = place < buckets and shape[COUNT, place] > 0
        arrival, first, callback = issued, True, 0
        if place < pieces:
            if on_side:
                arrival = side[place]
            idle = _count(table[rows + place], 0)
            if idle == table.shape[1]:  # nothing is launched, so nothing queues
                if asks:
                    calls[ASKED, shape[FIRST, place]] = arrival
                place += 1
                continue
            if idle:
                agree = False
                break
        if head < tail:
            callback = calls[QUEUE, head, 0]
            returned = calls[RETURNED, callback]
            sooner = 0
            if place < pieces:
                # one thread issues pieces and serves callbacks, its own pieces first; on a side
                # stream ties go by bucket
                tie = on_side == 0 or place < shape[BUCKET, callback]
                sooner = _count_before(arrival, returned, tie)
            if 0 < sooner < ranks:
                agree = False
                break
            if not sooner:
                arrival, first = returned, False
        if certain and needed != NOTHING:
            # what is not known yet arrives at the horizon at the earliest: see `_one_by_one`
            sure = _count_before(arrival, horizon, first and on_side == 0)
            if 0 < sure < ranks:
                agree = False
                break
            if not sure:
                certain = False
                state[PLACE], state[HEAD] = place, head
                # from here on guesses: `state` keeps what is certain
                free, issued = free.copy(), issued.copy()
        if (head == tail or not (certain or follows)) and (
            place >= pieces or (not certain and place > needed)
        ):
            break
        if first:
            if on_side:
                side[buckets + place] = np.maximum(free, arrival)
            _serve(free, arrival, table[rows + place])
            if asks:
                calls[ASKED, shape[FIRST, place]] = free
            if not on_side:
                issued[:] = free
            place += 1
        else:
            if on_side:
                side[2 * buckets + callback] = np.maximum(free, arrival)
            _serve(free, arrival, table[after + callback])
            if shape[FOLLOWS, callback]:
                calls[ASKED, callback + 1] = free
            head += 1
    if certain:
        state[PLACE], state[HEAD] = place, head
    return agree


@loop
def _equal(values: Times) -> bool:
    return _count(values, values[0]) == values.size


@loop
def _count(values: Times, value: int) -> int:
    found = 0
    for r in range(values.size):
        found += values[r] == value
    return found


@loop
def _count_before(arrival: Times, other: Times, tie: bool) -> int:
    """On how many ranks something arrives before another thing, or with it if `tie`."""
    found, more = 0, 1 if tie else 0
    for r in range(arrival.size):
        found += arrival[r] < other[r] + more
    return found


@loop
def _serve(free: Times, arrival: Times, work: Times) -> None:
    """A piece of work is done on each rank; `work` `[ranks or 1]`."""
    if work.size == 1:
        takes = work[0]
        for r in range(free.size):
            free[r] = max(free[r], arrival[r]) + takes
    else:
        for r in range(free.size):
            free[r] = max(free[r], arrival[r]) + work[r]


@loop
def _one_by_one(  # noqa: PLR0912, PLR0917 - the order of service is one rule
    needed: int,
    follows: bool,
    state: Rows,
    calls: NDArray[np.int64],
    side: Rows,
    table: Rows,
    shape: Rows,
    places: NDArray[np.int64],
) -> None:
    """Each rank's streams for themselves."""
    buckets, on_side, after = places[0], places[1], places[3]
    rows, pieces = places[2], buckets if on_side else buckets + 1
    wide = 1 if table.shape[1] > 1 else 0
    asked, returns, queue = calls[ASKED], calls[RETURNED], calls[QUEUE]
    for r in range(state.shape[1]):
        column = r * wide
        horizon = NEVER if needed == NOTHING else state[LEFT, r]
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
