"""Parts of a worker's iterations, and their mean.

Each instant of an iteration counts once: for the job on the compute stream, else for that on the
side stream, else as waiting for input, else as exposed communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.steps.cycles import Steady
from gcsim.simulator.steps.step_plan import CollectiveSpan, Job, Kind, Resource, Run, Span

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
"""Parts of a `Run`; all but communication add up to the iteration."""

SPANS = 60_000  # most spans of an iteration whose timeline shows all ranks

Interval = tuple[Picoseconds, Picoseconds]  # begin and end
Done = tuple[Job, int | None, Picoseconds, Picoseconds]  # job, bucket (None: no bucket), begin, end
Exchanged = tuple[CollectiveRecord, int, int, Picoseconds, Picoseconds, Picoseconds]
"""Collective, bucket, place in the bucket; the rank's entry, the last rank's entry, exit."""

_KINDS: tuple[Kind, ...] = ("forward", "backward", "encode", "decode", "optimizer")


@dataclass(slots=True, kw_only=True)
class TimeBreakdown:
    """One worker's activity in an iteration, by resource in time order."""

    begin: Picoseconds
    compute: list[Done] = field(default_factory=list)
    side: list[Done] = field(default_factory=list)
    network: list[Exchanged] = field(default_factory=list)
    waits: list[Interval] = field(default_factory=list)  # for input
    loads: list[Interval] = field(default_factory=list)
    """Intervals in which batches are made: those taken in this iteration, or begun in it."""

    def parts(self, finish: Picoseconds) -> tuple[Picoseconds, ...]:
        """Return the times by `PARTS`; raise `InternalError` when they do not add up."""
        spent: dict[Kind, Picoseconds] = dict.fromkeys(_KINDS, 0)
        last, idle = self.begin, 0
        for job, _, start, end in self.compute:
            spent[job.kind] += end - start
            idle += start - last
            last = end
        waited = sum(end - start for start, end in self.waits)
        exposed = idle + finish - last - waited
        for (job, _, start, end), covered in zip(self.side, self._covered(), strict=True):
            spent[job.kind] += end - start - covered
            exposed -= end - start - covered
        if exposed < 0 or finish - self.begin != exposed + waited + sum(spent.values()):
            raise InternalError(
                f"the parts of an iteration from {self.begin} to {finish} ps do not add up: "
                f"{spent}, {waited} ps of input, {exposed} ps exposed"
            )
        return (
            spent["forward"],
            spent["backward"],
            spent["encode"],
            spent["decode"],
            sum(left - entry for *_, entry, _, left in self.network),
            exposed,
            spent["optimizer"],
            waited,
        )

    def _covered(self) -> list[Picoseconds]:
        """Return for how long the compute stream is busy during each side job."""
        covered, first = [], 0
        for *_, start, end in self.side:
            while first < len(self.compute) and self.compute[first][3] <= start:
                first += 1
            both, place = 0, first
            while place < len(self.compute) and self.compute[place][2] < end:
                both += min(end, self.compute[place][3]) - max(start, self.compute[place][2])
                place += 1
            covered.append(both)
        return covered

    def spans(self, rank: int) -> list[Span]:
        """Return the spans of all activities that took time, by start."""
        did = [
            *_of_stream(rank, "compute", self.compute),
            *_of_stream(rank, "side", self.side),
            *self._of_communicator(rank),
            *self._of_loader(rank),
        ]
        return sorted(
            (span for span in did if span.end > span.start), key=lambda span: (span.start, span.end)
        )

    def _of_communicator(self, rank: int) -> Iterator[Span]:
        """Yield each collective's span, in the lowest slot that is free at its entry."""
        free: list[Picoseconds] = []
        for record, bucket, place, entry, last, left in sorted(
            self.network, key=lambda exchanged: (exchanged[3], exchanged[1:3])
        ):
            if left == entry:
                continue
            slot = next((n for n, until in enumerate(free) if until <= entry), len(free))
            free[slot : slot + 1] = [left]
            what = getattr(record, "what", record.kind.replace("_", "-"))
            yield Span(
                rank=rank,
                resource="communicator",
                slot=slot,
                kind=record.kind,
                name=f"{what}, bucket {bucket}",
                start=entry,
                end=left,
                bucket=bucket,
                carried=CollectiveSpan(record=record, place=place, waited=last - entry),
            )

    def _of_loader(self, rank: int) -> Iterator[Span]:
        """Yield the loader's spans, including the rest of a batch that was begun before."""
        for kind, name, intervals in (
            ("load", "load batch", self.loads),
            ("wait", "device waits for batch", self.waits),
        ):
            for start, end in intervals:
                begin = max(start, self.begin)
                yield Span(rank=rank, resource="loader", kind=kind, name=name, start=begin, end=end)


def spans_of(
    breakdowns: Sequence[TimeBreakdown], classes: NDArray[np.int64], first: int | None = None
) -> tuple[Span, ...]:
    """Return the spans of all ranks, by rank and start; `classes` `[ranks]`: index of each rank's
    breakdown. With `first`, and more than `SPANS` spans, only the first ranks and the lowest rank
    of each class have spans; the latter represents the rest of its class (`Span.ranks`)."""
    lowest, count = np.unique(classes, return_index=True, return_counts=True)[1:]
    own = [each.spans(rank) for each, rank in zip(breakdowns, lowest.tolist(), strict=True)]
    total = sum(len(spans) * many for spans, many in zip(own, count.tolist(), strict=True))
    shown = np.arange(len(classes))
    if first is not None and total > SPANS:
        shown = np.union1d(shown[:first], lowest)
    own_ranks = 1 + count - np.bincount(classes[shown], minlength=len(count))
    found: list[Span] = []
    for rank, member in zip(shown.tolist(), classes[shown].tolist(), strict=True):
        if rank != lowest[member]:
            found += breakdowns[member].spans(rank)
        elif own_ranks[member] == 1:
            found += own[member]
        else:
            ranks = int(own_ranks[member])
            found += [span._replace(ranks=ranks) for span in own[member]]
    return tuple(found)


def _of_stream(rank: int, resource: Resource, done: Sequence[Done]) -> Iterator[Span]:
    for job, bucket, start, end in done:
        yield Span(
            rank=rank,
            resource=resource,
            kind=job.kind,
            name=job.name if bucket is None else f"{job.name}, bucket {bucket}",
            start=start,
            end=end,
            bucket=bucket,
        )


def in_order(
    start: Picoseconds, bucket: int | None, jobs: Sequence[tuple[Job, Picoseconds]]
) -> list[Done]:
    """Schedule the jobs of a bucket one after the other from `start`."""
    done = []
    for job, duration in jobs:
        done.append((job, bucket, start, start + duration))
        start += duration
    return done


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Average:
    """Mean iteration of a schedule's slowest rank, in picoseconds."""

    iteration: Fraction
    parts: dict[str, Fraction]  # means by `PARTS`
    iterations: Times  # durations of the iterations in the mean, `[n]`
    rank: int  # rank whose iterations these are


def mean_of(run: Run, rank: int, iterations: int) -> Average:
    """Return the mean of a rank's last iterations, in picoseconds."""
    ends = run.finish[:, rank]
    times = np.diff(ends, prepend=0)[-iterations:]
    return Average(
        iteration=Fraction(int(times.sum()), iterations),
        parts={
            part: Fraction(int(run.parts[part][-iterations:, rank].sum()), iterations)
            for part in PARTS
        },
        iterations=times,
        rank=rank,
    )


def mean_of_cycle(steady: Steady, *, communicates: bool) -> Average:
    """Return the mean of the periodic iterations on the rank that ends last (ties: the lowest); if
    ranks never communicate, on the rank with the longest cycle."""
    cycle = steady.cycle
    rank = int((cycle[-1].after.start if communicates else steady.shift).argmax())
    times: Times = np.array([iteration.durations[rank] for iteration in cycle])
    return Average(
        iteration=Fraction(int(times.sum()), len(cycle)),
        parts={
            part: Fraction(sum(int(one.parts[part][rank]) for one in cycle), len(cycle))
            for part in PARTS
        },
        iterations=times,
        rank=rank,
    )
