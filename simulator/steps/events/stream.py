"""What does a device do next? One piece of work at a time, never interrupted.

A CUDA stream seen from above. The pieces that go with an iteration's buckets are served in an order
that is given (`steps/service.py`): the stream waits for the one that is next. All others come one
at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence

import simpy

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, reading
from gcsim.simulator.steps.events.cores import Share
from gcsim.simulator.steps.service import Piece

Jobs = Sequence[tuple[Picoseconds, bool]]
"""Durations, and whether a job is done on the cores of the machine, which others may use too."""


class Stream:
    """The stream of one rank, or of ranks that do the same at the same time."""

    def __init__(self, env: simpy.Environment, share: Share | None = None) -> None:
        """`share` is that of the cores of a machine, for work that is done there."""
        self._env, self._share = env, share
        self._coming: deque[Piece] = deque()
        """In this order."""
        self._waiting: dict[Piece, tuple[Picoseconds | Jobs, simpy.Event]] = {}
        self._busy = False

    def serve(self, order: Iterable[Piece]) -> None:
        """From now on the pieces of an iteration, in this order, and nothing else until they are
        done."""
        if self._coming or self._busy:
            raise InternalError(f"the stream has not served {[*self._coming]}")
        self._coming.extend(order)

    def work(self, piece: Piece | None, work: Picoseconds | Jobs) -> simpy.Event:
        """An event that comes when the work, issued now, is done: with the time at which it began,
        or, of jobs that follow each other, with that and those at which each ended.

        `piece` is its place in the order of an iteration; None: it is beside no other work.
        """
        done = self._env.event()
        if piece is None:
            if self._coming or self._busy:
                raise InternalError(f"work beside {[*self._coming]} on one stream")
            self._begin(work, done)
        else:
            self._waiting[piece] = work, done
            self._go_on()
        return done

    def _go_on(self) -> None:
        if not self._busy and self._coming and self._coming[0] in self._waiting:
            self._begin(*self._waiting.pop(self._coming.popleft()))

    def _begin(self, work: Picoseconds | Jobs, done: simpy.Event) -> None:
        self._busy = True
        if isinstance(work, int):
            end: simpy.Event = self._env.timeout(work, value=reading(self._env.now))
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
        self._go_on()
