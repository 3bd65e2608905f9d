"""A training step played out picosecond by picosecond, from the words of `step_plan.py`.

Naive on purpose: threads are generators, instants are repeated until nothing more happens in
them, and where an iteration goes is counted one picosecond at a time. Times must be small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Times
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.network.delays import collective_key
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, Job, Run, StepPlan, stretched

Thread = Generator[tuple[Any, ...], None, None]
PARTS = (
    *("forward", "backward", "encode", "decode"),
    *("communication", "exposed", "optimizer", "input"),
)


class Oracle:
    """Everything that some iterations do."""

    def __init__(
        self,
        plans: StepPlan | Sequence[StepPlan],
        ranks: int,
        carry_out: CarryOut,
        iterations: int,
        pace: Callable[[int], NDArray[np.float64] | None],
        seed: int,
    ) -> None:
        """Plans follow each other, again and again."""
        self.plans = [plans] if isinstance(plans, StepPlan) else plans
        self.ranks, self.carry_out, self.seed = ranks, carry_out, seed
        self.iterations, self.pace = iterations, pace
        self.now = 0
        self.waiting: dict[tuple[int, str], list[Any]] = {}
        self.running: dict[tuple[int, str], tuple[int, Thread]] = {}
        self.conditions: list[tuple[Callable[[], bool], Thread]] = []
        self.asked: dict[tuple[int, int, int], dict[int, int]] = {}
        self.returned: dict[tuple[int, int, int], Times] = {}
        self.queue: list[tuple[int, tuple[int, int, int]]] = []
        self.free = [0] * ranks
        self.open: Counter[int] = Counter()
        self.taken: list[list[int]] = [[] for _ in range(ranks)]
        self.made: list[list[int]] = [[] for _ in range(ranks)]
        self.log: list[tuple[int, str, str, int, int]] = []
        """Rank, stream, kind, start, end."""
        self.finish = np.zeros((iterations, ranks), dtype=np.int64)
        self.communication = np.zeros((iterations, ranks), dtype=np.int64)
        for rank in range(ranks):
            self.go_on(self.autograd(rank))
        while self.instant():
            pass
        assert not self.conditions
        assert not self.queue

    def autograd(self, rank: int) -> Thread:
        for iteration in range(self.iterations):
            plan = self.plan(iteration)
            for _ in range(plan.accumulation - 1):
                yield from self.forward(rank, iteration)
                job = Job(kind="backward", name="", duration=plan.backward)
                yield self.work(rank, iteration, "compute", (0,), job)
            yield from self.forward(rank, iteration)
            for number, (bucket, part) in enumerate(
                zip(plan.buckets, plan.compute.parts, strict=True)
            ):
                job = Job(kind="backward", name="", duration=part)
                if plan.side_stream:
                    yield self.work(rank, iteration, "compute", (0,), job)
                else:
                    yield self.work(rank, iteration, "compute", (0,), job, *bucket.before)
                self.open[rank] += 1
                self.go_on(self.exchange(rank, iteration, number, bucket))
            job = Job(kind="backward", name="", duration=plan.compute.rest)
            yield self.work(rank, iteration, "compute", (0,), job)
            yield ("when", lambda: self.open[rank] == 0)
            job = Job(kind="optimizer", name="", duration=plan.optimizer)
            yield self.work(rank, iteration, "compute", (0,), job)
            self.finish[iteration, rank] = self.now

    def plan(self, iteration: int) -> StepPlan:
        return self.plans[iteration % len(self.plans)]

    def forward(self, rank: int, iteration: int) -> Thread:
        plan, made, taken = self.plan(iteration), self.made[rank], self.taken[rank]
        if plan.input_batch:
            b = len(taken)
            begun = max(
                made[b - 1] if b else 0, taken[b - plan.prefetch] if b >= plan.prefetch else 0
            )
            ready = begun + plan.input_batch
            made.append(ready)
            start = self.now
            yield ("when", lambda: self.now >= ready)
            taken.append(self.now)
            self.log.append((rank, "input", "input", start, self.now))
        job = Job(kind="forward", name="", duration=plan.compute.forward)
        yield self.work(rank, iteration, "compute", (0,), job)

    def exchange(self, rank: int, iteration: int, number: int, bucket: BucketWork) -> Thread:
        stream = "side" if self.plan(iteration).side_stream else "compute"
        if stream == "side":
            yield self.work(rank, iteration, stream, (1, number, -1), *bucket.before)
        for index, job in enumerate(bucket.after):
            name = (iteration, number, index)
            if name not in self.asked:
                self.asked[name] = {}
                self.queue.append((self.now, name))
            self.asked[name][rank] = self.now
            yield (
                "when",
                lambda name=name: (
                    self.now >= self.returned[name][rank] if name in self.returned else False
                ),
            )
            yield self.work(rank, iteration, stream, (1, number, index), job)
        self.open[rank] -= 1

    def work(
        self, rank: int, iteration: int, stream: str, key: tuple[int, ...], *jobs: Job
    ) -> tuple[Any, ...]:
        paces = self.pace(iteration)
        factor = 1.0 if paces is None else float(paces[rank])
        slower = self.plan(iteration).side_slowdown if stream == "side" else 1
        done = [(job.kind, stretched(round(job.duration * slower), factor)) for job in jobs]
        return ("work", rank, stream, key, done)

    def go_on(self, thread: Thread) -> None:
        for command, *rest in thread:
            if command == "when":
                self.conditions.append((rest[0], thread))
                return
            rank, stream, key, jobs = rest
            if sum(time for _, time in jobs):
                self.waiting.setdefault((rank, stream), []).append((self.now, key, jobs, thread))
                return

    def instant(self) -> bool:
        """Everything that happens now; whether something is left for later."""
        while self.something():
            pass
        for stream, waiting in self.waiting.items():
            if waiting and stream not in self.running:
                first = min(waiting, key=lambda piece: piece[:2])
                waiting.remove(first)
                start = self.now
                for kind, time in first[2]:
                    self.log.append((*stream, kind, start, start + time))
                    start += time
                self.running[stream] = (start, first[3])
        self.now += 1
        return bool(self.running or self.conditions)

    def something(self) -> bool:
        for stream, (end, thread) in list(self.running.items()):
            if end == self.now:
                del self.running[stream]
                self.go_on(thread)
                return True
        for condition, thread in self.conditions:
            if condition():
                self.conditions.remove((condition, thread))
                self.go_on(thread)
                return True
        self.queue.sort()
        if self.queue and len(self.asked[self.queue[0][1]]) == self.ranks:
            _, name = self.queue.pop(0)
            iteration, number, index = name
            entry = [max(self.asked[name][r], self.free[r]) for r in range(self.ranks)]
            bucket = self.plan(iteration).buckets[number]
            exits = self.carry_out(
                bucket.collectives[index],
                np.array(entry, dtype=np.int64),
                bucket.server_times[index] if bucket.server_times else 0,
                collective_key(self.seed, iteration, number, index),
            ) + (bucket.held[index] if bucket.held else 0)
            self.returned[name] = exits
            self.communication[iteration] += exits - np.array(entry)
            self.free = exits.tolist()
            return True
        return False

    def run(self) -> Run:
        """What the engines return."""
        parts = {part: np.zeros_like(self.finish) for part in PARTS}
        parts["communication"] = self.communication
        for rank in range(self.ranks):
            what = ["exposed"] * self.now
            for stream in ("input", "side", "compute"):  # a later one hides an earlier one
                for who, where, kind, start, end in self.log:
                    if (who, where) == (rank, stream):
                        what[start:end] = [kind] * (end - start)
            start = 0
            for iteration, end in enumerate(self.finish[:, rank].tolist()):
                for part in what[start:end]:
                    parts[part][iteration, rank] += 1
                start = end
        return Run(finish=self.finish, parts=parts)


def record(duration: int) -> CollectiveRecord:
    """All-reduce of `duration` bytes, which `fixed` carries out in as many picoseconds."""
    return CollectiveRecord(kind="all_reduce", sent=(duration,))


def fixed(wanted: CollectiveRecord, entry: Times, server_time: int, key: int) -> Times:
    """All leave together."""
    return np.full_like(entry, entry.max() + wanted.sent[0] + server_time)


def skewed(wanted: CollectiveRecord, entry: Times, server_time: int, key: int) -> Times:
    """Ranks leave at times that depend on their number and on the collective."""
    ranks = np.arange(len(entry), dtype=np.int64)
    late: Times = entry.max() + wanted.sent[0] + server_time + (ranks * wanted.sent[0]) % 3
    return late


def at_random(wanted: CollectiveRecord, entry: Times, server_time: int, key: int) -> Times:
    """Ranks leave as the collective's key and their number say."""
    random = np.random.default_rng(key)
    late: Times = entry.max() + wanted.sent[0] + random.integers(0, 8, len(entry))
    return late


def lagging(wanted: CollectiveRecord, entry: Times, server_time: int, key: int) -> Times:
    """A rank leaves so much later as it entered later, one much later than all others."""
    late: Times = entry.max() + (entry - entry.min()) + wanted.sent[0]
    late[key % len(late)] += 9
    return late


times = st.integers(0, 6)
KINDS = ("encode", "decode")


@st.composite
def plans(draw: st.DrawFn, side: bool | None = None) -> StepPlan:
    """Small steps with many ties."""
    count = draw(st.integers(0, 4))
    backward = draw(st.lists(times, min_size=count, max_size=count))

    def jobs(low: int, high: int) -> tuple[Job, ...]:
        found = draw(
            st.lists(st.tuples(st.sampled_from(KINDS), times), min_size=low, max_size=high)
        )
        return tuple(
            Job(kind="encode" if kind == "encode" else "decode", name="", duration=time)
            for kind, time in found
        )

    buckets = []
    for _ in range(count):
        collectives = tuple(map(record, draw(st.lists(times, max_size=3))))
        buckets.append(
            BucketWork(
                before=jobs(0, 2),
                collectives=collectives,
                server_times=tuple(draw(st.sampled_from([0, 3])) for _ in collectives)
                if draw(st.booleans())
                else (),
                held=tuple(draw(st.sampled_from([0, 2])) for _ in collectives)
                if draw(st.booleans())
                else (),
                after=jobs(len(collectives), len(collectives)),
            )
        )
    return StepPlan(
        compute=ComputeTimes(
            forward=draw(times),
            backward=sum(backward) + draw(st.sampled_from([0, 3])),
            parts=tuple(backward),
            provenance="test",
        ),
        buckets=tuple(buckets),
        side_stream=draw(st.booleans()) if side is None else side,
        side_slowdown=draw(st.fractions(1, 2, max_denominator=3)),
        optimizer=draw(st.sampled_from([0, 2])),
        accumulation=draw(st.integers(1, 3)),
        backward_alone=draw(st.none() | times),
        input_batch=draw(st.sampled_from([0, 0, 4, 15])),
        prefetch=draw(st.integers(1, 3)),
    )


@st.composite
def rounds(draw: st.DrawFn) -> list[StepPlan]:
    """Steps that follow each other, some several times, with one kind of loader."""
    first, *others = draw(st.lists(plans(), min_size=1, max_size=3))
    same_loader = [
        replace(plan, input_batch=first.input_batch, prefetch=first.prefetch) for plan in others
    ]
    runs = st.tuples(st.sampled_from([first, *same_loader]), st.integers(1, 3))
    return [
        plan for plan, times in draw(st.lists(runs, min_size=1, max_size=3)) for _ in range(times)
    ]


@st.composite
def pacings(draw: st.DrawFn, ranks: int) -> Callable[[int], NDArray[np.float64] | None]:
    """Paces, other ones in each iteration; sometimes of 0, often of 1."""
    seed = draw(st.none() | st.integers(0, 99))
    if seed is None:
        return lambda _: None
    values = np.array([0.0, 0.25, 0.9, 1.0, 1.0, 1.3, 2.0, 3.0])

    def pace(iteration: int) -> NDArray[np.float64] | None:
        random = np.random.default_rng([seed, iteration])
        return random.choice(values, ranks) if random.random() < 0.8 else None

    return pace
