"""Mean iteration of a schedule that repeats for ever, and its parts.

- If nothing is random or depends on absolute time, iterations become periodic (`cycles.py`). The
  mean over one cycle, a number of whole rounds of the schedule, is exact; earlier iterations do not
  count. Long cycles (a skew of nanoseconds that travels around a ring) end early within
  `TOLERANCE`, and with many ranks after `MOST_TIMES` simulated iterations summed over ranks.
- Otherwise the mean is over at least `Training.iterations`, after `WARM_UP`. Slowdowns and delays
  are functions of the seed, the same for all compressors.

The reported rank is the one that ends last (ties: the lowest; if ranks never communicate, the one
with the longest mean); its parts add up.

Both engines give the same times: the event engine (`events/step.py`) runs if ranks share cores or
two collectives at a time, else the vector engine (`vectors.py`); spans are the event engine's.
Steps with sharded weights have a single engine (`sharded.py`).

More iterations than `Training.iterations` are simulated

- if a round has several plans: whole rounds, at least `_FEWEST_ROUNDS`, whose means are compared
  (two if they are long, or one if `MOST_ITERATIONS` has no room for two);
- if a link's rate trace is longer: until all of it has been used; the mean is then over the last
  iterations that cover whole passes of the trace, rounded to rounds.

If `MOST_ITERATIONS` is too few, a warning says what the mean leaves out.
"""

from __future__ import annotations

import logging
from collections import deque
from fractions import Fraction
from itertools import accumulate
from math import ceil

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Picoseconds, Times, picoseconds, seconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from gcsim.simulator.host import node_of_ranks
from gcsim.simulator.steps import sharded
from gcsim.simulator.steps.breakdown import Average, mean_of, mean_of_cycle
from gcsim.simulator.steps.cycles import MOST, Steady
from gcsim.simulator.steps.events.even_cluster import EvenCollectiveTimes
from gcsim.simulator.steps.events.message_ring import RingPrograms
from gcsim.simulator.steps.events.steady import Events, simulate_steady
from gcsim.simulator.steps.events.step import simulate
from gcsim.simulator.steps.noise import slowdowns
from gcsim.simulator.steps.schedule import Schedule, State
from gcsim.simulator.steps.step_plan import Run, Span
from gcsim.simulator.training import Training

TOLERANCE = 1e-3
"""Difference of two states, as a share of the time between, below which they count as equal. A
smaller one takes twenty times the iterations if chunks differ by an element, and changes no row."""
MOST_TIMES = 2**16  # iterations times ranks after which the search for a cycle ends
FEWEST = 16  # least iterations of that search, at any number of ranks
WARM_UP = 5  # iterations that do not count where times vary


class Averager:
    """Means of schedules on one cluster; equal schedules are simulated once."""

    def __init__(self, cluster: Cluster, training: Training, seed: int) -> None:
        self.cluster, self._training, self._seed = cluster, training, seed
        self.execute = CollectiveMemo.of(cluster)
        self.together = EvenCollectiveTimes(cluster, training, self.execute)
        """Durations of collectives that all ranks enter at once."""
        self._rings = RingPrograms(cluster)
        noise = training.noise
        self._noise = noise if noise and (noise.variation or noise.slow_probability) else None
        self._slow = slow_ranks(cluster, training)
        self._links_vary = any(link.random or link.timed for link in cluster.links())
        traces = [link.trace for link in cluster.links() if link.trace]
        traces += [link.up.trace for link in cluster.links() if link.up and link.up.trace]
        self._trace = max((picoseconds(trace.duration) for trace in traces), default=0)
        """Duration of the longest rate trace."""
        self._known: dict[Schedule, Average] = {}
        self._settled: tuple[Schedule, Steady] | None = None  # last schedule with a cycle

    @property
    def varies(self) -> bool:
        """Whether iterations never become periodic: some time is random or absolute."""
        return self._noise is not None or (self._links_vary and self.cluster.workers > 1)

    @classmethod
    def of(cls, cluster: Cluster, training: Training, seed: int) -> Averager:
        """Return a recent averager for an equal cluster, on any device, or a new one."""
        asked = cluster.wiring, training, seed
        found = next((one for name, one in _LAST if name == asked), None)
        if found is None:
            found = cls(cluster, training, seed)
            _LAST.append((asked, found))
            newest = [one for _, one in reversed(_LAST)]
            ranks = accumulate(one.cluster.workers for one in newest)
            for place, (one, kept) in enumerate(zip(newest, ranks, strict=True)):
                if place >= _PREPARED or (place and kept > KEPT_RANKS):
                    one.forget()
        return found

    def forget(self) -> None:
        """Free everything but means and durations, whose memory does not grow with the ranks."""
        self._settled = None
        self.execute.forget()

    def average(self, schedule: Schedule) -> Average:
        """Return the mean iteration."""
        found = self._known.get(schedule)
        if found is None:
            found = self._known[schedule] = self._average(schedule)
        return found

    def spans(self, schedule: Schedule, number: int) -> tuple[Span, ...]:
        """Return the spans of iteration `number` >= 1, from its first rank's begin. A periodic
        iteration is replaced by its equal in the last cycle; large clusters as in `spans_of`."""
        first = len(self.cluster.ranks_of(0))
        if self._repeats(schedule):
            steady = self._steady(schedule)
            last = len(steady.iterations) - 1
            number = last - (last - number) % len(schedule)
            if steady.spans is None:
                return self._spans(schedule, number, steady.before(number), first)
            begun, spans = steady.run.finish[:number], steady.spans(number, first)
        elif schedule.sharded:
            begun = self._many(schedule, number).finish
            none = np.zeros((0, self.cluster.workers), dtype=np.int64)
            spans = self._spans(schedule, number, State(start=begun[-1], ahead=none), first)
        else:
            run = self._by_events(schedule, number + 1, spans=True)
            begun, spans = run.finish[:-1], run.spans
        begin = int(begun[-1].min()) if number else 0
        return tuple(
            span._replace(start=span.start - begin, end=span.end - begin) for span in spans
        )

    def _repeats(self, schedule: Schedule) -> bool:
        return self._noise is None and (not schedule.communicates or not self.varies)

    def _average(self, schedule: Schedule) -> Average:
        if self._repeats(schedule):
            return mean_of_cycle(self._steady(schedule), communicates=schedule.communicates)
        length = len(schedule)
        iterations = in_whole_rounds(self._training.iterations, length)
        while True:
            run = self._many(schedule, WARM_UP + iterations)
            covered = int(run.finish[-1].min() - run.finish[WARM_UP - 1].max())
            if covered >= self._trace or iterations >= MOST_ITERATIONS:
                break
            iterations = more_iterations(iterations, length, Fraction(self._trace, max(1, covered)))
        rank = int(run.finish[-1].argmax())
        if 0 < self._trace <= covered:
            ends = run.finish[WARM_UP - 1 :, rank]
            iterations = last_in_whole_passes(ends, length, self._trace)
        elif covered < self._trace:
            _warn_of_trace(iterations, covered, self._trace)
        return mean_of(run, rank, iterations)

    def _steady(self, schedule: Schedule) -> Steady:
        if self._settled is not None and self._settled[0] == schedule:
            return self._settled[1]
        steady = self._cycle(schedule)
        self._settled = schedule, steady
        return steady

    def _cycle(self, schedule: Schedule) -> Steady:
        ranks = self.cluster.workers
        if _only_events(schedule) and not schedule.sharded:
            return simulate_steady(
                schedule,
                ranks=ranks,
                execute=self.execute,
                slowdown=self._slow,
                rings=self._rings,
                tolerance=TOLERANCE,
            )
        from gcsim.simulator.steps import vectors  # compiles its loops

        return vectors.simulate_steady(
            schedule,
            ranks=ranks,
            execute=self.execute,
            slowdown=self._slow,
            most=min(MOST, max(FEWEST, MOST_TIMES // ranks)),
            tolerance=TOLERANCE,
        )

    def _many(self, schedule: Schedule, iterations: int) -> Run:
        if _only_events(schedule):
            return self._by_events(schedule, iterations)
        from gcsim.simulator.steps import vectors  # compiles its loops

        return vectors.simulate(
            schedule,
            ranks=self.cluster.workers,
            execute=self.execute,
            iterations=iterations,
            slowdown=self._slowdown,
            seed=self._seed,
        )

    def _by_events(self, schedule: Schedule, iterations: int, *, spans: bool = False) -> Run:
        return simulate(
            schedule,
            ranks=self.cluster.workers,
            execute=self.execute,
            iterations=iterations,
            slowdown=self._slowdown,
            seed=self._seed,
            spans=spans,
            rings=self._rings,
        )

    def _spans(
        self, schedule: Schedule, number: int, before: State, first: int
    ) -> tuple[Span, ...]:
        if schedule.sharded:
            slow = self._slowdown(number)
            return sharded.spans(
                schedule, number, before, execute=self.execute, slowdown=slow, seed=self._seed,
                first=first,
            )  # fmt: skip
        events = Events(schedule, execute=self.execute, slowdown=self._slow, rings=self._rings)
        return events.spans(number, before, first)

    def _slowdown(self, iteration: int) -> NDArray[np.float64] | None:
        if self._noise is None:
            return self._slow
        drawn = slowdowns(self._noise, self._seed, iteration, self.cluster.workers)
        return drawn if self._slow is None else drawn * self._slow


_LAST: deque[tuple[object, Averager]] = deque(maxlen=64)
_PREPARED = 16  # averagers that keep prepared collectives
KEPT_RANKS = 4096
"""Most ranks of those averagers together, or of a cluster whose collectives stay prepared."""


def slow_ranks(cluster: Cluster, training: Training) -> NDArray[np.float64] | None:
    """Return each rank's constant slowdown (its own times its node's), float64 `[p]`; None: 1."""
    if not training.slow_nodes and not training.slow_workers:
        return None
    factor = {node: float(slower) for node, slower in training.slow_nodes.items()}
    nodes = node_of_ranks(cluster.workers, cluster.devices_by_node).tolist()
    slowdowns = np.array([factor.get(node, 1.0) for node in nodes], dtype=np.float64)
    for rank, slower in training.slow_workers.items():
        node = training.slow_nodes.get(nodes[rank], 1)
        slowdowns[rank] = float(slower * node)
    return slowdowns


def _only_events(schedule: Schedule) -> bool:
    """Whether only the event engine can simulate the schedule."""
    return any(plan.slots == 2 or plan.machines is not None for plan in schedule.plans)


MOST_ITERATIONS = 20_000  # most iterations that are added for traces or rounds
_FEWEST_ROUNDS = 5  # rounds that an estimate of their spread needs
_FEW_ROUNDED = 1000  # iterations above which two rounds are enough
_LOG = logging.getLogger(__name__)


def _whole(iterations: int, length: int) -> int:
    """Round `iterations` up to whole rounds of `length`."""
    return ceil(iterations / length) * length


def in_whole_rounds(wanted: int, length: int) -> int:
    """Return the number of iterations to simulate in whole rounds of `length`, given `wanted`."""
    if length == 1:
        return wanted
    rounds = max(ceil(wanted / length), min(_FEWEST_ROUNDS, _FEW_ROUNDED // length), 2)
    most = max(wanted, MOST_ITERATIONS)
    if length <= most:
        return min(rounds, max(ceil(wanted / length), MOST_ITERATIONS // length)) * length
    _LOG.warning(
        "warning: the kinds of step repeat after %d iterations, but the means include only the "
        "first %d",
        length,
        most,
    )
    return most


def more_iterations(iterations: int, length: int, times: Fraction) -> int:
    """Return about `times` as many iterations, to cover the rest of a trace."""
    return _whole(min(MOST_ITERATIONS, max(ceil(iterations * times), 2 * iterations)), length)


def last_in_whole_passes(ends: Times, length: int, trace: Picoseconds) -> int:
    """Return how many last iterations (ends: `ends[1:]`) span whole passes of a trace."""
    passes = int(ends[-1] - ends[0]) // trace * trace
    first = int(ends.searchsorted(ends[-1] - passes, side="right")) - 1
    return max(1, round((len(ends) - 1 - first) / length)) * length


def _warn_of_trace(iterations: int, covered: Picoseconds, trace: Picoseconds) -> None:
    _LOG.warning(
        "warning: %d iterations cover %.3g s of a rate trace of %.3g s; the means leave out the "
        "rest",
        iterations,
        seconds(covered),
        seconds(trace),
    )
