"""Result of a run: plain values, as in `results.json` (schema 3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

from gcsim.errors import InputError, Problem
from gcsim.files import json_text
from gcsim.scenarios.findings import Findings
from gcsim.simulator.training import DENSE

SCHEMA = 3
LOW, HIGH = 10, 90
"""Percentiles of ranges, over drawn worlds and over seeds."""
PERCENTILES = f"{LOW}th to {HIGH}th percentile"
FROM_CACHE = "from_cache"
"""Key in the provenance: methods with cached profiles, and whether the simulation was cached."""
Measure = Literal["accuracy", "loss"]
"""Quality measure of a training, on held-out samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One compressor at one cluster size; means over whole periods of the method, and over
    iterations where they differ.

    `iteration_s` and `speedup_vs_dense` are medians over the drawn worlds. Parts of an iteration
    (forward to decode, `optimizer_s`, `input_s`) are the stated scenario's and add up to
    `iteration_as_stated_s`. Differences between iterations (percentiles, errors,
    batches) and between ring and tree are the same share of an iteration in every world: as stated,
    times `iteration_s / iteration_as_stated_s`.
    """

    compressor: str
    label: str
    nodes: int
    workers: int
    iteration_s: float
    """Median of `iteration_draws_s`, on the slowest worker; as stated without draws."""
    forward_s: float
    backward_s: float
    encode_s: float
    communication_s: float
    """Time in which a collective of this worker runs, hidden or not."""
    exposed_communication_s: float
    """Part of it in which the device is idle."""
    decode_s: float
    throughput_samples_per_s: float
    speedup_vs_dense: float | None
    """Speedup over `none` at the same size, median over the drawn worlds; None without it."""
    scaling_efficiency: float
    """Throughput over that of the same number of separate devices without compression."""
    wire_bytes_per_worker: float
    """Bytes of gradients that a worker hands to collectives per iteration; the weights that a
    sharded optimizer gathers do not count."""
    compression_ratio: float | None
    """Dense gradient, as it is stored, over `wire_bytes_per_worker`, if any."""
    nmse: float | None
    """Squared error |update - dense update|^2 / |dense update|^2, mean over `steps_run`; None if
    the update's magnitude is not the gradient's (signs: the learning rate sets it)."""
    cosine_similarity: float
    """Cosine of the update and the dense one, mean over `steps_run`."""
    steps_run: int
    """Number of steps for which the compressor was run, from an empty state."""
    memory: str
    """State that the method keeps between steps; "none" if it has none."""
    period: int
    """Iterations after which the steps repeat."""
    optimizer_s: float = 0.0
    """Time of the optimizer, if it is not included in backward."""
    input_s: float = 0.0
    """Time in which the device waits for a batch."""
    iteration_p5_s: float | None = None
    """5th percentile of the iterations; None if all are equal."""
    iteration_p95_s: float | None = None
    """95th percentile of the iterations; None if all are equal."""
    throughput_with_faults_samples_per_s: float | None = None
    """Throughput of the finished iterations in a run with `training.faults`, if any."""
    lost_to_faults_s: float | None = None
    """Seconds of that run that belong to no finished iteration."""
    goodput: float | None = None
    """Share of useful time in a long training with `training.failures`; costs include it."""
    iteration_error_s: float | None = None
    """Standard error of `iteration_s`, by batch means; None if not random or for one iteration."""
    scaling_efficiency_error: float | None = None
    """Standard error of `scaling_efficiency`, likewise."""
    algorithms: str = ""
    """Titles of the collective algorithms used, joined with "; "."""
    via: str = ""
    """Carriers of a method's push-pulls: "parameter servers", "all-to-all and all-gather"
    (workers serve stripes), "all-gather" (workers serve whole payloads); empty without any."""
    iteration_draws_s: tuple[float, ...] = ()
    """`iteration_s` in worlds drawn from all uncertain inputs; draw k is the same world in all
    rows. Empty, and the following fields None, if no input that is used has a range."""
    iteration_low_s: float | None = None
    """10th percentile of the draws, or the shorter of ring and tree."""
    iteration_high_s: float | None = None
    """90th percentile of the draws, or the longer of ring and tree."""
    speedup_low: float | None = None
    """10th percentile of the speedup over dense in the same world; None without a dense row."""
    speedup_high: float | None = None
    """90th percentile."""
    probability_pays: float | None = None
    """Probability of being faster than dense training, chance included; None for dense."""
    probability_fastest: float | None = None
    """Probability that no method is faster at this size."""
    iteration_ring_s: float | None = None
    """`iteration_s` if NCCL chooses rings where its tuner nearly ties; None if it does not. Low and
    high ends of this row include this and the following."""
    iteration_tree_s: float | None = None
    """`iteration_s` if NCCL chooses trees there."""
    iteration_as_stated_s: float | None = None
    """input + forward + backward + encode + exposed communication + decode + optimizer at stated
    values. None, like the following, without draws: then `iteration_s` is this sum."""
    speedup_as_stated: float | None = None
    """Iteration time of `none` as stated over `iteration_as_stated_s`."""
    iterations: int | None = None
    """Iterations in the mean times; None if all are equal."""
    iteration_batches_s: tuple[float, ...] = ()
    """Means of consecutive batches of equally many iterations, if times are random. Batches of two
    rows that have equal numbers and lengths have the same random factors."""
    seeds_trained: int | None = None
    """Number of known trainings by `train` with the method; None, like the following, if none."""
    seeds_at_target: int | None = None
    """Seeds that reached the target."""
    steps_to_target_vs_dense: float | None = None
    """Steps to the target over dense training's, median of seeds; None if half or more miss it."""
    speedup_to_target: float | None = None
    """`speedup_vs_dense` over that; iterations use the training's own traffic if it differs."""
    speedup_to_target_low: float | None = None
    """10th percentile with a further seed, over the drawn worlds (`trained/bands.py`)."""
    speedup_to_target_high: float | None = None
    """90th percentile; None with a lower end: unbounded, as dense training may miss the target."""
    probability_pays_to_target: float | None = None
    """Probability of reaching the target before dense training, over worlds and another seed."""
    speedups_to_target: tuple[float, ...] = ()
    """Speedup of each seed, 0 if it misses the target, above a million if only dense training does;
    `speedup_to_target` is their median."""
    steps_to_target_error: float = 0.0
    """Relative uncertainty of steps to the target, from the spacing of evaluations."""
    cost_per_1000_iterations: float | None = None
    """Cost of 1,000 iterations on all nodes, in the currency of `cost.per_hour`, if stated."""
    cost_to_target: float | None = None
    """Cost to reach the target, if known: dense training's (median of seeds) over the speedup."""
    wire_bytes_over_training: float | None = None
    """Mean of `wire_bytes_per_worker` over trainings; None if unknown or within a tenth of it."""
    device_memory_low_bytes: float | None = None
    """Lower bound of a worker's memory; None, like the following, if unknown."""
    device_memory_high_bytes: float | None = None
    """Upper bound."""
    fits: Literal["yes", "no", "perhaps"] | None = None
    """Whether it fits in the device; None also if the device's memory is unknown."""


def highest_to_target(row: Row) -> float | None:
    """Return the upper end of a row's speedup to the target, infinite if it is unbounded."""
    low, high = row.speedup_to_target_low, row.speedup_to_target_high
    return math.inf if high is None and low is not None else high


LISTS = ("iteration_draws_s", "iteration_batches_s", "speedups_to_target")
"""Fields of a row without a column in `results.csv`."""


RUN = ("scenario", "model", "seed", "device", "network")
"""Columns of `results.csv` that identify a row's run."""


def _name(entry: Any) -> str | None:
    """Name of a model, a device or a link in a resolved scenario."""
    return entry.get("name", entry.get("build")) if isinstance(entry, dict) else entry


def columns_of(flat: Row | UncertainInput) -> dict[str, Any]:
    """Return columns by field, as `dataclasses.asdict` but without copying lists."""
    return {entry.name: getattr(flat, entry.name) for entry in fields(flat)}


def row_from(stored: dict[str, Any]) -> Row:
    """Build a row from `results.json`, which has lists instead of tuples."""
    return Row(**{**stored, **{name: tuple(stored[name]) for name in LISTS}})


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainInput:
    """Uncertain input that changes an iteration of some row."""

    name: str
    unit: str
    """Empty for a share or a factor."""
    stated: float
    """Value used for the stated times."""
    low: float
    high: float
    draws: tuple[float, ...]
    """Values by draw, as `Row.iteration_draws_s`."""
    measure: str
    """Command, or key of the scenario, that narrows the range."""


class Span(NamedTuple):
    """Activity on one resource of one rank in a sample iteration."""

    rank: int
    resource: str
    """loader, compute (stream), side (stream) or communicator."""
    kind: str
    """forward, backward, encode, decode, optimizer; all_reduce, all_gather, push_pull, all_to_all,
    tree_merge; load, and within it wait (for this batch)."""
    name: str
    start_s: float
    end_s: float
    slot: int = 0
    """Slot of the communicator: 1 overlaps a collective in slot 0."""
    bucket: int | None = None
    collective: int | None = None
    """Number in `Timeline.collectives`."""
    waited_s: float = 0.0
    """Part of a collective's span until the last rank entered it."""
    ranks: int = 1
    """Number of equal ranks that the span represents in a large cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Facts that all ranks' spans of one collective share; bytes are by rank."""

    algorithm: str
    """Title of its algorithm."""
    sent: tuple[int, ...]
    """Payload that the rank sends."""
    received: tuple[int, ...]
    """Payload from other ranks, or the result of an all-reduce or push-pull."""
    moved: tuple[int, ...]
    """Bytes of messages sent plus received."""
    messages: int
    """Messages of all ranks."""
    last: tuple[int, ...] = ()
    """Ranks that entered last, at the same instant; the lowest represents equal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A sample iteration of one compressor at the largest size."""

    compressor: str
    label: str
    nodes: int
    phase: str
    spans: tuple[Span, ...]
    collectives: tuple[Collective, ...] = ()
    """Collectives by bucket and place in the bucket's exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Time in which a node is down."""

    node: int
    start_s: float
    end_s: float | None
    """None: until the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of one method in the run of `training.faults`."""

    label: str
    stretches: tuple[tuple[float, float, int], ...]
    """Begin, end (seconds) and samples of consecutive finished iterations, gaps left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyRuns:
    """The run of `training.faults` at the largest size."""

    horizon_s: float
    nodes: int
    outages: tuple[Outage, ...]
    """Outages by start."""
    progress: tuple[Progress, ...]
    """Progress in the scenario's order of compressors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Trajectory of a training, evaluated at some steps."""

    label: str
    seed: int
    learning_rate: float
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    """Seconds at the largest size."""
    accuracy: tuple[float | None, ...]
    loss: tuple[float, ...]
    wire_bytes_per_worker: tuple[float, ...]
    """Bytes sent per step, by window between evaluations."""
    nmse: tuple[float | None, ...]
    """Error by window; None if an update does not estimate its step's mean gradient."""

    def judged(self, measure: Measure) -> list[float]:
        """Return the loss, or the accuracy in percent, by evaluation."""
        return shown(measure, self.accuracy, self.loss)


def shown(measure: Measure, accuracy: Sequence[float | None], loss: Sequence[float]) -> list[float]:
    """Return the loss, or the accuracy in percent."""
    if measure == "loss":
        return list(loss)
    return [100 * one for one in accuracy if one is not None]  # a target of it has it everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Known trajectories of training with a run's methods."""

    measure: Measure
    """Measure of the target."""
    curves: tuple[Curve, ...]
    """Curves by seed, in the scenario's order of compressors."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """Rows in the scenario's order of compressors, sizes ascending within each."""

    scenario: dict[str, Any]
    provenance: dict[str, Any]
    rows: tuple[Row, ...]
    wall: dict[str, float]
    """Seconds of this run's stages; with `FROM_CACHE` the only difference between runs."""
    timelines: tuple[Timeline, ...] = ()
    faulty: FaultyRuns | None = None
    """None where the scenario has no faults."""
    inputs: tuple[UncertainInput, ...] = ()
    """Inputs varied by the draws."""
    advice: Findings | None = None
    """Break-evens and changes at the largest size, if requested and a method is dense."""
    trained: Trained | None = None
    """Known trajectories, if any; not in `results.json`."""
    left_out: tuple[str, ...] = ()
    """Methods that do not fit in the devices' memory, and by how much, or cannot be sharded."""

    def document(self) -> dict[str, Any]:
        """Return the document of `results.json`."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "provenance": self.provenance,
            "rows": [columns_of(row) for row in self.rows],
            "inputs": [columns_of(one) for one in self.inputs],
            **({"left_out": list(self.left_out)} if self.left_out else {}),
            "advice": None if self.advice is None else asdict(self.advice),
            "wall": self.wall,
        }

    def lasting(self) -> dict[str, Any]:
        """Return `document` without the parts that differ between runs."""
        sources = {key: each for key, each in self.provenance.items() if key != FROM_CACHE}
        document = {**self.document(), "provenance": sources}
        del document["wall"]
        return document

    def to_json(self) -> str:
        """Return `results.json`, byte-identical for the same scenario and seed except for `wall`
        and `provenance.from_cache`."""
        return json_text(self.document())

    @staticmethod
    def columns() -> tuple[str, ...]:
        """Column names of `results.csv`, those of `RUN` first."""
        return (*RUN, *(entry.name for entry in fields(Row) if entry.name not in LISTS))

    def records(self) -> Iterator[dict[str, Any]]:
        """Rows of `results.csv` by column, with the lists that it leaves out."""
        asked, cluster = self.scenario, self.scenario.get("cluster", {})
        run = (
            asked.get("name"),
            _name(asked.get("model")),
            asked.get("seed"),
            ", ".join(str(_name(one["device"])) for one in cluster["groups"])
            if cluster.get("groups")
            else _name(cluster.get("device")),
            _name(cluster.get("network")),
        )
        return ({**dict(zip(RUN, run, strict=True)), **columns_of(row)} for row in self.rows)

    def to_frame(self) -> Any:
        """`pandas.DataFrame` of `results.csv`; `InputError` without pandas."""
        return frame(self.records(), self.columns())

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, sorted({row.nodes for row in self.rows})))
        methods = len({row.label for row in self.rows})
        best = fastest(self.rows)
        return (
            f"<gcsim.Result {self.scenario.get('name', 'scenario')}: methods {methods}, "
            f"nodes {sizes or 'none'}{f'; {best}' if best else ''}>"
        )


def known_to_target(rows: Iterable[Row]) -> bool:
    """Whether rows of one size are ranked by time to the target: known for dense and another."""
    return any(row.speedup_to_target is not None and row.compressor != DENSE for row in rows)


def estimate(row: Row) -> float | None:
    """Return the speedup by which a method is ranked: to the target, if known."""
    return row.speedup_vs_dense if row.speedup_to_target is None else row.speedup_to_target


def pace(row: Row) -> float:
    """Return the sort key of rows of one size: printed time to the target (or per iteration) over
    dense training's."""
    speedup = estimate(row)
    return row.iteration_s if speedup is None else 1 / speedup


def error_of(row: Row) -> float:
    """Return the NMSE; infinite if the update's scale is not the gradient's."""
    return math.inf if row.nmse is None else row.nmse


def fastest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Sort rows of one size by `pace`, NMSE and label; unknown times to the target come last."""
    found = tuple(rows)
    judged = known_to_target(found)

    def key(row: Row) -> tuple[bool, float, float, str]:
        return judged and row.speedup_to_target is None, pace(row), error_of(row), row.label

    return tuple(sorted(found, key=key))


def fastest(rows: Sequence[Row]) -> str:
    """Return the fastest method at the largest size, in words."""
    if not rows:
        return ""
    most = max(row.workers for row in rows)
    largest = [row for row in rows if row.workers == most]
    best = fastest_first(largest)[0]
    first = "first to the target" if known_to_target(largest) else "fastest"
    speedup = best.speedup_vs_dense
    against = "" if speedup is None else f", {speedup:.3g}x dense"
    return f"{first}: {best.label} ({best.iteration_s * 1e3:.3g} ms{against}) on {best.nodes} nodes"


def frame(records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """`pandas.DataFrame`; `InputError` without pandas."""
    try:
        import pandas
    except ImportError as error:
        problem = Problem(message="to_frame() needs pandas", hint="pip install 'gcsim[notebook]'")
        raise InputError(problem) from error
    return pandas.DataFrame(list(records), columns=list(columns))
