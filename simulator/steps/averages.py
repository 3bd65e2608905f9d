"""How long is an iteration of a plan that is repeated for ever, and where does it go?

- Where nothing is random and nothing depends on absolute time, iterations repeat themselves
  (`steady.py`): the mean over one cycle is exact, and the first iterations, with a loader that has
  nothing yet, do not count. Where a cycle is long, because a skew of nanoseconds goes round a ring,
  it is cut short: with few or two-slot ranks within a share of `TOLERANCE`, with many after
  `MOST_TIMES` simulated iterations of a rank.
- Else the mean over `Training.iterations` iterations, after a few that do not count; over more,
  where a link's trace lasts longer than those, so that every method meets all of it. Each worker's
  pace in each iteration and each message's delay are functions of the seed, so that equal seeds
  give equal means, and different compressors meet the same luck.

What is reported is the rank that ends last (ties: the lowest; among ranks that never meet, the one
with the longest mean); its parts add up.

Both engines give the same times: events (`step.py`) where iterations repeat themselves and ranks
are alike, share the cores of a machine, or two collectives run at a time; else vectors
(`vector_step.py`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import picoseconds, seconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from gcsim.simulator.steps.mean_iteration import Average, mean_of
from gcsim.simulator.steps.noise import paces
from gcsim.simulator.steps.ring_programs import RingPrograms
from gcsim.simulator.steps.steady import MOST, Steady, TooManyClassesError, simulate_steady
from gcsim.simulator.steps.step import simulate
from gcsim.simulator.steps.step_plan import CarryOut, Run, Span, StepPlan
from gcsim.simulator.training import Training

TOLERANCE = 1e-6
ROUGH = 1e-4
"""Where a rough mean will do."""
ROUGH_PATIENCE = 3
ROUGH_ITERATIONS = 10
"""Where times are random."""
MOST_TIMES = 2**16
"""Iterations times ranks, after which no cycle is waited for."""
FEWEST = 16
"""Iterations, whatever the number of ranks."""
_LOG = logging.getLogger(__name__)

WARM_UP = 5
"""Iterations that do not count where times are random."""
MOST_TRACED = 20_000
"""Iterations, where the links' traces ask for more than `Training.iterations`."""
VECTOR_RANKS = 2
"""So many ranks that all differ are simulated faster as vectors."""


class Averager:
    """Simulates plans on one cluster, equal ones once."""

    def __init__(self, cluster: Cluster, training: Training, seed: int) -> None:
        self._cluster, self._training, self._seed = cluster, training, seed
        self._carry_out: CarryOut = CollectiveMemo(cluster)
        self._rings = RingPrograms(cluster)
        noise = training.noise
        self._noise = noise if noise and (noise.variation or noise.slow_probability) else None
        self._slow = slow_nodes(cluster, training)
        self._links_vary = any(link.random or link.timed for link in cluster.links())
        traces = [link.trace for link in cluster.links() if link.trace]
        traces += [link.up.trace for link in cluster.links() if link.up and link.up.trace]
        self._trace = max((picoseconds(trace.duration) for trace in traces), default=0)
        """The longest trace, all of which must have its part in a mean."""
        self._known: dict[StepPlan, Average] = {}
        self._rough: dict[StepPlan, Fraction] = {}
        self._differ = False
        """A plan was met whose ranks all differ."""

    @property
    def varies(self) -> bool:
        """Iterations differ for ever: something is random, or depends on absolute time."""
        return self._noise is not None or (self._links_vary and self._cluster.workers > 1)

    def average(self, plan: StepPlan) -> Average:
        """The plan's mean iteration."""
        if plan not in self._known:
            self._known[plan] = self._average(plan)
        return self._known[plan]

    def rough_average(self, plan: StepPlan, stated: StepPlan) -> Fraction:
        """Picoseconds of the plan's mean iteration, where the mean of a plan that is like it, and
        as long but for its computations, may stand behind it.

        Off by a share `ROUGH` at most, and exact where it is known. Of random iterations a few are
        simulated, which say how much longer they take than the same ones of the stated plan.
        """
        if plan in self._known:
            return self._known[plan].iteration
        if plan not in self._rough:
            self._rough[plan] = self._roughly(plan, stated)
        return self._rough[plan]

    def _roughly(self, plan: StepPlan, stated: StepPlan) -> Fraction:
        if self._repeats(plan) or self._trace or self._training.iterations <= ROUGH_ITERATIONS:
            return self._average(plan, rough=True).iteration
        whole = self.average(stated)
        run = self._many(plan, WARM_UP + ROUGH_ITERATIONS)
        few = mean_of(run, int(run.finish[-1].argmax()), ROUGH_ITERATIONS).iteration
        same = Fraction(int(whole.iterations[:ROUGH_ITERATIONS].sum()), ROUGH_ITERATIONS)
        return whole.iteration * few / same if same else few

    def spans(self, plan: StepPlan) -> tuple[Span, ...]:
        """What all ranks do in one iteration, from when the first of them begins it."""
        run = self._shown(plan)
        begin = int(run.finish[-2].min()) if len(run.finish) > 1 else 0
        return tuple(
            replace(span, start=span.start - begin, end=span.end - begin) for span in run.spans
        )

    def _shown(self, plan: StepPlan) -> Run:
        """The last iteration of a cycle, or the second, with its spans."""
        if self._repeats(plan):
            try:
                return self._alike(plan, spans=True).run
            except TooManyClassesError:
                pass
        return self._events(plan, 2, spans=True)

    def _repeats(self, plan: StepPlan) -> bool:
        """Whether nothing in it is random, or depends on absolute time."""
        return self._noise is None and (_alone(plan) or not self.varies)

    def _average(self, plan: StepPlan, *, rough: bool = False) -> Average:
        if self._repeats(plan):
            steady = self._steady(plan, rough=rough)
            last = steady.shift if _alone(plan) else steady.run.finish[-1]
            return mean_of(steady.run, int(last.argmax()), steady.period)
        iterations = self._training.iterations
        while True:
            run = self._many(plan, WARM_UP + iterations)
            covered = int(run.finish[-1].min() - run.finish[WARM_UP - 1].max())
            if covered >= self._trace or iterations >= MOST_TRACED:
                break
            longer = ceil(iterations * Fraction(self._trace, max(1, covered)))
            iterations = min(MOST_TRACED, max(longer, 2 * iterations))
        if covered < self._trace:
            _LOG.warning(
                "warning: %d iterations are %.3g s of a rate trace of %.3g s: the rest of it has "
                "no part in the means",
                iterations,
                seconds(covered),
                seconds(self._trace),
            )
        rank = int(run.finish[-1].argmax())
        if 0 < self._trace <= covered:  # whole passes: none of its parts counts more often
            ends = run.finish[WARM_UP - 1 :, rank]
            passes = int(ends[-1] - ends[0]) // self._trace * self._trace
            first = int(np.searchsorted(ends, ends[-1] - passes, side="right")) - 1
            iterations = len(ends) - 1 - first
        return mean_of(run, rank, iterations)

    def _steady(self, plan: StepPlan, *, rough: bool) -> Steady:
        if not (rough and self._differ and not _only_events(plan)):
            try:
                return self._alike(plan)
            except TooManyClassesError:
                self._differ = True
        from gcsim.simulator.steps import vector_steady  # compiles its loops

        ranks = self._cluster.workers
        return vector_steady.simulate_steady(
            plan,
            ranks=ranks,
            carry_out=self._carry_out,
            pace=self._slow,
            most=min(MOST, max(FEWEST, MOST_TIMES // ranks)),
            tolerance=ROUGH if rough else 0.0,
            patience=ROUGH_PATIENCE,
        )

    def _alike(self, plan: StepPlan, *, spans: bool = False) -> Steady:
        """By events, where few ranks differ, or must be simulated so."""
        return simulate_steady(
            plan,
            ranks=self._cluster.workers,
            carry_out=self._carry_out,
            pace=self._slow,
            rings=self._rings,
            spans=spans,
            tolerance=TOLERANCE,
            most_classes=None if _only_events(plan) else VECTOR_RANKS,
        )

    def _many(self, plan: StepPlan, iterations: int) -> Run:
        if _only_events(plan):
            return self._events(plan, iterations)
        from gcsim.simulator.steps import vector_step  # compiles its loops

        return vector_step.simulate(
            plan,
            ranks=self._cluster.workers,
            carry_out=self._carry_out,
            iterations=iterations,
            pace=self._pace,
            seed=self._seed,
        )

    def _events(self, plan: StepPlan, iterations: int, *, spans: bool = False) -> Run:
        return simulate(
            plan,
            ranks=self._cluster.workers,
            carry_out=self._carry_out,
            iterations=iterations,
            pace=self._pace,
            seed=self._seed,
            spans=spans,
            rings=self._rings,
        )

    def _pace(self, iteration: int) -> NDArray[np.float64] | None:
        if self._noise is None:
            return self._slow
        drawn = paces(self._noise, self._seed, iteration, self._cluster.workers)
        return drawn if self._slow is None else drawn * self._slow


def slow_nodes(cluster: Cluster, training: Training) -> NDArray[np.float64] | None:
    """Each rank's constant pace, float64 `[p]`; None: 1 for all."""
    if not training.slow_nodes:
        return None
    factor = {node: float(slower) for node, slower in training.slow_nodes.items()}
    nodes = map(cluster.node_of, range(cluster.workers))
    return np.array([factor.get(node, 1.0) for node in nodes], dtype=np.float64)


def _only_events(plan: StepPlan) -> bool:
    """Whether no vectors simulate it."""
    return plan.slots == 2 or plan.machines is not None


def _alone(plan: StepPlan) -> bool:
    """Ranks never meet."""
    return not any(bucket.collectives for bucket in plan.buckets)
