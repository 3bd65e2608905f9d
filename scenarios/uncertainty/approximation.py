"""Approximate duration of an iteration in each of many worlds.

An exact simulation of every world would take minutes. But a world changes an iteration almost only
through the durations of one rank's computations and collectives, so

    iteration in a world = exact iteration as stated * f(world) / f(as stated)

where f is the step of the slowest rank (`one_rank.py`), whose collectives take as long as if all
ranks entered together; a few recorded steps stand for each phase, and a few paces for random times.
What f omits (skew, shared cores) is assumed to scale all worlds alike. `docs/model/uncertainty.md`
has the error.

Kernel prices are linear in the launch time and in the reciprocals of the rates, on host and device
separately; the other parts of a plan are linear in the training's figures; forward and backward are
scaled; `uncertainty/collective_times.py` has the collectives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.scenario import with_nodes
from gcsim.scenarios.uncertainty.collective_times import CollectiveTimes
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import Column, Rows
from gcsim.scenarios.uncertainty.kernel_use import counts
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds
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
from gcsim.simulator.steps.events.message_ring import RingPrograms
from gcsim.simulator.steps.noise import longest, slowdowns
from gcsim.simulator.steps.step_plan import StepPlan
from gcsim.simulator.training import Code, Noise, SharedNode, Training
from gcsim.traces.profile import Compute, Phase, Step, TrafficProfile

_RECORDED = 4  # most recorded steps of a phase that are evaluated
_ITERATIONS = 20  # iterations in which the slowest rank's slowdown is drawn
_PACES = 4  # paces that stand for these


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
        ranks: NDArray[np.bool_] | None = None,
    ) -> None:
        """`training`: the stated one on `nodes` nodes; `collective_times`: those of another
        approximation in the same worlds, to share; `group`: the rank's group of nodes, to which
        `prices`, `compute` and `ranks` (None: all) belong."""
        whole = with_nodes(drawn.cluster(0), nodes)
        cluster = whole.all_like(group)
        self._slower = drawn.kernel_extras(group)
        self._drawn, self._worlds = drawn, drawn.worlds
        self._cluster, self._prices = cluster, prices
        self.collective_times = collective_times or CollectiveTimes(
            drawn, nodes, records_of(profiles)
        )
        self._training = training
        training = replace(training, overlap=None, exposed=Fraction(0), exposed_range=None)
        self._planner = Planner(whole, compute, training, prices, group=group)
        self._sending = RingPrograms(cluster).sending
        self._known: dict[tuple[int, ...], tuple[tuple[Compute, ...], Column]] = {}
        one = Fraction(1)  # both factors are linear in their figures
        skewed = 1 + drawn.figure(training.noise, ("training", "noise"), "skew") * float(
            longest(Noise(skew=one), cluster.workers) - 1
        )
        alike = replace(training, code=Code(), shared_node=SharedNode(slowdown=one))
        crowd = drawn.figure(training.shared_node, ("training", "shared_node"), "slowdown") * float(
            pass_slowdown(whole, alike, group) - 1
        )
        longer = drawn.figure(training.code, ("training", "code"), "slowdown") * (1 + crowd)
        self._paces = _paces(cluster, training, seed, ranks)
        self._slowdown = sum(self._paces) / len(self._paces)
        self._local = drawn.passes(group) * longer / longer[0]
        """Factor on the stated passes of steps without a collective, by world."""
        self._passes = self._local * skewed / skewed[0]
        self._streamed = training.encode_on == "communicator"

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

        plan = self._planner.without_interference(step, code)
        if plan.sharded:
            return self._sharded(plan, step)
        passes = self._passes if any(one.collectives for one in step.exchanges) else self._local
        parts = np.array([[part] for part in (*plan.compute.parts, plan.compute.rest)]) * passes
        waits = self._drawn.waits
        parts[0], parts[1:] = (parts[0] + waits * parts[1:].sum(axis=0), parts[1:] * (1 - waits))
        on_stream = float(plan.side_slowdown if plan.side_stream else 1)
        times: list[Rows] = []  # alone, during computation, of sending
        before, after, delays, first = [], [], [], [0]
        worlds = len(self._worlds)
        nowhere, framework = np.zeros(worlds), self._framework(profile, len(step.exchanges))
        together: dict[tuple[int, int, int], Rows] = {}  # by identity: buckets share records
        for exchange, work, around in zip(step.exchanges, plan.buckets, framework, strict=True):
            start, *answers = exchange.computes
            ranks, *payloads = payloads_of(exchange, self._cluster)
            moments = () if exchange.moments is None else (exchange.moments,)
            before.append(
                sum(job.duration for job in work.before) + self._extra((start, *moments), ranks)
            )
            after += [
                job.duration + self._extra((compute,), number)
                for job, compute, number in zip(work.after, answers, payloads, strict=True)
            ]
            if answers:  # as `plans.with_code_time`
                before[-1] = before[-1] + around / 2
                after[-1] = after[-1] + around / 2
            nothing = (0,) * len(answers)
            for record, by, number, server_time, delay in zip(
                exchange.collectives,
                exchange.servers or (None,) * len(answers),
                payloads,
                work.server_times or nothing,
                work.exit_delays or nothing,
                strict=True,
            ):
                name = id(record), server_time, id(by)
                if name not in together:
                    parted = self._cluster.servers if record.kind == "push_pull" else 1
                    more_served = self._extra(() if by is None else (by,), number, parted)
                    together[name] = np.vstack(
                        [
                            self.collective_times(record, server_time, more_served),
                            self._sends(record) if plan.slots == 2 else nowhere,
                        ]
                    )
                times.append(together[name])
                delays.append(delay + nowhere)
            first.append(len(times))
        if self._streamed:  # as `plans.in_collectives_stream`
            delays = [delay + longer for delay, longer in zip(delays, after, strict=True)]
            after = [0 * longer for longer in after]
            for bucket, (one, following) in enumerate(pairwise(first)):
                if one < following:
                    delays[one] = delays[one] + before[bucket]
                    before[bucket] = 0 * before[bucket]
        found = np.empty((len(self._paces), worlds))
        alone, overlapped, sends = np.array(times).reshape(-1, 3, worlds).swapaxes(0, 1)
        alone, overlapped = (
            np.array(delays).reshape(-1, worlds) + each for each in (alone, overlapped)
        )
        one_rank.exchange_times(
            parts,
            on_stream * np.array(before).reshape(-1, worlds),
            alone,
            overlapped if plan.machines is None else alone,
            sends / alone,
            on_stream * np.array(after).reshape(-1, worlds),
            self._drawn.longer_computation if plan.machines is None else 1 + nowhere,
            np.array(first),
            np.array(self._paces),
            plan.side_stream,
            plan.slots,
            plan.gathers,
            found,
        )
        return self._whole(plan, found.mean(axis=0), passes)

    def _sends(self, record: CollectiveRecord) -> Column:
        """Return how long a rank sends in a collective; infinite if it runs exclusively."""
        network, figures = self._cluster.network, ("bandwidth", "efficiency")
        sends = self._sending(record)
        rates = [self._drawn.figure(network, ("cluster", "network"), each) for each in figures]
        slower = np.prod([rate[0] / rate for rate in rates], axis=0)
        longer: Column = slower * (np.inf if sends is None else sends)
        return longer

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
            records = exchange.collectives
            times.append([self.collective_times(one, 0, nothing)[0] for one in records])
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
            used = self._prices.once(
                ("counts", payloads, servers),
                compute,
                partial(counts, compute, device, payloads, servers),
            )
            for figure, count in used.items():
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
        return self._slowdown * (alone * passes + plan.optimizer) + exchanged


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
    alike = np.repeat(
        first_alike(cluster, compute) or [0], cluster.ranks_of_groups or [cluster.workers]
    )
    found: list[Approximation] = []
    for number in np.unique(alike).tolist():
        device = cluster.groups[number].device if number else cluster.device
        found.append(
            Approximation(
                drawn, nodes, training, compute.of_group(number), profiles,
                prices=prices.for_device(device) if number else prices, seed=seed,
                collective_times=found[0].collective_times if found else None, group=number,
                ranks=alike == number,
            )
        )  # fmt: skip
    return found


def slowest(ranks: Sequence[Approximation], profile: TrafficProfile) -> Column:
    """Return f of a method on the slowest group's rank, which an iteration waits for."""
    times: Column = np.maximum.reduce([rank.iteration(profile) for rank in ranks])
    return times


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


def _every(phase: Phase) -> int:
    return -(-len(phase.steps) // _RECORDED)


def with_few_steps(profile: TrafficProfile) -> TrafficProfile:
    """Return the profile with the nearest of these steps in place of each: a mean over them differs
    by some thousandths."""

    def few(phase: Phase) -> Phase:
        steps, every = _steps(phase), _every(phase)
        near = (min(number // every, len(steps) - 1) for number in range(len(phase.steps)))
        return replace(phase, steps=tuple(steps[place] for place in near))

    return replace(profile, phases=tuple(map(few, profile.phases)))


def _paces(
    cluster: Cluster, training: Training, seed: int, ranks: NDArray[np.bool_] | None
) -> list[float]:
    """Return equally frequent factors on the computation of the slowest of these ranks."""
    slow, noise = slow_ranks(cluster, training), training.noise
    constant = np.ones(cluster.workers) if slow is None else slow
    if noise is None or not (noise.variation or noise.slow_probability):
        return [float(constant[ranks].max())]
    drawn = [slowdowns(noise, seed, n, cluster.workers) * constant for n in range(_ITERATIONS)]
    slowest = np.sort([one[ranks].max() for one in drawn])
    return [float(part.mean()) for part in np.split(slowest, _PACES)]
