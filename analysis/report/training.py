"""What does a run say of training, where trajectories of its methods are known?"""

from __future__ import annotations

from gcsim.analysis.report.numbers import plural, times
from gcsim.analysis.report.selection import Verdict
from gcsim.scenarios.result import Result, Row


def trained(result: Result, found: Verdict) -> list[str]:
    """Whether the method to try gets to the target, and which is there first."""
    facts = result.provenance.get("training")
    gained = [row for row in found.rows if row.speedup_to_target is not None]
    if not facts or not gained:
        return []
    best = found.to_try
    sentences = []
    if best is not None and best.steps_to_target_vs_dense is not None:
        sentences.append(
            f"Trained, {best.label} reached {facts['target']} in "
            f"{times(best.steps_to_target_vs_dense)} the steps of dense training: "
            f"{times(best.speedup_to_target or 0.0)} as fast until then."
        )
    first = max(gained, key=_gain)
    if first is found.dense:
        sentences.append(f"Nothing known reaches {facts['target']} before dense training.")
    elif first is not best:
        sentences.append(
            f"First at {facts['target']}: {first.label}, {times(_gain(first))} as fast as dense "
            f"training, in {times(first.steps_to_target_vs_dense or 0.0)} its steps."
        )
    return sentences


def trained_note(result: Result) -> str:
    """What the columns of training are of."""
    facts = result.provenance["training"]
    here = sum(origin == "here" for origin in facts["trained_on"].values())
    origin = "shipped with gcsim" if not here else "trained here"
    if 0 < here < len(facts["trained_on"]):
        origin = f"shipped with gcsim, {here} trained here"
    said = (
        f"steps: until {facts['target']}, over those of dense training; to target: speedup over "
        f"steps; median of {plural(facts['seeds'], 'seed')} with "
        f"{plural(facts['workers'], 'worker')} ({origin}); -: not trained, or not reached."
    )
    most = max(row.nodes for row in result.rows)
    changing = [row for row in result.rows if row.nodes == most and row.wire_bytes_over_training]
    for row in changing:
        sent = (row.wire_bytes_over_training or 0.0) / 1e6
        said += (
            f" Over its training {row.label} sends {sent:.3g} MB a step, not the "
            f"{row.wire_bytes_per_worker / 1e6:.3g} of this table: to target counts that."
        )
    return said


def _gain(row: Row) -> float:
    return row.speedup_to_target or 0.0
