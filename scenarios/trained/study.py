"""`gcsim train`: from a scenario to how long training takes until the target, with every method.

    scenario ─► trajectories (real training, cached) ─► windows of bytes ─┐
                                                                          ├─► seconds to target
    devices, links, sizes ──► simulated cluster (stage 2) ◄───────────────┘

Another network, device or size re-uses the trajectories. Clusters of other sizes than the
trajectories' number of workers have their steps: the batch a worker is kept, and what more workers
would change of the mathematics is not simulated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from gcsim.errors import InputError, Problem
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.pricing import Clock, clocks
from gcsim.scenarios.trained.result import HALF, Curve, TrainedRow, TrainingResult
from gcsim.scenarios.trained.runs import plan_of
from gcsim.scenarios.trained.search import Tried, train_all
from gcsim.traces.training.plan import Plan, Target
from gcsim.traces.training.trajectory import Trajectory, steps_to

LOW, HIGH = 10, 90
"""Percentiles over seeds and drawn worlds."""


def train(
    scenario: Scenario, *, jobs: int | None = None, progress: Progress | None = None
) -> TrainingResult:
    """Train with every method, and lay the trajectories on the clock of every cluster.

    `jobs` processes train side by side; as many as cores, or as have room in memory, when None.
    What was trained before is found in the cache; an interrupt loses some seconds of each.
    Raises `InputError` where the scenario names no dense method, the target is not reached by
    dense training, or a method, the model or the data cannot be trained with.
    """
    watcher = progress or SilentProgress()
    plan = plan_of(scenario)
    if scenario.dense is None:
        raise InputError(
            Problem(
                place="compressors",
                message="nothing to compare with: dense training is not among them",
                hint="add - none",
            )
        )
    started = time.perf_counter()
    tried = train_all(scenario, jobs=jobs, progress=watcher)
    trained = time.perf_counter()
    dense = tried[scenario.dense]
    level = _dense_level(dense)
    _check_target(plan, dense, level)
    timed = clocks(scenario, tried, watcher)
    half = next((n for n, one in enumerate(tried) if one.choice.kind == HALF), None)
    rows = [
        _row(scenario, plan, tried, timed, (method, scenario.dense, half), size, level)
        for method in range(len(tried))
        for size in range(len(scenario.node_counts))
    ]
    return TrainingResult(
        scenario=scenario.resolved,
        target=described(plan.target, level),
        trained_workers=plan.workers,
        data=dense.trajectories[0].data,
        rows=tuple(rows),
        curves=tuple(
            _curve(one, trajectory, of_sizes[-1])
            for one, of_sizes in zip(tried, timed, strict=True)
            for trajectory in one.trajectories
        ),
        wall={
            "training_s": trained - started,
            "simulation_s": time.perf_counter() - trained,
        },
    )


def described(target: Target, dense_accuracy: float) -> str:
    """A target, for people."""
    if target.loss is not None:
        return f"loss {target.loss:g}"
    if target.accuracy is not None:
        return f"accuracy {target.accuracy:g}"
    share = target.of_dense or 1.0
    return f"accuracy {share * dense_accuracy:.4g} ({share:g} of dense)"


def _dense_level(dense: Tried) -> float:
    """Dense training's last accuracy, median over seeds."""
    return float(np.median([one.evaluations[-1].accuracy for one in dense.trajectories]))


def _check_target(plan: Plan, dense: Tried, level: float) -> None:
    reached = [
        steps_to(plan.target, one.evaluations, plan.patience, level) for one in dense.trajectories
    ]
    if sum(steps is not None for steps in reached) * 2 > len(reached):
        return
    if all(one.ended == "diverged" for one in dense.trajectories):
        why = dense.trajectories[0].why
        message = f"dense training diverged at a learning rate of {dense.rate:g}: {why}"
        hint = "lower train.learning_rate"
    else:
        best = [max(e.accuracy for e in one.evaluations) for one in dense.trajectories]
        loss = [min(e.loss for e in one.evaluations) for one in dense.trajectories]
        got = f"a loss of {np.median(loss):.3g}" if plan.target.loss else f"{np.median(best):.3g}"
        message = f"dense training reached {got} in {plan.steps} steps, not {_asked(plan.target)}"
        hint = "lower the target, or raise train.steps"
    raise InputError(Problem(place="train.target", message=message, hint=hint))


def _asked(target: Target) -> str:
    if target.loss is not None:
        return f"{target.loss:g}"
    if target.accuracy is not None:
        return f"an accuracy of {target.accuracy:g}"
    return f"{target.of_dense:g} of its last accuracy for good"


def _row(  # noqa: PLR0917 - all that a row is of
    scenario: Scenario,
    plan: Plan,
    tried: Sequence[Tried],
    timed: Sequence[Sequence[Clock]],
    numbers: tuple[int, int, int | None],
    size: int,
    level: float,
) -> TrainedRow:
    """`numbers` are those of the method, of dense training and of half precision."""
    method, dense, half = numbers
    one, clock = tried[method], timed[method][size]

    def steps(number: int) -> list[int | None]:
        return [
            steps_to(plan.target, found.evaluations, plan.patience, level)
            for found in tried[number].trajectories
        ]

    def seconds(number: int) -> list[np.ndarray]:
        """By seed: until the target, as stated and in each world; infinite: not reached."""
        return [
            _until(found, at, timed[number][size])
            for found, at in zip(tried[number].trajectories, steps(number), strict=True)
        ]

    own, others = seconds(method), seconds(dense)
    gained = [_ratio(before, after) for before, after in zip(others, own, strict=True)]
    mostly = sum(math.isfinite(each[0]) for each in own) * 2 > len(own)
    median = float(np.median([each[0] for each in gained])) if mostly else None
    draws = np.concatenate([each[1:] for each in gained])
    low, high = (float(np.percentile(draws, at)) for at in (LOW, HIGH))
    at_half = None
    if half is not None and mostly:
        against = zip(seconds(half), own, strict=True)
        at_half = float(np.median([_ratio(before, after)[0] for before, after in against]))
    nodes = scenario.node_counts[size]
    iteration = _mean_time(one, clock)
    base = _mean_time(tried[dense], timed[dense][size])
    windows = [window for found in one.trajectories for window in found.windows]
    trained = sum(window.steps for window in windows)
    return TrainedRow(
        compressor=one.choice.kind,
        label=one.choice.label,
        nodes=nodes,
        workers=nodes * scenario.cluster.devices_per_node,
        learning_rate=one.rate,
        iteration_s=iteration,
        speedup_per_iteration=None if iteration is None or base is None else base / iteration,
        wire_bytes_per_worker=sum(w.steps * w.wire_bytes_per_worker for w in windows)
        / max(1, trained),
        steps_to_target=tuple(steps(method)),
        seconds_to_target=tuple(float(each[0]) if math.isfinite(each[0]) else None for each in own),
        steps_against_dense=_median_ratio(steps(method), steps(dense)),
        speedup_to_target=median,
        speedup_to_target_low=low,
        speedup_to_target_high=high,
        speedup_to_target_vs_half=at_half,
        final_accuracy=tuple(found.evaluations[-1].accuracy for found in one.trajectories),
        final_loss=tuple(found.evaluations[-1].loss for found in one.trajectories),
        ended=tuple(found.ended for found in one.trajectories),
        why=tuple(found.why for found in one.trajectories),
    )


def _until(found: Trajectory, steps: int | None, clock: Clock) -> np.ndarray:
    """Seconds until a number of steps: `[1 + worlds]`, as stated first."""
    place = [one.step for one in found.evaluations].index(steps) if steps is not None else -1
    drawn = clock.elapsed(found, drawn=True)[place]
    both = np.concatenate([[clock.elapsed(found)[place]], drawn])
    return both if steps is not None else np.full_like(both, math.inf)


def _ratio(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Speedup, world by world; 0 where the target is never reached, 1 where at once by both."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(np.isinf(after), 0.0, before / after)
    return np.where((before == 0) & (after == 0), 1.0, found)


def _median_ratio(own: Sequence[int | None], dense: Sequence[int | None]) -> float | None:
    ratios = [
        math.inf if a is None else (a / b if b else 1.0) if b is not None else 0.0
        for a, b in zip(own, dense, strict=True)
    ]
    mostly = sum(steps is not None for steps in own) * 2 > len(own)
    return float(np.median(ratios)) if mostly else None


def _mean_time(one: Tried, clock: Clock) -> float | None:
    times = [clock.mean(found) for found in one.trajectories if found.windows]
    return sum(times) / len(times) if times else None


def _curve(one: Tried, found: Trajectory, clock: Clock) -> Curve:
    return Curve(
        label=one.choice.label,
        seed=found.seed,
        learning_rate=found.learning_rate,
        steps=tuple(each.step for each in found.evaluations),
        seconds=tuple(map(float, clock.elapsed(found))),
        accuracy=tuple(each.accuracy for each in found.evaluations),
        loss=tuple(each.loss for each in found.evaluations),
        wire_bytes_per_worker=tuple(window.wire_bytes_per_worker for window in found.windows),
        nmse=tuple(w.quality.nmse if w.quality else None for w in found.windows),
    )
