"""The steps of a ring, compiled: a handful of additions and maxima a message.

`steps_of_ring` is the recurrence of `rings/recurrence.py` over arrays of q numbers, for the q ranks
that stand for all. Where a message's times are found depends on how blocks are laid out:

- runs: neighbouring blocks of one size are sent by neighbouring ranks at every step, so that a
  whole run adds one row of times, without looking anything up (an all-reduce has two runs);
- otherwise each message looks its time up by the size of its block and the kind of its link.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop
from gcsim.simulator.network.departures import departure, run_of

Row = NDArray[np.int64]
STILL, MOVING, NEVER_STEADY = 0, 1, -1
"""With whose state of the step before a rank's is compared: its own, its predecessor's, none."""


@loop
def steps_of_ring(  # noqa: PLR0912, PLR0917 - compiled: arrays by position, all in one
    sent: Row,
    received: Row,
    width: int,
    serialization: Row,
    latency: Row,
    reductions: Row,
    starts: Row,
    runs: Row,
    sizes: Row,
    kinds: Row,
    jitter: NDArray[np.int64],
    steady: int,
    first: int,
    last: int,
    reducing: int,
) -> None:
    """Take `sent` and `received` `[q]` from before step `first` to before step `last`.

    | array                    | shape            | what                                           |
    |--------------------------|------------------|------------------------------------------------|
    | starts, runs             | [n + 1], [n]     | blocks of one size beside each other: where    |
    |                          |                  | each run of them begins, its size class        |
    | serialization, latency   | [sizes, width]   | flat; with runs by size class and rank,        |
    |                          |                  | without (n = 0) by size class and link class   |
    | sizes, kinds             | [2 q], [q]       | each block's size class, twice over; each      |
    |                          |                  | rank's link class                              |
    | jitter                   | [last - first, q]| random delays by step and sender, or [0, q]    |

    Steps before step `reducing` reduce.

    Where f is what a step does to the state, f(state + c) = f(state) + c for every constant c. So
    when a step has shifted the state x by one constant, f(x) = x + c, the next one does it again,
    f(x + c) = x + 2c, and so do all that are the same function f: the rest are done at once. That
    holds of the ranks' states where all blocks are equal (STILL), and, where all links are equal,
    of the states in the order of the blocks that the ranks send, which move on by one rank a step
    (MOVING): block b is then sent over the same kind of link, for the same time, at every step.
    """
    q = sent.size
    arrived = np.empty(q, dtype=np.int64)
    sent_before, received_before = np.empty(q, dtype=np.int64), np.empty(q, dtype=np.int64)
    step, looks_at, begun = first, first, first
    while step < last:
        looks = steady >= 0 and step == looks_at
        if looks:
            for r in range(q):
                sent_before[r], received_before[r] = sent[r], received[r]
        turned = step % q  # rank r sends block r - turned, so the runs have moved on by `turned`
        for run in range(starts.size - 1):
            row = runs[run] * width
            low, high = starts[run] + turned, starts[run + 1] + turned
            for _ in range(2):  # the part of the run before the ring closes, and from rank 0 on
                if high > 0 and low < q:
                    begin, end = max(low, 0), min(high, q)
                    _leave(sent, received, arrived, serialization, latency, row, begin, end)
                low, high = low - q, high - q
        block = sizes[q - turned : 2 * q - turned]  # of block (r - step) mod q
        if starts.size == 0:
            for r in range(q):
                at = block[r] * width + kinds[r]
                left = departure(serialization, at, max(sent[r], received[r]))
                sent[r] = left
                arrived[r] = left + latency[at]
        if jitter.shape[0] > 0:
            late = jitter[step - first]
            for r in range(q):
                arrived[r] += late[r]
        _arrive(received, arrived, reductions, starts, runs, block, turned, step < reducing)
        step += 1
        if looks:
            end = reducing if step <= reducing else last
            # the whole state has moved by one constant: the steps left of this kind do the same
            if _shifted(sent, received, sent_before, received_before, steady):
                by = (sent[0] - sent_before[-steady]) * (end - step + 1)
                for r in range(q):
                    before = (r - steady * (end - step + 1)) % q
                    sent[r] = sent_before[before] + by
                    received[r] = received_before[before] + by
                step = end
            # seldom enough to cost little, often enough to lose an eighth of the steps at most
            looks_at = step + (step - begun) // 8
        if step == reducing:
            looks_at, begun = step, step


@inlined
def _leave(  # noqa: PLR0917
    sent: Row,
    received: Row,
    arrived: Row,
    serialization: Row,
    latency: Row,
    row: int,
    low: int,
    high: int,
) -> None:
    """One run's messages, of the ranks from `low` to before `high`."""
    # [high - low]: views, so that the loop below has one index and becomes vector instructions
    part, heard, reach = sent[low:high], received[low:high], arrived[low:high]
    takes = run_of(serialization, row + low, row + high)
    travels = latency[row + low : row + high]
    for r in range(part.size):
        left = max(part[r], heard[r]) + takes[r]  # the NIC is free, and the block is here
        part[r] = left
        reach[r] = left + travels[r]


@inlined
def _arrive(  # noqa: PLR0917
    received: Row,
    arrived: Row,
    reductions: Row,
    starts: Row,
    runs: Row,
    block: Row,
    turned: int,
    reduces: bool,
) -> None:
    """One step's messages at their receivers, `arrived` by sender."""
    q = received.size
    received[0] = max(arrived[q - 1], received[0])
    for r in range(1, q):
        received[r] = max(arrived[r - 1], received[r])
    if not reduces:
        return
    for run in range(starts.size - 1):
        cost = reductions[runs[run]]
        low, high = starts[run] + turned + 1, starts[run + 1] + turned + 1
        for _ in range(2):
            for r in range(max(low, 0), min(high, q)):
                received[r] += cost
            low, high = low - q, high - q
    if starts.size == 0:
        for r in range(q):
            received[r] += reductions[block[r - 1]]


@inlined
def _shifted(sent: Row, received: Row, sent_before: Row, received_before: Row, steady: int) -> bool:
    """Whether a step has made all times later by one constant."""
    by = sent[0] - sent_before[-steady]
    for r in range(sent.size):
        if sent[r] - sent_before[r - steady] != by:
            return False
        if received[r] - received_before[r - steady] != by:
            return False
    return True
