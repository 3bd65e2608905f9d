"""What does a worker do in a recorded step? From traffic profile to step plan.

Computations become durations on the cluster's device, once for each worker of the cluster where
they decode payloads; collectives stay records of bytes.
"""

from __future__ import annotations

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.steps.step_plan import BucketWork, Job, Kind, Machines, StepPlan
from gcsim.simulator.training import Training
from gcsim.traces.profile import Exchange, Step


class Planner:
    """Plans steps on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        compute: ComputeTimes,
        training: Training,
        prices: PriceList | None = None,
    ) -> None:
        """`compute` is one worker's forward and backward pass of a micro-batch; `prices` are those
        of the cluster's device, where they are at hand."""
        self._cluster, self._compute, self._training = cluster, compute, training
        self._prices = prices or PriceList(cluster.device)
        self._machines = machines(cluster, training.on_host)

    def plan(self, step: Step) -> StepPlan:
        """Of a recorded step; `InputError` when the device has no price for a kernel."""
        training, loading = self._training, self._training.input
        return StepPlan(
            compute=self._compute,
            buckets=tuple(
                self._price(exchange, bucket) for bucket, exchange in enumerate(step.exchanges)
            ),
            side_stream=training.encode_on == "side",
            side_slowdown=training.side_slowdown,
            slots=training.concurrent_collectives,
            optimizer=picoseconds(training.optimizer),
            accumulation=training.accumulation,
            input_batch=0 if loading is None else picoseconds(loading.batch),
            prefetch=1 if loading is None else loading.prefetch,
            machines=self._machines,
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


def machines(cluster: Cluster, kinds: frozenset[Kind]) -> Machines | None:
    """Who shares cores in jobs of these kinds; None where every rank has a core of its own."""
    host = cluster.host
    if host is None or not kinds:
        return None
    together = host.ranks == "all"
    if (cluster.workers if together else cluster.devices_per_node) <= host.cores:
        return None
    of_rank = tuple(0 if together else cluster.node_of(r) for r in range(cluster.workers))
    return Machines(cores=host.cores, of_rank=of_rank, kinds=kinds)
