"""The oracle of the step: everything that all ranks do, one picosecond at a time.

Written from the rules of `simulator/steps/step_plan.py`; no SimPy, no classes of ranks, no
formulas. Scripts of what happens in order are generators that yield what they wait for, and are
asked at every picosecond whether that is so.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.network.jitter import collective_key
from gcsim.simulator.steps.step_plan import CarryOut, Job, StepPlan, WeightGather

PARTS = (
    "forward",
    "backward",
    "encode",
    "decode",
    "communication",
    "exposed",
    "optimizer",
    "input",
)
Script = Iterator[Callable[[], bool]]
Name = tuple[int, int, int]


@dataclass
class Piece:
    """Work on a stream."""

    follows: tuple[int, int] | None
    """What it follows: bucket, and place of the collective in it; -1: its part of backward."""
    jobs: list[tuple[str, int]]
    iteration: int
    start: int | None = None

    @property
    def end(self) -> int | None:
        return None if self.start is None else self.start + sum(time for _, time in self.jobs)

    def kind(self, now: int) -> str:
        assert self.start is not None
        at = self.start
        for kind, time in self.jobs:
            at += time
            if now < at:
                return kind
        raise AssertionError("the piece is done")


@dataclass
class Collective:
    """One that somebody has asked for."""

    asked: dict[int, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    finishes: list[int] = field(default_factory=list)


class Tick:
    """`finish[i][r]` and `parts[name][i][r]` of a simulated run."""

    made_of = Piece
    """Work of a stream."""
    times_as_many = 1
    """Iterations that ranks may have begun when all have finished those that are asked for."""

    def __init__(
        self,
        *plans: StepPlan,
        ranks: int,
        execute: CarryOut,
        iterations: int = 1,
        slowdown: Callable[[int], NDArray[np.float64] | None] = lambda _: None,
        seed: int = 0,
    ) -> None:
        """Plans follow each other, again and again."""
        asked, iterations = iterations, iterations * self.times_as_many
        self.plans = [plans[iteration % len(plans)] for iteration in range(iterations)]
        self.plan = plans[0]  # whose loader is everybody's
        self.ranks, self.execute, self.seed = ranks, execute, seed
        self.iterations, self.slowdown, self.now = iterations, slowdown, 0
        self.parts = {name: [[0] * ranks for _ in range(iterations)] for name in PARTS}
        self.finish: list[list[int]] = [[-1] * ranks for _ in range(iterations)]
        self.current = [0] * ranks
        self.begun: list[set[tuple[int, tuple[int, int] | None]]] = [set() for _ in range(ranks)]
        """By rank: iteration, and place of the piece."""
        self.waiting: dict[tuple[int, str], list[Piece]] = {}
        self.running: dict[tuple[int, str], Piece | None] = {
            (rank, stream): None for rank in range(ranks) for stream in ("compute", "side")
        }
        self.made, self.taken, self.making = [0] * ranks, [0] * ranks, [-1] * ranks
        self.hungry = [False] * ranks
        self.known: dict[Name, Collective] = {}
        self.queue: list[Name] = [
            (iteration, number, index)
            for iteration, plan in enumerate(self.plans)
            for number, bucket in enumerate(plan.buckets)
            for index in range(len(bucket.collectives))
        ]
        """Those that have not been carried out, in order."""
        self.departure = [0] * ranks
        self.scripts: list[tuple[Script, Callable[[], bool]]] = []
        for rank in range(ranks):
            self.start(self.train(rank))
        while any(-1 in row for row in self.finish[:asked]):
            self.instant()
            self.account()
            self.now += 1
            assert self.now < 100_000, "the oracle does not come to an end"
        for (iteration, _, _), collective in self.known.items():
            for rank, (starts, left) in enumerate(
                zip(collective.starts, collective.finishes, strict=True)
            ):
                self.parts["communication"][iteration][rank] += left - starts
        self.finish = self.finish[:asked]
        self.parts = {name: rows[:asked] for name, rows in self.parts.items()}

    def start(self, script: Script) -> None:
        self.scripts.append((script, lambda: True))

    def train(self, rank: int) -> Script:
        for iteration, of_all in enumerate(self.plans):
            plan = of_all.of_rank(rank)
            compute = plan.compute
            self.current[rank] = iteration
            left_to_do = [0]
            for micro in range(plan.accumulation):
                if plan.input_batch:
                    self.hungry[rank] = True
                    yield lambda: self.made[rank] > self.taken[rank]
                    self.hungry[rank] = False
                    self.taken[rank] += 1
                yield from self.work(rank, iteration, None, [("forward", compute.forward)])
                if micro < plan.accumulation - 1:
                    yield from self.work(rank, iteration, None, [("backward", plan.backward)])
            for number, part in enumerate(compute.parts):
                jobs = [("backward", part)]
                before = [(job.kind, job.duration) for job in plan.buckets[number].before]
                yield from self.work(
                    rank,
                    iteration,
                    None if plan.side_stream else (number, -1),
                    jobs if plan.side_stream else [*jobs, *before],
                )
                left_to_do[0] += 1
                self.start(self.exchange(rank, iteration, number, left_to_do))
            rest = compute.backward - sum(compute.parts)
            last = None if plan.side_stream else (len(plan.buckets), -1)
            yield from self.work(rank, iteration, last, [("backward", rest)])
            yield lambda left=left_to_do: left[0] == 0  # type: ignore[misc]
            if plan.gathers:
                number = len(plan.buckets) - 1
                index = len(plan.buckets[number].collectives) - 1
                yield from self.collective(rank, iteration, number, index)
            yield from self.work(rank, iteration, None, [("optimizer", plan.optimizer)])
            self.finish[iteration][rank] = self.now

    def exchange(self, rank: int, iteration: int, number: int, open_ones: list[int]) -> Script:
        bucket = self.plans[iteration].of_rank(rank).buckets[number]
        if self.plans[iteration].side_stream:
            jobs: list[Job] = list(bucket.before)
            yield from self.side(rank, iteration, (number, -1), jobs)
        for index, record in enumerate(bucket.collectives):
            if not isinstance(record, WeightGather):
                yield from self.collective(rank, iteration, number, index)
        open_ones[0] -= 1

    def collective(self, rank: int, iteration: int, number: int, index: int) -> Script:
        name = (iteration, number, index)
        self.known.setdefault(name, Collective()).asked[rank] = self.now
        yield (
            lambda: bool(self.known[name].finishes) and self.known[name].finishes[rank] <= self.now
        )
        after = self.plans[iteration].of_rank(rank).buckets[number].after[index]
        yield from self.side(rank, iteration, (number, index), [after])

    def side(self, rank: int, iteration: int, of: tuple[int, int], jobs: list[Job]) -> Script:
        times = [(job.kind, job.duration) for job in jobs]
        return self.work(rank, iteration, of, times)

    def work(
        self,
        rank: int,
        iteration: int,
        follows: tuple[int, int] | None,
        jobs: Sequence[tuple[str, int]],
    ) -> Script:
        plan = self.plans[iteration].of_rank(rank)
        stream = "side" if plan.side_stream and follows else "compute"
        slowdowns = self.slowdown(iteration)
        factor = 1.0 if slowdowns is None else float(slowdowns[rank])
        slower = plan.side_slowdown if stream == "side" else 1
        slowed_by = [(kind, round(round(time * slower) * factor)) for kind, time in jobs]
        piece = self.made_of(follows, slowed_by, iteration)
        if sum(time for _, time in slowed_by):
            self.waiting.setdefault((rank, stream), []).append(piece)
            yield lambda: piece.end is not None and piece.end <= self.now

    def instant(self) -> None:
        while self.everything_that_ends() or self.settle():
            pass
        for resource, serialization in self.running.items():
            waiting = self.waiting.get(resource, [])
            if (serialization is None or serialization.end == self.now) and waiting:
                self.running[resource] = None
                for piece in waiting:
                    if self.is_next(resource[0], piece):
                        waiting.remove(piece)
                        piece.start = self.now
                        self.running[resource] = piece
                        self.begun[resource[0]].add((piece.iteration, piece.follows))
                        break
            elif serialization is not None and serialization.end == self.now:
                self.running[resource] = None

    def is_next(self, rank: int, piece: Piece) -> bool:
        """Whether all that the rank's stream serves in front of a piece has begun."""
        if piece.follows is None:
            return True
        plan, (number, index) = self.plans[piece.iteration].of_rank(rank), piece.follows
        pieces = range(len(plan.buckets) + (not plan.side_stream))
        behind = {
            (b, i): len(pieces)
            if isinstance(record, WeightGather)
            else (bucket.behind[i] if bucket.behind else b + 1)
            for b, bucket in enumerate(plan.buckets)
            for i, record in enumerate(bucket.collectives)
        }
        if index < 0:
            front = [(b, -1) for b in pieces if b < number]
            front += [name for name, those in behind.items() if those <= number]
        else:
            front = [(b, -1) for b in pieces if b < behind[number, index]]
            front += [name for name in behind if name < (number, index)]
        return all(
            (piece.iteration, other) in self.begun[rank]
            or not self.takes_time(rank, piece.iteration, other)
            for other in front
        )

    def takes_time(self, rank: int, iteration: int, place: tuple[int, int]) -> bool:
        plan, (number, index) = self.plans[iteration].of_rank(rank), place
        compute = plan.compute
        if index >= 0:
            times = [plan.buckets[number].after[index].duration]
        elif number == len(plan.buckets):
            times = [compute.backward - sum(compute.parts)]
        else:
            times = [job.duration for job in plan.buckets[number].before]
            times += [] if plan.side_stream else [compute.parts[number]]
        slowdowns = self.slowdown(iteration)
        factor = 1.0 if slowdowns is None else float(slowdowns[rank])
        slower = plan.side_slowdown if plan.side_stream else 1
        return any(round(round(time * slower) * factor) for time in times)

    def everything_that_ends(self) -> bool:
        moved = False
        for rank in range(self.ranks):
            if self.plan.input_batch:
                moved |= self.load(rank)
        scripts, self.scripts = self.scripts, []
        for script, ready in scripts:
            if ready():
                moved = True
                try:
                    self.scripts.append((script, next(script)))
                except StopIteration:
                    continue
            else:
                self.scripts.append((script, ready))
        return moved

    def load(self, rank: int) -> bool:
        """The loader finishes a batch, or begins one."""
        if self.making[rank] == self.now:
            self.making[rank] = -1
            self.made[rank] += 1
            return True
        if self.making[rank] < 0 and self.made[rank] - self.taken[rank] < self.plan.prefetch:
            self.making[rank] = self.now + self.plan.input_batch
            return True
        return False

    def settle(self) -> bool:
        """Carry out the collective that is next, if all have asked for it: what follows from it at
        this very instant may ask for another.
        """
        if not self.queue or len(self.known.get(self.queue[0], Collective()).asked) < self.ranks:
            return False
        name = self.queue.pop(0)
        collective, bucket = self.known[name], self.plans[name[0]].buckets[name[1]]
        collective.starts = [
            max(collective.asked[rank], self.departure[rank]) for rank in range(self.ranks)
        ]
        server = bucket.server_times[name[2]] if bucket.server_times else 0
        starts = np.array(collective.starts, dtype=np.int64)
        key = collective_key(self.seed, *name)
        finishes = self.execute(bucket.collectives[name[2]], starts, server, key)
        held = bucket.exit_delays[name[2]] if bucket.exit_delays else 0
        collective.finishes = self.departure = [end + held for end in finishes.tolist()]
        return True

    def account(self) -> None:
        """What each rank does in the picosecond from now on."""
        for rank in range(self.ranks):
            on_compute, on_side = self.running[rank, "compute"], self.running[rank, "side"]
            iteration = self.current[rank]
            if self.finish[iteration][rank] >= 0:  # it was the last
                continue
            serialization = on_compute or on_side
            if serialization:
                assert serialization.iteration == iteration
                what = serialization.kind(self.now)
            else:
                what = "input" if self.hungry[rank] else "exposed"
            self.parts[what][iteration][rank] += 1
