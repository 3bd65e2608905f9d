"""Iterations of an endless training, simulated until they are periodic.

Without traces, grants and random delays nothing in a step depends on absolute time. So the map G
from the state X at the begin of an iteration (a vector of times) to that of the next one commutes
with shifts: G(X + c) = G(X) + c. So does a round of n plans, F = G[n-1] ... G[1] G[0]. Max-plus
systems with constant coefficients reach a cycle (Baccelli et al. 1992, theorem 3.109): after k
rounds the state is X + c. From then on every round equals, with its parts and spans, the one k
rounds earlier, shifted by c. So when a state, relative to one of its times, occurs again at the
same place in the round, all later iterations are known exactly. A cycle is a number of rounds.

When the first rank begins iteration i + 1, it has left all collectives of iteration i, so all ranks
have entered these. The rest therefore depends only on this state:

- the time at which each rank finishes iteration i; from then on its link is idle;
- the times at which its loader will have made the next batches (`input_loader.Loader.ahead`).

If no plan has collectives, each rank is a system with its own shift. An iteration with a known plan
and initial state is not simulated again; equal ranks that leave collectives together always begin
in the same state, so each plan of a round is simulated only once.

Exception: a rank that shares cores and begins iteration i + 1 slows down ranks that are still in i.
Such plans are simulated without interruption, and only states in which all ranks of a machine
begin together are compared.

The theorem needs a fixed order of events. With first come, first served a cycle may come late or
never, and on p ranks may have p iterations: if chunks differ by one element, a skew of nanoseconds
travels around the ring. Hence a tolerance: if after `PATIENCE` iterations a state differs from one
some rounds earlier by a small share of the time between, the iterations count as periodic; in a
round of several plans an iteration that begins nearly like its plan's last one counts as equal.
Max-plus maps do not expand differences: with a fixed order of events the mean is off by about that
share. `Steady.exact` is then False. After `most` iterations the last half is taken as the cycle.
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

MOST = 200  # most iterations in the search for a cycle
MOST_ROUNDS = 4  # most rounds beyond `most`, if all their iterations are known
PATIENCE = 8  # iterations before `tolerance` applies


@dataclass(frozen=True, kw_only=True, eq=False)
class Steady:
    """Iterations, the last `period` of which repeat for ever."""

    begin: State
    iterations: tuple[Iteration, ...]
    period: int
    exact: bool
    spans: Callable[[int, int], tuple[Span, ...]] | None = None
    """Spans of an iteration of the last round, by its number and the number of first ranks
    (`breakdown.spans_of`); None unless all iterations were simulated without interruption."""

    @property
    def cycle(self) -> tuple[Iteration, ...]:
        """Iterations that repeat."""
        return self.iterations[-self.period :]

    @cached_property
    def shift(self) -> Times:
        """Duration of a cycle in picoseconds, `[ranks]`."""
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
        """Search through at most `most` simulated iterations, or one round. After `PATIENCE`
        iterations states may differ by the share `tolerance` of the time between them."""
        self.begin, self.tolerance = begin, tolerance
        self.limit = max(most, len(schedule))
        self._round, self._machines = len(schedule), schedule.plans[0].machines
        self._iterations: list[Iteration] = []
        self._ends: list[Picoseconds] = [0]
        """Begin of each iteration on its first rank, less the differences of near states."""
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
        """Whether nearly equal states now count as equal."""
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
        """Add the next iteration, or a known one `like` it; return whether the search is over.
        Raises `InputError` when the clock cannot hold the time."""
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
        """Return the cycle; at least one round must have been added."""
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
        """Return the first iteration that began in this state at this place of the round."""
        if self._machines is not None:
            machine = np.array(self._machines.of_rank)
            latest = np.zeros(machine.max() + 1, dtype=np.int64)
            np.maximum.at(latest, machine, state.start)
            if (latest[machine] != state.start).any():
                return self.number
        return self._seen.setdefault((self.number % self._round, state.digest()), self.number)

    def _nearly(self) -> int:
        """Return the number of iterations since a nearly equal state; 0: none."""
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
    """Run the search. `simulate(number, state)` is called only for unknown iterations."""
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
        """Return an iteration of the same plan that began in an equal or near state."""
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
