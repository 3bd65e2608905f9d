"""Where are all ranks, from one collective to the next and from one iteration to the next?

`Vectors` keeps what `vector_loops.py` needs, simulates one iteration at a time, and says where it
went. The rules and why this is exact: `vector_step.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Times
from gcsim.simulator.network.delays import collective_key
from gcsim.simulator.steps.step_plan import CarryOut, StepPlan
from gcsim.simulator.steps.vector_ends import begin, beside
from gcsim.simulator.steps.vector_layout import FORWARD, KINDS, OPTIMIZER, THREAD, Layout
from gcsim.simulator.steps.vector_loops import (
    EARLY,
    FREE,
    INPUT,
    ISSUED,
    LEFT,
    MADE,
    PLACE,
    SHARED,
    STATE_ROWS,
    advance,
)

PARTS = (*KINDS, "communication", "exposed", "input")


class Vectors:
    """The state of all ranks, between two collectives or two iterations.

    Ranks that are alike in everything, as all are at first, are one column of the arrays; when
    they leave a collective at different times, or their paces differ, each has its own until they
    begin an iteration together again.
    """

    def __init__(self, plan: StepPlan, ranks: int, carry_out: CarryOut, seed: int) -> None:
        if plan.machines is not None:
            raise InternalError("ranks that share cores: only events simulate that")
        if plan.slots != 1:
            raise InternalError(f"{plan.slots} collectives at a time: only events simulate that")
        if plan.input_batch and plan.prefetch < 1:
            raise InternalError(f"a loader that keeps {plan.prefetch} batches never makes one")
        self._plan, self._ranks, self._seed, self._carry_out = plan, ranks, seed, carry_out
        self._layout = layout = Layout.of(plan)
        collectives = len(layout.names)
        side = int(layout.side_stream)
        self._one = np.ones(1, dtype=np.float64)
        self._even_table = layout.table(self._one)
        self._number = 0
        """Of the iteration that comes next, or is under way."""
        self._width = 1
        """Columns: 1 or `ranks`."""
        self._state = _zeros(STATE_ROWS, 1)
        self._taken = _zeros(plan.prefetch if plan.input_batch else 1, 1)
        self._calls = _zeros(3, collectives, 1)
        self._side = _zeros(side * (2 * layout.buckets + collectives), 1)
        self._entry, self._start = _zeros(1), _zeros(1)
        self._places = np.array(
            [layout.buckets, side, layout.side if side else THREAD, layout.after], dtype=np.int64
        )
        self._shape = layout.shape()
        self._works = [
            (bucket, index, record, work.server_times[index] if work.server_times else 0)
            for bucket, work in enumerate(plan.buckets)
            for index, record in enumerate(work.collectives)
        ]

    def iteration(self, paces: NDArray[np.float64] | None, parts: dict[str, Times]) -> Times:
        """Simulate the next iteration, at these paces `[ranks]`; when each rank finishes it.

        The iteration's `parts` `[ranks]` are filled. The finish is `[1]` where all ranks are alike.
        """
        factors, table = self._one, self._even_table
        if paces is not None:
            factors = np.ascontiguousarray(paces, dtype=np.float64)
            if factors.shape != (self._ranks,):
                raise InternalError(f"{factors.shape} paces for {self._ranks} ranks")
            if (factors == factors[0]).all():
                factors = factors[:1]
            table = self._layout.table(factors)
        if self._width > 1 and len(factors) == 1:
            self._join()
        elif self._width < len(factors):
            self._part()
        self._simulate(table)
        start = self._start  # after `_part`, which may have given each rank its own
        done: Times = self._state[[FREE, ISSUED, LEFT]].max(axis=0) + table[OPTIMIZER]
        self._account(parts, table, factors)
        busy = sum(parts[kind] for kind in KINDS)
        parts["exposed"][:] = done - start - parts["input"] - busy
        self._start = done
        self._number += 1
        return done

    def ahead(self) -> NDArray[np.int64]:
        """`Loader.ahead` after the last iteration, `[prefetch, 1 or ranks]`."""
        batch = self._plan.input_batch
        if not batch:
            return _zeros(0, self._width)
        begun = self._number * self._plan.accumulation
        ready, made = [], self._state[MADE]
        for taken in np.roll(self._taken, -(begun % len(self._taken)), axis=0):
            made = np.maximum(made, taken) + batch
            ready.append(np.maximum(made - self._start, 0))
        return np.array(ready)

    def _simulate(self, table: NDArray[np.int64]) -> None:
        plan, layout, state = self._plan, self._layout, self._state
        taken = self._number * plan.accumulation
        begin(
            self._start,
            state[INPUT],
            state[MADE],
            self._taken,
            state[FREE],
            state[ISSUED],
            self._side[: layout.buckets],
            table[FORWARD:OPTIMIZER],
            table[THREAD : layout.side],
            np.array([plan.accumulation, plan.input_batch, taken, layout.side_stream], np.int64),
        )
        state[PLACE:LEFT] = 0
        state[SHARED] = 0
        joined = np.zeros(layout.buckets, dtype=np.int64)
        exits, carried = self._entry, -1
        while True:
            chosen = advance(
                carried,
                exits,
                self._entry,
                self._state,
                self._calls,
                self._side,
                table,
                self._shape,
                joined,
                self._places,
            )
            if chosen < 0:
                break
            exits, carried = self._carried_out(chosen), chosen
        if chosen == EARLY:
            bucket, _, record, _ = self._works[carried]
            raise InternalError(
                f"{record.kind}, iteration {self._number}, bucket {bucket}: a rank leaves at "
                f"{exits.min()} ps, in the past of {self._entry.max()} ps, when the last one enters"
            )

    def _carried_out(self, chosen: int) -> Times:
        """When the ranks leave a collective that they enter at `_entry`, `[_width]`."""
        bucket, index, record, server_time = self._works[chosen]
        key = collective_key(self._seed, self._number, bucket, index)
        alike = self._width < self._ranks
        entry = np.repeat(self._entry, self._ranks) if alike else self._entry.copy()
        exits = np.ascontiguousarray(self._carry_out(record, entry, server_time, key))
        if exits.shape != (self._ranks,):
            raise InternalError(f"{exits.shape} exit times of {self._ranks} ranks")
        if alike:
            if exits.min() == exits.max():
                return exits[:1]
            self._part()
        return exits

    def _part(self) -> None:
        """Each rank gets a column of its own."""
        for name in _COLUMNS:
            values = getattr(self, name)
            setattr(self, name, np.repeat(values, self._ranks, axis=-1))
        self._width = self._ranks

    def _join(self) -> None:
        """One column is enough when nothing tells the ranks apart that matters from now on."""
        matters = [self._start, self._state[MADE], *self._taken]
        if all((values == values[0]).all() for values in matters):
            for name in _COLUMNS:
                setattr(self, name, np.ascontiguousarray(getattr(self, name)[..., :1]))
            self._width = 1

    def _account(
        self, parts: dict[str, Times], table: NDArray[np.int64], factors: NDArray[np.float64]
    ) -> None:
        """Fill an iteration's parts `[ranks]`, but for what is exposed."""
        totals = table[self._layout.totals :]
        for place, kind in enumerate(KINDS):
            parts[kind][:] = totals[place]
        if self._layout.side_stream:
            out = np.zeros((len(KINDS), self._width), dtype=np.int64)
            starts, jobs = self._side[self._layout.buckets :], self._layout.side_jobs
            beside(starts, self._state[ISSUED], jobs, factors, out)
            for place, kind in enumerate(KINDS):
                parts[kind] += out[place]
        parts["communication"][:] = self._state[SHARED]
        parts["input"][:] = self._state[INPUT]


_COLUMNS = ("_state", "_taken", "_calls", "_side", "_entry", "_start")


def _zeros(*shape: int) -> NDArray[np.int64]:
    return np.zeros(shape, dtype=np.int64)
