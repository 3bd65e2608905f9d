"""How long does training with a compressor take on a cluster? From traffic profile to seconds.

Each recorded step of each phase is simulated as if it were repeated for ever, skew between ranks
carried over (`averages.py`); steps are averaged within a phase, and phases are weighted by how
often they occur in the compressor's period. The means are exact rationals and become floats at
the end.

How far a mean over random iterations may be off is estimated by batch means (A. Law and W. Kelton,
"Simulation modeling and analysis", sec. 9.5.3): consecutive iterations, which depend on each other
by the skew that is carried over, are cut into about 10 batches of equal length, and the batches'
means, which hardly do, are treated as independent draws. With batches of m among n iterations

    standard error = s sqrt(m / n)          s: the batch means' standard deviation

A batch's mean is weighted over phases and steps as the whole mean is: in iteration i the steps
meet the same luck, so their errors do not cancel. Ten batches are few: s itself is known to a
quarter, one standard deviation.

Assumption: what one step leaves behind for another kind of step (skew that local steps have
gathered before a synchronisation) is not carried over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.plans import Planner
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.steps.ledger import PARTS
from gcsim.simulator.steps.mean_iteration import Average
from gcsim.simulator.steps.step_plan import Span, StepPlan
from gcsim.simulator.training import Training
from gcsim.traces.profile import Phase, TrafficProfile

BATCHES = 10
"""Of iterations, about, for the standard error: few and long rather than many that depend on each
other (B. Schmeiser, "Batch size effects in the analysis of simulation output", 1982: 10 to 30)."""

WeightedPlan = tuple[Fraction, StepPlan]
"""A step's share of a period, and what every rank does in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Mean times of an iteration on its slowest rank, in seconds, over a whole period."""

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
    """The last recorded step of the most frequent phase that communicates (if one does), all
    ranks, in picoseconds from when the first rank begins it."""


def predict(
    profile: TrafficProfile,
    cluster: Cluster,
    compute: ComputeTimes,
    *,
    training: Training = Training(),  # noqa: B008 (frozen)
    seed: int = 0,
    spans: bool = True,
    averager: Averager | None = None,
) -> Prediction:
    """Simulate the profile's traffic on the cluster.

    `compute` is one worker's forward and backward pass of a micro-batch (`training_times`), `seed`
    that of all random times. `spans=False` leaves the sample's timeline out, which costs one more
    simulation of all ranks. `averager` is that of earlier predictions with the same training and
    seed on the same cluster, whatever its device. Raises `InputError` when the device has no price
    for a kernel, or the times exceed the clock.
    """
    planner = Planner(cluster, compute, training)
    averager = averager or Averager(cluster, training, seed)
    plans = weighted_plans(profile, planner)
    averages = [(weight, averager.average(plan)) for weight, plan in plans]
    drawn = [
        (weight, averager.average(plan))
        for weight, plan in plans
        if _random(plan, cluster, training)
    ]
    sums = {"iteration": sum(weight * average.iteration for weight, average in averages)}
    for part in PARTS:
        sums[part] = sum(weight * average.parts[part] for weight, average in averages)
    # The first of equals. A local step shows nothing of how a method communicates.
    sample = max(profile.phases, key=lambda phase: (_communicates(phase), phase.count))
    return Prediction(
        workers=cluster.workers,
        iteration_p5=_percentile(averages, Fraction(5, 100)) if averager.varies else None,
        iteration_p95=_percentile(averages, Fraction(95, 100)) if averager.varies else None,
        iteration_error=_standard_error(drawn),
        algorithms=tuple(sorted(_algorithms(profile, cluster))),
        sample_phase=sample.name,
        spans=averager.spans(planner.plan(sample.steps[-1])) if spans else (),
        **{part: float(total / PS_PER_SECOND) for part, total in sums.items()},
    )


def rough_iteration(
    plans: Sequence[WeightedPlan], stated: Sequence[WeightedPlan], averager: Averager
) -> float:
    """Seconds of the mean iteration alone, as rough as `Averager.rough_average`.

    For a device that may be in the place of the stated one: plans of the same profile on both
    (`weighted_plans`), and what a prediction on the stated one has left in `averager`.
    """
    total = sum(
        weight * averager.rough_average(plan, like)
        for (weight, plan), (_, like) in zip(plans, stated, strict=True)
    )
    return float(total / PS_PER_SECOND)


def weighted_plans(profile: TrafficProfile, planner: Planner) -> list[WeightedPlan]:
    """The plans of the recorded steps, and how often each occurs in the mean."""
    if sum(phase.count for phase in profile.phases) != profile.period:
        raise InternalError(f"the phases of {profile.compressor!r} do not fill its period")
    return [
        (Fraction(phase.count, len(phase.steps) * profile.period), planner.plan(step))
        for phase in profile.phases
        for step in phase.steps
    ]


def _percentile(averages: Sequence[tuple[Fraction, Average]], share: Fraction) -> float:
    """The shortest iteration, in seconds, that at least this share of them does not exceed."""
    times = np.concatenate([average.iterations for _, average in averages])
    weights = np.concatenate(
        [
            np.full(len(average.iterations), float(weight / len(average.iterations)))
            for weight, average in averages
        ]
    )
    order = np.argsort(times, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), float(share) - 1e-9))
    return int(times[order][place]) / PS_PER_SECOND


def _random(plan: StepPlan, cluster: Cluster, training: Training) -> bool:
    """Whether the plan's iterations are drawn: workers have random paces, or its messages random
    delays."""
    noise = training.noise
    if noise is not None and (noise.variation or noise.slow_probability):
        return True
    talks = cluster.workers > 1 and any(bucket.collectives for bucket in plan.buckets)
    return talks and any(link.random for link in cluster.links())


def _standard_error(averages: Sequence[tuple[Fraction, Average]]) -> float | None:
    """Of the weighted mean of random iterations, in seconds, by batch means.

    All averages are of as many iterations; iteration i of each met the same luck.
    """
    count = min((len(average.iterations) for _, average in averages), default=0)
    if count < 2:
        return None
    length = max(1, round(count / BATCHES))
    batches = count // length
    means = sum(
        float(weight) * average.iterations[-batches * length :].reshape(batches, length).mean(1)
        for weight, average in averages
    )
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
