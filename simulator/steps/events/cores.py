"""Computation of ranks that share a machine's cores.

Processor sharing: while n streams compute on c cores, each progresses at speed min(1, c / n), as
under a fair scheduler with short time slices (L. Kleinrock 1967, Journal of the ACM 14(2), 242-261,
"Time-shared systems: a theoretical treatment"; Linux's schedulers come close). A computation uses
one core and ends at the first whole picosecond at which its work is done. Ranks with accelerators
share cores only for the host's work (`Machines.kinds`).

Assumptions: all ranks have the same priority; caches and memory are not contended; messages
(`host.py`) do not occupy a core.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.simulator.clock import Picoseconds, reading
from gcsim.simulator.steps.events.communicator import UnlikeRanksError
from gcsim.simulator.steps.step_plan import Machines


class Cores:
    """Cores of one machine."""

    def __init__(self, env: simpy.Environment, cores: int) -> None:
        self._env, self._cores = env, cores
        self._scale = self._speed = 1
        """Units of work per picosecond on a free core, and now; integers, so that time is exact."""
        self._served, self._at = 0, 0
        """Units of work that a computation present from the start would have received."""
        self._busy = 0  # number of computing ranks
        self._running: list[tuple[int, int, int, simpy.Event]] = []
        """Heap of computations: `_served` at the end, number, ranks it represents, event."""
        self._number = count()
        self._planned = 0  # number of the valid wake-up

    def compute(self, work: Picoseconds, ranks: int) -> simpy.Event:
        """Return the event at which `ranks` ranks have done work of so many picoseconds."""
        self._catch_up()
        done = self._env.event()
        end = self._served + work * self._scale
        heapq.heappush(self._running, (end, next(self._number), ranks, done))
        self._busy += ranks
        self._plan()
        return done

    def _catch_up(self) -> None:
        now = reading(self._env.now)
        if self._busy:
            self._served += (now - self._at) * self._speed
        self._at = now

    def _share(self) -> None:
        """Set the speed of the busy ranks; use finer units where the current ones do not divide."""
        over, under = min(self._cores, self._busy), self._busy
        finer = under // math.gcd(over * self._scale, under)
        if finer > 1:
            self._scale *= finer
            self._served *= finer
            # all keys by the same factor: it is still a heap
            self._running = [(end * finer, n, for_, done) for end, n, for_, done in self._running]
        self._speed = over * self._scale // under

    def _plan(self) -> None:
        """Schedule the next end, valid until the number of busy ranks changes."""
        self._planned += 1
        if self._running:
            self._share()
            left = self._running[0][0] - self._served
            end = self._env.timeout(max(0, -(-left // self._speed)))
            assert end.callbacks is not None
            planned = self._planned
            end.callbacks.append(lambda _: self._wake(planned))

    def _wake(self, planned: int) -> None:
        if planned != self._planned:
            return
        self._catch_up()
        while self._running and self._running[0][0] <= self._served:
            _, _, ranks, done = heapq.heappop(self._running)
            self._busy -= ranks
            done.succeed()
        self._plan()


@dataclass(frozen=True, slots=True)
class Share:
    """Cores that a class of ranks uses."""

    cores: Cores
    ranks: int  # number of the class's ranks per machine, which compute at the same time

    def compute(self, work: Picoseconds) -> simpy.Event:
        """Return the event at which every rank of the class has done the work."""
        return self.cores.compute(work, self.ranks)


def shares(
    env: simpy.Environment, machines: Machines, classes: NDArray[np.int64]
) -> Sequence[Share]:
    """Return the shares by class. Machines with equal numbers of ranks of each class are simulated
    once. Raises `UnlikeRanksError` for a class with ranks on machines that differ in these."""
    alike: dict[tuple[int, ...], int] = {}
    count_of = np.zeros((max(machines.of_rank) + 1, int(classes.max()) + 1), dtype=np.int64)
    np.add.at(count_of, (np.array(machines.of_rank, dtype=np.int64), classes), 1)
    kinds = [alike.setdefault(tuple(row), len(alike)) for row in count_of.tolist()]
    kind_of_rank = [kinds[machine] for machine in machines.of_rank]
    first = np.unique(classes, return_index=True)[1].tolist()
    if any(kind_of_rank[first[c]] != kind for c, kind in zip(classes, kind_of_rank, strict=True)):
        raise UnlikeRanksError(classes, np.array(kind_of_rank))
    by_kind = [Cores(env, machines.cores) for _ in alike]
    return [
        Share(
            cores=by_kind[kind_of_rank[rank]], ranks=int(count_of[machines.of_rank[rank], member])
        )
        for member, rank in enumerate(first)
    ]
