"""Training with a compressor on a cluster: from traffic profile to seconds.

The period is simulated again and again, with all that an iteration leaves for the next: skew from
local steps is paid at the synchronisation. Place i of a period has the phase of
`TrafficProfile.order`; the k-th step of a phase over all periods does what its recorded step k mod
n did, so all n occur equally often. A round (`Schedule`) is as many periods as that takes for all
phases; one of more than `LONGEST` steps is cut to the fewest periods with every recorded step.

The mean is over whole rounds (`averages.py`), in exact rationals until the end. With equal ranks,
ready batches and nothing random it is the weighted mean of the steps by themselves. Batch means
estimate the error of random ones (`luck.py`).
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

LONGEST = 2000  # steps of a round in which all recorded steps of a phase occur equally often


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
    """Smallest iterations that 5 %, 95 % of the rank's do not exceed; None if nothing varies."""
    iteration_error: float | None
    """Standard error of `iteration`; None where nothing is random, or for a single iteration."""
    iterations: int | None = None  # iterations in the means; None if all are equal
    batches: tuple[float, ...] = ()  # batch means behind the error (`luck.Luck`), if any
    algorithms: tuple[str, ...]  # sorted titles of the collective algorithms used
    sample_phase: str
    spans: tuple[Span, ...]
    """A step of the most frequent communicating phase, from its first rank's begin on."""


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

    `compute`: a worker's forward and backward pass of a micro-batch (`training_times`); `seed`: of
    all random times; `spans=False` saves another simulation of all ranks; `averager`: of earlier
    predictions with the same training, seed and cluster, on any device; `prices`: the device's, if
    at hand. Raises `InputError` when the device has no price for a kernel, or beyond the clock.
    """
    profile = as_collectives(profile, cluster)
    averager = averager or Averager(cluster, training, seed)
    planner = planner_of(cluster, compute, training, prices, averager.together)
    schedule = schedule_of_period(profile, planner)
    average = averager.average(schedule)
    random = _random(schedule, cluster, training)
    batches = batch_means(average.iterations, len(schedule)) if random else ()
    means = {"iteration": average.iteration, **average.parts}
    # The first of equals. A local step shows nothing of how a method communicates.
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
    """Plans of the recorded steps in the period's order; push-pulls are already replaced."""
    plans = planner.steps(profile)
    if not any(_overlaps(plan) for of_phase in plans for plan in of_phase):
        # a second slot is never taken, and message by message it would take far longer to say so
        plans = [[replace(plan, slots=1) for plan in of_phase] for of_phase in plans]
    first = list(accumulate((len(of_phase) for of_phase in plans), initial=0))
    numbers: dict[StepPlan, int] = {}
    alike = [[numbers.setdefault(plan, len(numbers)) for plan in of_phase] for of_phase in plans]
    steps = [len(shortest_round(of_phase)) for of_phase in alike]
    order = phase_order(profile)
    turns = [first[phase] + step for phase, step in _steps(order, steps)]
    return Schedule.of([plan for of_phase in plans for plan in of_phase], turns)


def _overlaps(plan: StepPlan) -> bool:
    """Whether two of its collectives may run at a time: one bucket's never do."""
    return sum(bool(bucket.collectives) for bucket in plan.buckets) > 1


def phase_order(profile: TrafficProfile) -> Sequence[int]:
    """Phase at each place in the period."""
    counts = [phase.count for phase in profile.phases]
    order = profile.order or [n for n, count in enumerate(counts) for _ in range(count)]
    if [order.count(number) for number in range(len(counts))] != counts or (
        len(order) != profile.period
    ):
        raise InternalError(f"the phases of {profile.compressor!r} do not fill its period")
    return order


def _steps(order: Sequence[int], steps: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Phase and step of a whole round; phase n has `steps[n]` different steps."""
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
    """First iteration of a phase, except iteration 0."""
    number, order = profile.phases.index(phase), phase_order(profile)
    return next(n for n in range(1, len(order) + 1) if order[n % len(order)] == number)


def _percentile(average: Average, share: Fraction) -> float:
    """Shortest iteration, in seconds, that at least this share of them does not exceed."""
    times = np.sort(average.iterations)
    return int(times[math.ceil(share * len(times)) - 1]) / PS_PER_SECOND


def _random(schedule: Schedule, cluster: Cluster, training: Training) -> bool:
    """Whether paces or messages' delays are drawn."""
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
    """Title of the algorithm of each of the profile's collectives."""
    if cluster.workers == 1:
        return {}
    records = {  # many buckets ask for the same
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
