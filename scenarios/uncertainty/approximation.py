"""Approximate duration of an iteration in each of many worlds.

An exact simulation of every world would take minutes. But a world changes an iteration almost only
through the durations of one rank's computations and collectives, so

    iteration in a world = exact iteration as stated * f(world) / f(as stated)

where f is the step of the slowest rank (`one_rank.py`), whose collectives take as long as if all
ranks entered together; a few recorded steps stand for each phase. What f omits (skew, shared cores,
randomness) is assumed to scale all worlds alike. `docs/model/uncertainty.md` has the error.

Kernel prices are linear in the launch time and in the reciprocals of the rates, on host and device
separately; the other parts of a plan are linear in the training's figures; forward and backward are
scaled; `uncertainty/collective_times.py` has the collectives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.scenario import with_nodes
from gcsim.scenarios.uncertainty.collective_times import CollectiveTimes
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import Column
from gcsim.scenarios.uncertainty.kernel_use import counts
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.clocks import combined_time
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.plans import (
    CHECKS,
    STEP_CHECKS,
    Planner,
    first_alike,
    objects_of,
    pass_slowdown,
    payloads_of,
    streaming,
)
from gcsim.simulator.predict import phase_order
from gcsim.simulator.steps import sharded
from gcsim.simulator.steps.averages import slow_ranks
from gcsim.simulator.steps.events.even_cluster import EvenCollectiveTimes
from gcsim.simulator.steps.noise import longest, slowdowns
from gcsim.simulator.steps.step_plan import StepPlan
from gcsim.simulator.training import Code, Noise, SharedNode, Training
from gcsim.traces.profile import Compute, Phase, Step, TrafficProfile

Rows = NDArray[np.float64]  # a column per world
_RECORDED = 4  # most recorded steps of a phase that are evaluated
_PACES = 20  # iterations over which the slowest rank's slowdown is averaged


class Approximation:
    """Approximate iterations of any method on one cluster, in picoseconds."""

    def __init__(
        self,
        drawn: Drawn,
        nodes: int,
        training: Training,
        compute: ComputeTimes,
        profiles: Sequence[TrafficProfile],
        *,
        prices: PriceList,
        seed: int,
        collective_times: CollectiveTimes | None = None,
        group: int = 0,
    ) -> None:
        """`training`: the stated one on `nodes` nodes; `collective_times`: those of another
        approximation in the same worlds, to share; `group`: the rank's group of nodes, to which
        `prices` and `compute` belong."""
        cluster = with_nodes(drawn.cluster(0), nodes).all_like(group)
        self._slower = drawn.kernel_extras(group)
        self._drawn, self._worlds = drawn, drawn.worlds
        self._cluster, self._prices = cluster, prices
        self.collective_times = collective_times or CollectiveTimes(
            drawn, nodes, records_of(profiles)
        )
        self._training = training
        training = replace(training, overlap=None, exposed=Fraction(0), exposed_range=None)

        def planner(training: Training) -> Planner:
            together = EvenCollectiveTimes(cluster, training, self._together)
            return Planner(cluster, compute, training, prices, together)

        self._planner = planner(training)
        self._known: dict[tuple[int, ...], tuple[tuple[Compute, ...], Column]] = {}
        one = Fraction(1)  # both factors are linear in their figures
        skewed = 1 + drawn.figure(training.noise, ("training", "noise"), "skew") * float(
            longest(Noise(skew=one), cluster.workers) - 1
        )
        alike = replace(training, code=Code(), shared_node=SharedNode(slowdown=one))
        crowd = drawn.figure(training.shared_node, ("training", "shared_node"), "slowdown") * float(
            pass_slowdown(cluster, alike) - 1
        )
        longer = (
            skewed * drawn.figure(training.code, ("training", "code"), "slowdown") * (1 + crowd)
        )
        self._passes = drawn.passes(group) * longer / longer[0]
        self._beside = [
            (planner(replace(training, interference=interference)), places)
            for interference, places in drawn.interferences
        ]
        self._streamed = training.encode_on == "communicator"
        self._slowdown = _slowdown(cluster, training, seed)

    def _together(
        self, record: CollectiveRecord, starts: Times, server_time: Picoseconds, key: int
    ) -> Times:
        finishes: Times = starts + round(
            self.collective_times(record, server_time, self._extra((), 1))[0]
        )
        return finishes

    def iteration(self, profile: TrafficProfile) -> Column:
        """Return f of a method, by world."""
        code = self._planner.exchange_code_times(profile)
        of_phase = []
        for phase in profile.phases:
            steps = _steps(phase)
            taken = {objects_of(step): step for step in steps}
            times = {same: self._step(step, profile, code) for same, step in taken.items()}
            every = [times[objects_of(step)] for step in steps]
            of_phase.append(sum(every, np.zeros(len(self._worlds))) / len(steps))
        return self._loaded(of_phase, phase_order(profile)) / profile.period

    def _loaded(self, of_phase: Sequence[Column], order: Sequence[int]) -> Column:
        """Return the duration of the second period with the input loader
        (`simulator.steps.events.input_loader`); the first period fills its prefetch buffer."""
        micro, loading = self._training.accumulation, self._training.input
        if loading is None:
            total: Column = np.bincount(order).astype(np.float64) @ np.array(of_phase)
            return total
        batch = micro * self._drawn.loading
        now = made = np.zeros(len(self._worlds))
        taken = deque([now] * max(1, loading.prefetch // micro))
        ends = []
        for _ in range(2):
            for number in order:
                made = np.maximum(made, taken.popleft()) + batch
                start = np.maximum(now, made)
                taken.append(start)
                now = start + of_phase[number]
            ends.append(now)
        return ends[1] - ends[0]

    def _step(self, step: Step, profile: TrafficProfile, code: Sequence[Picoseconds]) -> Column:
        from gcsim.simulator.steps import one_rank  # compiles its loops

        priced = self._planner.without_interference(step, code)
        if priced.sharded:
            return self._sharded(priced, step)
        plan = self._planner.with_interference(priced)
        stated, alone = _Durations.of(plan), _Durations.of(priced)
        parts, before, after, delays, served = (rows[:, None] for rows in stated.rows)
        for planner, places in self._beside:
            other = _Durations.of(planner.with_interference(priced))
            more = [far - near for far, near in zip(other.rows, stated.rows, strict=True)]
            parts, before, after, delays, served = (
                rows + rise[:, None] * places
                for rows, rise in zip((parts, before, after, delays, served), more, strict=True)
            )
        passes = self._slowdown * self._passes
        parts = parts * passes
        waits = self._drawn.waits
        parts[0], parts[1:] = (parts[0] + waits * parts[1:].sum(axis=0), parts[1:] * (1 - waits))
        on_stream = self._slowdown * float(plan.side_slowdown if plan.side_stream else 1)
        times: list[Column] = []
        extra_before, extra_after = [], []
        framework = self._framework(profile, len(step.exchanges))
        together: dict[tuple[int, int, int], Column] = {}  # by identity: buckets share records
        for exchange, around in zip(step.exchanges, framework, strict=True):
            start, *answers = exchange.computes
            first, *payloads = payloads_of(exchange, self._cluster)
            moments = () if exchange.moments is None else (exchange.moments,)
            extra_before.append(self._extra((start, *moments), first))
            pairs = zip(answers, payloads, strict=True)
            extra_after += [self._extra((compute,), number) for compute, number in pairs]
            if answers:  # as `plans.with_code_time`
                extra_before[-1] = extra_before[-1] + around / 2
                extra_after[-1] = extra_after[-1] + around / 2
            servers = exchange.servers or (None,) * len(exchange.collectives)
            for record, by, ranks in zip(exchange.collectives, servers, payloads, strict=True):
                number = len(times)
                server_time = round(float(stated.rows[_SERVED][number]))
                longer = waits * alone.rows[_DELAYS][number] + (1 - waits) * delays[number]
                name = id(record), server_time, id(by)
                if name not in together:
                    parted = self._cluster.servers if record.kind == "push_pull" else 1
                    more_served = self._extra(() if by is None else (by,), ranks, parted)
                    together[name] = self.collective_times(record, server_time, more_served)
                times.append(longer + together[name])
        if self._streamed:  # as `plans.in_collectives_stream`
            times = [time + longer for time, longer in zip(times, extra_after, strict=True)]
            extra_after = [0 * longer for longer in extra_after]
            for bucket, longer in enumerate(extra_before):
                if stated.first[bucket] < stated.first[bucket + 1]:
                    times[stated.first[bucket]] = times[stated.first[bucket]] + longer
                    extra_before[bucket] = 0 * longer
        worlds = len(self._worlds)
        found = np.empty(worlds)
        one_rank.exchange_times(
            parts,
            on_stream * (before + np.array(extra_before).reshape(-1, worlds)),
            np.array(times).reshape(-1, worlds),
            on_stream * (after + np.array(extra_after).reshape(-1, worlds)),
            stated.first,
            plan.side_stream,
            plan.slots,
            plan.gathers,
            found,
        )
        return self._whole(plan, found, passes)

    def _sharded(self, plan: StepPlan, step: Step) -> Column:
        """Return the step of a rank with sharded weights."""
        passes, nothing = self._slowdown * self._passes, self._extra((), 1)
        units, times = [], []
        for unit, exchange in zip(sharded.units_of(plan), step.exchanges, strict=True):
            pairs = zip(exchange.computes, payloads_of(exchange, self._cluster), strict=True)
            first, *others = (self._extra((compute,), number) for compute, number in pairs)
            units.append(
                sharded.Unit(
                    unit.forward * passes,
                    unit.backward * passes,
                    self._slowdown * (unit.encode + first),
                    tuple(
                        self._slowdown * (own + more)
                        for own, more in zip(unit.after, others, strict=True)
                    ),
                    unit.gathers,
                    unit.between,
                )
            )
            times.append([self.collective_times(one, 0, nothing) for one in exchange.collectives])
        streams = sharded.Streams(
            np.zeros(len(self._worlds)), lambda unit, place, entry: entry + times[unit][place]
        )
        for _ in range(plan.accumulation):
            sharded.micro_batch(streams, units)
        return streams.free + self._slowdown * plan.optimizer

    def _extra(self, computes: tuple[Compute, ...], payloads: int, servers: int = 1) -> Column:
        """Return `_longer`, cached by the identities of `computes`, which the cache keeps alive."""
        name = (payloads, servers, *map(id, computes))
        if name not in self._known:
            self._known[name] = computes, self._longer(computes, payloads, servers)
        return self._known[name][1]

    def _longer(self, computes: tuple[Compute, ...], payloads: int, servers: int) -> Column:
        """Return by how much `computes` take longer than stated, for this number of payloads."""
        total = np.zeros(len(self._worlds))
        slower = self._slower
        device = self._cluster.device
        for compute in computes if slower else ():
            stated = self._prices.priced_by(compute, payloads, servers)
            kernels = np.full(len(total), float(stated.device))
            host = np.full(len(total), float(stated.host))
            for figure, count in counts(compute, device, payloads, servers).items():
                if figure in slower:
                    clock = host if figure[0] in device.host else kernels
                    clock += count * slower[figure]
            total += combined_time(host, kernels) - float(stated.total)
        return total

    def _framework(self, profile: TrafficProfile, exchanges: int) -> Rows:
        """Return by how much the code around each bucket's exchange takes longer than stated."""
        if self._cluster.workers == 1 or self._training.sharded:
            return np.zeros((exchanges, len(self._worlds)))
        around, named = self._drawn.exchange_code, profile.compressor
        figures = around.get(named, around[""])
        per_tensor, per_bucket, per_step, passes = figures
        if not figures.any():
            return np.zeros((exchanges, len(self._worlds)))
        tensors = np.array([[len(layout.slices)] for layout in profile.buckets])
        width = self._training.gradient_bytes
        nbytes = np.array([[width * layout.numel] for layout in profile.buckets])
        once = streaming(int(nbytes.sum()))
        each = self._extra((once,), 1) + self._prices.compute_time(once, 1)
        times = (tensors * per_tensor + per_bucket) * PS_PER_SECOND
        if self._cluster.nodes > 1 and len(times):
            times[-1] += per_step * PS_PER_SECOND
        times += nbytes / max(1, nbytes.sum()) * each * passes
        longer: Rows = times - times[:, :1]
        for checks, first in () if named in around else ((CHECKS, 0), (STEP_CHECKS, -1)):
            for figure, count in counts(checks, self._cluster.device, 1).items():
                if figure[0] in self._cluster.device.host:
                    longer[first:] += count * self._slower.get(figure, 0.0)
        return longer

    def _whole(self, plan: StepPlan, exchanged: Column, passes: Column) -> Column:
        """Add the other micro-batches and the optimiser to the step."""
        micro = plan.accumulation
        alone = micro * plan.compute.forward + (micro - 1) * plan.compute.backward
        return alone * passes + exchanged + self._slowdown * plan.optimizer


def approximations(
    drawn: Drawn,
    nodes: int,
    training: Training,
    compute: ComputeTimes,
    profiles: Sequence[TrafficProfile],
    *,
    prices: PriceList,
    seed: int,
) -> list[Approximation]:
    """Return an approximation for each distinct group among the first `nodes` nodes."""
    cluster = with_nodes(drawn.cluster(0), nodes)
    found: list[Approximation] = []
    for number in sorted({0, *first_alike(cluster, compute)}):
        device = cluster.groups[number].device if number else cluster.device
        found.append(
            Approximation(
                drawn, nodes, training, compute.of_group(number), profiles,
                prices=prices.for_device(device) if number else prices, seed=seed,
                collective_times=found[0].collective_times if found else None, group=number,
            )
        )  # fmt: skip
    return found


def slowest(ranks: Sequence[Approximation], profile: TrafficProfile) -> Column:
    """Return f of a method on the slowest group's rank, which an iteration waits for."""
    times: Column = np.maximum.reduce([rank.iteration(profile) for rank in ranks])
    return times


@dataclass(frozen=True, slots=True, kw_only=True)
class _Durations:
    rows: tuple[Column, ...]
    """Parts of backward; `before` by bucket; by collective `after`, exit delay and servers'
    computation."""
    first: NDArray[np.int64]  # number of each bucket's first collective, then their total number

    @staticmethod
    def of(plan: StepPlan) -> _Durations:
        parts = [*plan.compute.parts, plan.compute.rest]
        before = [sum(job.duration for job in work.before) for work in plan.buckets]
        after: list[int] = []
        delays: list[int] = []
        served: list[int] = []
        first = [0]
        for work in plan.buckets:
            count = len(work.collectives)
            after += [job.duration for job in work.after]
            delays += work.exit_delays or (0,) * count
            served += work.server_times or (0,) * count
            first.append(first[-1] + count)
        return _Durations(
            rows=tuple(
                np.array(each, np.float64) for each in (parts, before, after, delays, served)
            ),
            first=np.array(first, dtype=np.int64),
        )


_DELAYS, _SERVED = 3, 4


def records_of(profiles: Iterable[TrafficProfile]) -> list[CollectiveRecord]:
    """Distinct requests of the profiles."""
    found = {
        record: None
        for profile in profiles
        for phase in profile.phases
        for step in _steps(phase)
        for exchange in step.exchanges
        for record in exchange.collectives
    }
    return list(found)


def _steps(phase: Phase) -> tuple[Step, ...]:
    """Return evenly spaced recorded steps, since different encodings can reorder a stream."""
    every = _every(phase)
    return phase.steps[every // 2 :: every]


def with_few_steps(profile: TrafficProfile) -> TrafficProfile:
    """Return the profile with the nearest of these steps in place of each: a mean over them differs
    by some thousandths."""
    return replace(
        profile,
        phases=tuple(
            replace(
                phase,
                steps=tuple(
                    _steps(phase)[min(number // _every(phase), len(_steps(phase)) - 1)]
                    for number in range(len(phase.steps))
                ),
            )
            for phase in profile.phases
        ),
    )


def _every(phase: Phase) -> int:
    return -(-len(phase.steps) // _RECORDED)


def _slowdown(cluster: Cluster, training: Training, seed: int) -> float:
    """Return the mean factor on the slowest rank's computation."""
    slow, noise = slow_ranks(cluster, training), training.noise
    constant = np.ones(cluster.workers) if slow is None else slow
    if noise is None or not (noise.variation or noise.slow_probability):
        return float(constant.max())
    drawn = [slowdowns(noise, seed, n, cluster.workers) * constant for n in range(_PACES)]
    return float(np.mean([one.max() for one in drawn]))
