"""When does a worker get its next batch?

A loader beside each worker makes batch 0, 1, 2, ... one after the other, `batch` each, and stops
while `prefetch` finished ones wait. With T[b] the time at which batch b is taken and M[b] that at
which it is made:

    M[b] = max(M[b-1], T[b-prefetch]) + batch        T[b] = max(asked for, M[b])

where what would be before the first is at 0.

Source: PyTorch, torch/utils/data/dataloader.py (`_MultiProcessingDataLoaderIter` keeps
`prefetch_factor * num_workers` batches ahead of what has been returned).
"""

from __future__ import annotations

from collections import deque

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds


class Loader:
    """The loader of one worker."""

    def __init__(self, batch: Picoseconds, prefetch: int) -> None:
        if prefetch < 1:
            raise InternalError(f"a loader that keeps {prefetch} batches never makes one")
        self._batch, self._made = batch, 0
        self._taken = deque([0] * prefetch, maxlen=prefetch)

    def take(self, now: Picoseconds) -> Picoseconds:
        """When a batch is taken that the worker asks for now."""
        if not self._batch:
            return now
        self._made = max(self._made, self._taken[0]) + self._batch
        self._taken.append(max(now, self._made))
        return self._taken[-1]

    def ahead(self, now: Picoseconds) -> tuple[Picoseconds, ...]:
        """When the next `prefetch` batches will be made; 0 from now where they are already.

        All that the times of later batches depend on, beside when the worker asks: M of the batch
        after these is max(M of the last, T of the first) + batch, and no T is before now.
        """
        if not self._batch:
            return ()
        made, ready = self._made, []
        for taken in self._taken:
            made = max(made, taken) + self._batch
            ready.append(max(made - now, 0))
        return tuple(ready)
