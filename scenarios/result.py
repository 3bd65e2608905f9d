"""The result of a run: plain values, as they stand in `results.json` (schema 2)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One compressor at one cluster size. Times are means over whole periods of the method, and,
    where iterations differ, over as many of them as the scenario's `training` says."""

    compressor: str
    label: str
    nodes: int
    workers: int
    iteration_s: float
    """input + forward + backward + encode + exposed communication + decode + optimizer, on the
    slowest worker."""
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
    """Iteration time of `none` over this one's, at the same size; None without a dense row."""
    scaling_efficiency: float
    """Throughput over that of as many single devices, each training alone without compression."""
    wire_bytes_per_worker: float
    """Bytes that one worker hands to its collectives in an iteration."""
    compression_ratio: float
    """Dense float32 gradient over `wire_bytes_per_worker`."""
    nmse: float | None
    """|update - dense update|^2 / |dense update|^2: mean over `steps_run`. None for methods whose
    update does not tell the gradient's magnitude (signs): their scale is the learning rate's."""
    cosine_similarity: float
    """Of the update and the dense one: mean over `steps_run`."""
    steps_run: int
    """Training steps that the compressor was run for, from empty memories."""
    memory: str
    """What the method keeps from step to step; "none" when every step stands alone."""
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
    algorithms: str = ""
    """Titles of the collective algorithms that carried the traffic, joined with "; "."""
    iteration_fastest_s: float | None = None
    """The shortest that `iteration_s` may be, for all that is known of the device: over the ends
    of the ranges of its coefficients (`corners.py`). None, as the following, where nothing that is
    needed of the device has a range."""
    iteration_slowest_s: float | None = None
    """The longest."""
    speedup_lowest: float | None = None
    """The smallest that `speedup_vs_dense` may be: both methods on the same device."""
    speedup_highest: float | None = None
    """The largest."""
    over_fastest_lowest: float | None = None
    """Iteration over that of the method with the shortest `iteration_s` at this size: the smallest
    on any device within the ranges that was tried. Below 1 this method may be the fastest; None
    for that method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that happened on one resource of one rank in a sample iteration."""

    rank: int
    resource: str
    """input, compute, encode, network or decode."""
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A sample iteration of one compressor at the largest size."""

    compressor: str
    label: str
    nodes: int
    phase: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Rows in the scenario's order of compressors, sizes ascending within each."""

    scenario: dict[str, Any]
    provenance: dict[str, Any]
    rows: tuple[Row, ...]
    wall: dict[str, float]
    """Seconds that the stages of this run took; the only part that differs between runs."""
    timelines: tuple[Timeline, ...] = field(default=(), repr=False)

    def to_json(self) -> str:
        """`results.json`: byte-identical for the same scenario and seed, apart from `wall`."""
        document = {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "provenance": self.provenance,
            "rows": [asdict(row) for row in self.rows],
            "wall": self.wall,
        }
        return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @staticmethod
    def columns() -> tuple[str, ...]:
        """Column names of `results.csv`."""
        return tuple(entry.name for entry in fields(Row))
