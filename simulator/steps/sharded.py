"""Steps with sharded weights (ZeRO's stages 2 and 3), in which each pass waits for gathers.

A bucket of the plan is a unit of the network. Its first collective gathers its weights before the
forward pass; a second gather, if any, repeats that before the backward pass (stage 3). The others
exchange its gradients, of which each rank receives its part. In each micro-batch of each rank:

- The compute stream runs one job after the other. For each unit in forward order: unpack its
  weights, forward pass. For each unit in backward order: unpack its weights again, backward pass,
  decode the previous unit's gradients, encode its own. At the end: decode the last gradients.
- The communicator runs one collective after the other, in the same order on all ranks: the gathers
  in forward order; then for each unit in backward order the gather of the next unit's weights and
  the exchange of this unit's gradients.
- A gather for the forward pass begins when the weights of the unit two before it are unpacked (the
  first two: with the micro-batch), one for the backward pass when the previous unit's pass begins.
- A pass waits for its unit's gather, an encoding for the previous exchange, the next micro-batch
  and the optimizer for everything.

With HSDP a unit's first exchange is a reduce-scatter inside the node. The others, between nodes,
have a separate stream and communicator, for which only the end of the micro-batch waits.

The last unit of the forward pass keeps its weights for its backward pass. Every micro-batch
exchanges. Interference, side streams, shared cores and loaders are not modelled.

`micro_batch` implements these rules for all ranks at once (`Ranks`, exact), for one rank in many
worlds (`scenarios/uncertainty/approximation.py`), and for timelines.

Source: PyTorch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (`unshard`,
`wait_for_unshard`, `_backward_prefetch`, `post_backward`): one communicator for both kinds of
collectives, and streams that wait for each other's events; TorchTitan, which shards embedding,
blocks and output as units and keeps the output's weights (arXiv:2410.06511). FSDP decodes on
another stream than the compute stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_room
from gcsim.simulator.network.jitter import collective_key
from gcsim.simulator.steps.breakdown import PARTS, TimeBreakdown, spans_of
from gcsim.simulator.steps.events.step import coarsest
from gcsim.simulator.steps.schedule import Schedule, State
from gcsim.simulator.steps.step_plan import (
    BucketWork,
    CarryOut,
    Job,
    Kind,
    Span,
    StepPlan,
    WeightGather,
)

Column = NDArray[Any]
"""Times by rank, int64 picoseconds, or by world, float64."""
AGAIN = 1  # index of the gather for the backward pass among a unit's collectives
FORWARD, BACKWARD, ENCODE, AFTER = range(4)


class Unit(NamedTuple):
    """Durations of a unit's jobs, of any numeric type or arrays that broadcast."""

    forward: Column | int
    backward: Column | int
    encode: Column | int
    after: tuple[Column | int, ...]  # jobs by collective, once it has returned
    gathers: int  # number of collectives that gather weights, 1 or 2
    between: bool  # whether all exchanges but the first are between nodes (HSDP)


class Streams:
    """Clocks of the streams, by rank or world: computation, communicator, inter-node exchanges."""

    def __init__(self, begin: Column, carry_out: Callable[[int, int, Column], Column]) -> None:
        """`carry_out(unit, place, entries)` returns the exits of a unit's collective."""
        self.free = self.left = self.inter_node = begin
        self._carry_out = carry_out

    def note_job(self, place: int, unit: int, begin: Column, end: Column) -> None:
        """Record a job (no-op); `place` is `FORWARD`, ..., or `AFTER` plus a collective's index."""

    def note_collective(self, unit: int, place: int, entry: Column, exits: Column) -> None:
        """Record a collective (no-op)."""

    def compute(self, place: int, unit: int, work: Column | int) -> None:
        """Run a job on the compute stream."""
        begin, self.free = self.free, self.free + work
        self.note_job(place, unit, begin, self.free)

    def wait(self, until: Column) -> None:
        """Let no job begin before `until`."""
        self.free = np.maximum(self.free, until)

    def collective(self, unit: int, place: int, asked: Column) -> Column:
        """Run a collective after the earlier ones; return its exits."""
        entry = np.maximum(self.left, asked)
        self.left = self._carry_out(unit, place, entry)
        self.note_collective(unit, place, entry, self.left)
        return self.left

    def between(self, number: int, unit: Unit, scattered: Column) -> None:
        """Run a unit's exchanges between nodes after the earlier ones."""
        self.inter_node = np.maximum(self.inter_node, scattered)
        for place in range(unit.gathers, len(unit.after)):
            entry = self.inter_node
            if place > unit.gathers:
                self.inter_node = self._carry_out(number, place, entry)
                self.note_collective(number, place, entry, self.inter_node)
            begin, self.inter_node = self.inter_node, self.inter_node + unit.after[place]
            self.note_job(AFTER + place, number, begin, self.inter_node)


def micro_batch(streams: Streams, units: Sequence[Unit]) -> None:
    """Run forward and backward with all collectives; `units` are in backward order."""
    streams.wait(streams.left)
    streams.left = streams.free
    unpacked = deque([streams.free] * 2)
    for number in reversed(range(len(units))):
        streams.wait(streams.collective(number, 0, unpacked.popleft()))
        streams.compute(AFTER, number, units[number].after[0])
        unpacked.append(streams.free)
        streams.compute(FORWARD, number, units[number].forward)
    gathered = exchanged = streams.left
    for number, unit in enumerate(units):
        if number and unit.gathers > AGAIN:
            streams.wait(gathered)
            streams.compute(AFTER + AGAIN, number, unit.after[AGAIN])
        if number + 1 < len(units) and units[number + 1].gathers > AGAIN:
            gathered = streams.collective(number + 1, AGAIN, streams.free)
        streams.compute(BACKWARD, number, unit.backward)
        if number:
            _decode(streams, number - 1, units[number - 1], exchanged)
        streams.compute(ENCODE, number, unit.encode)
        exchanged = streams.collective(number, unit.gathers, streams.free)
        if unit.between:
            streams.between(number, unit, exchanged)
            continue
        for place in range(unit.gathers + 1, len(unit.after)):
            streams.wait(exchanged)
            streams.compute(AFTER + place - 1, number, unit.after[place - 1])
            exchanged = streams.collective(number, place, streams.free)
    _decode(streams, len(units) - 1, units[-1], exchanged)
    streams.wait(streams.inter_node)


def _decode(streams: Streams, number: int, unit: Unit, exchanged: Column) -> None:
    streams.wait(exchanged)
    if not unit.between:
        streams.compute(AFTER + len(unit.after) - 1, number, unit.after[-1])


def gathers_of(work: BucketWork) -> int:
    """Return the number of a unit's collectives that gather its weights."""
    return sum(isinstance(record, WeightGather) for record in work.collectives)


def _between(work: BucketWork) -> bool:
    """Whether a unit is sharded inside nodes and exchanged between them (HSDP)."""
    return work.collectives[0].scope == "node" and work.collectives[-1].scope == "nodes"


def forward_parts(plan: StepPlan) -> list[Picoseconds]:
    """Split the forward pass over units, in backward order, in proportion to backward."""
    total, forward = sum(plan.compute.parts), plan.compute.forward
    if not total:
        return [0] * (len(plan.compute.parts) - 1) + [forward]
    ends = [round(forward * end / total) for end in accumulate(plan.compute.parts, initial=0)]
    return [after - before for before, after in pairwise(ends)]


def _jobs(plan: StepPlan) -> list[list[tuple[Kind, Picoseconds]]]:
    """Return kinds and durations of each unit's jobs, by place. The rest of backward belongs to the
    last unit."""
    backward = [*plan.compute.parts[:-1], plan.compute.parts[-1] + plan.compute.rest]
    return [
        [
            ("forward", forward),
            ("backward", own),
            ("encode", sum(job.duration for job in work.before)),
            *((job.kind, job.duration) for job in work.after),
        ]
        for forward, own, work in zip(forward_parts(plan), backward, plan.buckets, strict=True)
    ]


def units_of(plan: StepPlan, durations: Sequence[Column] = ()) -> Iterator[Unit]:
    """Yield the units of a plan; `durations` of all jobs in order replace the plan's, if given."""
    planned = [time for jobs in _jobs(plan) for _, time in jobs]
    rows: Iterator[Column | int] = iter(durations or planned)
    for work in plan.buckets:
        forward, backward, encode = (next(rows) for _ in range(AFTER))
        after = tuple(next(rows) for _ in work.after)
        yield Unit(forward, backward, encode, after, gathers_of(work), _between(work))


class Ranks:
    """State of all ranks between two iterations; same interface as `vectors.Vectors`."""

    def __init__(self, schedule: Schedule, ranks: int, execute: CarryOut, seed: int) -> None:
        self._schedule, self._ranks, self._execute, self._seed = schedule, ranks, execute, seed
        self._number, self._start = 0, np.zeros(ranks, dtype=np.int64)
        self._tables = [_table(plan, ranks) for plan in schedule.plans]

    def begin(self, number: int, before: State) -> None:
        """Resume with iteration `number` in the state `before`; the first rank starts at 0."""
        self._number, self._start = number, np.array(before.start)

    def ahead(self) -> Times:
        """Return an empty array: loaders are not modelled."""
        return np.zeros((0, 1), dtype=np.int64)

    def iteration(
        self,
        slowdowns: NDArray[np.float64] | None,
        parts: dict[str, Times],
        streams: type[Streams] = Streams,
    ) -> Times:
        """Simulate the next iteration with `slowdowns` `[ranks]`; return the finish `[ranks]` and
        fill in `parts` `[ranks]`. Raises `InputError` when the clock cannot hold the times."""
        turn = self._schedule.turn(self._number)
        plan, table = self._schedule.plans[turn], self._tables[turn]
        if slowdowns is not None:
            table = np.rint(table * slowdowns).astype(np.int64)
        most = plan.accumulation * int(table.sum(axis=0).max())
        check_room(self._number, int(self._start.max()) + most)
        for part in parts.values():
            part[:] = 0
        count = 0

        def carry_out(unit: int, place: int, entries: Times) -> Times:
            nonlocal count
            work = plan.buckets[unit]
            key = collective_key(self._seed, self._number, count, place)
            count += 1
            server_time = work.server_times[place] if work.server_times else 0
            exits = self._execute(work.collectives[place], entries, server_time, key)
            if exits.min() < entries.max():
                raise InternalError(f"unit {unit}: a rank leaves before the last one enters")
            parts["communication"] += exits - entries
            return exits

        *rows, optimizer = table
        units = list(units_of(plan, rows))
        both = streams(self._start, carry_out)
        for _ in range(plan.accumulation):
            micro_batch(both, units)
        both.compute(-1, -1, optimizer)
        spent = iter(rows)
        for jobs, unit in zip(_jobs(plan), units, strict=True):
            for place, (kind, _) in enumerate(jobs):
                row = next(spent)
                if not (unit.between and place >= AFTER + unit.gathers):
                    parts[kind] += plan.accumulation * row
        parts["optimizer"] += optimizer
        own = [times for part, times in parts.items() if part not in ("communication", "exposed")]
        parts["exposed"][:] = both.free - self._start - sum(own)
        self._start, self._number = both.free, self._number + 1
        check_room(self._number, int(both.free.max()))
        return both.free


def _table(plan: StepPlan, ranks: int) -> Times:
    """Return durations `[jobs, ranks]`: each unit's by place, then the optimizer."""
    columns = []
    for count, own in plan.groups or ((ranks, plan),):
        durations = [time for jobs in _jobs(own) for _, time in jobs]
        columns += [[*durations, own.optimizer]] * count
    return np.array(columns[:ranks], dtype=np.int64).T


def spans(
    schedule: Schedule,
    number: int,
    before: State,
    *,
    execute: CarryOut,
    slowdown: NDArray[np.float64] | None = None,
    seed: int = 0,
    first: int | None = None,
) -> tuple[Span, ...]:
    """Return the spans of iteration `number`, which begins in the state `before`, from its first
    rank's begin; `first` as in `spans_of`."""
    plan, ranks = schedule.plans[schedule.turn(number)], len(before.start)
    jobs: list[Any] = []  # place, unit, begin, end
    network: list[Any] = []  # unit, place, entry, exit

    class RecordingStreams(Streams):
        """Streams that record jobs and collectives."""

        def note_job(self, *noted: Any) -> None:
            jobs.append(noted)

        def note_collective(self, *noted: Any) -> None:
            network.append(noted)

    simulated = Ranks(schedule, ranks, execute, seed)
    simulated.begin(number, before)
    parts = {part: np.empty(ranks, dtype=np.int64) for part in PARTS}
    simulated.iteration(slowdown, parts, RecordingStreams)
    paces = np.ones(ranks) if slowdown is None else slowdown
    times = [each for *_, begin, end in (*jobs, *network) for each in (begin, end)]
    classes = coarsest(ranks, before.start, paces, *schedule.groups(), *times)
    of_unit = _jobs(plan)

    def followed(rank: int) -> TimeBreakdown:
        found = TimeBreakdown(begin=int(before.start[rank]))
        *of_units, (*_, begin, end) = jobs
        for place, unit, start, done in of_units:
            kind, work = of_unit[unit][place][0], plan.buckets[unit]
            behind = place - AFTER - gathers_of(work)  # negative: after a gather of weights
            what = "weights unpacked" if place >= AFTER and behind < 0 else kind
            job = Job(kind=kind, name=what, duration=0)
            stream = found.side if behind >= 0 and _between(work) else found.compute
            stream.append((job, unit, int(start[rank]), int(done[rank])))
        job = Job(kind="optimizer", name="optimizer", duration=0)
        found.compute.append((job, None, int(begin[rank]), int(end[rank])))
        for unit, place, entry, exits in network:
            record, last = plan.buckets[unit].collectives[place], int(entry.max())
            found.network.append((record, unit, place, int(entry[rank]), last, int(exits[rank])))
        return found

    lowest = np.unique(classes, return_index=True)[1]
    return spans_of([followed(rank) for rank in lowest.tolist()], classes, first)
