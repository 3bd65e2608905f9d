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
    """Mean over all trained steps, if any was trained whole."""
    speedup_per_iteration: float | None
    """Against dense training."""
    wire_bytes_per_worker: float
    """Handed to collectives per step, mean over all steps."""
    steps_to_target: tuple[int | None, ...]
    """None: not reached."""
    seconds_to_target: tuple[float | None, ...]
    steps_against_dense: float | None
    """Steps to target over dense's, median over seeds; None where half or more miss it."""
    speedup_to_target: float | None
    """Dense's seconds over the method's, median over seeds; None as above."""
    speedup_to_target_low: float | None
    """10th percentile over drawn worlds, with a further seed (`bands.py`); 0 if a seed misses."""
    speedup_to_target_high: float | None
    """90th percentile; None: unbounded, where dense training may miss the target."""
    speedup_to_target_vs_half: float | None
    """`speedup_to_target` against half precision, if trained."""
    final_accuracy: tuple[float | None, ...]
    """On held-out samples; None without classes."""
    final_loss: tuple[float, ...]
    ended: tuple[str, ...]
    """finished, diverged or hopeless."""
    why: tuple[str, ...]
    """Reasons of early ends."""
    rate_at_edge: bool = False
    """Whether the learning rate is the lowest or highest of several."""
    leads: bool = False
    """Whether it is first at the target on its cluster, or not told apart from the first; of dense
    training also, whether no other is told apart as faster. False with one seed."""
    p_as_dense: float | None = None
    """p-value of reaching the target when dense training does (`bands.alike`), corrected for the
    number of methods; None: not reached."""
    p_as_first: float | None = None
    """The same of the first at the target."""
    untrained: str = ""
    """Reason why training tells nothing: it compressed in too few steps. Times and steps
    are None then; accuracies and losses are the warm-up's."""
    delays: float | None = None
    """Whole gradients that the planned steps send (`horizon.py`); None: each step sends one."""
    too_short: str = ""
    """Reason why these steps are too few to tell. Steps and times to the target are None then."""
    made: str = ""
    """Processor and libraries of shipped trajectories; "": trained here."""

    def final(self, measure: Measure) -> list[float]:
        """Loss, or accuracy in percent, by seed."""
        return shown(measure, self.final_accuracy, self.final_loss)

    @property
    def reached(self) -> int:
        """Seeds that reach the target."""
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
    """Workers of the trajectories, whose steps other sizes have."""
    data: str
    """Training data in words."""
    rows: tuple[TrainedRow, ...]
    curves: tuple[Curve, ...]
    wall: dict[str, float]
    """Seconds of the stages; with `from_cache` the only difference between runs."""
    from_cache: tuple[str, ...] = ()
    """Methods whose trajectories had all been trained here."""

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
