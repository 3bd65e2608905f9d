"""Iterations of an endless training, until they repeat.

Without traces, grants and random delays nothing in a step depends on absolute time: the map G from
the state in which iteration i begins to the next commutes with a shift, G(X + c) = G(X) + c, X
holding times. So does a round of n plans, F = G[n-1] ... G[1] G[0]. Max-plus systems with constant
coefficients reach a cycle (Baccelli et al. 1992, theorem 3.109): after k rounds X is X + c again.
From then on every round, with its parts and (shifted) spans, is the one k rounds before, c later.
So one repeated state, relative to one of its times, at the same place in the round gives all the
rest exactly. A cycle is a number of whole rounds.

The state: when the first rank begins iteration i + 1 it has left all collectives of iteration i, so
all ranks have entered them, and no rank begins another of iteration i. What follows depends only on

- when each rank finishes iteration i: then nothing of it is left, and the rank's link is idle;
- when its loader will have made the next batches (`input_loader.Loader.ahead`).

If no plan has collectives each rank is its own system, with its own shift. An iteration whose
beginning state and plan have been before is not simulated again; equal ranks that leave together
always begin in one state, so each plan of a round is simulated once.

Exception: a rank that shares cores and begins iteration i + 1 slows down those still in i. Such
plans are simulated in one go, and only states in which a machine's ranks begin together are
repeats.

The theorem needs a fixed order of events; with first come, first served a cycle may come late or
never, and on p ranks be p iterations long: chunks that differ by one element let a skew of
nanoseconds go round the ring. Hence a tolerance: if after `PATIENCE` iterations a state differs
from one some rounds earlier by a small share of the time between, those iterations repeat; in a
round of several plans an iteration that begins nearly like its plan's last one is taken to equal
it. Max-plus maps do not expand: with a fixed order of events the mean iteration is off by about
that share. `Steady.exact` tells. After `most` iterations, the last half repeats.
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

MOST = 200  # iterations after which no cycle is expected
MOST_ROUNDS = 4  # most rounds assembled from known iterations, beyond `most`
PATIENCE = 8  # iterations before `tolerance` applies


@dataclass(frozen=True, kw_only=True, eq=False)
class Steady:
    """Iterations of which the last `period` repeat for ever."""

    begin: State
    iterations: tuple[Iteration, ...]
    period: int
    exact: bool
    spans: Callable[[int, int], tuple[Span, ...]] | None = None
    """Spans of an iteration of the last round, by number, of so many first ranks or all
    (`breakdown.spans_of`), if simulated in one go."""

    @property
    def cycle(self) -> tuple[Iteration, ...]:
        """Iterations that repeat."""
        return self.iterations[-self.period :]

    @cached_property
    def shift(self) -> Times:
        """Picoseconds per cycle, `[ranks]`."""
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
    """Search for a repeated state at the same place in the round."""

    def __init__(
        self, schedule: Schedule, begin: State, *, most: int = MOST, tolerance: float = 0.0
    ) -> None:
        """Add up to `most` simulated iterations, or a round. After `PATIENCE` iterations states may
        differ by the share `tolerance` of the time between them."""
        self.begin, self.tolerance = begin, tolerance
        self.limit = max(most, len(schedule))
        self._round, self._machines = len(schedule), schedule.plans[0].machines
        self._iterations: list[Iteration] = []
        self._ends: list[Picoseconds] = [0]
        """Begin of each iteration (first rank), less the difference between near states."""
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
        """Whether nearly equal states count as equal now."""
        return self.tolerance > 0 and self.number >= PATIENCE

    @property
    def over(self) -> bool:
        """Whether a cycle has been found, or the search given up."""
        return (
            self._period > 0
            or self._simulated >= self.limit
            or self.number >= self.limit + MOST_ROUNDS * self._round
        )

    def add(
        self, iteration: Iteration, like: Literal["itself", "equal", "near"] = "itself"
    ) -> bool:
        """Add the next iteration, or a known one like it; return whether the search is over. Raises
        `InputError` when the clock cannot hold the time."""
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
        """The found cycle; at least one round must have been added."""
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
        """Number of the first iteration that began in the state at this place."""
        if self._machines is not None:
            machine = np.array(self._machines.of_rank)
            latest = np.zeros(machine.max() + 1, dtype=np.int64)
            np.maximum.at(latest, machine, state.start)
            if (latest[machine] != state.start).any():
                return self.number
        return self._seen.setdefault((self.number % self._round, state.digest()), self.number)

    def _nearly(self) -> int:
        """Iterations since a state nearly equal to this one; 0: none."""
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
    """Run the search, simulating only unknown iterations. `simulate(number, state)` runs one."""
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
    """Simulated iterations, by plan."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._equal: dict[tuple[int, bytes], Iteration] = {}
        self._last: dict[int, tuple[State, Iteration]] = {}

    def find(self, turn: int, state: State) -> tuple[Iteration, Literal["equal", "near"]] | None:
        """Iteration that began in this state, or near enough."""
        equal = self._equal.get((turn, state.digest()))
        if equal is not None:
            return equal, "equal"
        if not self._search.patient or turn not in self._last:
            return None
        before, last = self._last[turn]
        near = state.distance(before) <= self._search.tolerance * last.elapsed
        return (last, "near") if near else None

    def add(self, turn: int, state: State, iteration: Iteration) -> None:
        self._equal[turn, state.digest()] = iteration
        self._last[turn] = (state, iteration)
