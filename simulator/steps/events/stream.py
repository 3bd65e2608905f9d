"""What does a device do next? One piece of work at a time, in the order of arrival.

A CUDA stream seen from above: first come, first served, never interrupted. Work that arrives at
the same instant is taken by its key: the autograd thread's before a callback's, then by bucket,
then by the place in the bucket's exchange.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence

import simpy

from gcsim.simulator.clock import Picoseconds, reading
from gcsim.simulator.steps.events.cores import Share
from gcsim.simulator.steps.events.priorities import STREAMS, Later

Key = tuple[int, int, int]
Jobs = Sequence[tuple[Picoseconds, bool]]
"""Durations, and whether a job is done on the cores of the machine, which others may use too."""
AUTOGRAD: Key = (0, 0, 0)
"""Key of the autograd thread's work; it never has two pieces waiting."""


def callback(bucket: int, index: int) -> Key:
    """Key of what is computed after collective `index` of a bucket; -1: before the first."""
    return (1, bucket, index)


class Stream:
    """The stream of one rank, or of ranks that do the same at the same time."""

    def __init__(self, env: simpy.Environment, share: Share | None = None) -> None:
        """`share` is that of the cores of a machine, for work that is done there."""
        self._env, self._share = env, share
        self._waiting: list[tuple[Picoseconds, Key, Picoseconds | Jobs, simpy.Event]] = []
        self._busy = False
        """A piece of work is under way, or will be chosen at the end of this instant."""

    def work(self, key: Key, duration: Picoseconds) -> simpy.Event:
        """An event that comes with the start time when the work, issued now, is done."""
        return self._issue(key, duration)

    def jobs(self, key: Key, jobs: Jobs) -> simpy.Event:
        """An event that comes, when the jobs of a piece of work are done one after the other, with
        the instants at which the first began and at which each ended."""
        return self._issue(key, jobs)

    def _issue(self, key: Key, work: Picoseconds | Jobs) -> simpy.Event:
        done = self._env.event()
        heapq.heappush(self._waiting, (reading(self._env.now), key, work, done))
        if not self._busy:
            self._choose_later()
        return done

    def _choose_later(self) -> None:
        self._busy = True
        Later(self._env, STREAMS, self._choose)

    def _choose(self) -> None:
        _, _, work, done = heapq.heappop(self._waiting)
        now = reading(self._env.now)
        if isinstance(work, int):
            end: simpy.Event = self._env.timeout(work, value=now)
        else:
            end = self._env.process(self._one_by_one(work))
        assert end.callbacks is not None
        end.callbacks.append(lambda end: self._end(end, done))

    def _one_by_one(self, jobs: Jobs) -> Generator[simpy.Event, object, list[Picoseconds]]:
        instants = [reading(self._env.now)]
        for duration, on_cores in jobs:
            if duration:
                if on_cores and self._share is not None:
                    yield self._share.compute(duration)
                else:
                    yield self._env.timeout(duration)
            instants.append(reading(self._env.now))
        return instants

    def _end(self, end: simpy.Event, done: simpy.Event) -> None:
        self._busy = False
        done.succeed(end.value)
        if self._waiting:
            self._choose_later()
