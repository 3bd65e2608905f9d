"""The result of a run: plain values, as they stand in `results.json` (schema 3)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from gcsim.errors import InputError, Problem
from gcsim.scenarios.findings import Findings

SCHEMA = 3
LOW, HIGH = 10, 90
"""Percentiles over drawn worlds, and over seeds, between which a range lies."""
PERCENTILES = f"{LOW}th to {HIGH}th percentile"
FROM_CACHE = "from_cache"
"""In a run's provenance: labels of the methods whose profiles were known, and whether the
simulation was."""
Measure = Literal["accuracy", "loss"]
"""Measure of training, on held-out samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One compressor at one cluster size. Times are means over whole periods of the method, and,
    where iterations differ, over as many of them as the scenario's `training` says.

    `iteration_s`, `speedup_vs_dense` and `scaling_efficiency` are medians over the drawn worlds.
    The parts of an iteration (forward to decode, `optimizer_s`, `input_s`) are those of the
    scenario as stated, and add up to `iteration_as_stated_s`. What differs between iterations
    (percentiles, errors, batches) and between ring and tree is the same share of an iteration in
    every world: as stated, times `iteration_s / iteration_as_stated_s`."""

    compressor: str
    label: str
    nodes: int
    workers: int
    iteration_s: float
    """The estimate: median of `iteration_draws_s`, on the slowest worker; as stated where nothing
    was drawn."""
    forward_s: float
    backward_s: float
    encode_s: float
    communication_s: float
    """Time during which a collective of this worker is under way, hidden or not."""
    exposed_communication_s: float
    """The part of it during which the device has nothing to do."""
    decode_s: float
    throughput_samples_per_s: float
    speedup_vs_dense: float | None
    """Iteration time of `none` over this one's, at the same size, median over the drawn worlds;
    None without a dense row."""
    scaling_efficiency: float
    """Throughput over that of as many single devices, each training alone without compression."""
    wire_bytes_per_worker: float
    """Bytes that one worker hands to its collectives in an iteration."""
    compression_ratio: float | None
    """Dense float32 gradient over `wire_bytes_per_worker`; None where that is 0."""
    nmse: float | None
    """|update - dense update|^2 / |dense update|^2: mean over `steps_run`. None for methods whose
    update does not tell the gradient's magnitude (signs): their scale is the learning rate's."""
    cosine_similarity: float
    """Cosine of the update and the dense one: mean over `steps_run`."""
    steps_run: int
    """Training steps that the compressor was run for, from empty memories."""
    memory: str
    """State that the method keeps from step to step; "none" when every step stands alone."""
    period: int
    """Iterations after which the method's steps repeat."""
    optimizer_s: float = 0.0
    """The optimiser's, where it is not in the backward time."""
    input_s: float = 0.0
    """Time during which the device waits for a batch."""
    iteration_p5_s: float | None = None
    """5 % of the iterations are shorter; None where all are alike."""
    iteration_p95_s: float | None = None
    """5 % of the iterations are longer; None where all are alike."""
    throughput_with_faults_samples_per_s: float | None = None
    """Over the run of `training.faults`, of the iterations that were finished; None without."""
    lost_to_faults_s: float | None = None
    """Seconds of that run in which no iteration was under way that was finished."""
    iteration_error_s: float | None = None
    """Standard error of `iteration_s`, by batch means; None where nothing is random, and of a
    single iteration."""
    scaling_efficiency_error: float | None = None
    """Standard error of `scaling_efficiency`, as above."""
    algorithms: str = ""
    """Titles of the collective algorithms that carried the traffic, joined with "; "."""
    via: str = ""
    """Way of a method that asks for a server: "parameter servers", "all-to-all and all-gather"
    (each worker serves a stripe), "all-gather" (each serves whole payloads); empty for all others.
    """
    iteration_draws_s: tuple[float, ...] = ()
    """`iteration_s` in worlds that are drawn from all that is not known of the scenario; draw k is
    the same world in all rows. Empty, and the following None, where nothing that is needed has a
    range."""
    iteration_low_s: float | None = None
    """10th percentile of the draws, or the shorter of ring and tree."""
    iteration_high_s: float | None = None
    """90th percentile of the draws, or the longer of ring and tree."""
    speedup_low: float | None = None
    """10th percentile of the speedup over dense training in the same world; None, as the
    following but the last, without a dense row."""
    speedup_high: float | None = None
    """90th percentile."""
    probability_pays: float | None = None
    """Share of the draws in which it is faster than dense training, where luck may turn each."""
    probability_fastest: float | None = None
    """Share of the draws in which no method is faster at this size."""
    iteration_ring_s: float | None = None
    """`iteration_s` if NCCL takes rings wherever its tuner is near the border; None where it is
    not. Low and high ends of this row hold it, and the following."""
    iteration_tree_s: float | None = None
    """If it takes trees there."""
    iteration_as_stated_s: float | None = None
    """input + forward + backward + encode + exposed communication + decode + optimizer with all
    inputs at their stated values; None, as the following, where nothing was drawn: then
    `iteration_s` is that. No answer is made of either."""
    speedup_as_stated: float | None = None
    """Iteration time of `none` as stated over `iteration_as_stated_s`."""
    iterations: int | None = None
    """Iterations in the mean times; None where all are alike."""
    iteration_batches_s: tuple[float, ...] = ()
    """Means of consecutive batches of iterations, of equal length, where times are random. Batch k
    of two rows with equally many, of as many iterations, met the same luck."""
    seeds_trained: int | None = None
    """Trainings of `train` with the method that are known; None, as the following, where none
    are."""
    seeds_at_target: int | None = None
    """Seeds that reached the target."""
    steps_to_target_vs_dense: float | None = None
    """Steps to the target over dense training's, median over seeds; None where half of the seeds
    or more did not reach it."""
    speedup_to_target: float | None = None
    """`speedup_vs_dense` over that: what is gained until the target, at this iteration time; or at
    that of what the method sends over its training, where it sends otherwise then."""
    speedup_to_target_low: float | None = None
    """10th percentile with a further seed, over the drawn worlds (`trained/bands.py`)."""
    speedup_to_target_high: float | None = None
    """90th percentile."""
    probability_pays_to_target: float | None = None
    """Probability that it is at the target before dense training: a further seed, all worlds."""
    speedups_to_target: tuple[float, ...] = ()
    """Speedup of each seed, 0 where it does not reach the target: `speedup_to_target` is their
    median. Seeds with which dense training does not reach it are left out."""
    steps_to_target_error: float = 0.0
    """Share by which steps to the target are unknown, because training is judged now and then."""
    cost_per_1000_iterations: float | None = None
    """Cost of 1,000 iterations on all nodes, in the currency of `cost.per_hour`; None without."""
    cost_to_target: float | None = None
    """Cost until the target, median over seeds; None where that or `cost.per_hour` is not known."""
    wire_bytes_over_training: float | None = None
    """Mean of `wire_bytes_per_worker` over all steps of the trainings; None where it is the same,
    within a tenth, or not known."""


LISTS = ("iteration_draws_s", "iteration_batches_s", "speedups_to_target")
"""Fields of a row that `results.csv` has no column for."""


RUN = ("scenario", "model", "seed", "device", "network")
"""Columns of `results.csv` that say of which run a row is, so that rows of many can be put
together."""


def _name(entry: Any) -> str | None:
    """Name of a model, a device or a link in a resolved scenario."""
    return entry.get("name", entry.get("build")) if isinstance(entry, dict) else entry


def columns_of(flat: Row | UncertainInput) -> dict[str, Any]:
    """Columns by name of the field, as `dataclasses.asdict` without its copy of each number of a
    list."""
    return {entry.name: getattr(flat, entry.name) for entry in fields(flat)}


def row_from(stored: dict[str, Any]) -> Row:
    """A row as it stands in `results.json`, which has no tuples."""
    return Row(**{**stored, **{name: tuple(stored[name]) for name in LISTS}})


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainInput:
    """Something that is not known, and that moves an iteration of a row."""

    name: str
    unit: str
    """Empty for a share or a factor."""
    stated: float
    """Value that the rows' own times are for."""
    low: float
    high: float
    draws: tuple[float, ...]
    """Values by draw, as `Row.iteration_draws_s`."""
    measure: str
    """Command or key of the scenario that narrows the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that happened on one resource of one rank in a sample iteration."""

    rank: int
    resource: str
    """loader, compute (stream), side (stream) or communicator."""
    kind: str
    """forward, backward, encode, decode, optimizer; all_reduce, all_gather, push_pull, all_to_all,
    tree_merge; load, and within it wait: the device waits for this batch."""
    name: str
    start_s: float
    end_s: float
    slot: int = 0
    """Slot of the communicator: 1 for a collective that runs beside one in slot 0."""
    bucket: int | None = None
    collective: int | None = None
    """Number in `Timeline.collectives`."""
    waited_s: float = 0.0
    """Part of a collective's span until the last rank entered it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Facts that all ranks' spans of one collective share. Bytes are by rank."""

    algorithm: str
    """Title of the algorithm that carried it out."""
    sent: tuple[int, ...]
    """Payload that the rank hands over."""
    received: tuple[int, ...]
    """Payload that it gets from others; of an all-reduce or a push-pull, the result."""
    moved: tuple[int, ...]
    """In the algorithm's messages, those that it sends and those that it receives."""
    messages: int
    """In all messages, each counted once."""
    last: tuple[int, ...] = ()
    """The ranks that entered last, at the same instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A sample iteration of one compressor at the largest size."""

    compressor: str
    label: str
    nodes: int
    phase: str
    spans: tuple[Span, ...]
    collectives: tuple[Collective, ...] = ()
    """In the order of bucket and place in the bucket's exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node is down."""

    node: int
    start_s: float
    end_s: float | None
    """None: until the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of one method in the run of `training.faults`."""

    label: str
    stretches: tuple[tuple[float, float, int], ...]
    """From when until when (seconds), and how many samples entered the iterations that were
    finished then, one after the other; between the stretches nothing gets done that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyRuns:
    """The run of `training.faults` at the largest size."""

    horizon_s: float
    nodes: int
    outages: tuple[Outage, ...]
    """Outages by start."""
    progress: tuple[Progress, ...]
    """In the scenario's order of compressors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One trajectory, judged at some steps."""

    label: str
    seed: int
    learning_rate: float
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    """At the largest size."""
    accuracy: tuple[float | None, ...]
    loss: tuple[float, ...]
    wire_bytes_per_worker: tuple[float, ...]
    """Bytes sent in a step, by window between two evaluations."""
    nmse: tuple[float | None, ...]
    """Error by window; None where an update is not meant to be the mean gradient of its step."""

    def judged(self, measure: Measure) -> list[float]:
        """Loss, or accuracy in percent, by evaluation."""
        return shown(measure, self.accuracy, self.loss)


def shown(measure: Measure, accuracy: Sequence[float | None], loss: Sequence[float]) -> list[float]:
    """Loss, or accuracy in percent, for people."""
    if measure == "loss":
        return list(loss)
    return [100 * one for one in accuracy if one is not None]  # a target of it has it everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Trajectories of training with a run's methods, where they are known."""

    measure: Measure
    """Measure of the target."""
    curves: tuple[Curve, ...]
    """In the scenario's order of compressors, by seed."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """Rows in the scenario's order of compressors, sizes ascending within each."""

    scenario: dict[str, Any]
    provenance: dict[str, Any]
    rows: tuple[Row, ...]
    wall: dict[str, float]
    """Seconds that the stages of this run took: with `FROM_CACHE` the only part that differs
    between runs."""
    timelines: tuple[Timeline, ...] = ()
    faulty: FaultyRuns | None = None
    """None where the scenario has no faults."""
    inputs: tuple[UncertainInput, ...] = ()
    """Inputs that the rows' draws vary; empty where nothing that is needed has a range."""
    advice: Findings | None = None
    """Break-evens and changes at the largest size; None where nobody asked, or nothing is dense."""
    trained: Trained | None = None
    """None where no trajectory of the scenario's `train` is known; `results.json` has it not."""

    def document(self) -> dict[str, Any]:
        """Document of `results.json`."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "provenance": self.provenance,
            "rows": [columns_of(row) for row in self.rows],
            "inputs": [columns_of(one) for one in self.inputs],
            "advice": None if self.advice is None else asdict(self.advice),
            "wall": self.wall,
        }

    def lasting(self) -> dict[str, Any]:
        """`document` without the parts that differ between runs."""
        sources = {key: each for key, each in self.provenance.items() if key != FROM_CACHE}
        document = {**self.document(), "provenance": sources}
        del document["wall"]
        return document

    def to_json(self) -> str:
        """`results.json`: byte-identical for the same scenario and seed, apart from `wall` and
        `provenance.from_cache`."""
        return json.dumps(self.document(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @staticmethod
    def columns() -> tuple[str, ...]:
        """Column names of `results.csv`: of which run a row is, then its own."""
        return (*RUN, *(entry.name for entry in fields(Row) if entry.name not in LISTS))

    def records(self) -> Iterator[dict[str, Any]]:
        """The rows of `results.csv` by column, and the lists that it leaves out."""
        asked, cluster = self.scenario, self.scenario.get("cluster", {})
        run = (
            asked.get("name"),
            _name(asked.get("model")),
            asked.get("seed"),
            _name(cluster.get("device")),
            _name(cluster.get("network")),
        )
        return ({**dict(zip(RUN, run, strict=True)), **columns_of(row)} for row in self.rows)

    def to_frame(self) -> Any:
        """A `pandas.DataFrame` with the rows and columns of `results.csv`.

        Raises `InputError` where pandas is not installed.
        """
        return frame(self.records(), self.columns())

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, sorted({row.nodes for row in self.rows})))
        methods = len({row.label for row in self.rows})
        best = fastest(self.rows)
        return (
            f"<gcsim.Result {self.scenario.get('name', 'scenario')}: methods {methods}, "
            f"nodes {sizes or 'none'}{f'; fastest: {best}' if best else ''}>"
        )


def known_to_target(rows: Iterable[Row]) -> bool:
    """Whether rows of one size are judged by their time to the target: it is known of dense
    training and of another method at least."""
    return any(row.speedup_to_target is not None and row.compressor != "none" for row in rows)


def pace(row: Row) -> float:
    """Orders rows of one size by what is printed of them: the less, the faster until the target, or
    where that is not known in an iteration, against dense training."""
    speedup = row.speedup_vs_dense if row.speedup_to_target is None else row.speedup_to_target
    return row.iteration_s if speedup is None else 1 / speedup


def error_of(row: Row) -> float:
    """The NMSE; infinite where the update's scale is not the gradient's."""
    return math.inf if row.nmse is None else row.nmse


def fastest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of one size by `pace`, then by NMSE, then by label; where they are judged by their time
    to the target, those of which it is not known come last."""
    found = tuple(rows)
    judged = known_to_target(found)

    def key(row: Row) -> tuple[bool, float, float, str]:
        return judged and row.speedup_to_target is None, pace(row), error_of(row), row.label

    return tuple(sorted(found, key=key))


def fastest(rows: Sequence[Row]) -> str:
    """The fastest row at the largest size, in a few words."""
    if not rows:
        return ""
    most = max(row.workers for row in rows)
    best = fastest_first(row for row in rows if row.workers == most)[0]
    speedup = best.speedup_vs_dense
    against = "" if speedup is None else f", {speedup:.3g}x dense"
    return f"{best.label} ({best.iteration_s * 1e3:.3g} ms{against}) on {best.nodes} nodes"


def frame(records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """A `pandas.DataFrame`. Raises `InputError` where pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        problem = Problem(message="to_frame() needs pandas", hint="pip install 'gcsim[notebook]'")
        raise InputError(problem) from error
    return pandas.DataFrame(list(records), columns=list(columns))
