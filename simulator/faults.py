"""Simulation of runs in which nodes fail and return.

A job's iterations follow one another until the run ends:

- Collectives (elastic training): a failure aborts the current iteration on all nodes; a return lets
  it finish. Then the current nodes form a new process group, which takes `restart`; another failure
  or return restarts that.
- Parameter server: no node waits for a failed one. The iteration continues without its gradient,
  later ones take as long as without the node, which rejoins at the first one `restart` after.
- Parameter servers on nodes: a node with a server is needed as in a collective, the others are not;
  `needed` decides.

With all nodes down the iteration is lost, and the job waits for a return. An iteration that the
run's end cuts off does not count.

Assumptions: a failure is noticed at once (include a time-out in `restart`); the other nodes keep
the weights, so at most one iteration is lost.

Source: the elastic agent of PyTorch (torch.distributed.elastic: a change of membership restarts all
workers); Li et al. 2014 (OSDI), "Scaling distributed machine learning with the parameter server",
sec. 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, picoseconds, reading
from gcsim.simulator.training import Faults

Missing = frozenset[int]  # nodes that are down
Needed = Callable[[Missing], Collection[int]]
"""Returns the nodes that the others cannot continue without, given the missing ones."""
Stretch = tuple[Picoseconds, Picoseconds, int]
"""Begin, end and samples of a series of finished iterations."""
Wait = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyRun:
    """Outcome of a run."""

    iterations: int
    samples: int  # samples of finished iterations
    throughput: float  # samples per second of the whole run
    restarts: int  # number of new process groups; with a parameter server, of returns
    lost: float  # seconds that belong to no finished iteration
    stretches: tuple[Stretch, ...] = ()  # in time order; no iteration finishes between them


def run_with_faults(
    faults: Faults,
    *,
    nodes: int,
    samples_per_node: int,
    iteration: Callable[[Missing], Picoseconds],
    needed: Needed,
) -> FaultyRun:
    """Simulate a job with faults. `iteration(missing)` is an iteration's duration without those
    nodes; `needed(missing)` returns all remaining nodes for collectives. Failures of nodes outside
    the cluster are ignored. Raises `InternalError` for iterations that take no time."""
    job = _Job(faults, nodes, samples_per_node, iteration, needed)
    job.env.run(until=job.end)
    seconds = job.end / PS_PER_SECOND
    return FaultyRun(
        iterations=job.iterations,
        samples=job.samples,
        throughput=job.samples / seconds,
        restarts=job.restarts,
        lost=(job.end - job.useful) / PS_PER_SECOND,
        stretches=tuple(job.stretches),
    )


class _Job:
    """SimPy processes: the training loop, and one for each failure."""

    def __init__(
        self,
        faults: Faults,
        nodes: int,
        samples_per_node: int,
        iteration: Callable[[Missing], Picoseconds],
        needed: Needed,
    ) -> None:
        self.env = simpy.Environment()
        self.nodes, self.samples_per_node = nodes, samples_per_node
        self.iteration, self.needed = iteration, needed
        self.restart, self.end = picoseconds(faults.restart), picoseconds(faults.horizon)
        self.dead: set[int] = set()
        self.absent: set[int] = set()  # nodes that were down during the current iteration
        self.latest: dict[int, Picoseconds] = {}  # time of each node's last failure
        self.regroup = False  # a new process group is needed before the next iteration
        self.forming = False
        self.back = self.env.event()  # fires when a node returns
        self.iterations = self.samples = self.restarts = self.useful = 0
        self.stretches: list[Stretch] = []
        self.changes = {self.end}  # times at which a node fails or joins again
        # at one instant, failures are handled before the loop begins an iteration
        for death in sorted(faults.deaths, key=lambda death: (death.at, death.node)):
            if death.node < nodes:
                down = None if death.down is None else picoseconds(death.down)
                at = picoseconds(death.at)
                if down is not None:
                    self.changes |= {at + down, at + down + self.restart}
                self.changes.add(at)
                self.env.process(self._die(death.node, at, down))
        self.loop = self.env.process(self._train())

    def _train(self) -> Wait:
        while True:
            try:
                if len(self.dead) == self.nodes:
                    yield self.back
                elif self.regroup:
                    self.forming = True
                    yield self.env.timeout(self.restart)
                    self.forming = self.regroup = False
                    self.restarts += 1
                else:
                    yield from self._iterate()
            except simpy.Interrupt:
                self.forming = False  # continue with the remaining nodes

    def _iterate(self) -> Wait:
        missing = frozenset(self.dead)
        self.absent = set(self.dead)
        length = self.iteration(missing)
        if length <= 0:
            raise InternalError(f"an iteration without nodes {sorted(missing)} takes {length} ps")
        # undisturbed iterations are one event, since a long run may have millions
        now = reading(self.env.now)
        free = min((time for time in self.changes if time > now), default=self.end) - now
        count = max(1, (free - 1) // length)
        yield self.env.timeout(count * length)
        self.iterations += count
        samples = count * (self.nodes - len(self.absent)) * self.samples_per_node
        self.samples += samples
        self.useful += count * length
        self.stretches.append((now, now + count * length, samples))

    def _die(self, node: int, at: Picoseconds, down: Picoseconds | None) -> Wait:
        yield self.env.timeout(at)
        self.latest[node] = at
        if node not in self.dead:  # else it fails again while it rejoins, and no node waits for it
            needed = self._is_needed(node)
            self.dead.add(node)
            self.absent.add(node)
            gone = len(self.dead) == self.nodes
            self._changed(needed=needed, interrupt=needed or self.forming or gone)
        if down is None:
            return
        yield self.env.timeout(down)
        if not self._is_needed(node):
            yield self.env.timeout(self.restart)  # the other nodes continue meanwhile
        if self.latest[node] != at:
            return
        needed = self._is_needed(node)
        self.restarts += not needed
        self.dead.discard(node)
        self.back.succeed()
        self.back = self.env.event()
        self._changed(needed=needed, interrupt=self.forming)

    def _is_needed(self, node: int) -> bool:
        """Whether the other nodes could not continue without this one."""
        return node in self.needed(frozenset(self.dead - {node}))

    def _changed(self, *, needed: bool, interrupt: bool) -> None:
        """React to a change of membership."""
        self.regroup = self.regroup or needed
        if interrupt and reading(self.env.now) < self.end and self.loop.is_alive:
            self.loop.interrupt()
