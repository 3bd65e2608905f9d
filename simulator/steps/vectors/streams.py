"""How far do the streams of all ranks get with what is known to have arrived?

The streams serve in the order of arrival; the arrays are those of `vectors/loops.py`, whose
constants this file shares (numba's cache does not notice when they change there).

As long as all ranks do the same next, a piece of work is served on all of them by loops over
contiguous rows, which become vector instructions. Where they part, each goes on alone from what all
have done for certain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import Times
from gcsim.simulator.steps.vectors.loops import (
    ASKED,
    BUCKET,
    COUNT,
    FIRST,
    FOLLOWS,
    FREE,
    HEAD,
    ISSUED,
    LEFT,
    NEVER,
    NOTHING,
    PLACE,
    QUEUE,
    RETURNED,
    TAIL,
    Rows,
)

_WIDE = 16
"""Ranks from which on it pays to look whether all do the same."""


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

    That can be left out where every rank certainly has: what waits in queues is served later.
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
