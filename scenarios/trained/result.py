"""Training under every method as plain values, as in `training.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gcsim.files import json_text
from gcsim.scenarios.result import Curve, Measure, frame, shown

SCHEMA = "gcsim training 1"
HALF = "fp16"
"""Compressor of the comparison beside dense training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRow:
    """One method on one cluster; tuples are by seed."""

    compressor: str
    label: str
    nodes: int
    workers: int
    learning_rate: float
    iteration_s: float | None
    """Mean over all steps; None if no training was finished."""
    speedup_per_iteration: float | None
    """Speedup over dense training per iteration."""
    wire_bytes_per_worker: float
    """Bytes given to collectives per step, mean over all steps."""
    steps_to_target: tuple[int | None, ...]
    """Steps by seed; None: not reached."""
    seconds_to_target: tuple[float | None, ...]
    steps_against_dense: float | None
    """Steps to target over dense's, median over seeds; None where half or more miss it."""
    speedup_to_target: float | None
    """Dense's seconds over the method's, median over seeds; None if half or more miss it."""
    speedup_to_target_low: float | None
    """10th percentile over drawn worlds, with a further seed (`bands.py`); 0 if a seed misses."""
    speedup_to_target_high: float | None
    """90th percentile; None: unbounded, where dense training may miss the target."""
    speedup_to_target_vs_half: float | None
    """`speedup_to_target` against half precision, if trained."""
    final_accuracy: tuple[float | None, ...]
    """Accuracy on held-out samples; None without classes."""
    final_loss: tuple[float, ...]
    ended: tuple[str, ...]
    """finished, diverged or hopeless."""
    why: tuple[str, ...]
    """Reasons of early ends."""
    rate_at_edge: bool = False
    """Whether the learning rate is the lowest or highest of several."""
    leads: bool = False
    """Whether it is the first at the target on its cluster, or not significantly slower; for dense
    training also whether no other is significantly faster. False with one seed."""
    p_as_dense: float | None = None
    """p-value for being as fast to the target as dense training (`bands.alike`), corrected for the
    number of methods; None: not reached."""
    p_as_first: float | None = None
    """p-value for being as fast as the first at the target, likewise."""
    untrained: str = ""
    """Reason why the training is inconclusive: it compressed in too few steps. Times and steps are
    then None; accuracies and losses are those of the warm-up."""
    delays: float | None = None
    """Whole gradients that the planned steps send (`horizon.py`); None: each step sends one."""
    too_short: str = ""
    """Reason why the training is too short. Steps and times to the target are then None."""
    goodput: float | None = None
    """Share of useful time with `training.failures`, as in a run; costs include it."""
    made: str = ""
    """Processor and libraries of shipped trajectories; "": trained here."""

    def final(self, measure: Measure) -> list[float]:
        """Return the loss, or the accuracy in percent, by seed."""
        return shown(measure, self.final_accuracy, self.final_loss)

    @property
    def reached(self) -> int:
        """Number of seeds that reach the target."""
        return sum(steps is not None for steps in self.steps_to_target)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingResult:
    """Rows in the scenario's order of methods, sizes ascending within each."""

    scenario: dict[str, Any]
    target: str
    """The target in words: "accuracy 0.95"."""
    measure: Measure
    """Measure of the target."""
    trained_workers: int
    """Number of workers that were trained; other cluster sizes use the same steps."""
    data: str
    """Training data in words."""
    rows: tuple[TrainedRow, ...]
    curves: tuple[Curve, ...]
    wall: dict[str, float]
    """Seconds of the stages; with `from_cache` the only difference between runs."""
    from_cache: tuple[str, ...] = ()
    """Methods whose trajectories were all in this machine's cache."""

    def document(self) -> dict[str, Any]:
        """Document of `training.json`."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self) -> str:
        """`training.json`, byte-identical per scenario and seed but for `wall` and `from_cache`."""
        return json_text(self.document())

    def to_frame(self) -> Any:
        """`pandas.DataFrame` of the rows; `InputError` without pandas."""
        records = [asdict(row) for row in self.rows]
        return frame(records, list(records[0]))

    def __repr__(self) -> str:
        labels = dict.fromkeys(row.label for row in self.rows)
        return (
            f"<gcsim.TrainingResult {self.scenario.get('name', 'scenario')}: "
            f"methods {len(labels)}, target {self.target}>"
        )
