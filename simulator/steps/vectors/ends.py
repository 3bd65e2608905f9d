"""How does an iteration begin, and what is counted when it has ended?

The loops of `vectors/ranks.py` before the first and after the last collective.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import Times


@loop
def begin(  # noqa: PLR0917 - a loop takes its arrays by position
    start: Times,
    waited: Times,
    made: Times,
    taken: NDArray[np.int64],
    free: Times,
    ended: Times,
    ready: NDArray[np.int64],
    work: NDArray[np.int64],
    parts: NDArray[np.int64],
    numbers: NDArray[np.int64],
) -> None:
    """All micro-batches up to the end of the last one's forward pass, begun at `start` `[ranks]`.

    Written are the time waited for batches, when the last batch was made, when the forward pass
    is done (`free`; `ended` as well) and, with a side stream, when bucket b's part of the backward
    pass is (`ready[b]`), and all of it (`ended`). `taken[b mod prefetch]` is when batch b was
    taken. `work` has the durations of a forward and a whole backward pass, `parts` those of the
    buckets' parts and of the rest, `[..., ranks or 1]`. `numbers`: micro-batches, the loader's time
    a batch, batches taken before, 1 for a side stream.
    """
    accumulation, batch, before, on_side = numbers
    wide = 1 if work.shape[1] > 1 else 0
    for r in range(start.size):
        column = r * wide
        now = start[r]
        waited[r] = 0
        for micro in range(accumulation):
            if micro:
                now += work[1, column]
            if batch:
                slot = (before + micro) % taken.shape[0]
                made[r] = max(made[r], taken[slot, r]) + batch
                waited[r] += max(made[r] - now, 0)
                now = max(made[r], now)
                taken[slot, r] = now
            now += work[0, column]
        free[r] = now
        if on_side:
            for b in range(ready.shape[0]):
                now += parts[b, column]
                ready[b, r] = now
            now += parts[ready.shape[0], column]
        ended[r] = now


@loop
def beside(
    starts: NDArray[np.int64],
    ended: Times,
    jobs: NDArray[np.int64],
    factors: NDArray[np.float64],
    out: NDArray[np.int64],
) -> None:
    """Time on the side stream while the compute stream has nothing to do, `[kinds, ranks]`.

    `starts` `[pieces, ranks]` says when pieces start, `ended` when the backward pass has ended;
    `jobs` as `Layout.side_jobs`; `factors` are the paces, `[ranks or 1]`. The compute stream works
    from an iteration's last forward pass to the end of its backward pass, and then not before the
    side stream has done everything.
    """
    for r in range(ended.size):
        factor = factors[r] if factors.size > 1 else factors[0]
        piece, now = -1, np.int64(0)
        for j in range(jobs.shape[0]):
            if jobs[j, 1] != piece:
                piece = jobs[j, 1]
                now = starts[piece, r]
            duration = jobs[j, 0]
            if factor != 1.0:
                duration = np.int64(np.rint(duration * factor))
            now += duration
            out[jobs[j, 2], r] += max(0, min(duration, now - ended[r]))
