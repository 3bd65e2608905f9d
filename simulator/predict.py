"""Training with a compressor on a cluster: from traffic profile to seconds.

What is simulated is the period, again and again, with everything that an iteration leaves behind
for the next: skew that local steps gather is paid at the synchronisation. Place i of a period is of
the kind that the method has there (`TrafficProfile.order`), from its first settled step on. The
k-th step of a kind, counted over all periods, does what the recorded step k mod n of that kind did,
of n in the order in which they were recorded: first come the recorded steps as they were run, and
all recorded steps of a kind occur equally often. This goes round after as many periods as it takes
for all kinds (`Schedule`); a round of more than `LONGEST` steps is cut to the fewest periods in
which every recorded step occurs, of which some then occur once more often than others.

The mean is over whole rounds (`averages.py`): an iteration is an iteration. Where all ranks are
alike, batches are always ready and nothing is random, no step leaves anything behind, and the mean
is that of the steps by themselves, weighted by how often they occur. The means are exact rationals
and become floats at the end.

How far a mean over random iterations may be off is estimated by batch means (`luck.py`).
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
from gcsim.simulator.plans import Planner
from gcsim.simulator.push_pull import as_collectives
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.steps.breakdown import Average
from gcsim.simulator.steps.schedule import Schedule, shortest_round
from gcsim.simulator.steps.step_plan import Span, StepPlan
from gcsim.simulator.training import Training
from gcsim.traces.profile import Phase, TrafficProfile

LONGEST = 2000
"""Steps of a round in which all recorded steps of a kind occur equally often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Mean times of an iteration on its slowest rank, in seconds, over whole periods."""

    workers: int
    iteration: float
    """forward + backward + encode + exposed + decode + optimizer + input."""
    forward: float
    backward: float
    encode: float
    communication: float
    """Time during which a collective is under way, hidden or not."""
    exposed: float
    """Time during which the device has nothing to do, but for waiting for input."""
    decode: float
    optimizer: float
    input: float
    """Time during which the device waits for a batch."""
    iteration_p5: float | None
    iteration_p95: float | None
    """Shortest iteration of the slowest rank that at least 5 % (95 %) of its iterations do not
    exceed. None where nothing is random and nothing changes with time."""
    iteration_error: float | None
    """Standard error of `iteration`. None where nothing is random (links that only change with
    time are not), and with a single iteration, which does not tell it."""
    iterations: int | None = None
    """Number of iterations in the means; None where all are alike."""
    batches: tuple[float, ...] = ()
    """Means of batches of iterations, from which a standard error is made (`luck.Luck`); empty
    where there is none."""
    algorithms: tuple[str, ...]
    """Titles of the collective algorithms that carried the traffic, sorted."""
    sample_phase: str
    """The phase that `spans` shows."""
    spans: tuple[Span, ...]
    """A step of the most frequent phase that communicates (if one does), all ranks, in
    picoseconds from when the first rank begins it."""


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

    `compute` is one worker's forward and backward pass of a micro-batch (`training_times`), `seed`
    that of all random times. `spans=False` leaves the sample's timeline out, which costs one more
    simulation of all ranks. `averager` is that of earlier predictions with the same training and
    seed on the same cluster, whatever its device; `prices` are those of the device, where they are
    at hand. Raises `InputError` when the device has no price for a kernel, or the times exceed the
    clock.
    """
    profile = as_collectives(profile, cluster)
    averager = averager or Averager(cluster, training, seed)
    planner = Planner(
        cluster, compute, training, prices, averager.execute, together=averager.together
    )
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


def schedule_of_period(profile: TrafficProfile, planner: Planner) -> Schedule:
    """The plans of the recorded steps, in the order in which the period has them.

    The profile's push-pulls are `carried` already.
    """
    around = planner.around(profile)
    plans = [[planner.plan(step, around) for step in phase.steps] for phase in profile.phases]
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
    """Whether two of its collectives may be under way at a time: one bucket's never are."""
    return sum(bool(bucket.collectives) for bucket in plan.buckets) > 1


def phase_order(profile: TrafficProfile) -> Sequence[int]:
    """Number of the phase at each place in the period."""
    counts = [phase.count for phase in profile.phases]
    order = profile.order or [n for n, count in enumerate(counts) for _ in range(count)]
    if [order.count(number) for number in range(len(counts))] != counts or (
        len(order) != profile.period
    ):
        raise InternalError(f"the phases of {profile.compressor!r} do not fill its period")
    return order


def _steps(order: Sequence[int], steps: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Phase and step of a whole round, where phase n has `steps[n]` steps that differ."""
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
    """The first iteration of a phase, but for the very first of all."""
    number, order = profile.phases.index(phase), phase_order(profile)
    return next(n for n in range(1, len(order) + 1) if order[n % len(order)] == number)


def _percentile(average: Average, share: Fraction) -> float:
    """The shortest iteration, in seconds, that at least this share of them does not exceed."""
    times = np.sort(average.iterations)
    return int(times[math.ceil(share * len(times)) - 1]) / PS_PER_SECOND


def _random(schedule: Schedule, cluster: Cluster, training: Training) -> bool:
    """Whether iterations are drawn: workers have random paces, or messages random delays."""
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
    """The title of the algorithm that carries each of the profile's collectives."""
    if cluster.workers == 1:
        return {}
    records = {  # many buckets ask for the same
        record
        for phase in profile.phases
        for step in phase.steps
        for exchange in step.exchanges
        for record in exchange.collectives
    }
    return {record: algorithm_of(record, cluster).title for record in records}
