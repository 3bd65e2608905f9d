"""What does a device do next? One piece of work at a time, in the order of arrival.

A CUDA stream seen from above: first come, first served, never interrupted. Work that arrives at
the same instant is taken by its key: the autograd thread's before a callback's, then by bucket,
then by the place in the bucket's exchange.
"""

from __future__ import annotations

import heapq

import simpy

from gcsim.simulator.clock import Picoseconds, reading
from gcsim.simulator.instant import STREAMS, Later

Key = tuple[int, int, int]
AUTOGRAD: Key = (0, 0, 0)
"""Key of the autograd thread's work; it never has two pieces waiting."""


def callback(bucket: int, index: int) -> Key:
    """Key of what is computed after collective `index` of a bucket; -1: before the first."""
    return (1, bucket, index)


class Stream:
    """The stream of one rank, or of ranks that do the same at the same time."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._waiting: list[tuple[Picoseconds, Key, Picoseconds, simpy.Event]] = []
        self._busy = False
        """A piece of work is under way, or will be chosen at the end of this instant."""

    def work(self, key: Key, duration: Picoseconds) -> simpy.Event:
        """An event that comes with the start time when the work, issued now, is done."""
        done = self._env.event()
        heapq.heappush(self._waiting, (reading(self._env.now), key, duration, done))
        if not self._busy:
            self._choose_later()
        return done

    def _choose_later(self) -> None:
        self._busy = True
        Later(self._env, STREAMS, self._choose)

    def _choose(self) -> None:
        _, _, duration, done = heapq.heappop(self._waiting)
        end = self._env.timeout(duration, value=reading(self._env.now))
        assert end.callbacks is not None
        end.callbacks.append(lambda end: self._end(end, done))

    def _end(self, end: simpy.Event, done: simpy.Event) -> None:
        self._busy = False
        done.succeed(end.value)
        if self._waiting:
            self._choose_later()
