"""One rank's step with collectives of known durations, for many worlds at once.

The rank represents all ranks of an even cluster under the rules of `step_plan.py`: streams serve in
order of arrival, with one or two slots. All ranks have the same order, so the last one to leave a
collective only makes the others wait. Neglected: collectives changed by skew, and shared cores.

Arrays of float64 in one unit of time, a column per world:

| array  | shape              | content                                                  |
|--------|--------------------|----------------------------------------------------------|
| parts  | [buckets + 1, D]   | the backward pass up to each bucket, then its rest       |
| before | [buckets, D]       | computed before a bucket's first collective              |
| times  | [collectives, D]   | from the last entry into each until the last rank leaves |
| after  | [collectives, D]   | computed when it has returned                            |
| first  | [buckets + 1]      | int64: the number of each bucket's first collective      |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop

Rows = NDArray[np.float64]
NEVER = 1e300
THREAD, ENCODE, ANSWER = 0, 1, 2


@loop
def exchange_times(  # noqa: PLR0912, PLR0915, PLR0917 - the order of service is one rule
    parts: Rows,
    before: Rows,
    times: Rows,
    after: Rows,
    first: NDArray[np.int64],
    side: bool,
    slots: int,
    gathers: bool,
    out: Rows,
) -> None:
    """Write into `out` `[D]` the time from the begin of the last backward pass until all buckets
    are exchanged; `gathers`: the last collective is a gather of weights."""
    buckets, collectives = before.shape[0], times.shape[0]
    asked, returned = np.empty(collectives), np.empty(collectives)
    more, ready = np.empty(collectives), np.empty(buckets + 1)  # one type compiles faster
    for bucket in range(buckets):
        for number in range(first[bucket], first[bucket + 1]):
            more[number] = first[bucket + 1] - 1 - number  # collectives of its bucket that follow
    for world in range(out.size):
        for number in range(collectives):
            asked[number] = NEVER
        free, side_free, issued, finish, entered = 0.0, 0.0, 0.0, 0.0, 0.0
        left, left_before = 0.0, 0.0  # exit times of the last two collectives
        place, prepared, entering, served = 0, 0, 0, 0
        while True:
            # the next arrival: a piece of the thread, an encoding, or the piece after a collective;
            # for equal times in this order, since each test is <
            what, now, back = -1, NEVER, -1
            if place <= buckets:
                what, now = THREAD, issued
            if side and prepared < min(place, buckets) and ready[prepared] < now:
                what, now = ENCODE, ready[prepared]
            while served < entering and returned[served] == NEVER:
                served += 1  # hundreds of buckets, few of which are in progress
            for number in range(served, entering):
                if returned[number] < now:
                    what, now, back = ANSWER, returned[number], number
            if entering < collectives:
                # two slots: all but one of the earlier collectives have been left
                until = left if slots == 1 else left_before
                start = max(entered, asked[entering], until)
                # later arrivals cannot change this entry, so it is handled first
                if start <= now and start < NEVER:
                    entered = start
                    leaves = start + times[entering, world]
                    returned[entering] = leaves
                    left_before = max(left_before, min(left, leaves))
                    left = max(left, leaves)
                    entering += 1
                    continue
            if what < 0:
                if gathers and entering == collectives - 1:
                    asked[entering] = finish
                    continue
                break
            wanted, end = -1, now
            if what == THREAD:
                work = parts[place, world]
                if not side and place < buckets:
                    work += before[place, world]
                # a piece without work is done on arrival and does not queue
                if work > 0:
                    free = max(free, now) + work
                    issued = free
                end = issued
                if place < buckets:
                    ready[place] = end
                    if not side and first[place] < first[place + 1]:
                        wanted = first[place]
                place += 1
            elif what == ENCODE:
                work = before[prepared, world]
                if work > 0:
                    side_free = max(side_free, now) + work
                    end = side_free
                if first[prepared] < first[prepared + 1]:
                    wanted = first[prepared]
                prepared += 1
            else:
                work = after[back, world]
                if work > 0 and side:
                    side_free = max(side_free, now) + work
                    end = side_free
                elif work > 0:
                    free = max(free, now) + work
                    end = free
                returned[back] = NEVER  # served
                if more[back] > 0:
                    wanted = back + 1
            if wanted >= 0 and not (gathers and wanted == collectives - 1):
                asked[wanted] = end
            finish = max(finish, end)
        out[world] = finish
