"""How did training with a run's methods end, where that is known? Nothing is trained for it.

A run's rows are about iterations. Where the scenario says how to train, and trajectories of a
method are there, from `gcsim train` or with gcsim, its rows say whether it reached the target, and
in how many times the steps of dense training. Its seconds are those steps at the row's own time an
iteration; of a method that sends other bytes over its training than in the few steps of a run (a
variance falls, a threshold settles), each window of its trajectories is priced instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.result import Curve, Result, Row, Trained
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.pricing import Clock, clocks
from gcsim.scenarios.trained.runs import plan_of, unsupported
from gcsim.scenarios.trained.search import Tried, known_of
from gcsim.scenarios.trained.study import (
    curve_of,
    dense_level,
    described,
    ends_of,
    measured,
    mostly,
    steps_ratio,
    until,
)
from gcsim.traces.training.trajectory import Trajectory

OTHER = 0.1
"""By so large a share bytes over a training must differ from a run's to be priced."""


def with_trained(scenario: Scenario, result: Result) -> Result:
    """The result with what is known of training in its rows, its provenance and its curves."""
    if scenario.train is None or scenario.dense is None or unsupported(scenario):
        return result
    plan = plan_of(scenario)
    label = scenario.compressors[scenario.dense].label
    found = {one.choice.label: one for one in _trained(scenario)}
    if not found:
        return result
    priced = _priced(scenario, result, found)
    curves = _curves(scenario, result, found, priced)
    result = replace(result, trained=Trained(measure=measured(plan.target), curves=curves))
    dense = found.get(label)
    if dense is None:
        return result
    level = dense_level(dense)
    base = ends_of(plan, dense, level)
    if not mostly(base):
        return result
    ends = {label: ends_of(plan, one, level) for label, one in found.items()}
    iteration = {row.nodes: row.iteration_s for row in result.rows if row.label == label}
    rows = []
    for row in result.rows:
        if row.label not in ends:
            rows.append(row)
            continue
        own = ends[row.label]
        known = _with(row, own, steps_ratio(own, base))
        if row.label in priced:
            clock = priced[row.label][scenario.node_counts.index(row.nodes)]
            before = [math.inf if n is None else n * iteration[row.nodes] for n in base]
            known = _over_its_training(known, found[row.label], own, clock, before)
        rows.append(known)
    told = {
        "target": described(plan.target, level),
        "workers": plan.workers,
        "seeds": plan.seeds,
        "trained_on": {label: one.made or "here" for label, one in found.items()},
    }
    return replace(result, rows=tuple(rows), provenance={**result.provenance, "training": told})


def _trained(scenario: Scenario) -> list[Tried]:
    every = (known_of(scenario, choice) for choice in scenario.compressors)
    return [one for one in every if one is not None and not one.untrained]


def _curves(
    scenario: Scenario,
    result: Result,
    found: Mapping[str, Tried],
    priced: Mapping[str, Sequence[Clock]],
) -> tuple[Curve, ...]:
    """On the clock of the largest cluster."""
    most = max(scenario.node_counts)
    took = {row.label: row.iteration_s for row in result.rows if row.nodes == most}

    def seconds(label: str, trajectory: Trajectory) -> Iterable[float]:
        if label in priced:
            return priced[label][scenario.node_counts.index(most)].elapsed(trajectory)
        return [one.step * took[label] for one in trajectory.evaluations]

    return tuple(
        curve_of(one, trajectory, seconds(label, trajectory))
        for label, one in found.items()
        for trajectory in one.trajectories
    )


def _with(row: Row, ends: list[int | None], steps: float | None) -> Row:
    speedup = row.speedup_vs_dense
    return replace(
        row,
        seeds_trained=len(ends),
        seeds_at_target=sum(one is not None for one in ends),
        steps_to_target_vs_dense=steps,
        speedup_to_target=speedup / steps if speedup and steps else None,
    )


def _priced(
    scenario: Scenario, result: Result, found: Mapping[str, Tried]
) -> dict[str, list[Clock]]:
    """By size of the cluster: of methods that send other bytes over their training."""
    sent = {row.label: row.wire_bytes_per_worker for row in result.rows}
    others = [
        one
        for label, one in found.items()
        if abs(one.wire_bytes_per_worker - sent[label]) > OTHER * sent[label]
    ]
    if not others:
        return {}
    each = clocks(replace(scenario, draws=0), others, SilentProgress())
    return {one.choice.label: clock for one, clock in zip(others, each, strict=True)}


def _over_its_training(
    row: Row, one: Tried, ends: list[int | None], clock: Clock, before: list[float]
) -> Row:
    """With what it sends over its training; `before` are dense training's seconds, by seed."""
    after = [float(until(t, n, clock)[0]) for t, n in zip(one.trajectories, ends, strict=True)]
    gains = [a / b if b and math.isfinite(b) else 0.0 for a, b in zip(before, after, strict=True)]
    return replace(
        row,
        wire_bytes_over_training=one.wire_bytes_per_worker,
        speedup_to_target=statistics.median(gains) if mostly(ends) else None,
    )
