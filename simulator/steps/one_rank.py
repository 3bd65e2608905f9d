"""One rank's step with collectives of known durations, for many worlds at once.

The rank is the slowest one under the rules of `step_plan.py`. A rank of an even cluster determines
the order of service, and how much computations and collectives slow each other
(`events/even_cluster.py`). With this order and these durations the slowest rank, whose computations
take `paces` times as long, runs late; the others wait for it in collectives. Neglected: collectives
changed by skew, and shared cores.

Arrays of float64 in one unit of time, a column per world:

| array      | shape              | content                                                  |
|------------|--------------------|----------------------------------------------------------|
| parts      | [buckets + 1, D]   | the backward pass up to each bucket, then its rest       |
| before     | [buckets, D]       | computed before a bucket's first collective              |
| alone      | [collectives, D]   | from the last entry into each until the last rank leaves |
| overlapped | [collectives, D]   | the same with computation all the time: no less          |
| shares     | [collectives, D]   | share of its time in which a rank sends; inf: runs alone |
| after      | [collectives, D]   | computed when it has returned                            |
| longer     | [D]                | factor on computations during a collective               |
| first      | [buckets + 1]      | int64: the number of each bucket's first collective      |
| paces      | [paces]            | factors on the slowest rank's computations               |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop

Rows = NDArray[np.float64]
NEVER, SERVED = 1e300, -1.0
COMPUTE, SIDE, SLOT = 0, 1, 2  # what runs: a piece on each stream, collectives in two slots
NONE, THREAD, ENCODE, ANSWER = -1, 0, 1, 2


@inlined
def on_shared_link(one: float, two: float) -> Any:
    """Return the factor on the durations of two collectives under way that send during these shares
    of their time: at least their sum; or a message that meets another waits for half of it."""
    return max(one + two, 1 + one * two / 2)


@loop
def exchange_times(  # noqa: PLR0912, PLR0915, PLR0917 - the order of service is one rule
    parts: Rows,
    before: Rows,
    alone: Rows,
    overlapped: Rows,
    shares: Rows,
    after: Rows,
    longer: NDArray[np.float64],
    first: NDArray[np.int64],
    paces: NDArray[np.float64],
    side: bool,
    slots: int,
    gathers: bool,
    out: Rows,
) -> None:
    """Write into `out` `[paces, D]` the time from the begin of the last backward pass until all
    buckets are exchanged; `gathers`: the last collective is a gather of weights."""
    buckets, collectives = before.shape[0], alone.shape[0]
    more, asked = np.empty(collectives), np.empty(collectives)
    returned, ready = np.empty(collectives), np.empty(buckets)  # times; one type compiles faster
    late_asked, late_returned = np.empty(collectives), np.empty(collectives)
    late_ready = np.empty(buckets)
    what, number = np.empty(4, np.int64), np.empty(4, np.int64)  # that run
    left, slower, began = np.empty(4), np.empty(4), np.empty(4)
    late, late_free = np.empty(4), np.empty(4)  # arrival of what runs, end of a stream's last piece
    for bucket in range(buckets):
        for each in range(first[bucket], first[bucket + 1]):
            more[each] = first[bucket + 1] - 1 - each  # collectives of its bucket that follow
    for run in range(out.size):
        pace, world = divmod(run, out.shape[1])
        asked[:], returned[:], what[:], late_free[:] = 0, NEVER, NONE, 0
        now, arrived, late_arrived = 0.0, 0.0, 0.0  # the thread's next piece arrived then
        late_entered, late_left, finish = 0.0, 0.0, 0.0
        place, prepared, entering, inside, served = 0, 0, 0, 0, 0
        while True:
            slot = SLOT if what[SLOT] == NONE else SLOT + 1
            other = number[2 * SLOT + 1 - slot]
            if (
                entering < collectives
                and asked[entering]
                and inside < slots
                and (inside == 0 or shares[entering, world] + shares[other, world] < NEVER)
            ):
                what[slot], number[slot], left[slot] = 0, entering, alone[entering, world]
                late_entered = max(late_entered, late_asked[entering], late_left)
                began[slot], late[slot] = now, late_entered
                entering += 1
                inside += 1
                continue
            work = NEVER
            if place <= buckets and arrived < NEVER:
                work = parts[place, world]
                if not side and place < buckets:
                    work += before[place, world]
            # a piece without work is done on arrival, and never queues
            done, of, end = THREAD, place, late_arrived
            if work > 0:
                while served < entering and returned[served] == SERVED:
                    served += 1  # hundreds of buckets, few of which are in progress
                while prepared < min(place, buckets) and before[prepared, world] <= 0:
                    prepared += 1
                # a free stream serves its first arrival; for equal times in this order, since each
                # test is <
                for stream in range(SLOT):
                    if what[stream] != NONE:
                        continue
                    at = NEVER
                    if stream == COMPUTE and work < NEVER:
                        at, left[stream] = arrived, work
                        what[stream], number[stream], late[stream] = THREAD, place, late_arrived
                    if side == (stream == SIDE):
                        for each in range(served, entering):
                            if 0 <= returned[each] < at:
                                at, left[stream] = returned[each], after[each, world]
                                what[stream], number[stream] = ANSWER, each
                                late[stream] = late_returned[each]
                    encoding = stream == SIDE and side and prepared < min(place, buckets)
                    if encoding and ready[prepared] < at:
                        left[stream] = before[prepared, world]
                        what[stream], number[stream] = ENCODE, prepared
                        late[stream] = late_ready[prepared]
                    began[stream] = now
                    if what[stream] == THREAD:
                        arrived = NEVER
                    elif what[stream] == ENCODE:
                        prepared += 1
                    elif what[stream] == ANSWER:
                        returned[number[stream]] = SERVED
                computing = what[COMPUTE] != NONE or what[SIDE] != NONE
                if inside == 0 and not computing:
                    if entering == collectives:
                        break
                    asked[entering], late_asked[entering] = 1, finish  # the gather of weights
                    continue
                passed, ends, shared = NEVER, 0, 1.0
                if inside == 2:
                    own, others = shares[number[SLOT], world], shares[number[SLOT + 1], world]
                    shared = on_shared_link(own, others)
                for each in range(4):
                    if what[each] == NONE:
                        continue
                    slower[each] = 1.0
                    if each < SLOT and inside > 0:
                        slower[each] = longer[world]
                    elif each >= SLOT and computing:
                        slower[each] = overlapped[number[each], world] / alone[number[each], world]
                    if each >= SLOT:
                        slower[each] *= shared
                    if left[each] * slower[each] < passed:
                        passed, ends = left[each] * slower[each], each
                now += passed
                for each in range(4):
                    if what[each] != NONE:
                        left[each] = max(0.0, left[each] - passed / slower[each])
                done, of, what[ends] = what[ends], number[ends], NONE
                if ends < SLOT:
                    end = max(late_free[ends], late[ends]) + paces[pace] * (now - began[ends])
                    late_free[ends] = end
                else:
                    end = late[ends] + now - began[ends]
                    late_left = max(late_left, end)
                    inside -= 1
                    returned[of], late_returned[of], done = now, end, ANSWER
                finish = max(finish, end)
                if ends >= SLOT and after[of, world] > 0:
                    continue
            wanted = -1
            if done == ANSWER:
                returned[of] = SERVED
                if more[of] > 0:
                    wanted = of + 1
            elif of < buckets and first[of] < first[of + 1]:
                encoded = done == ENCODE or not side or before[of, world] <= 0
                wanted = first[of] if encoded else -1
            if done == THREAD:
                place += 1
                arrived, late_arrived = now, end
                if of < buckets:
                    ready[of], late_ready[of] = now, end
            if wanted >= 0 and not (gathers and wanted == collectives - 1):
                asked[wanted], late_asked[wanted] = 1, end
        out[pace, world] = finish
