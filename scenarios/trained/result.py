"""Training under every method as plain values, as they stand in `results.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gcsim.scenarios.result import Curve, Measure, frame, shown

SCHEMA = "gcsim training 1"
HALF = "fp16"
"""The compressor that is compared with beside dense training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRow:
    """One method on one cluster. What is of several seeds is by seed, in their order."""

    compressor: str
    label: str
    nodes: int
    workers: int
    learning_rate: float
    iteration_s: float | None
    """Mean over all steps that were trained; None where none was trained whole."""
    speedup_per_iteration: float | None
    """Against dense float32."""
    wire_bytes_per_worker: float
    """Handed to collectives in a step: mean over all steps."""
    steps_to_target: tuple[int | None, ...]
    """None: not reached."""
    seconds_to_target: tuple[float | None, ...]
    steps_against_dense: float | None
    """Median over seeds of steps to target, over dense's; None where half of the seeds or more
    do not reach it."""
    speedup_to_target: float | None
    """Dense's seconds over the method's: median over seeds; None as above."""
    speedup_to_target_low: float | None
    """10th percentile with a further seed, over drawn worlds (`bands.py`); 0 where a seed does not
    reach the target."""
    speedup_to_target_high: float | None
    """90th percentile; None: without bound, where dense training may not reach the target."""
    speedup_to_target_vs_half: float | None
    """`speedup_to_target` against half precision; None where that is not trained."""
    final_accuracy: tuple[float | None, ...]
    """On the samples that are held out; None where labels are no classes."""
    final_loss: tuple[float, ...]
    ended: tuple[str, ...]
    """finished, diverged or hopeless."""
    why: tuple[str, ...]
    """Reasons of early ends."""
    rate_at_edge: bool = False
    """Whether the learning rate is the lowest or the highest of several that were tried."""
    leads: bool = False
    """Whether it reaches the target first on its cluster, or is not told apart from the first: the
    range of its speedup over that reaches 1. Of dense training also: no other is told apart from
    it as faster."""
    untrained: str = ""
    """Why nothing is known of the method, though steps were trained: it compressed in too few of
    them. Times and steps are None then; accuracies and losses are those of the warm-up."""
    made: str = ""
    """Processor and libraries of shipped trajectories; "": trained here."""

    def final(self, measure: Measure) -> list[float]:
        """Loss, or accuracy in percent, by seed."""
        return shown(measure, self.final_accuracy, self.final_loss)

    @property
    def reached(self) -> int:
        """Seeds with which the target is reached."""
        return sum(steps is not None for steps in self.steps_to_target)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingResult:
    """Rows in the scenario's order of methods, sizes ascending within each."""

    scenario: dict[str, Any]
    target: str
    """For people: "accuracy 0.95"."""
    measure: Measure
    """Measure of the target."""
    trained_workers: int
    """Workers of the trajectories; other sizes have their steps."""
    data: str
    """Training data, for people."""
    rows: tuple[TrainedRow, ...]
    curves: tuple[Curve, ...]
    wall: dict[str, float]
    """Seconds that the stages took; with `from_cache` the only part that differs between runs."""
    from_cache: tuple[str, ...] = ()
    """Labels of the methods whose trajectories were all trained here before."""

    def document(self) -> dict[str, Any]:
        """Document of `training.json`."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self) -> str:
        """`training.json`: the same bytes for the same scenario and seed, apart from `wall` and
        `from_cache`."""
        return json.dumps(self.document(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def to_frame(self) -> Any:
        """A `pandas.DataFrame` of the rows. Raises `InputError` where pandas is not installed."""
        records = [asdict(row) for row in self.rows]
        return frame(records, list(records[0]))

    def __repr__(self) -> str:
        labels = dict.fromkeys(row.label for row in self.rows)
        return (
            f"<gcsim.TrainingResult {self.scenario.get('name', 'scenario')}: "
            f"methods {len(labels)}, target {self.target}>"
        )
