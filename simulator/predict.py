"""Seconds per iteration of training with a compressor on a cluster, from a traffic profile.

A method's steps repeat with a period. Step i of a period belongs to the phase that
`TrafficProfile.order` names; the phase's n recorded steps are used in turn, so all occur equally
often. A round (`Schedule`) is the number of periods after which all phases are at their first
recorded step again; if it has more than `LONGEST` steps, it is cut to the fewest periods that have
every recorded step. Rank skew carries over from one iteration to the next.

The mean is over whole rounds (`averages.py`), in exact rationals until the end. With equal ranks,
ready batches and no randomness it is the weighted mean of the single steps. For random iterations
batch means estimate the standard error (`luck.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.luck import batch_means, standard_error
from gcsim.simulator.plans import GroupPlanner, Planner, planner_of
from gcsim.simulator.push_pull import as_collectives
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.steps.breakdown import Average
from gcsim.simulator.steps.schedule import Schedule, shortest_round
from gcsim.simulator.steps.step_plan import GradientScatter, Span, StepPlan
from gcsim.simulator.training import Training
from gcsim.traces.profile import Phase, TrafficProfile

LONGEST = 2000  # most steps of a round that has all recorded steps of a phase equally often


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Mean seconds of an iteration on its slowest rank, over whole periods."""

    workers: int
    iteration: float  # forward + backward + encode + exposed + decode + optimizer + input
    forward: float
    backward: float
    encode: float
    communication: float
    exposed: float  # the device is idle, not waiting for input
    decode: float
    optimizer: float
    input: float  # the device waits for a batch
    iteration_p5: float | None
    iteration_p95: float | None
    """5th and 95th percentile of the rank's iterations; None if they do not vary."""
    iteration_error: float | None
    """Standard error of `iteration`; None where nothing is random, or for a single iteration."""
    iterations: int | None = None  # iterations in the means; None if all are equal
    batches: tuple[float, ...] = ()  # batch means from which the error is estimated (`luck.Luck`)
    algorithms: tuple[str, ...]  # sorted titles of the collective algorithms used
    sample_phase: str
    spans: tuple[Span, ...]
    """Spans of a step of the most frequent communicating phase, from its first rank's begin."""


def predict(
    profile: TrafficProfile,
    cluster: Cluster,
    compute: ComputeTimes,
    *,
    training: Training = Training(),  # noqa: B008 (frozen)
    seed: int = 0,
    spans: bool = True,
    averager: Averager | None = None,
    prices: PriceList | None = None,
) -> Prediction:
    """Simulate the profile's traffic on the cluster.

    `compute`: a worker's forward and backward pass of a micro-batch (`training_times`); `seed` is
    for all random times; `spans=False` saves another simulation of all ranks; `averager` may come
    from a prediction with the same training, seed and cluster (on any device), `prices` from one on
    the same device. Raises `InputError` for a kernel without a price, or a time beyond the clock.
    """
    profile = as_collectives(profile, cluster)
    averager = averager or Averager(cluster, training, seed)
    planner = planner_of(cluster, compute, training, prices, averager.together)
    schedule = schedule_of_period(profile, planner)
    average = averager.average(schedule)
    random = _random(schedule, cluster, training)
    batches = batch_means(average.iterations, len(schedule)) if random else ()
    means = {"iteration": average.iteration, **average.parts}
    # The first of equally frequent phases; a local step would not show the communication.
    sample = max(profile.phases, key=lambda phase: (_communicates(phase), phase.count))
    return Prediction(
        workers=cluster.workers,
        iteration_p5=_percentile(average, Fraction(5, 100)) if averager.varies else None,
        iteration_p95=_percentile(average, Fraction(95, 100)) if averager.varies else None,
        iteration_error=standard_error(batches),
        iterations=len(average.iterations) if averager.varies else None,
        batches=batches,
        algorithms=tuple(sorted(set(carriers(profile, cluster).values()))),
        sample_phase=sample.name,
        spans=averager.spans(schedule, _shown(profile, sample)) if spans else (),
        **{part: float(mean / PS_PER_SECOND) for part, mean in means.items()},
    )


def schedule_of_period(profile: TrafficProfile, planner: Planner | GroupPlanner) -> Schedule:
    """Plan the recorded steps in the period's order; push-pulls are already collectives."""
    plans = planner.steps(profile)
    if not any(_overlaps(plan) for of_phase in plans for plan in of_phase):
        # the second slot is never used, and simulating single messages would take far longer
        plans = [[replace(plan, slots=1) for plan in of_phase] for of_phase in plans]
    first = list(accumulate((len(of_phase) for of_phase in plans), initial=0))
    numbers: dict[StepPlan, int] = {}
    alike = [[numbers.setdefault(plan, len(numbers)) for plan in of_phase] for of_phase in plans]
    steps = [len(shortest_round(of_phase)) for of_phase in alike]
    order = phase_order(profile)
    turns = [first[phase] + step for phase, step in _steps(order, steps)]
    return Schedule.of([plan for of_phase in plans for plan in of_phase], turns)


def _overlaps(plan: StepPlan) -> bool:
    """Whether two collectives may run at a time: only those of different buckets can."""
    return sum(bool(bucket.collectives) for bucket in plan.buckets) > 1


def phase_order(profile: TrafficProfile) -> Sequence[int]:
    """Return the phase of each step of the period."""
    counts = [phase.count for phase in profile.phases]
    order = profile.order or [n for n, count in enumerate(counts) for _ in range(count)]
    if [order.count(number) for number in range(len(counts))] != counts or (
        len(order) != profile.period
    ):
        raise InternalError(f"the phases of {profile.compressor!r} do not fill its period")
    return order


def _steps(order: Sequence[int], steps: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield phase and recorded step of a whole round; phase n has `steps[n]` recorded steps."""
    counts = [order.count(number) for number in range(len(steps))]
    pairs = list(zip(counts, steps, strict=True))
    periods = math.lcm(*(step // math.gcd(step, count) for count, step in pairs))
    if periods * len(order) > LONGEST:
        periods = max(-(-step // count) for count, step in pairs)
    occurred = [0] * len(steps)
    for phase in periods * list(order):
        yield phase, occurred[phase] % steps[phase]
        occurred[phase] += 1


def _shown(profile: TrafficProfile, phase: Phase) -> int:
    """Return the first iteration of a phase, except iteration 0."""
    number, order = profile.phases.index(phase), phase_order(profile)
    return next(n for n in range(1, len(order) + 1) if order[n % len(order)] == number)


def _percentile(average: Average, share: Fraction) -> float:
    """Return the shortest iteration, in seconds, that at least this share does not exceed."""
    times = np.sort(average.iterations)
    return int(times[math.ceil(share * len(times)) - 1]) / PS_PER_SECOND


def _random(schedule: Schedule, cluster: Cluster, training: Training) -> bool:
    """Whether the ranks' slowdowns or the messages' delays are random."""
    noise = training.noise
    if noise is not None and (noise.variation or noise.slow_probability):
        return True
    return (
        cluster.workers > 1
        and schedule.communicates
        and any(link.random for link in cluster.links())
    )


def _communicates(phase: Phase) -> bool:
    return any(exchange.collectives for step in phase.steps for exchange in step.exchanges)


def carriers(profile: TrafficProfile, cluster: Cluster) -> dict[CollectiveRecord, str]:
    """Return the title of the algorithm of each of the profile's collectives."""
    if cluster.workers == 1:
        return {}
    records = {  # many buckets have the same record
        record
        for phase in profile.phases
        for step in phase.steps
        for exchange in step.exchanges
        for record in exchange.collectives
    }
    return {record: _title(record, cluster) for record in records}


def _title(record: CollectiveRecord, cluster: Cluster) -> str:
    title = algorithm_of(record, cluster).title
    if isinstance(record, GradientScatter):
        return title.replace("all-gather", record.what)
    return title
