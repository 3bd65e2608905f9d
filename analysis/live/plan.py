"""Collectives and training steps that the ranks run, as plain data.

In a round, a set of ranks on links of one rate does its tasks in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter

from gcsim.units import exact

METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "dense": ("none", {}),
    "fp16": ("fp16", {}),
    "top-k 1 %": ("topk", {"ratio": 0.01}),
    "sign with error feedback": ("ef_signsgd", {}),
    "PowerSGD rank 2": ("powersgd", {"rank": 2}),
}
"""Compressors for the training tasks, all of which DDP can run, with parameters, by label."""
_QUICK = ("dense", "top-k 1 %")
_LARGE = ("dense", "fp16")
_TIMES_MORE = 4
_FITTED = (4_000, 40_000, 400_000, 3_000_000)  # bytes
_LONG = 500_000  # bytes

CollectiveKind = Literal["all_reduce", "all_gather"]
_STREAM_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTask:
    """A collective that is repeated several times after a warm-up."""

    kind: CollectiveKind
    nbytes: int  # per rank
    repeats: int

    @property
    def name(self) -> str:
        """ "all-reduce 1 MB"."""
        return f"{self.kind.replace('_', '-')} {exact(self.nbytes, 'size')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTask:
    """Simultaneous messages both ways between two ranks, which measure a link's goodput."""

    nbytes: int  # in each direction
    repeats: int

    name: ClassVar[str] = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """Training with a compressor, after warm-up steps."""

    compressor: str  # name in a scenario: "topk"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    label: str  # shown in the report: "top-k 1 %"
    warm_up: int = 4  # steps; DDP rebuilds its buckets after the first
    steps: int

    @property
    def name(self) -> str:
        """ "training step, top-k 1 %"."""
        return f"training step, {self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneTask:
    """Training without exchange on all ranks at once: times of passes and hooks, and gradients."""

    steps: int
    workers: int  # workers whose gradients are recorded, each with its own samples
    trace: str  # folder for the gradients
    methods: tuple[TrainingTask, ...] = ()
    warm_up: int = 4

    name: ClassVar[str] = "steps without exchange"


Task = CollectiveTask | StreamTask | TrainingTask | AloneTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Tasks of ranks that are started once."""

    ranks: int
    rate: int  # bits per second of every link, with headers
    tasks: tuple[Task, ...]

    @property
    def name(self) -> str:
        """ "4 ranks, 100 Mbit/s"."""
        return f"{self.ranks} ranks, {self.rate // 10**6} Mbit/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All tasks: those that are judged, and those for calibration."""

    rounds: tuple[Round, ...]
    calibration: tuple[Round, ...]  # to fit the host's costs; not judged
    links: tuple[Round, ...]  # to measure a link of each rate; not judged
    batch: int  # samples per rank in training
    seed: int = 0

    @property
    def training(self) -> tuple[TrainingTask, ...]:
        """Distinct methods of the rounds."""
        found = {
            task.label: task
            for one in self.rounds
            for task in one.tasks
            if isinstance(task, TrainingTask)
        }
        return tuple(found.values())

    @property
    def most_ranks(self) -> int:
        """Largest number of ranks in a round."""
        return max(one.ranks for one in self.rounds)


def default_plan(*, quick: bool) -> Plan:
    """Return the rounds of about four minutes, or half a minute if `quick`."""
    if quick:
        shapes = [(2, 100)]
        reduced: tuple[int, ...] = (64_000, 1_000_000, 2_000_000)
        gathered: tuple[int, ...] = (250_000, 1_000_000)
        repeats, steps = 5, 6
    else:
        shapes = [(ranks, rate) for ranks in (2, 4) for rate in (50, 100, 1000)]
        reduced = (64_000, 250_000, 1_000_000, 4_000_000, 8_000_000)
        gathered = (64_000, 250_000, 1_000_000, 2_000_000)
        repeats, steps = 5, 10

    def times(nbytes: int) -> int:
        return repeats if nbytes >= _LONG else 3 * repeats  # short ones vary more and cost little

    collectives: list[Task] = [
        *(CollectiveTask(kind="all_reduce", nbytes=n, repeats=times(n)) for n in reduced),
        *(CollectiveTask(kind="all_gather", nbytes=n, repeats=times(n)) for n in gathered),
    ]
    rounds = tuple(
        Round(
            ranks=ranks,
            rate=rate * 10**6,
            tasks=(*collectives, *(() if rate == 50 else _methods(rate, steps, quick))),
        )
        for ranks, rate in shapes
    )
    calibration = tuple(_calibration(ranks) for ranks in sorted({ranks for ranks, _ in shapes}))
    links = tuple(_stream(rate * 10**6) for rate in sorted({rate for _, rate in shapes}))
    return Plan(rounds=rounds, calibration=calibration, links=links, batch=16)


def _methods(rate: int, steps: int, quick: bool) -> tuple[TrainingTask, ...]:
    """Return training tasks with more steps of short ones, so that pauses of a machine average."""
    return tuple(
        TrainingTask(
            compressor=kind,
            parameters=parameters,
            label=label,
            steps=steps if rate <= 100 and label in _LARGE else _TIMES_MORE * steps,
        )
        for label, (kind, parameters) in METHODS.items()
        if not quick or label in _QUICK
    )


def _calibration(ranks: int) -> Round:
    """Return a round on links so fast that ranks wait for the host; sizes are not those judged."""
    return Round(
        ranks=ranks,
        rate=4 * 10**9,
        tasks=(
            *(CollectiveTask(kind="all_reduce", nbytes=n, repeats=15) for n in _FITTED),
            *(CollectiveTask(kind="all_gather", nbytes=n, repeats=15) for n in _FITTED[2:]),
        ),
    )


def _stream(rate: int) -> Round:
    nbytes = int(rate / 8 * _STREAM_SECONDS)
    return Round(ranks=2, rate=rate, tasks=(StreamTask(nbytes=nbytes, repeats=3),))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """Content of the file that a rank's program reads."""

    tasks: tuple[Task, ...]
    batch: int
    seed: int


RANK_PLAN = TypeAdapter(RankPlan)
"""Its form in JSON."""
