"""Order of service and interference in a step of equal ranks.

This determines the order in which each stream serves its pieces on all ranks
(`steps/step_plan.py`), and how much simultaneous computations and collectives slow each other: a
collective's channels occupy multiprocessors, copies and sums take memory bandwidth, host threads
compete, and kernels that fill the device delay a collective's kernels. During a collective,
computations take longer by `Interference.computation`. While a rank computes, its node's bus is
slower (`Interference.bus`); collectives that are limited by the network are not. Two collectives at
a time share a rank's link (`one_rank.on_shared_link`).

It is computed once per plan by the rules of `step_plan.py`, from the end of the last forward pass,
for a rank whose neighbours enter each collective at the same time; jobs and collectives end at the
first whole picosecond at which their work is done. Both engines then simulate the plan with this
order and these durations, which is exact for equal ranks; skew does not change the durations.

If ranks share cores there is no interference, and the order is that of ranks that all compute.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, inf, isinf
from typing import Any

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.links import Link
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, Job, Kind, StepPlan, WeightGather
from gcsim.simulator.training import Training

Lengths = Callable[[CollectiveRecord, Picoseconds], tuple[Picoseconds, Picoseconds]]
"""Returns two durations of a collective that all ranks enter together, by record and server time:
without computation, and (not less) with computation all the time."""
Sending = Callable[[CollectiveRecord], "Picoseconds | None"]
"""Returns how long a rank sends in a collective; None: no other one runs at a time."""


def on_even_cluster(
    plan: StepPlan, computation: Fraction, lengths: Lengths, sending: Sending = lambda _: 0
) -> StepPlan:
    """Return the plan with its order of service, and with jobs and collectives slowed down."""
    if plan.in_turn or not any(bucket.collectives for bucket in plan.buckets):
        return plan  # buckets run one after the other
    if plan.machines is not None:
        return _EvenStep(plan, Fraction(0), lengths, sending).plan(slowed=False)
    step = _EvenStep(plan, computation, lengths, sending)
    return step.plan(slowed=computation > 0 or step.alone != step.overlapped)


class EvenCollectiveTimes:
    """Durations of collectives that all ranks enter at once, with one draw of random delays."""

    def __init__(self, cluster: Cluster, training: Training, execute: CarryOut) -> None:
        from gcsim.simulator.collectives.dispatch import CollectiveMemo  # compiles its loops
        from gcsim.simulator.steps.events.message_ring import RingPrograms

        self._enter = np.zeros(cluster.workers, dtype=np.int64)
        slow = slow_bus(cluster, training)
        self._execute = execute
        self._slowly = None if slow is None else CollectiveMemo.of(slow)
        self.sending = RingPrograms(cluster).sending
        self._known: dict[
            tuple[CollectiveRecord, Picoseconds], tuple[Picoseconds, Picoseconds]
        ] = {}

    def __call__(
        self, record: CollectiveRecord, server_time: Picoseconds
    ) -> tuple[Picoseconds, Picoseconds]:
        """Return the durations without computation and (not less) during computation."""
        key = record, server_time
        if key not in self._known:
            alone = overlapped = int(self._execute(record, self._enter, server_time, 0).max())
            if self._slowly is not None:
                slow = int(self._slowly(record, self._enter, server_time, 0).max())
                overlapped = max(alone, slow)
            self._known[key] = alone, overlapped
        return self._known[key]


def slow_bus(cluster: Cluster, training: Training) -> Cluster | None:
    """Return the cluster with the slowed bus; None if not slower, or with two at a time."""
    share, bus = training.interference.bus, cluster.intra_node
    crosses = cluster.devices_per_node > 1 or cluster.collectives.stages
    if not share or not crosses or training.concurrent_collectives > 1:
        return None

    def slowed(link: Link) -> Link:
        return link.exactly(efficiency=link.efficiency / (1 + share))

    buses = {node: slowed(own) for node, own in cluster.buses.items()}
    return replace(cluster, intra_node=slowed(bus), buses=buses)


def _slower(plan: StepPlan, alone: Fraction) -> Callable[[Kind, Picoseconds], Picoseconds]:
    """Return a function from a job's kind and duration to its slowed duration."""
    machines, crowd = plan.machines, alone
    if machines is not None:
        ranks = max(Counter(machines.of_rank).values())
        crowd = alone * max(Fraction(1), Fraction(ranks, machines.cores))
    if alone == crowd == 1:
        return lambda _, time: time
    crowded = () if machines is None else machines.kinds
    return lambda kind, time: round(time * (crowd if kind in crowded else alone))


def _with_times(jobs: Sequence[Job], times: Sequence[Picoseconds]) -> tuple[Job, ...]:
    return tuple(
        job if job.duration == time else Job(kind=job.kind, name=job.name, duration=time)
        for job, time in zip(jobs, times, strict=True)
    )


class _EvenStep:
    """One rank's step from the end of its last forward pass.

    Pieces of work are numbered: the autograd thread's by bucket, its rest, then for each bucket
    the callbacks' piece before its first collective and those after each collective. Of pieces that
    arrive at the same time the lower number goes first.
    """

    def __init__(
        self, plan: StepPlan, computation: Fraction, lengths: Lengths, sending: Sending
    ) -> None:
        self._given, side, rest = plan, plan.side_stream, len(plan.buckets)
        slower = plan.side_slowdown if side else Fraction(1)
        of_pass, of_job = _slower(plan, Fraction(1)), _slower(plan, slower)
        self._jobs: list[list[Picoseconds]] = [[] for _ in range(rest + 1)]
        self._jobs[rest] = [of_pass("backward", plan.compute.rest)]
        self._before: list[int] = []  # piece before the first collective, by bucket
        self._after: list[int] = []  # piece after each collective
        self._asks: dict[int, int] = {}  # collective that the end of a piece asks for
        self.alone: list[Picoseconds] = []  # duration of each collective without computation
        self.overlapped: list[Picoseconds] = []  # the same with computation all the time
        self._shares: list[float] = []  # of its time that a rank sends; infinite: it runs alone
        known: dict[tuple[int, Picoseconds], tuple[Picoseconds, Picoseconds, float]] = {}
        """Durations by identity: many buckets share a record, and hashing it is slow."""
        for number, bucket in enumerate(plan.buckets):
            before = [of_job(job.kind, job.duration) for job in bucket.before]
            part = [of_pass("backward", plan.compute.parts[number])]
            self._jobs[number] = part if side else part + before
            asking = len(self._jobs) if side else number
            self._before.append(asking)
            if side:
                self._jobs.append(before)
            for place, record in enumerate(bucket.collectives):
                if not isinstance(record, WeightGather):
                    self._asks[asking] = len(self._after)
                asking = len(self._jobs)
                self._after.append(asking)
                self._jobs.append([of_job(bucket.after[place].kind, bucket.after[place].duration)])
                served = bucket.server_times[place] if bucket.server_times else 0
                if (id(record), served) not in known:
                    sends = sending(record) if plan.slots == 2 else 0
                    most = inf if sends is None else sends
                    known[id(record), served] = *lengths(record, served), most
                delays = bucket.exit_delays[place] if bucket.exit_delays else 0
                alone, overlapped, most = known[id(record), served]
                self._shares.append(most / max(1, alone + delays))
                self.alone.append(alone + delays)
                self.overlapped.append(overlapped + delays)
        self._took = [list[Picoseconds]() for _ in self._jobs]
        self._delays = [0] * len(self._after)
        self._behind = [0] * len(self._after)
        """Number of buckets' pieces that the callbacks' stream serves before each piece."""
        self._serve(computation.denominator, computation.denominator + computation.numerator)

    def _serve(self, slow: int, whole: int) -> None:  # noqa: PLR0912, PLR0915 - one loop over time
        """Serve all pieces by the rules of a step. A job progresses by `slow` units of work per
        picosecond during a collective, else by `whole`. A collective has the product of its two
        durations as units, and progresses by the longer one per picosecond without computation."""
        side, slots, rest = self._given.side_stream, self._given.slots, len(self._given.buckets)
        jobs, took, alone, overlapped = self._jobs, self._took, self.alone, self.overlapped
        asks, before, after = self._asks, self._before, self._after
        counts = {piece: number for number, piece in enumerate(before, 1)}
        if not side:
            counts[rest] = rest + 1
        collectives = {piece: number for number, piece in enumerate(after)}
        now, served, entered = 0, 0, 0
        asked = [False] * len(after)
        waiting: tuple[list[tuple[Picoseconds, int]], ...] = ([], [])  # by stream: arrival, piece
        busy: list[tuple[int, int, Picoseconds] | None] = [None, None]
        """Running job by stream: piece, units left, start."""
        inside: list[tuple[int, int, Picoseconds]] = []  # collectives: number, units left, begin

        def arrive(piece: int) -> None:
            if any(jobs[piece]):
                heapq.heappush(waiting[side and piece > rest], (now, piece))
            else:
                took[piece] = jobs[piece]
                done(piece)

        def done(piece: int) -> None:
            if piece in asks:
                asked[asks[piece]] = True
            if piece < rest:
                if side:
                    arrive(before[piece])
                arrive(piece + 1)

        def go_on(stream: int, piece: int) -> None:
            durations, past = jobs[piece], took[piece]
            while len(past) < len(durations) and not durations[len(past)]:
                past.append(0)
            if len(past) < len(durations):
                busy[stream] = piece, durations[len(past)] * whole, now
            else:
                busy[stream] = None
                done(piece)

        arrive(0)
        while True:
            while entered < len(after) and asked[entered] and len(inside) < slots:
                if any(isinf(self._shares[each] + self._shares[entered]) for each, *_ in inside):
                    break
                if alone[entered]:
                    inside.append((entered, alone[entered] * overlapped[entered], now))
                else:
                    arrive(after[entered])
                entered += 1
            for stream in range(2):
                if waiting[stream] and busy[stream] is None:
                    _, piece = heapq.heappop(waiting[stream])
                    served = counts.get(piece, served)
                    if piece in collectives:
                        self._behind[collectives[piece]] = served
                    go_on(stream, piece)
            running = [one for one in busy if one is not None]
            if not inside and not running:
                if entered == len(after):
                    return
                asked[entered] = True  # the gather of weights
                continue
            speed = slow if inside else whole
            rates: Sequence[int] | dict[int, int] = alone if running else overlapped
            if len(inside) == 2:
                from gcsim.simulator.steps.one_rank import on_shared_link

                two = [number for number, *_ in inside]
                longer = on_shared_link(*(self._shares[number] for number in two))
                rates = {number: ceil(rates[number] / longer) for number in two}
            ends = [-(-units // speed) for _, units, _ in running]
            passed = min(ends + [-(-units // rates[number]) for number, units, _ in inside])
            now += passed
            in_progress, inside = inside, []
            for number, units, began in in_progress:
                if units > passed * rates[number]:
                    inside.append((number, units - passed * rates[number], began))
                else:
                    if slots == 1:  # else the engine shares the links
                        self._delays[number] = now - began - alone[number]
                    arrive(after[number])
            for stream, one in enumerate(busy):
                if one is None:
                    continue
                piece, units, began = one
                if units > passed * speed:
                    busy[stream] = piece, units - passed * speed, began
                else:
                    took[piece].append(now - began)
                    go_on(stream, piece)

    def plan(self, *, slowed: bool) -> StepPlan:
        """Return the plan with this step's order of service and, if `slowed`, the durations that
        jobs had, which include the side stream's slowdown."""
        given, side = self._given, self._given.side_stream
        most, collective, buckets = 0, 0, list[BucketWork]()
        for number, work in enumerate(given.buckets):
            behind, last = [], collective + len(work.collectives)
            for later in self._behind[collective:last]:
                # pieces without work are not served; two slots may return in another order
                most = max(most, number + 1, later)
                behind.append(most)
            changed: dict[str, Any] = {}
            if slowed:
                delays = self._delays[collective:last]
                if work.exit_delays:
                    delays = [sum(each) for each in zip(delays, work.exit_delays, strict=True)]
                before = self._took[self._before[number]][0 if side else 1 :]
                after = [self._took[piece][0] for piece in self._after[collective:last]]
                changed = {
                    "before": _with_times(work.before, before),
                    "after": _with_times(work.after, after),
                    "exit_delays": tuple(delays) if any(delays) else (),
                }
            buckets.append(replace(work, behind=tuple(behind), **changed))
            collective = last
        if not slowed:
            return replace(given, buckets=tuple(buckets))
        parts = tuple(times[0] for times in self._took[: len(buckets)])
        [rest] = self._took[len(buckets)]
        return replace(
            given,
            compute=replace(given.compute, backward=sum(parts) + rest, parts=parts),
            buckets=tuple(buckets),
            side_slowdown=Fraction(1),
            backward_alone=given.backward,
        )
