"""When does each rank ask for the next collective, once it has left those in front?

The loop of `vectors/step.py`, whose docstring says why it is right. Arrays, all int64:

| array  | shape                    | what                                                       |
|--------|--------------------------|------------------------------------------------------------|
| state  | [STATE_ROWS, ranks]      | see `STATE_ROWS`                                           |
| calls  | [2, collectives, ranks]  | when a rank asks for a collective, and when it has left it |
| side   | [2 buckets + collectives,| of a side stream: when each bucket's part of the backward  |
|        | ranks]                   | pass is done; when each piece of work starts               |
| table  | [rows, ranks or 1]       | durations, as `vectors/layout.py` says                     |
| shape  | [4, ...]                 | `Layout.shape`                                             |
| places | [4]                      | buckets; 1 for a side stream; where the pieces begin in    |
|        |                          | the table that the thread hands to the stream that serves  |
|        |                          | callbacks as well; where the callbacks' begin              |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop

Rows = NDArray[np.int64]

FREE, ISSUED, PLACE, SERVED, LEFT, SHARED, INPUT, MADE = range(8)
STATE_ROWS = 8
"""When the stream that serves callbacks is free; when the autograd thread issues its next piece
(side stream: when its backward pass ends); the number of that piece; how many callbacks have been
served; when the rank left its last collective; time in collectives; time waiting for batches; when
the last batch was made."""
ASKED, RETURNED = range(2)
"""Of `calls`."""
COUNT, FIRST, BUCKET, FOLLOWS = range(4)
"""Rows of `shape`."""
NEVER = 2**62


@loop
def serve(  # noqa: PLR0912, PLR0917 - the order of service is one rule; a loop takes its arrays by position
    issues: int,
    callbacks: int,
    left: int,
    state: Rows,
    calls: NDArray[np.int64],
    side: Rows,
    table: Rows,
    shape: Rows,
    places: NDArray[np.int64],
) -> None:
    """Each rank serves pieces of work in the order of arrival, until so many are done.

    Those are the first `issues` of the thread and the first `callbacks` of collectives; the first
    `left` collectives have been left. What is done on the way is done for good.
    """
    buckets, on_side, rows, after = places
    pieces = buckets if on_side else buckets + 1
    wide = 1 if table.shape[1] > 1 else 0
    asked, returns = calls[ASKED], calls[RETURNED]
    for r in range(state.shape[1]):
        column = r * wide
        free, issued = state[FREE, r], state[ISSUED, r]
        place, served = state[PLACE, r], state[SERVED, r]
        while place < issues or served < callbacks:
            # two pieces may be next: the thread's number `place`, which arrives when the one before
            # was issued (side stream: when its part of the backward pass is done), and the callback
            # of collective `served`, which arrives when that one is left
            issue, work, returned, callback = NEVER, 0, NEVER, 0
            if place < pieces:
                issue, work = side[place, r] if on_side else issued, table[rows + place, column]
            if served < left:
                returned, callback = returns[served, r], table[after + served, column]
            # one thread issues pieces and serves callbacks, its own pieces first; on a side stream
            # ties go by bucket
            first = issue < returned or (
                issue == returned and (on_side == 0 or place < shape[BUCKET, served])
            )
            # a piece of no work is done when it arrives: nothing is launched, so nothing queues
            if place < pieces and (first or work == 0):
                start = max(free, issue) if work else issue
                done = start + work
                if work:
                    free = done
                if place < buckets and shape[COUNT, place]:
                    asked[shape[FIRST, place], r] = done
                if on_side:
                    side[buckets + place, r] = start
                else:
                    issued = done
                place += 1
            else:
                start = max(free, returned) if callback else returned
                done = start + callback
                if callback:
                    free = done
                if shape[FOLLOWS, served]:
                    asked[served + 1, r] = done
                if on_side:
                    side[2 * buckets + served, r] = start
                served += 1
        state[FREE, r], state[ISSUED, r] = free, issued
        state[PLACE, r], state[SERVED, r] = place, served
