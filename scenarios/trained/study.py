"""`gcsim train`: time to a target accuracy or loss with every method of a scenario.

    scenario ─► trajectories (real training, cached) ─► windows of bytes ─┐
                                                                          ├─► seconds to target
    devices, links, sizes ──► simulated cluster (stage 2) ◄───────────────┘

Another network, device or size re-uses the trajectories. Clusters with other numbers of workers use
the same steps, with the same batch per worker; how more workers would change the mathematics is not
simulated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from gcsim.errors import InputError
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import Curve, Measure
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.bands import ALPHA, alike, band, grain, holm
from gcsim.scenarios.trained.pricing import Clock, clocks
from gcsim.scenarios.trained.result import HALF, TrainedRow, TrainingResult
from gcsim.scenarios.trained.runs import check_not_inside, plan_of, unsupported
from gcsim.scenarios.trained.search import MethodTraining, train_all
from gcsim.simulator.goodput import goodput
from gcsim.traces.tasks import folder
from gcsim.traces.training.plan import Plan, Target
from gcsim.traces.training.trajectory import Trajectory, steps_to

LEARNT = 0.05  # least relative decrease of the loss for which training counts as learning


def train(
    scenario: Scenario,
    *,
    jobs: int | None = None,
    dask: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> TrainingResult:
    """Train with every method, and compute the trajectories' times on every cluster.

    `jobs`: parallel processes (None: one per core, as memory allows); `dask`: address of a
    dask.distributed scheduler to use instead; `tell` is called early if dense training does not
    learn. Earlier trainings are taken from the cache or, unless `fresh`, from the shipped ones; an
    interrupt loses some seconds of each. Raises `InputError` without a dense method, for settings
    of `unsupported`, if dense training misses the target, or if a method cannot be trained.
    """
    watcher = progress or SilentProgress()
    check_not_inside()
    plan = plan_of(scenario)
    if problems := unsupported(scenario):
        raise InputError(problems)
    if scenario.dense is None:
        raise InputError(
            "nothing to compare with: dense training is not among them",
            place="compressors",
            hint="add - none",
        )
    started = time.perf_counter()
    folder.forget()
    tried = train_all(
        scenario, jobs=jobs, dask=dask, fresh=fresh, progress=watcher,
        ended=lambda dense: _check_target(plan, dense),
        begun=lambda dense: _warn(dense, tell),
    )  # fmt: skip
    trained = time.perf_counter()
    dense = tried[scenario.dense]
    level = dense_level(dense)
    ends = [ends_of(plan, one, level) for one in tried]
    timed = clocks(scenario, tried, watcher)
    by_size = [
        _rows_at(nodes, scenario, tried, [clock[size] for clock in timed], ends)
        for size, nodes in enumerate(scenario.node_counts)
    ]
    rows = [of_size[method] for method in range(len(tried)) for of_size in by_size]
    return TrainingResult(
        scenario=scenario.resolved,
        target=described(plan.target, level),
        measure=measured(plan.target),
        trained_workers=plan.workers,
        data=dense.trajectories[0].data,
        rows=tuple(rows),
        curves=tuple(
            curve_of(one, trajectory, np.median(of_sizes[-1].elapsed(trajectory), axis=1))
            for one, of_sizes in zip(tried, timed, strict=True)
            if not one.untrained
            for trajectory in one.trajectories
        ),
        wall={"training_s": trained - started, "simulation_s": time.perf_counter() - trained},
        from_cache=tuple(one.choice.label for one in tried if one.kept),
    )


def measured(target: Target) -> Measure:
    """Return the measure of a target."""
    return "accuracy" if target.loss is None else "loss"


def described(target: Target, dense_accuracy: float) -> str:
    """Return a target in words."""
    if target.loss is not None:
        return f"loss {target.loss:g}"
    if target.accuracy is not None:
        return f"accuracy {target.accuracy:g}"
    share = target.of_dense or 1.0
    return f"accuracy {share * dense_accuracy:.4g} ({share:g} of dense)"


def dense_level(dense: MethodTraining) -> float:
    """Return dense training's last accuracy, median over seeds; nan without one."""
    last = [one.evaluations[-1].accuracy for one in dense.trajectories]
    return float(np.median([math.nan if one is None else one for one in last]))


def ends_of(plan: Plan, tried: MethodTraining, level: float) -> list[int | None]:
    """Return the steps to the target by seed, None for inconclusive trainings; `level`: dense
    training's last accuracy."""
    if tried.untrained or tried.too_short:
        return [None] * len(tried.trajectories)
    return [steps_to(plan.target, found, plan.patience, level) for found in tried.trajectories]


def _check_target(plan: Plan, dense: MethodTraining) -> None:
    if mostly(ends_of(plan, dense, dense_level(dense))):
        return
    if all(one.ended == "diverged" for one in dense.trajectories):
        why = dense.trajectories[0].why
        message = f"dense training diverged at a learning rate of {dense.rate:g}: {why}"
        hint = "lower train.learning_rate"
    else:
        best = [max(e.accuracy or 0.0 for e in one.evaluations) for one in dense.trajectories]
        loss = [min(e.loss for e in one.evaluations) for one in dense.trajectories]
        got = f"a loss of {np.median(loss):.3g}" if plan.target.loss else f"{np.median(best):.3g}"
        asked = f"{_asked(plan.target)} for good"
        message = f"dense training reached {got} in {plan.steps} steps, not {asked}"
        _, hint = not_learning(dense) or ("", "lower the target, or raise train.steps")
    raise InputError(message, place="train.target", hint=hint)


def _warn(dense: MethodTraining, tell: Callable[[str], None]) -> None:
    if found := not_learning(dense):
        message, hint = found
        tell(f"warning: {message}. The search continues; to start elsewhere, {hint}.")


def not_learning(dense: MethodTraining) -> tuple[str, str] | None:
    """Return a sign that dense training does not learn, and what to set; None if the loss of some
    rate is well below that of untrained weights."""
    seeds = [one for by_seed in dense.rates.values() for one in by_seed.values()]
    before = fmean(one.evaluations[0].loss for one in seeds)
    after = {rate: _last_loss(by_seed.values()) for rate, by_seed in sorted(dense.rates.items())}
    best = min(after, key=lambda rate: after[rate])
    if after[best] <= (1 - LEARNT) * before:
        return None
    rates, steps = ", ".join(f"{rate:g}" for rate in after), max(len(one.losses) for one in seeds)
    low, high = (best / 10, best / 3) if after[best] > before else (best * 3, best * 10)
    end = f"its held-out loss is {after[best]:.3g} at best after {steps:,} steps"
    end = "it diverges" if math.isinf(after[best]) else f"{end}, {before:.3g} untrained"
    return (
        f"dense training does not learn: with learning rates of {rates} {end}",
        f"set train.learning_rate={{values: [{low:.2g}, {high:.2g}]}}, more train.steps, a longer "
        "train.schedule.warmup, or a model of another width",
    )


def _last_loss(seeds: Collection[Trajectory]) -> float:
    """Return the last held-out loss, mean over seeds; divergence is worse than any loss."""
    return fmean(math.inf if one.ended == "diverged" else one.evaluations[-1].loss for one in seeds)


def _asked(target: Target) -> str:
    if target.loss is not None:
        return f"{target.loss:g}"
    if target.accuracy is not None:
        return f"an accuracy of {target.accuracy:g}"
    return f"{target.of_dense:g} of its last accuracy"


def _rows_at(
    nodes: int,
    scenario: Scenario,
    tried: Sequence[MethodTraining],
    clocks_there: Sequence[Clock],
    ends: Sequence[Sequence[int | None]],
) -> list[TrainedRow]:
    """Return the rows of one cluster; `ends`: steps to the target by method and seed."""
    dense, plan = scenario.dense or 0, plan_of(scenario)
    failures = scenario.training.failures
    half = next((n for n, one in enumerate(tried) if one.choice.kind == HALF), None)
    seconds = [
        [until(found, at, clock) for found, at in zip(one.trajectories, steps, strict=True)]
        for one, steps, clock in zip(tried, ends, clocks_there, strict=True)
    ]
    times: list[np.ndarray | None] = []
    for one, clock in zip(tried, clocks_there, strict=True):
        trained = () if one.untrained else one.trajectories
        means = [clock.mean(each) for each in trained if each.windows]
        times.append(np.mean(means, axis=0) if means else None)
    rows = []
    for number, one in enumerate(tried):
        own = seconds[number]
        gains = _gains(seconds[dense], own)
        rough = 0.0 if number == dense else _grain(plan, ends[number], ends[dense])
        low, high = band(gains, rough)
        at_half = None if half is None else _median(_gains(seconds[half], own), ends[number])
        last = [found.evaluations[-1] for found in one.trajectories]
        iteration, base = times[number], times[dense]
        rows.append(
            TrainedRow(
                compressor=one.choice.kind,
                label=one.choice.label,
                nodes=nodes,
                workers=scenario.cluster_at(nodes).workers,
                untrained=one.untrained,
                delays=one.delays,
                too_short=one.too_short,
                learning_rate=one.rate,
                rate_at_edge=one.at_edge,
                iteration_s=None if iteration is None else float(np.median(iteration)),
                speedup_per_iteration=None
                if iteration is None or base is None
                else float(np.median(base / iteration)),
                wire_bytes_per_worker=one.wire_bytes_per_worker,
                steps_to_target=tuple(ends[number]),
                seconds_to_target=tuple(_finite(float(np.median(each[0]))) for each in own),
                steps_against_dense=steps_ratio(ends[number], ends[dense]),
                speedup_to_target=_median(gains, ends[number]),
                speedup_to_target_low=_finite(low),
                speedup_to_target_high=_finite(high),
                speedup_to_target_vs_half=at_half,
                final_accuracy=tuple(each.accuracy for each in last),
                final_loss=tuple(each.loss for each in last),
                ended=tuple(found.ended for found in one.trajectories),
                why=tuple(found.why for found in one.trajectories),
                goodput=None if failures is None else goodput(failures, nodes),
                made=one.made,
            )
        )
    first = max(range(len(rows)), key=lambda number: rows[number].speedup_to_target or 0.0)
    reaching = [number for number, row in enumerate(rows) if row.speedup_to_target is not None]
    as_dense, as_first = (_alike(other, reaching, plan, seconds, ends) for other in (dense, first))
    beaten = any(p <= ALPHA and (rows[n].speedup_to_target or 0.0) > 1 for n, p in as_dense.items())
    for number in reaching:
        rows[number] = replace(
            rows[number],
            p_as_dense=as_dense[number],
            p_as_first=as_first[number],
            leads=plan.seeds > 1 and as_first[number] > ALPHA and not (number == dense and beaten),
        )
    return rows


def _alike(
    other: int,
    reaching: Sequence[int],
    plan: Plan,
    seconds: Sequence[Sequence[np.ndarray]],
    ends: Sequence[Sequence[int | None]],
) -> dict[int, float]:
    """Return corrected p-values against one method, for the methods that reach the target."""
    numbers = [number for number in reaching if number != other]
    p_values = [
        alike(_gains(seconds[other], seconds[n]), _grain(plan, ends[n], ends[other]))
        for n in numbers
    ]
    return {other: 1.0, **dict(zip(numbers, holm(p_values), strict=True))}


def _grain(plan: Plan, *ends: Sequence[int | None]) -> float:
    """Return the error of a speedup by the evaluation interval; 0 if reached never or at once."""
    middle = [float(np.median([steps or 0 for steps in each])) for each in ends]
    return grain(plan.evaluate_every, *middle) if all(middle) else 0.0


def _gains(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the speedup of each seed: the estimate, then each of the range's worlds."""
    worlds = [gained(one, other) for one, other in zip(before, after, strict=True)]
    return [np.concatenate([[np.median(each[0])], each[1]]) for each in worlds]


def mostly(ends: Sequence[int | None]) -> bool:
    """Whether more than half of the seeds reach the target."""
    return sum(steps is not None for steps in ends) * 2 > len(ends)


def _median(gains: Sequence[np.ndarray], ends: Sequence[int | None]) -> float | None:
    """Return the median over seeds; None if half or more miss the target."""
    return _finite(float(np.median([each[0] for each in gains]))) if mostly(ends) else None


def _finite(speedup: float) -> float | None:
    """Return a speedup; None if it is over a method that misses the target."""
    return speedup if math.isfinite(speedup) else None


def until(found: Trajectory, steps: int | None, clock: Clock) -> np.ndarray:
    """Return the seconds of a number of steps, `[2, worlds]`: for estimates and for ranges."""
    place = [one.step for one in found.evaluations].index(steps) if steps is not None else -1
    both = np.array([clock.elapsed(found, widened_draws=ranges)[place] for ranges in (False, True)])
    return both if steps is not None else np.full_like(both, math.inf)


def gained(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the speedup by world; 0 if the target is missed, 1 if both reach it at once."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(np.isinf(after), 0.0, before / after)
    return np.where((before == 0) & (after == 0), 1.0, found)


def steps_ratio(own: Sequence[int | None], dense: Sequence[int | None]) -> float | None:
    """Return steps to the target over dense's, median over seeds; None as in `_median`."""
    ratios = [
        math.inf if a is None else (a / b if b else 1.0) if b is not None else 0.0
        for a, b in zip(own, dense, strict=True)
    ]
    return float(np.median(ratios)) if mostly(own) else None


def curve_of(one: MethodTraining, found: Trajectory, seconds: Iterable[float]) -> Curve:
    """Return the curve of a trajectory; `seconds` by evaluation."""
    return Curve(
        label=one.choice.label,
        seed=found.seed,
        learning_rate=found.learning_rate,
        steps=tuple(each.step for each in found.evaluations),
        seconds=tuple(map(float, seconds)),
        accuracy=tuple(each.accuracy for each in found.evaluations),
        loss=tuple(each.loss for each in found.evaluations),
        wire_bytes_per_worker=tuple(window.wire_bytes_per_worker for window in found.windows),
        nmse=tuple(w.quality.nmse if w.quality else None for w in found.windows),
    )
