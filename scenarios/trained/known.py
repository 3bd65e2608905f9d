"""How did training with a run's methods end, where that is known? Nothing is trained for it.

A run's rows are about iterations. Where the scenario says how to train, and trajectories of a
method are there, from `gcsim train` or with gcsim, its rows say whether it reached the target, and
in how many times the steps of dense training. Its seconds are those steps at the row's own time an
iteration; of methods whose bytes change as they train, `gcsim train` prices each window.
"""

from __future__ import annotations

from dataclasses import replace

from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.runs import plan_of
from gcsim.scenarios.trained.search import Tried, known_of
from gcsim.scenarios.trained.study import dense_level, described, ends_of, mostly, steps_ratio


def with_trained(scenario: Scenario, result: Result) -> Result:
    """The result with what is known of training in its rows and its provenance."""
    if scenario.train is None or scenario.dense is None:
        return result
    plan = plan_of(scenario)
    dense = known_of(scenario, scenario.compressors[scenario.dense])
    if dense is None:
        return result
    level = dense_level(dense)
    base = ends_of(plan, dense, level)
    if not mostly(base):
        return result
    found = {one.choice.label: one for one in _others(scenario)}
    ends = {label: ends_of(plan, one, level) for label, one in found.items()}
    rows = tuple(
        _with(row, ends[row.label], steps_ratio(ends[row.label], base))
        if row.label in ends
        else row
        for row in result.rows
    )
    told = {
        "target": described(plan.target, level),
        "workers": plan.workers,
        "seeds": plan.seeds,
        "trained_on": {label: one.made or "here" for label, one in found.items()},
    }
    return replace(result, rows=rows, provenance={**result.provenance, "training": told})


def _others(scenario: Scenario) -> list[Tried]:
    every = (known_of(scenario, choice) for choice in scenario.compressors)
    return [one for one in every if one is not None]


def _with(row: Row, ends: list[int | None], steps: float | None) -> Row:
    speedup = row.speedup_vs_dense
    return replace(
        row,
        seeds_trained=len(ends),
        seeds_at_target=sum(one is not None for one in ends),
        steps_to_target_vs_dense=steps,
        speedup_to_target=speedup / steps if speedup and steps else None,
    )
