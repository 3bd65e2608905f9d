"""How long does one iteration of data-parallel training take, and where does it go?

A SimPy model of PyTorch's DistributedDataParallel. Each rank has one compute stream, which does
one piece of work at a time in the order of arrival; all ranks share one communicator.

- The autograd thread issues the forward pass; then, bucket by bucket, the backward pass up to
  that bucket together with the bucket's moments and encoding; each when the one before is done.
- A bucket that is encoded asks for its first collective. What is computed between two of its
  collectives, and its decoding, is issued by a callback when a collective returns: it queues
  behind the piece of work that is under way, not behind the rest of the backward pass.
- Streams: `compute_stream.py`; the communicator: `communicator.py`; what happens when things
  happen at the same picosecond: `instant.py`.
- A step without collectives (local updates) neither communicates nor waits for anybody.
- A rank is done when its stream has done everything; the slowest rank's times are reported.

Rank skew is kept: a collective takes a vector of entry times and returns one of exit times.
Ranks that do the same at the same time are simulated as one; when a collective lets them leave
at different times the iteration is simulated again with finer classes.

Source: Li et al. 2020 (PVLDB 13(12)), "PyTorch Distributed", sec. 3.2 and 4.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import simpy
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, reading
from gcsim.simulator.communicator import CarryOut, Communicator, UnequalExitsError
from gcsim.simulator.compute_stream import AUTOGRAD, ComputeStream, callback
from gcsim.simulator.training_time import ComputeTimes

Kind = Literal["forward", "backward", "encode", "decode"]
Resource = Literal["compute", "encode", "network", "decode"]
Wait = Generator[simpy.Event, Any, None]

_RESOURCE: dict[Kind, Resource] = {
    "forward": "compute",
    "backward": "compute",
    "encode": "encode",
    "decode": "decode",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something that a compute stream does."""

    kind: Kind
    name: str
    duration: Picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketWork:
    """One bucket's exchange, with the prices of its computations."""

    before: tuple[Job, ...]
    """Issued together with the bucket's part of the backward pass."""
    collectives: tuple[CollectiveRecord, ...] = ()
    server_times: tuple[Picoseconds, ...] = ()
    """By collective: the parameter servers' computation."""
    after: tuple[Job, ...] = ()
    """By collective: issued when it has returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that happened on one resource of one rank, in picoseconds."""

    rank: int
    resource: Resource
    name: str
    start: Picoseconds
    end: Picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes:
    """Where the slowest rank's iteration goes, in picoseconds (ties: the lowest rank).

    iteration == forward + backward + encode + exposed + decode, exactly.
    """

    rank: int
    iteration: Picoseconds
    forward: Picoseconds
    backward: Picoseconds
    encode: Picoseconds
    """Moments, and all computation before a bucket's last collective."""
    decode: Picoseconds
    communication: Picoseconds
    """Time during which a collective of this rank is under way, hidden or not."""
    exposed: Picoseconds
    """Time during which the compute stream has nothing to do."""
    spans: tuple[Span, ...] = ()
    """Of all ranks, by rank and start; empty unless asked for."""


def simulate_iteration(
    compute: ComputeTimes,
    buckets: Sequence[BucketWork],
    *,
    ranks: int,
    carry_out: CarryOut,
    spans: bool = False,
    collapse: bool = True,
) -> IterationTimes:
    """Simulate one iteration that all ranks begin together.

    `carry_out(record, entry, server_time)` gives a collective's exit times `[ranks]`. With
    `collapse` ranks that behave alike are simulated once; the result is the same without.
    Raises `InternalError` on a deadlock and when a collective ends before its last entry.
    """
    if len(buckets) != len(compute.parts):
        raise InternalError(f"{len(buckets)} exchanges for {len(compute.parts)} buckets")
    classes = np.zeros(ranks, dtype=np.int64) if collapse else np.arange(ranks, dtype=np.int64)
    while True:
        try:
            return _Iteration(compute, buckets, classes, carry_out).run(spans=spans)
        except UnequalExitsError as unequal:
            classes = unequal.finer


class _Iteration:
    """One simulated iteration of classes of ranks; class numbers ascend with their lowest rank."""

    def __init__(
        self,
        compute: ComputeTimes,
        buckets: Sequence[BucketWork],
        classes: NDArray[np.int64],
        carry_out: CarryOut,
    ) -> None:
        self.compute, self.buckets, self.classes = compute, buckets, classes
        self.env = simpy.Environment()
        count = int(classes.max()) + 1
        self.communicator = Communicator(self.env, classes, carry_out)
        self.streams = [ComputeStream(self.env) for _ in range(count)]
        self.done: list[list[tuple[Job, Picoseconds]]] = [[] for _ in range(count)]
        """By class: what its stream did, with start times."""
        self.network: list[list[tuple[str, Picoseconds, Picoseconds]]] = [[] for _ in range(count)]
        self.finish = [0] * count
        self.open = 0
        """Processes that have not come to their end."""

    def run(self, *, spans: bool) -> IterationTimes:
        for member in range(len(self.streams)):
            self.env.process(self._train(member))
        self.env.run()
        if self.open:
            raise InternalError(
                f"deadlock at {self.env.now} ps: {self.open} processes wait for ever; "
                f"{self.communicator.state()}"
            )
        slowest = max(range(len(self.finish)), key=lambda member: (self.finish[member], -member))
        return self._times(slowest, self._spans() if spans else ())

    def _train(self, member: int) -> Wait:
        """The autograd thread."""
        self.open += 1
        yield from self._work(
            member, AUTOGRAD, [Job(kind="forward", name="forward", duration=self.compute.forward)]
        )
        parts = zip(self.buckets, self.compute.parts, strict=True)
        for number, (bucket, duration) in enumerate(parts):
            backward = Job(kind="backward", name=f"backward, bucket {number}", duration=duration)
            yield from self._work(member, AUTOGRAD, [backward, *bucket.before])
            if bucket.collectives:
                self.env.process(self._exchange(member, number, bucket))
        rest = Job(kind="backward", name="backward, rest", duration=self.compute.rest)
        yield from self._work(member, AUTOGRAD, [rest])
        self._close(member)

    def _exchange(self, member: int, number: int, bucket: BucketWork) -> Wait:
        """The callbacks of one bucket."""
        self.open += 1
        for index, (record, job) in enumerate(zip(bucket.collectives, bucket.after, strict=True)):
            server_time = bucket.server_times[index] if bucket.server_times else 0
            turn = self.communicator.ask(member, (number, index), record, server_time)
            entry, left = yield turn
            yield self.env.timeout(left - self.env.now)
            name = f"{record.kind.replace('_', '-')}, bucket {number}"
            self.network[member].append((name, entry, left))
            yield from self._work(member, callback(number, index), [job])
        self._close(member)

    def _work(self, member: int, key: tuple[int, int, int], jobs: Sequence[Job]) -> Wait:
        """One piece of work: jobs that follow each other on the stream without a gap."""
        duration = sum(job.duration for job in jobs)
        if duration == 0:  # nothing is launched, so nothing queues
            return
        start = yield self.streams[member].work(key, duration)
        for job in jobs:
            self.done[member].append((job, start))
            start += job.duration

    def _close(self, member: int) -> None:
        self.open -= 1
        self.finish[member] = max(self.finish[member], reading(self.env.now))

    def _times(self, member: int, spans: tuple[Span, ...]) -> IterationTimes:
        spent: Counter[Kind] = Counter()
        exposed = last = 0
        for job, start in self.done[member]:
            exposed += start - last
            last = start + job.duration
            spent[job.kind] += job.duration
        iteration = self.finish[member]
        exposed += iteration - last
        if exposed < 0 or iteration != exposed + spent.total():
            raise InternalError(f"the parts of an iteration of {iteration} ps do not add up")
        return IterationTimes(
            rank=int(np.argmax(self.classes == member)),
            iteration=iteration,
            forward=spent["forward"],
            backward=spent["backward"],
            encode=spent["encode"],
            decode=spent["decode"],
            communication=sum(end - start for _, start, end in self.network[member]),
            exposed=exposed,
            spans=spans,
        )

    def _spans(self) -> tuple[Span, ...]:
        by_class: list[list[tuple[Resource, str, Picoseconds, Picoseconds]]] = []
        for jobs, network in zip(self.done, self.network, strict=True):
            own = [(_RESOURCE[j.kind], j.name, start, start + j.duration) for j, start in jobs]
            own += [("network", *span) for span in network]
            by_class.append(sorted((s for s in own if s[3] > s[2]), key=lambda s: (s[2], s[3])))
        return tuple(
            Span(rank=rank, resource=resource, name=name, start=start, end=end)
            for rank, member in enumerate(self.classes.tolist())
            for resource, name, start, end in by_class[member]
        )
