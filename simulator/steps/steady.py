"""How does training go on for ever? Iterations until they repeat themselves.

Nothing in a step depends on absolute time (no traces, grants or random delays), so that the map
from the state in which iteration i begins to that in which i + 1 begins commutes with a shift:
G(X + c) = G(X) + c, where X holds times. Max-plus systems with constant coefficients fall into a
cycle (Baccelli et al. 1992, theorem 3.109): X[i + k] = X[i] + c. From then on, by induction,
X[j + k] = G(X[j + k - 1]) = G(X[j - 1] + c) = X[j] + c for all j >= i, and so for everything that
is a function of the state, which the iteration's parts and (shifted) spans are. So one repeat of a
state, relative to one of its times, tells the rest exactly.

What is the state? When the first rank begins iteration i + 1 it has finished iteration i, so has
left all its collectives, so that all ranks have entered them; nobody is in a collective of an
earlier iteration, and no rank begins another collective of iteration i. What comes later depends on

- when each rank finishes iteration i: until then its streams do nothing else's work, afterwards
  nothing of iteration i is left; it has left, and its link is idle;
- when its loader will have made the next batches (`input_loader.Loader.ahead`), where not yet.

and the same holds before iteration 0, where all ranks begin at 0. If a plan has no collectives,
each rank is a system of its own, and each may shift by a constant of its own.

The cycle theorem needs a fixed order of events; with first come, first served a cycle may come
late or not at all, and on p ranks it can be p iterations long: chunks that differ by one element
let a skew of nanoseconds go round the ring. Hence a tolerance: where after `PATIENCE` iterations a
state differs from an earlier one by a small share of the time between them, these iterations stand
for the rest; the mean iteration is then off by about that share (`Steady.exact` says which). The
same after `most` iterations, with the last half of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.steps.concurrent import Rings
from gcsim.simulator.steps.step import Classes, Simulation, with_classes
from gcsim.simulator.steps.step_plan import CarryOut, Run, StepPlan

MOST = 200
"""Iterations after which no cycle is expected."""
PATIENCE = 8
"""Iterations in which a cycle must be exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steady:
    """Iterations of which the last `period` repeat for ever."""

    run: Run
    period: int
    shift: Times
    """`[ranks]`: picoseconds that a cycle takes."""
    exact: bool

    @property
    def begin(self) -> Times:
        """`[ranks]`: when each rank begins the cycle."""
        before = len(self.run.finish) - self.period - 1
        return self.run.finish[before] if before >= 0 else np.zeros_like(self.shift)

    def extended(self, iterations: int) -> Run:
        """The first iterations of those that go on for ever."""
        number = np.arange(iterations)
        cycles = np.maximum(0, -(-(number - len(self.run.finish) + 1) // self.period))
        source = number - cycles * self.period
        return Run(
            finish=self.run.finish[source] + cycles[:, None] * self.shift,
            parts={part: times[source] for part, times in self.run.parts.items()},
        )


class TooManyClassesError(Exception):
    """More ranks differ than the caller wants to simulate event by event."""


def simulate_steady(
    plan: StepPlan,
    *,
    ranks: int,
    carry_out: CarryOut,
    pace: NDArray[np.float64] | None = None,
    collapse: bool = True,
    spans: bool = False,
    rings: Rings | None = None,
    most: int = MOST,
    tolerance: float = 0.0,
    most_classes: int | None = None,
) -> Steady:
    """Simulate until iterations repeat; arguments as of `step.simulate`.

    `carry_out` must depend neither on the key nor on absolute time; `pace` `[ranks]` is that of
    all iterations. `tolerance` is the share of the time by which a state may differ. Raises as
    `step.simulate`, and `TooManyClassesError` when more than `most_classes` ranks differ.
    """

    def run(classes: Classes) -> Steady:
        if most_classes is not None and classes.max() >= most_classes:
            raise TooManyClassesError
        simulation = Simulation(
            plan, classes, carry_out=carry_out, pace=lambda _: pace, rings=rings
        )
        together = any(bucket.collectives for bucket in plan.buckets)
        search = _Search(
            _state([(0, worker.loader.ahead(0)) for worker in simulation.workers], together),
            tolerance,
        )

        def settled(iteration: int) -> bool:
            rows = [row[:2] for row in simulation.rows[iteration] if row is not None]
            return search.add(_state(rows, together), min(finish for finish, _ in rows))

        count = simulation.run(most, settled)
        return _steady(simulation.result(count, spans=spans), search)

    return with_classes(run, ranks=ranks, collapse=collapse)


def _steady(run: Run, search: _Search) -> Steady:
    count = len(run.finish)
    period = search.period or (count + 1) // 2
    begin = run.finish[count - period - 1] if count > period else 0
    return Steady(run=run, period=period, shift=run.finish[-1] - begin, exact=search.exact)


State = tuple[Picoseconds, ...]


def _state(rows: Sequence[tuple[Picoseconds, State]], together: bool) -> State:
    """Relative to the first finish; where ranks never meet, of each to its own."""
    first = min(finish for finish, _ in rows)
    return tuple(
        time for finish, ahead in rows for time in (finish - first if together else 0, *ahead)
    )


class _Search:
    """Looks for a state, relative to a time, that has been before."""

    def __init__(self, begin: State, tolerance: float) -> None:
        self._states, self._times, self._tolerance = [begin], [0], tolerance
        self._seen = {begin: 0}
        self.period = 0
        """0: none has been found."""
        self.exact = False

    def add(self, state: State, time: Picoseconds) -> bool:
        """Whether the state after the next iteration, which ends at a time, has been before."""
        number = len(self._states)
        before = self._seen.setdefault(state, number)
        self._states.append(state)
        self._times.append(time)
        if before < number:
            self.period, self.exact = number - before, True
        elif number >= PATIENCE and self._tolerance:
            before = number // 2
            allowed = self._tolerance * (time - self._times[before])
            pairs = zip(state, self._states[before], strict=True)
            if max((abs(now - then) for now, then in pairs), default=0) <= allowed:
                self.period = number - before
        return self.period > 0
