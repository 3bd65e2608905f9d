"""One rank's step with collectives of known times, for many worlds at once.

The rules of `step_plan.py` for a rank of an even cluster, which stands for all: streams in order of
arrival, one or two slots. As ranks have one order, the last to leave a collective keeps the others
waiting and changes nothing else. Left out: collectives changed by skewed entries; shared cores.

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
    """Write into `out` `[D]` the time from the last backward pass until all is exchanged;
    `gathers`: the last collective is a gather of weights."""
    buckets, collectives = before.shape[0], times.shape[0]
    asked, returned = np.empty(collectives), np.empty(collectives)
    more, ready = np.empty(collectives), np.empty(buckets + 1)  # one type: that compiles faster
    for bucket in range(buckets):
        for number in range(first[bucket], first[bucket + 1]):
            more[number] = first[bucket + 1] - 1 - number  # of its bucket's collectives follow
    for world in range(out.size):
        for number in range(collectives):
            asked[number] = NEVER
        free, side_free, issued, finish, entered = 0.0, 0.0, 0.0, 0.0, 0.0
        left, left_before = 0.0, 0.0  # the last two leave times
        place, prepared, entering, served = 0, 0, 0, 0
        while True:
            # what arrives next: a piece of the thread, an encoding, what follows a collective
            # at equal times in this order, since each test is <
            what, now, back = -1, NEVER, -1
            if place <= buckets:
                what, now = THREAD, issued
            if side and prepared < min(place, buckets) and ready[prepared] < now:
                what, now = ENCODE, ready[prepared]
            while served < entering and returned[served] == NEVER:
                served += 1  # hundreds of buckets, of which few are under way
            for number in range(served, entering):
                if returned[number] < now:
                    what, now, back = ANSWER, returned[number], number
            if entering < collectives:
                # two slots: all but one of those in front have been left
                until = left if slots == 1 else left_before
                start = max(entered, asked[entering], until)
                # nothing that arrives later can change this entry: it is settled first
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
                # no work: done on arrival, without a place in the stream
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
