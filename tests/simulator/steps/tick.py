"""The oracle of the step: everything that all ranks do, one picosecond at a time.

Written from the rules of `simulator/steps/step_plan.py`; no SimPy, no classes of ranks, no
formulas. Scripts of what happens in order are generators that yield what they wait for, and are
asked at every picosecond whether that is so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.network.delays import collective_key
from gcsim.simulator.steps.step_plan import CarryOut, Job, StepPlan

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

    arrived: int
    key: tuple[int, ...]
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
    entry: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)


class Tick:
    """`finish[i][r]` and `parts[name][i][r]` of a simulated run."""

    times_as_many = 1
    """Iterations that ranks may have begun when all have finished those that are asked for."""

    def __init__(
        self,
        *plans: StepPlan,
        ranks: int,
        carry_out: CarryOut,
        iterations: int = 1,
        pace: Callable[[int], NDArray[np.float64] | None] = lambda _: None,
        seed: int = 0,
    ) -> None:
        """Plans follow each other, again and again."""
        asked, iterations = iterations, iterations * self.times_as_many
        self.plans = [plans[iteration % len(plans)] for iteration in range(iterations)]
        self.plan = plans[0]  # whose loader is everybody's
        self.ranks, self.carry_out, self.seed = ranks, carry_out, seed
        self.iterations, self.pace, self.now = iterations, pace, 0
        self.parts = {name: [[0] * ranks for _ in range(iterations)] for name in PARTS}
        self.finish: list[list[int]] = [[-1] * ranks for _ in range(iterations)]
        self.current = [0] * ranks
        self.waiting: dict[tuple[int, str], list[Piece]] = {}
        self.running: dict[tuple[int, str], Piece | None] = {
            (rank, stream): None for rank in range(ranks) for stream in ("compute", "side")
        }
        self.made, self.taken, self.making = [0] * ranks, [0] * ranks, [-1] * ranks
        self.hungry = [False] * ranks
        self.known: dict[Name, Collective] = {}
        self.new: set[Name] = set()
        self.queue: list[tuple[int, Name]] = []
        """When each was first asked for, and which it is."""
        self.left = [0] * ranks
        self.scripts: list[tuple[Script, Callable[[], bool]]] = []
        for rank in range(ranks):
            self.start(self.train(rank))
        while any(-1 in row for row in self.finish[:asked]):
            self.instant()
            self.account()
            self.now += 1
            assert self.now < 100_000, "the oracle does not come to an end"
        for (iteration, _, _), collective in self.known.items():
            for rank, (entry, left) in enumerate(
                zip(collective.entry, collective.exits, strict=True)
            ):
                self.parts["communication"][iteration][rank] += left - entry
        self.finish = self.finish[:asked]
        self.parts = {name: rows[:asked] for name, rows in self.parts.items()}

    def start(self, script: Script) -> None:
        self.scripts.append((script, lambda: True))

    def train(self, rank: int) -> Script:
        for iteration, plan in enumerate(self.plans):
            compute = plan.compute
            self.current[rank] = iteration
            left_to_do = [0]
            for micro in range(plan.accumulation):
                if plan.input_batch:
                    self.hungry[rank] = True
                    yield lambda: self.made[rank] > self.taken[rank]
                    self.hungry[rank] = False
                    self.taken[rank] += 1
                yield from self.work(rank, iteration, (0,), [("forward", compute.forward)])
                if micro < plan.accumulation - 1:
                    yield from self.work(rank, iteration, (0,), [("backward", plan.backward)])
            for number, part in enumerate(compute.parts):
                jobs = [("backward", part)]
                before = [(job.kind, job.duration) for job in plan.buckets[number].before]
                yield from self.work(
                    rank, iteration, (0,), jobs if plan.side_stream else [*jobs, *before]
                )
                left_to_do[0] += 1
                self.start(self.exchange(rank, iteration, number, left_to_do))
            rest = compute.backward - sum(compute.parts)
            yield from self.work(rank, iteration, (0,), [("backward", rest)])
            yield lambda left=left_to_do: left[0] == 0  # type: ignore[misc]
            yield from self.work(rank, iteration, (0,), [("optimizer", plan.optimizer)])
            self.finish[iteration][rank] = self.now

    def exchange(self, rank: int, iteration: int, number: int, open_ones: list[int]) -> Script:
        bucket = self.plans[iteration].buckets[number]
        if self.plans[iteration].side_stream:
            jobs: list[Job] = list(bucket.before)
            yield from self.side(rank, iteration, (1, number, -1), jobs)
        for index in range(len(bucket.collectives)):
            name = (iteration, number, index)
            if name not in self.known:
                self.known[name] = Collective()
                self.new.add(name)
            self.known[name].asked[rank] = self.now
            yield lambda name=name: (  # type: ignore[misc]
                bool(self.known[name].exits) and self.known[name].exits[rank] <= self.now
            )
            yield from self.side(rank, iteration, (1, number, index), [bucket.after[index]])
        open_ones[0] -= 1

    def side(self, rank: int, iteration: int, key: tuple[int, ...], jobs: list[Job]) -> Script:
        times = [(job.kind, job.duration) for job in jobs]
        return self.work(rank, iteration, key, times)

    def work(
        self, rank: int, iteration: int, key: tuple[int, ...], jobs: Sequence[tuple[str, int]]
    ) -> Script:
        plan = self.plans[iteration]
        stream = "side" if plan.side_stream and key[0] == 1 else "compute"
        paces = self.pace(iteration)
        factor = 1.0 if paces is None else float(paces[rank])
        slower = plan.side_slowdown if stream == "side" else 1
        stretched = [(kind, round(round(time * slower) * factor)) for kind, time in jobs]
        piece = Piece(self.now, key, stretched, iteration)
        if sum(time for _, time in stretched):
            self.waiting.setdefault((rank, stream), []).append(piece)
            yield lambda: piece.end is not None and piece.end <= self.now

    def instant(self) -> None:
        while self.everything_that_ends() or self.settle():
            pass
        for resource, busy in self.running.items():
            waiting = self.waiting.get(resource, [])
            if (busy is None or busy.end == self.now) and waiting:
                first = min(waiting, key=lambda piece: (piece.arrived, piece.key))
                waiting.remove(first)
                first.start = self.now
                self.running[resource] = first
            elif busy is not None and busy.end == self.now:
                self.running[resource] = None

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
        """Carry out one collective, if one can be: what follows from it at this very instant may
        ask for another, which queues by its name among those of this instant.
        """
        self.queue = sorted([*self.queue, *((self.now, name) for name in self.new)])
        self.new.clear()
        if not self.queue or len(self.known[self.queue[0][1]].asked) < self.ranks:
            return False
        _, name = self.queue.pop(0)
        collective, bucket = self.known[name], self.plans[name[0]].buckets[name[1]]
        collective.entry = [
            max(collective.asked[rank], self.left[rank]) for rank in range(self.ranks)
        ]
        server = bucket.server_times[name[2]] if bucket.server_times else 0
        entry = np.array(collective.entry, dtype=np.int64)
        key = collective_key(self.seed, *name)
        exits = self.carry_out(bucket.collectives[name[2]], entry, server, key)
        held = bucket.held[name[2]] if bucket.held else 0
        collective.exits = self.left = [end + held for end in exits.tolist()]
        return True

    def account(self) -> None:
        """What each rank does in the picosecond from now on."""
        for rank in range(self.ranks):
            on_compute, on_side = self.running[rank, "compute"], self.running[rank, "side"]
            iteration = self.current[rank]
            if self.finish[iteration][rank] >= 0:  # it was the last
                continue
            busy = on_compute or on_side
            if busy:
                assert busy.iteration == iteration
                what = busy.kind(self.now)
            else:
                what = "input" if self.hungry[rank] else "exposed"
            self.parts[what][iteration][rank] += 1
