"""Runs in which nodes die and come back: the part that is left.

A job of iterations of known length, one after the other, until the run ends:

- All-reduce, all-gather (elastic training): when a node dies the iteration under way is lost to
  all, since a collective cannot end without it; when one comes back the iteration under way is
  finished first. Either way the survivors form a new process group, which costs all of them
  `restart`, and go on with as many nodes as there are. What happens meanwhile starts that anew.
- Parameter server: nobody waits for the dead. The iteration under way goes on without its gradient
  and the next ones take as long as without the node; one that comes back takes part, `restart`
  after its return, from the next iteration on.
- Parameter servers on nodes: a node that carries one is needed as in a collective, at its death and
  at its return; the others are not. Which nodes are needed, of those that are left, the caller
  tells.

With no node left the iteration is lost and nothing happens until one is back. An iteration that
the end of the run cuts off does not count.

Assumptions: death is noticed at once (a time-out belongs into `restart`); weights survive on the
others, so that no more than one iteration is lost.

Source: the elastic agent of PyTorch (torch.distributed.elastic: a change of membership restarts
all workers); Li et al. 2014 (OSDI), "Scaling distributed machine learning with the parameter
server", sec. 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, picoseconds, reading
from gcsim.simulator.training import Faults

Missing = frozenset[int]
"""Numbers of the nodes that take no part."""
Needed = Callable[[Missing], Collection[int]]
"""Without those that are missing: the nodes without which nobody can go on."""
Stretch = tuple[Picoseconds, Picoseconds, int]
"""From when until when, and how many samples entered the iterations that were finished in that
time, one after the other."""
Wait = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyRun:
    """Outcome of a run."""

    iterations: int
    """Finished ones."""
    samples: int
    """Samples that entered the finished iterations."""
    throughput: float
    """Samples per second over the whole run."""
    restarts: int
    """Process groups that were formed anew; with a parameter server, nodes that came back."""
    lost: float
    """Seconds in which no iteration was under way that counts."""
    stretches: tuple[Stretch, ...] = ()
    """In the order of time; between them nothing gets done that counts."""


def run_with_faults(
    faults: Faults,
    *,
    nodes: int,
    samples_per_node: int,
    iteration: Callable[[Missing], Picoseconds],
    needed: Needed,
) -> FaultyRun:
    """Run a job through its faults.

    `iteration(missing)` is the length of an iteration without those nodes; `needed(missing)` tells
    collectives, which need everybody, from parameter servers. Deaths of nodes that the cluster
    does not have are left out. Raises `InternalError` for iterations that take no time.
    """
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
    """The training loop, and one process for each death."""

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
        self.absent: set[int] = set()
        """Nodes that were dead at some time of the iteration under way."""
        self.latest: dict[int, Picoseconds] = {}
        """Time at which each node died last."""
        self.regroup = False
        """The process group must be formed anew before the next iteration."""
        self.forming = False
        """It is being formed."""
        self.back = self.env.event()
        """Some node has come back."""
        self.iterations = self.samples = self.restarts = self.useful = 0
        self.stretches: list[Stretch] = []
        self.changes = {self.end}
        """Times at which a node dies or takes part again."""
        # those of one instant: deaths are known before the loop begins an iteration
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
                self.forming = False  # and on with those that are left

    def _iterate(self) -> Wait:
        missing = frozenset(self.dead)
        self.absent = set(self.dead)
        length = self.iteration(missing)
        if length <= 0:
            raise InternalError(f"an iteration without nodes {sorted(missing)} takes {length} ps")
        # those that nothing can disturb are one step, else a long run would be millions
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
        if node not in self.dead:  # else it dies again while it joins, and nobody has missed it
            needed = self._is_needed(node)
            self.dead.add(node)
            self.absent.add(node)
            gone = len(self.dead) == self.nodes
            self._changed(needed=needed, interrupt=needed or self.forming or gone)
        if down is None:
            return
        yield self.env.timeout(down)
        if not self._is_needed(node):
            yield self.env.timeout(self.restart)  # the others go on meanwhile
        if self.latest[node] != at:
            return
        needed = self._is_needed(node)
        self.restarts += not needed
        self.dead.discard(node)
        self.back.succeed()
        self.back = self.env.event()
        self._changed(needed=needed, interrupt=self.forming)

    def _is_needed(self, node: int) -> bool:
        """Whether nobody can go on without a node that is, or would be, there."""
        return node in self.needed(frozenset(self.dead - {node}))

    def _changed(self, *, needed: bool, interrupt: bool) -> None:
        """The membership is another one, of a node that is needed or not."""
        self.regroup = self.regroup or needed
        if interrupt and reading(self.env.now) < self.end and self.loop.is_alive:
            self.loop.interrupt()
