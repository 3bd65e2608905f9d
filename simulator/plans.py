"""Step plans of workers, from the recorded steps of a traffic profile.

A plan has the durations of the computations on the cluster's device (decoding once per received
payload) and the collectives as records of bytes. In a cluster of groups, each group has the plans
of its own device, but all use the slowest group's order of service, and the longest server times
and exit delays of any group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from gcsim.compressors.kernels import KernelCost
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.steps.events.even_cluster import EvenCollectiveTimes, on_even_cluster
from gcsim.simulator.steps.noise import longest
from gcsim.simulator.steps.step_plan import BucketWork, Job, Kind, StepPlan
from gcsim.simulator.training import DENSE, Training
from gcsim.traces.profile import Compute, Exchange, Step, TrafficProfile

CHECKS, STEP_CHECKS = (
    Compute(
        stage="encode",
        fixed=(KernelCost(kind="streaming", name=name, launches=1, elements=0, nbytes=0),),
    )
    for name in ("ddp.bucket", "ddp.step")
)
"""Checks of gcsim's hook that gradients and updates are finite, per bucket and per step. Only their
launches by a GPU's host are priced here; `Framework.passes` has their bytes."""


def payloads_of(exchange: Exchange, cluster: Cluster) -> list[int]:
    """Return the number of payloads that each computation of an exchange handles: the number of
    ranks of the collective before it, or for the first one of the collective after it."""
    ranks = [cluster.ranks_in(record.scope) for record in exchange.collectives]
    return [*ranks[:1], *ranks] or [cluster.workers]


class Planner:
    """Builder of step plans for one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        compute: ComputeTimes,
        training: Training,
        prices: PriceList | None = None,
        together: EvenCollectiveTimes | None = None,
        *,
        group: int = 0,
    ) -> None:
        """`compute`: a worker's passes of a micro-batch; `prices` of the device and `together`, the
        collectives' times, may be shared with other planners; `group`: the worker's group."""
        self._compute = compute.scaled(pass_slowdown(cluster, training, group))
        self._cluster, self._training = cluster.all_like(group), training
        cluster = self._cluster
        self._prices = prices or PriceList(cluster.device)
        self._machines = training.machines(cluster)
        self._in_turn = training.encode_on == "communicator" and self._machines is not None
        """Whether computations in the collectives' stream run on shared cores."""
        self._interference = training.interference
        self._together = together or _together(cluster, training)

    def exchange_code_times(self, profile: TrafficProfile) -> tuple[Picoseconds, ...]:
        """Return the time of the framework's code around each bucket's exchange."""
        named, training = profile.compressor, self._training
        code = training.exchange_code(named)
        if code.free or self._cluster.workers == 1 or training.sharded:
            return ()
        checked = named != DENSE and named not in training.others
        checks, step_checks = (
            round(self._prices.priced_by(each, 1).host) if checked else 0
            for each in (CHECKS, STEP_CHECKS)
        )
        per_step = code.per_step if self._cluster.nodes > 1 else 0
        last = len(profile.buckets) - 1
        return tuple(
            picoseconds(
                len(layout.slices) * code.per_tensor
                + code.per_bucket
                + (per_step if place == last else 0)
            )
            + self._passes(layout.numel, code.passes)
            + checks
            + (step_checks if place == last else 0)
            for place, layout in enumerate(profile.buckets)
        )

    def _passes(self, elements: int, passes: Fraction) -> Picoseconds:
        nbytes = round(self._training.gradient_bytes * elements * passes)
        return self._prices.compute_time(streaming(nbytes), 1)

    def plan(self, step: Step, around: Sequence[Picoseconds] = ()) -> StepPlan:
        """Plan a recorded step; `around`: time of the code around each bucket's exchange (empty:
        none). Raises `InputError` if the device has no price for a kernel."""
        plan, together = self.without_interference(step, around), self._together
        if self._cluster.workers == 1 or plan.sharded:
            return plan
        return on_even_cluster(plan, self._interference.computation, together, together.sending)

    def without_interference(self, step: Step, around: Sequence[Picoseconds] = ()) -> StepPlan:
        """Plan a step in which jobs and collectives do not slow each other."""
        training, loading = self._training, self._training.input
        compute = self._compute
        if any(exchange.collectives for exchange in step.exchanges):
            compute = compute.scaled(longest(training.noise, self._cluster.workers))
        workers, devices = self._cluster.workers, self._cluster.devices_per_node
        shards = {"ddp": 1, "hsdp": devices}.get(training.strategy, workers)
        return StepPlan(
            compute=compute.delayed(training.waits),
            buckets=self._buckets(step.exchanges, around or [0] * len(step.exchanges)),
            side_stream=training.encode_on == "side" or self._in_turn,
            in_turn=self._in_turn,
            side_slowdown=training.side_slowdown,
            slots=training.concurrent_collectives,
            optimizer=picoseconds(training.optimizer) or compute.optimizer // shards,
            accumulation=training.accumulation,
            input_batch=0 if loading is None else picoseconds(loading.batch),
            prefetch=1 if loading is None else loading.prefetch,
            machines=self._machines,
        )

    def steps(self, profile: TrafficProfile) -> list[list[StepPlan]]:
        """Plan the recorded steps, by phase; errors as `plan`."""
        around = self.exchange_code_times(profile)
        unlike = {objects_of(step): step for phase in profile.phases for step in phase.steps}
        plans = {objects: self.plan(step, around) for objects, step in unlike.items()}
        return [[plans[objects_of(step)] for step in phase.steps] for phase in profile.phases]

    def _buckets(
        self, exchanges: Sequence[Exchange], around: Sequence[Picoseconds]
    ) -> tuple[BucketWork, ...]:
        """Return the buckets' work; equal blocks of a network share it."""
        in_stream = self._training.encode_on == "communicator" and not self._in_turn
        known: dict[tuple[int, Picoseconds], BucketWork] = {}
        works = []
        for exchange, time in zip(exchanges, around, strict=True):
            work = known.get((id(exchange), time))
            if work is None:
                work = with_code_time(self._price(exchange), time)
                work = in_collectives_stream(work) if in_stream else work
                known[id(exchange), time] = work
            works.append(work)
        return tuple(works)

    def _price(self, exchange: Exchange) -> BucketWork:
        """Convert computations to durations; every worker sends one payload."""
        if len(exchange.computes) != len(exchange.collectives) + 1:
            raise InternalError(
                f"{len(exchange.computes)} computations around "
                f"{len(exchange.collectives)} collectives"
            )
        payloads = payloads_of(exchange, self._cluster)
        kinds = kinds_of(exchange)
        first, *after = [
            Job(kind=kind, name=each.stage, duration=self._prices.compute_time(each, number))
            for kind, each, number in zip(kinds, exchange.computes, payloads, strict=True)
        ]
        before = [first]
        if exchange.moments is not None:
            time = self._prices.compute_time(exchange.moments, payloads[0])
            before = [Job(kind="encode", name="moments", duration=time), first]
        return BucketWork(
            before=tuple(before),
            collectives=exchange.collectives,
            server_times=self._server_times(exchange, payloads[1:]),
            after=tuple(after),
        )

    def _server_times(self, exchange: Exchange, payloads: Sequence[int]) -> tuple[Picoseconds, ...]:
        if not exchange.servers:
            return ()
        return tuple(
            0
            if compute is None
            else self._prices.compute_time(
                compute, number, self._cluster.servers if record.kind == "push_pull" else 1
            )
            for compute, record, number in zip(
                exchange.servers, exchange.collectives, payloads, strict=True
            )
        )


class GroupPlanner:
    """Builder of step plans for a cluster of groups, each of which has its own `Planner`."""

    def __init__(self, counts: Sequence[int], planners: Sequence[Planner]) -> None:
        self._counts, self._planners = counts, planners

    def steps(self, profile: TrafficProfile) -> list[list[StepPlan]]:
        """Plan the recorded steps, as `Planner.steps`."""
        unlike = {planner: planner.steps(profile) for planner in dict.fromkeys(self._planners)}
        if len(unlike) == 1:
            return unlike[self._planners[0]]
        return [
            [self._together(plans) for plans in zip(*of_phase, strict=True)]
            for of_phase in zip(*(unlike[planner] for planner in self._planners), strict=True)
        ]

    def _together(self, plans: Sequence[StepPlan]) -> StepPlan:
        lead = max(plans, key=_work)
        shared = [
            (
                first.behind,
                _longest([work.exit_delays for work in works]),
                _longest([work.server_times for work in works]),
            )
            for first, *works in zip(lead.buckets, *(each.buckets for each in plans), strict=True)
        ]
        served = [
            replace(plan, buckets=tuple(map(_with_shared, plan.buckets, shared))) for plan in plans
        ]
        if all(plan == served[0] for plan in served):
            return served[0]
        groups = tuple(zip(self._counts, served, strict=True))
        return replace(served[list(plans).index(lead)], groups=groups)


_Shared = tuple[tuple[int, ...], tuple[Picoseconds, ...], tuple[Picoseconds, ...]]
"""Order of service, delays of exits and times of servers of a bucket, the same in all groups."""


def _with_shared(work: BucketWork, shared: _Shared) -> BucketWork:
    behind, exits, served = shared
    if (work.behind, work.exit_delays, work.server_times) == shared:
        return work
    return replace(work, behind=behind, exit_delays=exits, server_times=served)


def _work(plan: StepPlan) -> Picoseconds:
    """Return the total duration of a step's passes and jobs."""
    jobs = (job for work in plan.buckets for job in (*work.before, *work.after))
    return plan.accumulation * plan.compute.total + sum(job.duration for job in jobs)


def _longest(times: Sequence[tuple[Picoseconds, ...]]) -> tuple[Picoseconds, ...]:
    """Return the elementwise maximum of the tuples that are not empty."""
    return tuple(map(max, zip(*filter(None, times), strict=True)))


def planner_of(
    cluster: Cluster,
    compute: ComputeTimes,
    training: Training,
    prices: PriceList | None = None,
    together: EvenCollectiveTimes | None = None,
) -> Planner | GroupPlanner:
    """Return the planner of a cluster with or without groups; arguments as `Planner`'s."""
    prices, together = prices or PriceList(cluster.device), together or _together(cluster, training)
    if not cluster.groups:
        return Planner(cluster, compute, training, prices, together)
    first = first_alike(cluster, compute)
    planners = {
        number: Planner(
            cluster,
            compute.of_group(number),
            training,
            prices if device is cluster.device else prices.for_device(device),
            together,
            group=number,
        )
        for number, device in ((number, cluster.groups[number].device) for number in set(first))
    }
    return GroupPlanner(cluster.ranks_of_groups, [planners[number] for number in first])


def first_alike(cluster: Cluster, compute: ComputeTimes) -> list[int]:
    """Return for each group the first group with the same device and passes, whose devices also
    are alone in their nodes or also are not."""
    kinds = [
        (id(group.device), compute.of_group(number), cluster.devices_of(number) == 1)
        for number, group in enumerate(cluster.groups)
    ]
    return list(map(kinds.index, kinds))


@lru_cache(maxsize=1 << 12)
def streaming(nbytes: int) -> Compute:
    """Return a computation that reads or writes bytes once; cached, for `PriceList`'s cache."""
    cost = KernelCost(kind="streaming", launches=0, elements=nbytes // 4, nbytes=nbytes)
    return Compute(stage="encode", fixed=(cost,))


def objects_of(step: Step) -> tuple[int, ...]:
    """Return a step's exchanges' identities; equal steps share them (`with_shared_objects`)."""
    return tuple(map(id, step.exchanges))


def kinds_of(exchange: Exchange) -> list[Kind]:
    """Return the kind of each computation of an exchange: encode or decode."""
    return ["decode" if each.stage == "decode" else "encode" for each in exchange.computes]


def with_code_time(work: BucketWork, around: Picoseconds) -> BucketWork:
    """Add the framework's code: half before the first collective, half after the last."""
    if not around or not work.collectives:
        return work
    before = around // 2
    packing = Job(kind="encode", name="framework", duration=before)
    last = work.after[-1]
    unpacked = replace(last, duration=last.duration + around - before)
    return replace(work, before=(packing, *work.before), after=(*work.after[:-1], unpacked))


def in_collectives_stream(work: BucketWork) -> BucketWork:
    """Move an exchange's computations to the stream of its collectives: a rank leaves a collective
    when the computation after it is done. (The one before the first also counts after it.)"""
    if not work.collectives:
        return work
    exit_delays = [job.duration for job in work.after]
    exit_delays[0] += sum(job.duration for job in work.before)
    return replace(
        work,
        before=tuple(replace(job, duration=0) for job in work.before),
        exit_delays=tuple(exit_delays),
        after=tuple(replace(job, duration=0) for job in work.after),
    )


def pass_slowdown(cluster: Cluster, training: Training, group: int = 0) -> Fraction:
    """Return the factor on a group's forward and backward for their code and the node's other
    devices."""
    like = cluster.all_like(group)
    by_cores = like.device.processor == "cpu" or training.machines(like)
    alone = cluster.devices_of(group) == 1 or by_cores
    return training.code.slowdown * (1 if alone else 1 + training.shared_node.slowdown)


def _together(cluster: Cluster, training: Training) -> EvenCollectiveTimes:
    from gcsim.simulator.collectives.dispatch import CollectiveMemo  # compiles its loops

    return EvenCollectiveTimes(cluster, training, CollectiveMemo.of(cluster))
