"""Iterations of a training that goes on for ever, until they repeat themselves.

Nothing in a step depends on absolute time (no traces, grants or random delays), so that the map G
from the state in which iteration i begins to that in which i + 1 begins, which its plan decides,
commutes with a shift: G(X + c) = G(X) + c, where X holds times. A round of n plans is the map
F = G[n-1] ... G[1] G[0], which does so too. Max-plus systems with constant coefficients fall into a
cycle (Baccelli et al. 1992, theorem 3.109): after k rounds X is X + c again. From then on, by
induction, every round is the one of k rounds before, c later, and so is everything that is a
function of the state and the plan, which an iteration's parts and (shifted) spans are. So one
repeat of a state, relative to one of its times, at the same place in the round tells the rest
exactly. A cycle is a number of whole rounds.

What is the state? When the first rank begins iteration i + 1 it has finished iteration i, so has
left all its collectives, so that all ranks have entered them; nobody is in a collective of an
earlier iteration, and no rank begins another collective of iteration i. What comes later depends on

- when each rank finishes iteration i: until then its streams do nothing else's work, afterwards
  nothing of iteration i is left; it has left, and its link is idle;
- when its loader will have made the next batches (`input_loader.Loader.ahead`), where not yet.

and the same holds before iteration 0, where all ranks begin at 0. If no plan has collectives, each
rank is a system of its own, and each may shift by a constant of its own.

Hence an iteration that begins in a state in which one of the same plan has begun before need not be
simulated again. Where all ranks are alike, and leave together, each begins in the same state as
all others, and each plan of a round is simulated once, however long the round.

Ranks that share cores are an exception: one that begins iteration i + 1 slows down those that have
not finished i. What they do then is known from a state only where the ranks of each machine begin
together. Iterations of such plans are simulated in one go, and only such states count as repeats.

The cycle theorem needs a fixed order of events; with first come, first served a cycle may come
late or not at all, and on p ranks it can be p iterations long: chunks that differ by one element
let a skew of nanoseconds go round the ring. Hence a tolerance: where after `PATIENCE` iterations a
state differs from one some rounds earlier by a small share of the time between them, these
iterations stand for the rest; and in a round of several plans an iteration that begins in nearly
the state of the last one of its plan is taken to be as that one. As long as the order of events
stays the same, two states that differ by d lead to states that differ by d at most (max-plus maps
do not expand), so that the mean iteration is off by about that share (`Steady.exact` says which).
The same after `most` iterations, with the last half of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from gcsim.simulator.clock import Picoseconds, Times, check_room
from gcsim.simulator.steps.schedule import Iteration, Schedule, State, run_of
from gcsim.simulator.steps.step_plan import Run, Span

MOST = 200
"""Simulated iterations after which no cycle is expected."""
MOST_ROUNDS = 4
"""Most rounds that are put together from simulated ones, beyond the iterations asked for."""
PATIENCE = 8
"""Iterations in which a cycle must be exact."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Steady:
    """Iterations of which the last `period` repeat for ever."""

    begin: State
    iterations: tuple[Iteration, ...]
    period: int
    exact: bool
    spans: Callable[[int], tuple[Span, ...]] | None = None
    """Spans of an iteration of the last round, by its number, where they were simulated in one go.
    """

    @property
    def cycle(self) -> tuple[Iteration, ...]:
        """The iterations that repeat."""
        return self.iterations[-self.period :]

    @cached_property
    def shift(self) -> Times:
        """`[ranks]`: picoseconds that a cycle takes."""
        taken: Times = np.sum([iteration.durations for iteration in self.cycle], axis=0)
        return taken

    @property
    def run(self) -> Run:
        """All iterations."""
        return run_of(self.iterations)

    def before(self, number: int) -> State:
        """State in which an iteration begins."""
        return self.iterations[number - 1].after if number else self.begin


class Search:
    """Looks for a state that has been before, at the same place in the round."""

    def __init__(
        self, schedule: Schedule, begin: State, *, most: int = MOST, tolerance: float = 0.0
    ) -> None:
        """`most` iterations are simulated, or a round. After `PATIENCE` iterations states may
        differ by the share `tolerance` of the time between them."""
        self.begin, self.tolerance = begin, tolerance
        self.limit = max(most, len(schedule))
        self._round, self._machines = len(schedule), schedule.plans[0].machines
        self._iterations: list[Iteration] = []
        self._ends: list[Picoseconds] = [0]
        """Time at which the first rank begins each iteration, less the difference between near
        states."""
        self._seen: dict[tuple[int, bytes], int] = {}
        self._simulated, self._period, self._exact, self._near = 0, 0, False, False
        self._note(begin)

    @property
    def number(self) -> int:
        """Number of the next iteration."""
        return len(self._iterations)

    @property
    def state(self) -> State:
        """State in which the next iteration begins."""
        return self._iterations[-1].after if self._iterations else self.begin

    @property
    def patient(self) -> bool:
        """Whether a state that is nearly another one is as good now."""
        return self.tolerance > 0 and self.number >= PATIENCE

    @property
    def over(self) -> bool:
        """A cycle has been found, or is not looked for any longer."""
        return (
            self._period > 0
            or self._simulated >= self.limit
            or self.number >= self.limit + MOST_ROUNDS * self._round
        )

    def add(
        self, iteration: Iteration, like: Literal["itself", "equal", "near"] = "itself"
    ) -> bool:
        """The next iteration, or one that is like it; whether the search is over.

        Raises `InputError` when the clock cannot hold the time.
        """
        end = self._ends[-1] + iteration.elapsed
        check_room(self.number, end)
        self._iterations.append(iteration)
        self._ends.append(end)
        self._simulated += like == "itself"
        self._near = self._near or like == "near"
        self._period = self.number - self._note(iteration.after)
        self._exact = self._period > 0 and not self._near
        if not self._period:
            self._period = self._nearly()
        return self.over

    def result(self) -> Steady:
        """Result of the search; at least one round must have been added."""
        half = (self.number + 1) // 2
        return Steady(
            begin=self.begin,
            iterations=tuple(self._iterations),
            period=self._period or self._rounds(half),
            exact=self._exact,
        )

    def _rounds(self, iterations: int) -> int:
        return max(1, iterations // self._round) * self._round

    def _note(self, state: State) -> int:
        """The number of the first iteration that began in the state, at this place."""
        if self._machines is not None:
            machine = np.array(self._machines.of_rank)
            latest = np.zeros(machine.max() + 1, dtype=np.int64)
            np.maximum.at(latest, machine, state.start)
            if (latest[machine] != state.start).any():
                return self.number
        return self._seen.setdefault((self.number % self._round, state.digest()), self.number)

    def _nearly(self) -> int:
        """The number of iterations since a state that was nearly this one; 0: there is none."""
        cycle = self._rounds(self.number - self.number // 2)
        if not self.patient or self.number < cycle:
            return 0
        before = self.number - cycle
        state = self._iterations[before - 1].after if before else self.begin
        allowed = self.tolerance * (self._ends[-1] - self._ends[before])
        return cycle if self.state.distance(state) <= allowed else 0


def settle(
    schedule: Schedule, search: Search, simulate: Callable[[int, State], Iteration]
) -> Steady:
    """Search among iterations that are simulated only where nothing like them has been.

    `simulate(number, state)` simulates an iteration by itself.
    """
    known = _Known(search) if len(schedule) > 1 else None
    while not search.over:
        turn, state = schedule.turn(search.number), search.state
        found = known and known.find(turn, state)
        if found:
            search.add(*found)
            continue
        iteration = simulate(search.number, state)
        if known:
            known.add(turn, state, iteration)
        search.add(iteration)
    return search.result()


class _Known:
    """Iterations that have been simulated, by the numbers of their plans."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._equal: dict[tuple[int, bytes], Iteration] = {}
        self._last: dict[int, tuple[State, Iteration]] = {}

    def find(self, turn: int, state: State) -> tuple[Iteration, Literal["equal", "near"]] | None:
        """One that began in this state, or in one that will do."""
        equal = self._equal.get((turn, state.digest()))
        if equal is not None:
            return equal, "equal"
        if not self._search.patient or turn not in self._last:
            return None
        before, last = self._last[turn]
        near = state.distance(before) <= self._search.tolerance * last.elapsed
        return (last, "near") if near else None

    def add(self, turn: int, state: State, iteration: Iteration) -> None:
        """One that begins in a state."""
        self._equal[turn, state.digest()] = iteration
        self._last[turn] = (state, iteration)
