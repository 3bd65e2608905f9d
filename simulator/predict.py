"""How long does training with a compressor take on a cluster? From traffic profile to seconds.

Each recorded step of each phase is simulated; steps are averaged within a phase, and phases are
weighted by how often they occur in the compressor's period. The means are exact rationals and
become floats at the end.

Assumptions: every iteration begins with all ranks together (the iteration before has ended on
all of them) and steps do not overlap; all workers compute equally fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import CollectiveMemo, algorithm_of
from gcsim.simulator.pricing import PriceList
from gcsim.simulator.step import BucketWork, IterationTimes, Job, Kind, Span, simulate_iteration
from gcsim.simulator.training_time import ComputeTimes
from gcsim.traces.profile import Exchange, Phase, Step, TrafficProfile

_PARTS = ("iteration", "forward", "backward", "encode", "communication", "exposed", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Mean times of an iteration on its slowest rank, in seconds, over a whole period."""

    workers: int
    iteration: float
    """forward + backward + encode + exposed + decode."""
    forward: float
    backward: float
    encode: float
    communication: float
    """Time during which a collective is under way, hidden or not."""
    exposed: float
    """Time during which the device has nothing to do."""
    decode: float
    algorithms: tuple[str, ...]
    """Titles of the collective algorithms that carried the traffic, sorted."""
    sample_phase: str
    """The phase that `spans` shows."""
    spans: tuple[Span, ...]
    """The last recorded step of the most frequent phase that communicates (if one does), all
    ranks, in picoseconds."""


def predict(
    profile: TrafficProfile, cluster: Cluster, compute: ComputeTimes, *, spans: bool = True
) -> Prediction:
    """Simulate the profile's traffic on the cluster.

    `compute` is one worker's forward and backward pass (`training_times`). `spans=False` leaves
    the sample's timeline out, which costs one more simulation of all ranks. Raises `InputError`
    when the device has no price for a kernel, or the times exceed the clock.
    """
    if sum(phase.count for phase in profile.phases) != profile.period:
        raise InternalError(f"the phases of {profile.compressor!r} do not fill its period")
    simulated = _Simulated(cluster, compute)
    sums = dict.fromkeys(_PARTS, Fraction(0))
    for phase in profile.phases:
        for step in phase.steps:
            times = simulated.step(step)
            weight = Fraction(phase.count, len(phase.steps) * profile.period)
            for part in _PARTS:
                sums[part] += weight * getattr(times, part)
    # The first of equals. A local step shows nothing of how a method communicates.
    sample = max(profile.phases, key=lambda phase: (_communicates(phase), phase.count))
    return Prediction(
        workers=cluster.workers,
        algorithms=tuple(sorted(_algorithms(profile, cluster))),
        sample_phase=sample.name,
        spans=simulated.spans(sample.steps[-1]) if spans else (),
        **{part: float(total / PS_PER_SECOND) for part, total in sums.items()},
    )


class _Simulated:
    """Simulates steps on one cluster, equal ones once."""

    def __init__(self, cluster: Cluster, compute: ComputeTimes) -> None:
        self._cluster, self._compute = cluster, compute
        self._prices = PriceList(cluster.device)
        self._carry_out = CollectiveMemo(cluster)
        self._known: dict[tuple[BucketWork, ...], IterationTimes] = {}

    def step(self, step: Step) -> IterationTimes:
        """The times of a recorded step."""
        work = self._work(step)
        if work not in self._known:
            self._known[work] = self._simulate(work, spans=False)
        return self._known[work]

    def spans(self, step: Step) -> tuple[Span, ...]:
        """What happens in a recorded step."""
        return self._simulate(self._work(step), spans=True).spans

    def _simulate(self, work: tuple[BucketWork, ...], *, spans: bool) -> IterationTimes:
        return simulate_iteration(
            self._compute,
            work,
            ranks=self._cluster.workers,
            carry_out=self._carry_out,
            spans=spans,
        )

    def _work(self, step: Step) -> tuple[BucketWork, ...]:
        return tuple(
            self._price(exchange, bucket) for bucket, exchange in enumerate(step.exchanges)
        )

    def _price(self, exchange: Exchange, bucket: int) -> BucketWork:
        """Computations become durations; every worker of the cluster sends one payload."""
        if len(exchange.computes) != len(exchange.collectives) + 1:
            raise InternalError(
                f"bucket {bucket}: {len(exchange.computes)} computations around "
                f"{len(exchange.collectives)} collectives"
            )
        payloads = self._cluster.workers
        names = [f"{compute.stage}, bucket {bucket}" for compute in exchange.computes]
        times = [self._prices.compute_time(compute, payloads) for compute in exchange.computes]
        kinds: list[Kind] = ["encode" for _ in exchange.computes]
        if exchange.collectives or exchange.computes[0].stage == "decode":
            kinds[-1] = "decode"
        first, *after = [
            Job(kind=kind, name=name, duration=time)
            for kind, name, time in zip(kinds, names, times, strict=True)
        ]
        before = [first]
        if exchange.moments is not None:
            time = self._prices.compute_time(exchange.moments, payloads)
            before = [Job(kind="encode", name=f"moments, bucket {bucket}", duration=time), first]
        return BucketWork(
            before=tuple(before),
            collectives=exchange.collectives,
            server_times=self._server_times(exchange),
            after=tuple(after),
        )

    def _server_times(self, exchange: Exchange) -> tuple[Picoseconds, ...]:
        if not exchange.servers:
            return ()
        return tuple(
            0
            if compute is None
            else self._prices.compute_time(
                compute,
                self._cluster.workers,
                self._cluster.collectives.servers if record.kind == "push_pull" else 1,
            )
            for compute, record in zip(exchange.servers, exchange.collectives, strict=True)
        )


def _communicates(phase: Phase) -> bool:
    return any(exchange.collectives for step in phase.steps for exchange in step.exchanges)


def _algorithms(profile: TrafficProfile, cluster: Cluster) -> Iterable[str]:
    if cluster.workers == 1:
        return set()
    return {
        algorithm_of(record, cluster).title
        for phase in profile.phases
        for step in phase.steps
        for exchange in step.exchanges
        for record in exchange.collectives
    }
