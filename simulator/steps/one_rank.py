"""How long is one rank's step, where its collectives take known times? For many worlds at once.

The rules of `step_plan.py` for a few ranks that stand for all: a compute stream (and a side stream)
that serve in the order of arrival, as streams do on an even cluster, a communicator with one slot,
or two for one rank alone. Ranks differ in when they leave a collective: a few microseconds can
decide what a stream takes first, and then a rank that does not ask keeps all others waiting. What
is left out is that entries apart make
a collective longer or shorter, and cores that are shared.

Arrays of float64 in one unit of time, a column for each world:

| array  | shape              | what                                                     |
|--------|--------------------|----------------------------------------------------------|
| parts  | [buckets + 1, D]   | the backward pass up to each bucket, then its rest       |
| before | [buckets, D]       | computed before a bucket's first collective              |
| held   | [collectives, D]   | from the last entry into each until the last rank leaves |
| after  | [collectives, D]   | computed when it has returned                            |
| first  | [buckets + 1]      | int64: the number of each bucket's first collective      |
| early  | [collectives, ranks, D] | how much sooner than the last one each rank leaves  |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop

Rows = NDArray[np.float64]
NEVER = 1e300
WAITING, UNDER_WAY, SERVED = 0, 1, 2
THREAD, ENCODE, ANSWER = 0, 1, 2


@loop
def exchange_times(  # noqa: PLR0912, PLR0915, PLR0917 - the order of service is one rule
    parts: Rows,
    before: Rows,
    held: Rows,
    after: Rows,
    first: NDArray[np.int64],
    early: Rows,
    side: bool,
    slots: int,
    out: Rows,
) -> None:
    """Write `[D]`: from when the last rank begins its last backward pass until all have computed
    and exchanged everything. Ranks begin as far apart as they leave the last collective."""
    buckets, collectives, ranks = before.shape[0], held.shape[0], early.shape[1]
    asked, returned = np.empty((ranks, collectives)), np.empty((ranks, collectives))
    ready, state = np.empty((ranks, buckets + 1)), np.empty((ranks, collectives), np.int64)
    free, side_free, issued = np.empty(ranks), np.empty(ranks), np.empty(ranks)
    left, left_before = np.empty(ranks), np.empty(ranks)  # the last two leave times
    place, prepared = np.empty(ranks, np.int64), np.empty(ranks, np.int64)
    bucket_of = np.empty(collectives, np.int64)
    for bucket in range(buckets):
        for number in range(first[bucket], first[bucket + 1]):
            bucket_of[number] = bucket
    for world in range(out.size):
        asked[:], returned[:], state[:], following = NEVER, NEVER, WAITING, 0
        side_free[:], left[:], left_before[:], place[:], prepared[:] = 0.0, 0.0, 0.0, 0, 0
        finish, entered, begin = 0.0, 0.0, 0.0
        for rank in range(ranks):
            soon = early[collectives - 1, rank, world] if collectives else 0.0
            issued[rank] = -soon
            begin = max(begin, soon)
        for rank in range(ranks):
            issued[rank] += begin
        free[:], begin = issued, issued.max()
        while True:
            who, what, now = -1, THREAD, NEVER
            back = -1
            for rank in range(ranks):
                if place[rank] <= buckets and issued[rank] < now:
                    who, what, now = rank, THREAD, issued[rank]
            if side:
                for rank in range(ranks):
                    number = prepared[rank]
                    if number < min(place[rank], buckets) and ready[rank, number] < now:
                        who, what, now = rank, ENCODE, ready[rank, number]
            for rank in range(ranks):
                for number in range(collectives):
                    if state[rank, number] == UNDER_WAY and returned[rank, number] < now:
                        who, what, now = rank, ANSWER, returned[rank, number]
                        back = number
            if following < collectives:
                start = entered
                for rank in range(ranks):
                    until = left[rank] if slots == 1 else left_before[rank]
                    start = max(start, asked[rank, following], until)
                if start <= now and start < NEVER:
                    entered = start
                    for rank in range(ranks):
                        leaves = start + held[following, world] - early[following, rank, world]
                        state[rank, following] = UNDER_WAY
                        returned[rank, following] = leaves
                        left_before[rank] = max(left_before[rank], min(left[rank], leaves))
                        left[rank] = max(left[rank], leaves)
                    following += 1
                    continue
            if who < 0:
                break
            wanted = -1
            if what == THREAD:
                number = place[who]
                work = parts[number, world]
                if not side and number < buckets:
                    work += before[number, world]
                if work > 0:
                    free[who] = max(free[who], now) + work
                    issued[who] = free[who]
                end = issued[who]
                if number < buckets:
                    ready[who, number] = end
                    if not side and first[number] < first[number + 1]:
                        wanted = first[number]
                place[who] += 1
            elif what == ENCODE:
                number = prepared[who]
                end, work = now, before[number, world]
                if work > 0:
                    side_free[who] = max(side_free[who], now) + work
                    end = side_free[who]
                if first[number] < first[number + 1]:
                    wanted = first[number]
                prepared[who] += 1
            else:
                end, work = now, after[back, world]
                if work > 0:
                    if side:
                        side_free[who] = max(side_free[who], now) + work
                        end = side_free[who]
                    else:
                        free[who] = max(free[who], now) + work
                        end = free[who]
                state[who, back] = SERVED
                if back + 1 < first[bucket_of[back] + 1]:
                    wanted = back + 1
            if wanted >= 0:
                asked[who, wanted] = end
            finish = max(finish, end)
        out[world] = finish - begin
