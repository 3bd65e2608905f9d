"""A step of equal ranks: its order of service, and mutual slowdown.

Each stream serves in the order of arrival found here, on all ranks (`steps/step_plan.py`).

Simultaneous computations and collectives slow each other: channels occupy multiprocessors, copies
and sums take memory bandwidth, host threads compete, and kernels that fill the device keep a
collective's waiting. While a collective is under way, computations take `Interference.computation`
longer. While a rank computes, its node's bus carries less of a collective (`Interference.bus`); one
that waits for the network takes no longer.

This is found once per plan, on a rank whose neighbours enter each collective with it, from the end
of its last forward pass, by the rules of `step_plan.py`; jobs and collectives end at the first
whole picosecond at which they have had their work. Both engines then simulate the plan with this
order and these times: exact for equal ranks; skew does not change the prices.

Ranks that share cores have no price here, and the order of ranks that all compute.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.links import Link
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, Job, Kind, StepPlan
from gcsim.simulator.training import Training

Lengths = Callable[[CollectiveRecord, Picoseconds], tuple[Picoseconds, Picoseconds]]
"""Times of a collective that all ranks enter together, by record and server time: alone, and, no
less, beside computations from end to end."""
_Name = tuple[int, int]
"""Bucket, and place: of a collective or the jobs after it; -1: the jobs before the first."""
_THREAD, _SIDE = 0, 1  # streams; the autograd thread's piece goes before others that arrive with it


def on_even_cluster(plan: StepPlan, computation: Fraction, lengths: Lengths) -> StepPlan:
    """The plan with its order of service, and mutually slowed jobs and collectives."""
    if plan.in_turn or not any(bucket.collectives for bucket in plan.buckets):
        return plan  # one bucket after the other is an order
    if plan.machines is not None:
        return _EvenStep(plan, Fraction(0), lengths).ordered(plan)
    step = _EvenStep(plan, computation, lengths)
    return step.ordered(step.plan() if step.slows else plan)


class Together:
    """Times of collectives that all ranks enter at once, with one draw of delays."""

    def __init__(self, cluster: Cluster, training: Training, execute: CarryOut) -> None:
        self._enter = np.zeros(cluster.workers, dtype=np.int64)
        self._execute, self._slowly = execute, _slow_bus(cluster, training)
        self._known: dict[
            tuple[CollectiveRecord, Picoseconds], tuple[Picoseconds, Picoseconds]
        ] = {}

    def __call__(
        self, record: CollectiveRecord, server_time: Picoseconds
    ) -> tuple[Picoseconds, Picoseconds]:
        """Time alone, and, no less, beside computations from end to end."""
        key = record, server_time
        if key not in self._known:
            alone = beside = int(self._execute(record, self._enter, server_time, 0).max())
            if self._slowly is not None:
                beside = max(alone, int(self._slowly(record, self._enter, server_time, 0).max()))
            self._known[key] = alone, beside
        return self._known[key]


def _slow_bus(cluster: Cluster, training: Training) -> CarryOut | None:
    """Collectives on the slowed bus; None if no slower, or if two share the network."""
    share, bus = training.interference.bus, cluster.intra_node
    crosses = cluster.devices_per_node > 1 or cluster.collectives.stages
    if not share or not crosses or training.concurrent_collectives > 1:
        return None
    from gcsim.simulator.collectives.dispatch import CollectiveMemo  # compiles its loops

    def slowed(link: Link) -> Link:
        return link.exactly(efficiency=link.efficiency / (1 + share))

    buses = {node: slowed(own) for node, own in cluster.buses.items()}
    return CollectiveMemo.of(replace(cluster, intra_node=slowed(bus), buses=buses))


def _slower(plan: StepPlan, alone: Fraction) -> Callable[[Kind, Picoseconds], Picoseconds]:
    """Time of a job of a kind, times `alone`, while all ranks of its machine compute."""
    machines, crowd = plan.machines, alone
    if machines is not None:
        ranks = max(Counter(machines.of_rank).values())
        crowd = alone * max(Fraction(1), Fraction(ranks, machines.cores))
    if alone == crowd == 1:
        return lambda _, time: time
    crowded = () if machines is None else machines.kinds
    return lambda kind, time: round(time * (crowd if kind in crowded else alone))


def _taking(jobs: Sequence[Job], times: Sequence[Picoseconds]) -> tuple[Job, ...]:
    return tuple(
        job if job.duration == time else replace(job, duration=time)
        for job, time in zip(jobs, times, strict=True)
    )


class _EvenStep:
    """One rank's step from the end of its last forward pass."""

    def __init__(self, plan: StepPlan, computation: Fraction, lengths: Lengths) -> None:
        self._given = plan
        self._slow = computation.denominator
        self._whole = computation.denominator + computation.numerator
        """Units of work per picosecond: `_slow` beside a collective, `_whole` alone."""
        self._now: Picoseconds = 0
        jobs: dict[tuple[bool, _Name], list[Picoseconds]] = {}
        slower = plan.side_slowdown if plan.side_stream else Fraction(1)
        self._served, self._behind = 0, dict[_Name, int]()
        """Buckets' pieces that the stream of the callbacks has served; how many before each one."""
        of_pass, of_job = _slower(plan, Fraction(1)), _slower(plan, slower)
        for number, bucket in enumerate(plan.buckets):
            before = [of_job(job.kind, job.duration) for job in bucket.before]
            part = [of_pass("backward", plan.compute.parts[number])]
            jobs[True, (number, -1)] = part if plan.side_stream else part + before
            jobs[False, (number, -1)] = before if plan.side_stream else []
            for place, job in enumerate(bucket.after):
                jobs[False, (number, place)] = [of_job(job.kind, job.duration)]
        jobs[True, (len(plan.buckets), -1)] = [of_pass("backward", plan.compute.rest)]
        self._jobs = jobs
        known: dict[tuple[int, Picoseconds], tuple[Picoseconds, Picoseconds]] = {}
        """Lengths by identity, since many buckets ask for one record, and hashing takes longer."""
        self._lengths: dict[_Name, tuple[Picoseconds, ...]] = {}
        for number, bucket in enumerate(plan.buckets):
            for place, record in enumerate(bucket.collectives):
                served = bucket.server_times[place] if bucket.server_times else 0
                if (id(record), served) not in known:
                    known[id(record), served] = lengths(record, served)
                held = bucket.held[place] if bucket.held else 0
                alone, beside = known[id(record), served]
                self._lengths[number, place] = alone + held, beside + held
        self._took: dict[tuple[bool, _Name], list[Picoseconds]] = {}
        self._held: dict[_Name, Picoseconds] = {}
        self._waiting: tuple[list[tuple[Picoseconds, bool, _Name]], ...] = ([], [])
        """Jobs by stream: arrival, whether not the thread's, name."""
        self._busy: list[tuple[bool, _Name, int, int, Picoseconds] | None] = [None, None]
        """Running job by stream: piece, number of the job, units left, start."""
        self._asked: set[_Name] = set()
        self._order = [*self._lengths]  # collectives not entered yet, the next one last
        self._order.reverse()
        self._inside: list[tuple[_Name, int, Picoseconds]] = []
        """Collectives under way: name, units left, begin. The units are the product of both
        lengths: alone it gets the longer one done per picosecond."""
        self._arrive(True, (0, -1))
        while self._instant():
            pass

    @property
    def slows(self) -> bool:
        """Whether anything takes longer than alone."""
        return self._whole > self._slow or any(
            alone < beside for alone, beside in self._lengths.values()
        )

    def ordered(self, plan: StepPlan) -> StepPlan:
        """The plan with this step's order of service."""
        most, buckets = 0, list[BucketWork]()
        for number, work in enumerate(plan.buckets):
            behind = []
            for place in range(len(work.collectives)):
                # what takes no time is not served; two slots may return in another order
                most = max(most, number + 1, self._behind.get((number, place), 0))
                behind.append(most)
            buckets.append(replace(work, behind=tuple(behind)))
        return replace(plan, buckets=tuple(buckets))

    def plan(self) -> StepPlan:
        """The plan with the times that jobs took; a side stream's are slower already."""
        given, side = self._given, self._given.side_stream
        buckets: list[BucketWork] = []
        parts: list[Picoseconds] = []
        for number, bucket in enumerate(given.buckets):
            part, *before = self._took[True, (number, -1)]
            parts.append(part)
            before = self._took[False, (number, -1)] if side else before
            after = [self._took[False, (number, place)][0] for place in range(len(bucket.after))]
            held = tuple(
                self._held[number, place] + (bucket.held[place] if bucket.held else 0)
                for place in range(len(bucket.collectives))
            )
            buckets.append(
                replace(
                    bucket,
                    before=_taking(bucket.before, before),
                    after=_taking(bucket.after, after),
                    held=held if any(held) else (),
                )
            )
        [rest] = self._took[True, (len(buckets), -1)]
        compute = replace(given.compute, backward=sum(parts) + rest, parts=tuple(parts))
        return replace(
            given,
            compute=compute,
            buckets=tuple(buckets),
            side_slowdown=Fraction(1),
            backward_alone=given.backward,
        )

    # --- the rules of a step ---------------------------------------------------------------------

    def _arrive(self, thread: bool, name: _Name) -> None:
        jobs = self._jobs[thread, name]
        if not any(jobs):
            self._took[thread, name] = list(jobs)
            self._done(thread, name)
            return
        stream = _SIDE if self._given.side_stream and not thread else _THREAD
        heapq.heappush(self._waiting[stream], (self._now, not thread, name))

    def _done(self, thread: bool, name: _Name) -> None:
        number, place = name
        if thread and number < len(self._given.buckets):
            if self._given.side_stream:
                self._arrive(False, name)
            else:
                self._ask(number, 0)
            self._arrive(True, (number + 1, -1))
        elif not thread:
            self._ask(number, place + 1)

    def _ask(self, number: int, place: int) -> None:
        if place < len(self._given.buckets[number].collectives):
            self._asked.add((number, place))

    # --- time ------------------------------------------------------------------------------------

    def _instant(self) -> bool:
        """Process this instant, advance to the next end; return whether anything is left."""
        while (
            self._order and self._order[-1] in self._asked and len(self._inside) < self._given.slots
        ):
            name = self._order.pop()
            alone, beside = self._lengths[name]
            units = alone * beside
            if units:
                self._inside.append((name, units, self._now))
            else:
                self._held[name] = 0
                self._arrive(False, name)
        for stream, waiting in enumerate(self._waiting):
            if waiting and self._busy[stream] is None:
                _, callback, name = heapq.heappop(waiting)
                self._count(stream, callback, name)
                self._took[not callback, name] = []
                self._next_job(stream, not callback, name, 0)
        if self._inside or any(self._busy):
            self._go_on()
            return True
        return False

    def _count(self, stream: int, callback: bool, name: _Name) -> None:
        """Record the order of the stream that serves callbacks."""
        number, place = name
        if place >= 0:
            self._behind[name] = self._served
        elif callback == self._given.side_stream:
            self._served = number + 1

    def _next_job(self, stream: int, thread: bool, name: _Name, number: int) -> None:
        jobs, took = self._jobs[thread, name], self._took[thread, name]
        while number < len(jobs) and not jobs[number]:
            took.append(0)
            number += 1
        if number < len(jobs):
            units = jobs[number] * self._whole
            self._busy[stream] = (thread, name, number, units, self._now)
        else:
            self._busy[stream] = None
            self._done(thread, name)

    def _go_on(self) -> None:
        computing, communicating = any(self._busy), bool(self._inside)
        job_speed = self._slow if communicating else self._whole
        speeds = [self._lengths[name][0 if computing else 1] for name, _, _ in self._inside]
        left = [-(-busy[3] // job_speed) for busy in self._busy if busy]
        left += [-(-inside[1] // speed) for inside, speed in zip(self._inside, speeds, strict=True)]
        passed = min(left)
        self._now += passed
        under_way = self._inside
        self._inside = []
        for (name, units, began), speed in zip(under_way, speeds, strict=True):
            if units > passed * speed:
                self._inside.append((name, units - passed * speed, began))
            else:
                self._held[name] = self._now - began - self._lengths[name][0]
                self._arrive(False, name)
        for stream, busy in enumerate(self._busy):
            if busy is None:
                continue
            thread, name, number, units, began = busy
            if units > passed * job_speed:
                self._busy[stream] = (thread, name, number, units - passed * job_speed, began)
            else:
                self._took[thread, name].append(self._now - began)
                self._next_job(stream, thread, name, number + 1)
