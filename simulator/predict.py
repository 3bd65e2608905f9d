"""How long does training with a compressor take on a cluster? From traffic profile to seconds.

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

How far a mean over random iterations may be off is estimated by batch means (A. Law and W. Kelton,
"Simulation modeling and analysis", sec. 9.5.3): consecutive iterations, which depend on each other
by the skew that is carried over, are cut into about 10 batches of equal length, and the batches'
means, which hardly do, are treated as independent draws. With batches of m among n iterations

    standard error = s sqrt(m / n)          s: the batch means' standard deviation

A batch is a number of whole rounds, so that batches differ by luck alone. Ten batches are few: s
itself is known to a quarter, one standard deviation; five, of long rounds, to a third.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.plans import Planner
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.steps.mean_iteration import Average
from gcsim.simulator.steps.schedule import Schedule, shortest_round
from gcsim.simulator.steps.step_plan import Span, StepPlan
from gcsim.simulator.training import Training
from gcsim.traces.profile import Phase, TrafficProfile

BATCHES = 10
"""Of iterations, about, for the standard error: few and long rather than many that depend on each
other (B. Schmeiser, "Batch size effects in the analysis of simulation output", 1982: 10 to 30)."""

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
    """Of the iterations of the slowest rank: the shortest that at least 5 % (95 %) of them do not
    exceed. None where nothing is random and nothing changes with time."""
    iteration_error: float | None
    """Standard error of `iteration`. None where nothing is random (links that only change with
    time are not), and with a single iteration, which does not tell it."""
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
    planner = Planner(cluster, compute, training, prices)
    averager = averager or Averager(cluster, training, seed)
    schedule = schedule_of_period(profile, planner)
    average = averager.average(schedule)
    random = _random(schedule, cluster, training)
    means = {"iteration": average.iteration, **average.parts}
    # The first of equals. A local step shows nothing of how a method communicates.
    sample = max(profile.phases, key=lambda phase: (_communicates(phase), phase.count))
    return Prediction(
        workers=cluster.workers,
        iteration_p5=_percentile(average, Fraction(5, 100)) if averager.varies else None,
        iteration_p95=_percentile(average, Fraction(95, 100)) if averager.varies else None,
        iteration_error=_standard_error(average, len(schedule)) if random else None,
        algorithms=tuple(sorted(_algorithms(profile, cluster))),
        sample_phase=sample.name,
        spans=averager.spans(schedule, _shown(profile, sample)) if spans else (),
        **{part: float(mean / PS_PER_SECOND) for part, mean in means.items()},
    )


def rough_iteration(schedule: Schedule, stated: Schedule, averager: Averager) -> float:
    """Seconds of the mean iteration alone, as rough as `Averager.rough_average`.

    For a device that may be in the place of the stated one: schedules of the same profile on both
    (`schedule_of_period`), and what a prediction on the stated one has left in `averager`.
    """
    return float(averager.rough_average(schedule, stated) / PS_PER_SECOND)


def schedule_of_period(profile: TrafficProfile, planner: Planner) -> Schedule:
    """The plans of the recorded steps, in the order in which the period has them."""
    plans = [[planner.plan(step) for step in phase.steps] for phase in profile.phases]
    if not any(_overlaps(plan) for of_phase in plans for plan in of_phase):
        # a second slot is never taken, and message by message it would take far longer to say so
        plans = [[replace(plan, slots=1) for plan in of_phase] for of_phase in plans]
    first = list(accumulate((len(of_phase) for of_phase in plans), initial=0))
    numbers: dict[StepPlan, int] = {}
    alike = [[numbers.setdefault(plan, len(numbers)) for plan in of_phase] for of_phase in plans]
    steps = [len(shortest_round(of_phase)) for of_phase in alike]
    order = _order(profile)
    turns = [first[phase] + step for phase, step in _steps(order, steps)]
    return Schedule.of([plan for of_phase in plans for plan in of_phase], turns)


def _overlaps(plan: StepPlan) -> bool:
    """Whether two of its collectives may be under way at a time: one bucket's never are."""
    return sum(bool(bucket.collectives) for bucket in plan.buckets) > 1


def _order(profile: TrafficProfile) -> Sequence[int]:
    """By place in the period: the number of its phase."""
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
    number, order = profile.phases.index(phase), _order(profile)
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
    return cluster.workers > 1 and schedule.talks and any(link.random for link in cluster.links())


def _standard_error(average: Average, round_length: int) -> float | None:
    """Of the mean of random iterations, in seconds, by batch means; None of a single round."""
    times = average.iterations
    count = len(times) // round_length * round_length
    if count < 2 * round_length:
        return None
    length = max(1, round(count / BATCHES / round_length)) * round_length
    batches = count // length
    means = times[-batches * length :].reshape(batches, length).mean(1)
    return float(np.std(means, ddof=1)) * math.sqrt(length / count) / PS_PER_SECOND


def _communicates(phase: Phase) -> bool:
    return any(exchange.collectives for step in phase.steps for exchange in step.exchanges)


def _algorithms(profile: TrafficProfile, cluster: Cluster) -> Iterable[str]:
    if cluster.workers == 1:
        return set()
    records = {  # many buckets ask for the same
        record
        for phase in profile.phases
        for step in phase.steps
        for exchange in step.exchanges
        for record in exchange.collectives
    }
    return {algorithm_of(record, cluster).title for record in records}
