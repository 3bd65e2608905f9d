"""Notes of a run on training, if trajectories of its methods are known."""

from __future__ import annotations

from gcsim.analysis.report.numbers import plural, significant, times
from gcsim.analysis.report.selection import Verdict
from gcsim.analysis.report.wording import steps_as_dense
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.result import Result, Row, estimate
from gcsim.scenarios.trained.horizon import DELAY, inconclusive
from gcsim.scenarios.trained.shipped_tasks import TaskOutcome, on_shipped_tasks
from gcsim.simulator.training import DENSE


def training_notes(result: Result, found: Verdict) -> list[str]:
    """Return whether the method to try reaches the target and which method is first; if the
    scenario states no training, how the method did on the shipped tasks."""
    facts = result.provenance.get("training")
    if not facts:
        return _on_shipped_tasks(result, found.to_try or found.safe)
    short = facts.get("too_short", {})
    too_short = inconclusive(short.items())
    if facts["seeds"] == 1:
        alone = "One training seed cannot separate the methods: iterations are compared."
        return [alone, *too_short]
    if not found.until_target:
        return []
    best, sentences = found.to_try, []
    if best is not None and best.steps_to_target_vs_dense is not None:
        sentences.append(
            f"In training, {best.label} reached {facts['target']} in "
            f"{steps_as_dense(best.steps_to_target_vs_dense)}."
        )
    if not any(row.speedups_to_target and (estimate(row) or 0) > 1 for row in found.rows):
        sentences.append(f"No trained method reaches {facts['target']} before dense training.")
    quick = max(found.rows, key=lambda row: row.speedup_vs_dense or 0.0)
    if quick is not best and quick is not found.dense:
        end = "and was not trained"
        if quick.label in short:
            end = "and is inconclusive"
        if quick.seeds_trained is not None:
            seeds = f"{quick.seeds_at_target} of {quick.seeds_trained} seeds"
            end = f"and reached the target with {seeds}"
        if quick.speedup_to_target is not None:
            longer = significant(1 / quick.speedup_to_target)
            end = f"but takes {longer} times as long to reach the target"
        speedup = times(quick.speedup_vs_dense or 0.0)
        sentences.append(f"{quick.label} has the fastest iteration ({speedup}) {end}.")
    others = [row.label for row in found.not_trained if row is not quick and row.label not in short]
    sentences += [f"Not trained: {', '.join(others)}."] if others else []
    return [*sentences, *too_short]


def _on_shipped_tasks(result: Result, row: Row | None) -> list[str]:
    """Return a sentence on how a method trained; inconclusive tasks are named only if all are."""
    if row is None or row.compressor == DENSE:
        return []
    steps = result.scenario.get("training", {}).get("local_steps", 1)
    if steps > 1:
        return [f"No training with {steps} local steps comes with gcsim."]
    entries = result.scenario.get("compressors", ())
    own = next((one for one in entries if one.get("label") == row.label), {"kind": row.compressor})
    found = on_shipped_tasks(row.compressor, implementations.parameters(own))
    if not found:
        return [f"No training with {row.label} comes with gcsim."]
    conclusive = [one for one in found if not one.too_short]
    shown, others = conclusive or found, " with other parameters"
    own = any(one.same for one in shown)
    name = row.label if own else f"{row.compressor}{others}"
    ends = [_ended(one, others if own and not one.same else "") for one in shown]
    said = [f"{name} on the shipped tasks: {'; '.join(ends)}."]
    return said if conclusive else [*said, DELAY]


def _ended(one: TaskOutcome, others: str) -> str:
    """ "digits_8 (momentum SGD) needs 1.07 times as many steps as dense (3 of 3 seeds at accuracy
    0.97)" """
    task = f"{one.task} ({one.optimizer}){others}"
    if one.too_short:
        return f"{task} is inconclusive ({one.too_short})"
    steps = one.steps_vs_dense
    ended = "misses its target" if steps is None else f"needs {steps_as_dense(steps)}"
    return f"{task} {ended} ({one.reached} of {one.seeds} seeds at {one.target})"


def trained_note(result: Result) -> str:
    """Return a note on the training behind the columns."""
    facts = result.provenance["training"]
    here = sum(origin == "here" for origin in facts["trained_on"].values())
    origin = "shipped with gcsim" if not here else "trained here"
    if 0 < here < len(facts["trained_on"]):
        origin = f"shipped with gcsim, {here} trained here"
    said = (
        f"steps: number to {facts['target']} over dense training's; to target: speedup "
        f"over steps; median of {plural(facts['seeds'], 'seed')} with "
        f"{plural(facts['workers'], 'worker')} ({origin}); -: not trained, or not reached."
    )
    most = max(row.nodes for row in result.rows)
    changing = [row for row in result.rows if row.nodes == most and row.wire_bytes_over_training]
    for row in changing:
        sent = (row.wire_bytes_over_training or 0.0) / 1e6
        said += (
            f" Over the whole training {row.label} sends {sent:.3g} MB per step, not the "
            f"{row.wire_bytes_per_worker / 1e6:.3g} of this table; to target includes that."
        )
    return said
