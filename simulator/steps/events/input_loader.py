"""Input loader of a worker: when its next batch is ready.

A loader makes batches one after the other, each in `batch`, and pauses while `prefetch` finished
batches wait. With M[b] the time at which batch b is made and T[b] that at which it is taken (0
before the first):

    M[b] = max(M[b-1], T[b-prefetch]) + batch        T[b] = max(request, M[b])

Source: PyTorch, torch/utils/data/dataloader.py (`_MultiProcessingDataLoaderIter` keeps
`prefetch_factor * num_workers` batches ahead of what has been returned).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times


class Loader:
    """Loader of one worker."""

    def __init__(
        self,
        batch: Picoseconds,
        prefetch: int,
        ahead: Sequence[Picoseconds] = (),
        now: Picoseconds = 0,
    ) -> None:
        """Continue a loader from `now`, given its `ahead` of `prefetch` times."""
        if prefetch < 1:
            raise InternalError(f"a loader that keeps {prefetch} batches never makes one")
        self._batch, self._made = batch, 0
        self._taken = deque([0] * prefetch, maxlen=prefetch)
        if batch and len(ahead):
            made = earliest(np.array(ahead, dtype=np.int64)[:, None], batch)[:, 0] + now
            self._made = int(made[0]) - batch
            self._taken.extend((made - batch).tolist())

    def take(self, now: Picoseconds) -> Picoseconds:
        """Request a batch now; return when it is taken."""
        if not self._batch:
            return now
        self._made = max(self._made, self._taken[0]) + self._batch
        self._taken.append(max(now, self._made))
        return self._taken[-1]

    def last_batch(self) -> list[tuple[Picoseconds, Picoseconds]]:
        """Return the interval in which the last taken batch was made."""
        return [(self._made - self._batch, self._made)] if self._batch else []

    def in_progress(self, now: Picoseconds) -> list[tuple[Picoseconds, Picoseconds]]:
        """Return the intervals up to now of later batches that have been begun."""
        begun, made = [], self._made
        for taken in self._taken if self._batch else ():
            begin = max(made, taken)
            made = begin + self._batch
            begun.append((begin, min(made, now)))
        return [(begin, end) for begin, end in begun if begin < now]

    def ahead(self, now: Picoseconds) -> tuple[Picoseconds, ...]:
        """Return the times from now until the next `prefetch` batches are ready, 0 if they are. The
        later batches depend only on these and on future requests: the next one's M is max(M of the
        last, T of the first) + batch, and no T is before now."""
        if not self._batch:
            return ()
        made, ready = self._made, []
        for taken in self._taken:
            made = max(made, taken) + self._batch
            ready.append(max(made - now, 0))
        return tuple(ready)


def earliest(ahead: Times, batch: Picoseconds) -> Times:
    """Return times from now, `[prefetch, ranks]`, at which batches were or will be ready, for each
    rank's `Loader.ahead`. Ready batches only need a time that is early enough for the next."""
    made = ahead.copy()
    for place in range(len(ahead) - 2, -1, -1):
        made[place] = np.where(
            ahead[place] > 0, ahead[place], np.minimum(0, made[place + 1] - batch)
        )
    return made
