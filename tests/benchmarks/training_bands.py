"""Count how many of 20 further seeds lie in the band that `gcsim train` states.

    python tests/benchmarks/training_bands.py [--seeds 20] [--only LABEL]

The twelve methods of `digits_8` come with three seeds; further ones are trained here with the same
learning rates, each with dense training of its own seed, the k-th in the k-th drawn world of the
largest cluster. The last column: what the bands of all threes of the further seeds hold of the
others, 80 % if they are right.
"""

import argparse
import itertools
from dataclasses import replace

import numpy as np

from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.bands import band, grain
from gcsim.scenarios.trained.pricing import Clock, clocks
from gcsim.scenarios.trained.runs import Run, plan_of
from gcsim.scenarios.trained.search import MethodTraining, train_all
from gcsim.scenarios.trained.study import ends_of, train
from gcsim.traces.training.trajectory import Trajectory


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", action="append", help="label of a method")
    asked = parser.parse_args()
    scenario = load_scenario("digits_8")
    assert scenario.dense is not None
    stated = {row.label: row for row in train(scenario).rows if row.nodes == 8}
    tried = train_all(scenario, progress=SilentProgress())
    dense = further(scenario, tried[scenario.dense], asked.seeds)
    print("| method | range stated | reached | held | by threes |\n|---|---:|---:|---:|---:|")
    for one in tried:
        row = stated[one.choice.label]
        if one.choice.kind == "none" or (asked.only and one.choice.label not in asked.only):
            continue
        if row.reached < len(row.ended):
            print(
                f"| {row.label} | {row.reached} of {len(row.ended)} reach the target | - | - | - |"
            )
            continue
        own = further(scenario, one, asked.seeds)
        (clock_dense, *_), (clock, *_) = sizes_reversed(scenario, dense, own)
        low, high = row.speedup_to_target_low or 0.0, row.speedup_to_target_high or 0.0
        pairs = zip(
            seconds(scenario, dense, clock_dense), seconds(scenario, own, clock), strict=True
        )
        gains = [a / b if b else 0.0 for a, b in pairs if a]
        inside = sum(low <= gain <= high for gain in gains)
        reached = sum(gain > 0 for gain in gains)
        print(
            f"| {row.label} | {low:.2f} to {high:.2f} | {reached} of {len(gains)} "
            f"| {inside} of {len(gains)} | {by_threes(scenario, gains, dense, own):.0%} |",
            flush=True,
        )


def by_threes(scenario: Scenario, gains: list[float], *tried: MethodTraining) -> float:
    """What share of the others the bands of all threes of these speedups hold, in the mean."""
    plan = plan_of(scenario)
    steps = [[end for end in ends_of(plan, one, float("nan")) if end] for one in tried]
    rough = grain(plan.evaluate_every, *(float(np.median(each)) for each in steps))
    known, shares = [gain for gain in gains if gain], []
    for three in itertools.combinations(range(len(known)), 3):
        low, high = band([np.array([known[k], known[k]]) for k in three], rough)
        others = [gain for k, gain in enumerate(known) if k not in three]
        shares.append(sum(low <= gain <= high for gain in others) / len(others))
    return float(np.mean(shares))


def further(scenario: Scenario, one: MethodTraining, seeds: int) -> MethodTraining:
    """A method with seeds behind those of the scenario."""
    plan = plan_of(scenario)
    found = []
    for seed in range(plan.seeds, plan.seeds + seeds):
        run = Run(scenario=scenario, choice=one.choice, rate=one.rate, seed=seed, until=plan.steps)
        known = run.known
        trained = known[0] if known else run.perform(SilentProgress())
        assert isinstance(trained, Trajectory), trained
        if not known:
            run.keep(trained)
        found.append(trained)
    return MethodTraining(choice=one.choice, rate=one.rate, trajectories=found)


def sizes_reversed(scenario: Scenario, *tried: MethodTraining) -> list[list[Clock]]:
    """Clocks by method, the largest cluster's first."""
    labels = {one.choice.label for one in tried}
    chosen = tuple(one for one in scenario.compressors if one.label in labels)
    ordered = sorted(tried, key=lambda one: [c.label for c in chosen].index(one.choice.label))
    found = clocks(replace(scenario, compressors=chosen), ordered, SilentProgress())
    by_label = {one.choice.label: clock[::-1] for one, clock in zip(ordered, found, strict=True)}
    return [by_label[one.choice.label] for one in tried]


def seconds(scenario: Scenario, one: MethodTraining, clock: Clock) -> list[float | None]:
    """Until the target, the k-th seed's in the k-th world; None: not reached."""
    ends = ends_of(plan_of(scenario), one, float("nan"))
    found: list[float | None] = []
    for number, (trajectory, steps) in enumerate(zip(one.trajectories, ends, strict=True)):
        if steps is None:
            found.append(None)
            continue
        place = [each.step for each in trajectory.evaluations].index(steps)
        drawn = clock.elapsed(trajectory, widened_draws=True)[place]
        found.append(float(drawn[number % len(drawn)]))
    return found


if __name__ == "__main__":
    main()
