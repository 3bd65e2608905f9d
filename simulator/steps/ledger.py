"""Where does an iteration of a worker go?

Each instant between the begin and the end of an iteration counts once: as the job that the
compute stream does, else as the job that the side stream does, else as waiting for input, else as
exposed communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds
from gcsim.simulator.steps.step_plan import Job, Kind, Resource

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
"""Of a `Run`. All but communication add up to the iteration."""

Interval = tuple[str, Picoseconds, Picoseconds]
"""What, from when, until when."""
Done = tuple[Job, Picoseconds, Picoseconds]
"""A job, from when, until when."""

_RESOURCE: dict[Kind, Resource] = {
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
    "encode": "encode",
    "decode": "decode",
}


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What one worker did in one iteration, on each resource in the order of time."""

    begin: Picoseconds
    compute: list[Done] = field(default_factory=list)
    side: list[Done] = field(default_factory=list)
    network: list[Interval] = field(default_factory=list)
    waits: list[Interval] = field(default_factory=list)
    """For input."""

    def parts(self, finish: Picoseconds) -> tuple[Picoseconds, ...]:
        """By `PARTS`; `InternalError` when they do not add up to the iteration."""
        spent: dict[Kind, Picoseconds] = dict.fromkeys(_RESOURCE, 0)
        last, idle = self.begin, 0
        for job, start, end in self.compute:
            spent[job.kind] += end - start
            idle += start - last
            last = end
        waited = sum(end - start for _, start, end in self.waits)
        exposed = idle + finish - last - waited
        for (job, start, end), covered in zip(self.side, self._covered(), strict=True):
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
            sum(end - start for _, start, end in self.network),
            exposed,
            spent["optimizer"],
            waited,
        )

    def _covered(self) -> list[Picoseconds]:
        """For how long the compute stream is busy during each of the side stream's jobs."""
        covered, first = [], 0
        for _, start, end in self.side:
            while first < len(self.compute) and self.compute[first][2] <= start:
                first += 1
            both, place = 0, first
            while place < len(self.compute) and self.compute[place][1] < end:
                both += min(end, self.compute[place][2]) - max(start, self.compute[place][1])
                place += 1
            covered.append(both)
        return covered

    def spans(self) -> list[tuple[Resource, str, Picoseconds, Picoseconds]]:
        """All that took time, by start."""
        did: list[tuple[Resource, str, Picoseconds, Picoseconds]] = [
            (_RESOURCE[job.kind], job.name, start, end)
            for job, start, end in (*self.compute, *self.side)
        ]
        did += [("network", *interval) for interval in self.network]
        did += [("input", *interval) for interval in self.waits]
        return sorted((span for span in did if span[3] > span[2]), key=lambda s: (s[2], s[3]))


def in_order(start: Picoseconds, jobs: Sequence[tuple[Job, Picoseconds]]) -> list[Done]:
    """Jobs and their durations, one after the other from `start`."""
    done = []
    for job, duration in jobs:
        done.append((job, start, start + duration))
        start += duration
    return done
