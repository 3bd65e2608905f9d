"""Known results of training with a run's methods, without training.

If the scenario says how to train, and trajectories of a method exist, its rows say whether it
reached the target, and in how many steps relative to dense training (with a single seed only that).
Seconds are these steps times the row's iteration. If a method sends other bytes over its training
than in a run's few steps (a variance falls, a threshold settles), each window of its trajectories
is priced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.result import Curve, Result, Row, Trained
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sweeps.tasks import Judge
from gcsim.scenarios.trained import study
from gcsim.scenarios.trained.bands import grain, target_speed_ratio
from gcsim.scenarios.trained.pricing import Clock, clocks
from gcsim.scenarios.trained.runs import plan_of, unsupported
from gcsim.scenarios.trained.search import MethodTraining, known_of
from gcsim.scenarios.uncertainty.ranges import interval
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.luck import as_probability
from gcsim.traces.tasks import folder
from gcsim.traces.training.trajectory import Trajectory

_NEVER = 1e12  # steps of dense training to a target that it misses
OTHER = 0.1  # relative difference of bytes from which trajectories are priced


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTrainings:
    """Known trainings of a scenario, by label of the method."""

    found: Mapping[str, MethodTraining]
    too_short: Mapping[str, str]
    """Reasons why other trainings are inconclusive, by label."""
    level: float
    """Dense training's last accuracy; nan without it."""
    ends: Mapping[str, list[int | None]]
    """Steps to the target by seed, of `found`."""


def with_training_results(
    scenario: Scenario,
    result: Result,
    known: KnownTrainings | None = None,
    prices: PriceList | None = None,
) -> Result:
    """Add training outcomes to a result's rows, provenance and curves; `known` and `prices`, of the
    scenario and its device, are used if given."""
    if scenario.train is None or scenario.dense is None or unsupported(scenario):
        return result
    plan = plan_of(scenario)
    label = scenario.compressors[scenario.dense].label
    known = known or known_trainings(scenario)
    found, ends = known.found, known.ends
    if not found:
        return result
    priced = _priced(scenario, result, found, prices)
    curves = _curves(scenario, result, found, priced)
    result = replace(result, trained=Trained(measure=study.measured(plan.target), curves=curves))
    base = ends.get(label)
    if base is None or not study.mostly(base):
        return result
    uncompressed = {row.nodes: row for row in result.rows if row.label == label}
    rows = []
    for row in result.rows:
        if row.label not in ends:
            rows.append(row)
            continue
        own = ends[row.label]
        with_steps = _with(row, own, base, plan.evaluate_every)
        if row.label in priced:
            clock = priced[row.label][scenario.node_counts.index(row.nodes)]
            before = uncompressed[row.nodes]
            by_seed = list(zip(own, base, strict=True))
            with_steps = _over_its_training(with_steps, found[row.label], by_seed, clock, before)
        rows.append(with_steps)
    reached = {row.nodes: row for row in rows if row.label == label}
    rows = [_with_range(row, reached[row.nodes]) for row in rows]
    steps = float(np.median([_NEVER if one is None else one for one in base]))
    rows = [_with_cost(row, reached[row.nodes], steps) for row in rows]
    told = {
        "target": study.described(plan.target, known.level),
        "workers": plan.workers,
        "seeds": plan.seeds,
        "too_short": dict(known.too_short),
        "trained_on": {label: one.made or "here" for label, one in found.items()},
    }
    return replace(result, rows=tuple(rows), provenance={**result.provenance, "training": told})


class TrainingJudge(Judge):
    """Known trainings of a sweep's points; equal trainings' trajectories are read once."""

    def __init__(self) -> None:
        self._known: dict[str, KnownTrainings] = {}

    def facts(self, scenario: Scenario) -> list[Any]:
        """Return the facts that identify a point's trajectories."""
        found = {} if scenario.train is None else self._of(scenario).found
        return [(label, one.rate, one.made) for label, one in found.items()]

    def judged(self, scenario: Scenario, result: Result, prices: PriceList) -> Result:
        """Return `with_training_results` of a point."""
        if scenario.train is None:
            return result
        return with_training_results(scenario, result, self._of(scenario), prices)

    def _of(self, scenario: Scenario) -> KnownTrainings:
        asked = repr([getattr(scenario, name) for name in _TRAINING])
        if asked not in self._known:
            self._known[asked] = known_trainings(scenario)
        return self._known[asked]


_TRAINING = (
    "model", "batch_size", "buckets", "training", "compressors", "seed",
    "train", "train_task", "train_loss",
)  # fmt: skip
"""Fields of a scenario that its trajectories depend on."""


def known_trainings(scenario: Scenario) -> KnownTrainings:
    """Return the known trainings of a scenario, except those that compress in too few steps."""
    folder.forget()
    plan, every = (
        plan_of(scenario),
        {one.label: known_of(scenario, one) for one in scenario.compressors},
    )
    able = {label: one for label, one in every.items() if one is not None and not one.untrained}
    too_short = {label: why for label, one in able.items() if (why := one.too_short)}
    found = {label: one for label, one in able.items() if label not in too_short}
    dense = (
        None if scenario.dense is None else found.get(scenario.compressors[scenario.dense].label)
    )
    level = math.nan if dense is None else study.dense_level(dense)
    ends = {label: study.ends_of(plan, one, level) for label, one in found.items()}
    return KnownTrainings(found=found, too_short=too_short, level=level, ends=ends)


def _curves(
    scenario: Scenario,
    result: Result,
    found: Mapping[str, MethodTraining],
    priced: Mapping[str, Sequence[Clock]],
) -> tuple[Curve, ...]:
    """Return the curves in seconds on the largest cluster."""
    most = max(scenario.node_counts)
    took = {row.label: row.iteration_s for row in result.rows if row.nodes == most}

    def seconds(label: str, trajectory: Trajectory) -> Iterable[float]:
        if label in priced:
            clock = priced[label][scenario.node_counts.index(most)]
            return np.median(clock.elapsed(trajectory), axis=1).tolist()  # type: ignore[no-any-return]
        return [one.step * took[label] for one in trajectory.evaluations]

    return tuple(
        study.curve_of(one, trajectory, seconds(label, trajectory))
        for label, one in found.items()
        for trajectory in one.trajectories
    )


def _with(row: Row, own: list[int | None], base: list[int | None], every: int) -> Row:
    """Add steps to the target to a row; `own`, `base`: the method's and dense training's by seed,
    evaluated every `every` steps."""
    steps = study.steps_ratio(own, base)
    known = replace(
        row,
        seeds_trained=len(own),
        seeds_at_target=sum(one is not None for one in own),
        steps_to_target_vs_dense=steps,
    )
    if not steps or row.speedup_vs_dense is None or len(own) == 1:  # a single seed is inconclusive
        return known
    pairs = zip(own, base, strict=True)
    gains = [0.0 if a is None else max(_NEVER if b is None else b, 1) / max(a, 1) for a, b in pairs]
    middle = float(np.median([a for a in own if a is not None]))
    return _gaining(
        replace(known, steps_to_target_error=grain(every, middle) if middle else 0.0),
        [row.speedup_vs_dense * gain for gain in gains],
    )


def _gaining(row: Row, by_seed: Sequence[float]) -> Row:
    middle = float(np.median(by_seed))
    return replace(row, speedups_to_target=tuple(by_seed), speedup_to_target=middle)


def _with_range(row: Row, dense: Row) -> Row:
    if row is dense or not row.speedups_to_target or not dense.speedups_to_target:
        return row
    draws = target_speed_ratio(row, dense)
    low, high = interval(draws)
    return replace(
        row,
        speedup_to_target_low=float(low),
        speedup_to_target_high=float(high) if math.isfinite(high) else None,
        probability_pays_to_target=as_probability(np.mean(draws > 1)),
    )


def _with_cost(row: Row, dense: Row, steps: float) -> Row:
    """Add the cost to the target, given dense training's steps."""
    if dense.cost_per_1000_iterations is None or not row.speedup_to_target:
        return row
    cost = dense.cost_per_1000_iterations * steps / 1000 / row.speedup_to_target
    return replace(row, cost_to_target=cost)


def _priced(
    scenario: Scenario,
    result: Result,
    found: Mapping[str, MethodTraining],
    prices: PriceList | None,
) -> dict[str, list[Clock]]:
    """Return clocks by cluster size, for methods whose traffic changes over their training."""
    sent = {row.label: row.wire_bytes_per_worker for row in result.rows}
    others = [
        one
        for label, one in found.items()
        if abs(one.wire_bytes_per_worker - sent[label]) > OTHER * sent[label]
    ]
    if not others:
        return {}
    each = clocks(scenario, others, SilentProgress(), prices)
    return {one.choice.label: clock for one, clock in zip(others, each, strict=True)}


def _over_its_training(
    row: Row,
    one: MethodTraining,
    ends: Sequence[tuple[int | None, int | None]],
    clock: Clock,
    dense: Row,
) -> Row:
    """Return the row by its training's traffic; `ends`: its steps and dense training's, by seed."""
    row = replace(row, wire_bytes_over_training=one.wire_bytes_per_worker)
    if row.speedup_to_target is None:
        return row
    gains = []
    for trajectory, (own, steps) in zip(one.trajectories, ends, strict=True):
        before = (_NEVER if steps is None else steps) * dense.iteration_s
        after = np.median(study.until(trajectory, own, clock)[0])
        gains.append(float(study.gained(np.array(before), after)))
    return _gaining(row, gains)
