"""Predictions for other clusters: times of passes, clusters, and what to fit.

The passes of a device take what its own measurement says, or, without any fit, what the catalogue
says; the rest is the simulator's (`predict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

from gcsim.analysis.validation.interval import Drawing, Interval, StepIntervals, ends, passes_of
from gcsim.analysis.validation.suite import Point
from gcsim.analysis.validation.suites.other_clusters.runs import Run, facts
from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import loops
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_time import ComputeTimes, training_times
from gcsim.simulator.network.links import Link
from gcsim.simulator.predict import predict
from gcsim.simulator.training import Training
from gcsim.traces.profile import ModelFacts, PassTimes, TrafficProfile

NONE = Device(name="none", title="none", kernels={}, effective_flop_rate=1.0, source="")
"""Of clusters on which nothing is computed but forward and backward, whose times are stated."""
NCCL_RINGS = Collectives(
    transport="custom",
    all_reduce="nccl_ring_simple",
    all_gather="nccl_ring_simple",
    host_staging=False,
)
"""Of NCCL before its trees, and of large messages in a node."""
BACKWARD = NONE.backward_over_forward
"""Backward over forward, of every device that nothing else is known of."""
_CLOSE = 1e-3


@cache
def catalogue_seconds(device: str, model: str, batch: int) -> float | None:
    """An iteration on one device by the catalogue; None where it knows nothing of the model."""
    return known_step(facts(model, batch), device)


def known_step(model: ModelFacts, device: str) -> float | None:
    """The same of a model with its batch."""
    try:
        return float(step_time(model, catalog.device(device)).seconds)
    except InputError:
        return None


def backward_of(step: float) -> float:
    """Seconds of the backward pass in a step of so many seconds."""
    return step * BACKWARD / (1 + BACKWARD)


KNOWN = Training(overlap="ddp")
"""Of published code whose overlap is known."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """An iteration to simulate."""

    profile: TrafficProfile
    cluster: Cluster
    step: float
    """Seconds of one device alone."""
    training: Training = KNOWN

    @property
    def passes(self) -> ComputeTimes:
        """Forward and backward."""
        backward = backward_of(self.step)
        measured = PassTimes(forward=self.step - backward, backward=backward, source="measured")
        return training_times(self.profile.model, self.profile.buckets, NONE, measured)

    @cached_property
    def seconds(self) -> float:
        """Of the iteration, as stated."""
        return predict(
            self.profile, self.cluster, self.passes, training=self.training, spans=False
        ).iteration

    @cached_property
    def _bare(self) -> dict[tuple[str, str], Job]:
        return {}

    def unfitted(self, device: str, framework: str = "none") -> Job:
        """The same, once, on a device of the catalogue, with what it has for the loop around."""
        if (device, framework) in self._bare:
            return self._bare[device, framework]
        chosen = self.cluster.collectives
        transport = "nccl" if "nccl" in f"{chosen.transport} {chosen.all_reduce}" else ""
        training = replace(
            self.training,
            interference=loops.interference(transport),
            reducer=loops.framework(framework)[0],
            noise=loops.workers(),
        )
        cluster = replace(self.cluster, device=catalog.device(device))
        found = replace(self, cluster=cluster, training=training)
        self._bare[device, framework] = found
        return found

    def interval(self, published: Callable[[float], float] = float) -> Interval | None:
        """Of what is published of an iteration of the device that the cluster has."""
        return self.drawing.interval(published)

    @cached_property
    def drawing(self) -> Drawing:
        """It in all drawn worlds."""
        drawn = StepIntervals(self.cluster, self.training, [self.profile])
        compute = passes_of(self.passes, self.profile.model, self.cluster.device)
        return drawn.draw(self.profile, compute, self.seconds)


def compared_step(run: Run, predicted: float, bare: Job | None, **other: Any) -> Point:
    """A measured iteration in its source's terms, beside the seconds that are predicted and the job
    that the catalogue alone makes of it; `other` are more fields of the point."""

    def published(seconds: float) -> float:
        return run.published(seconds)[0]

    return Point(
        unit=run.published(predicted)[1],
        measured=run.value,
        predicted=published(predicted),
        unfitted=None if bare is None else published(bare.seconds),
        **ends(bare.interval(published) if bare else None),
        source=run.source,
        workers=run.gpus,
        **other,
    )


def iteration(
    profile: TrafficProfile, cluster: Cluster, step: float, training: Training = KNOWN
) -> float:
    """Seconds of an iteration of the cluster, where one device alone takes `step` seconds."""
    return Job(profile=profile, cluster=cluster, step=step, training=training).seconds


def cluster_of(
    nodes: int, gpus: int, network: Link, inside: Link, collectives: Collectives
) -> Cluster:
    """Of equal nodes with `gpus` GPUs in all."""
    return Cluster(
        nodes=nodes,
        devices_per_node=gpus // nodes,
        device=NONE,
        network=network,
        intra_node=inside,
        collectives=collectives,
    )


def with_efficiency(link: Link, efficiency: float) -> Link:
    """The same link at another goodput over line rate."""
    return link.exactly(efficiency=Fraction(round(efficiency * 10**6), 10**6))


def nearest(
    predicted: Callable[[float], Sequence[float]],
    measured: Sequence[float],
    low: float,
    high: float,
) -> float:
    """The value in [low, high] at which the predictions of all measurements are nearest to them.

    To 0.1 % of the value: least squares of the logarithms of predicted over measured, by Brent's
    method on its logarithm; there is one minimum where all predictions fall with the value.
    """
    from scipy.optimize import minimize_scalar

    def misses(logarithm: float) -> float:
        both = zip(predicted(math.exp(logarithm)), measured, strict=True)
        return sum(math.log(one / other) ** 2 for one, other in both)

    ends = math.log(low), math.log(high)
    found = minimize_scalar(misses, bounds=ends, method="bounded", options={"xatol": _CLOSE})
    return math.exp(float(found.x))


def fused(
    sizes: Sequence[int],
    ready: Sequence[float],
    transfer: Callable[[int], float],
    *,
    cycle: float,
    threshold: int,
) -> list[list[int]]:
    """Which tensors Horovod sends together.

    Every `cycle` seconds, or when the communication before has ended, if that is later, it takes
    what has become ready, in order, up to `threshold` bytes (a larger tensor alone), and reduces
    it. `sizes` are bytes in forward order, `ready` seconds from the start of the backward pass,
    `transfer` the seconds of an all-reduce of so many bytes. Indices in the order of sending.

    Source: Horovod, docs/tensor-fusion.md and operations.cc (`RunLoopOnce`, FUSION_THRESHOLD).
    """
    order = sorted(range(len(sizes)), key=lambda n: (ready[n], -n))
    groups: list[list[int]] = []
    now = cycle
    place = 0
    while place < len(order):
        if ready[order[place]] > now:
            now += cycle * math.ceil((ready[order[place]] - now) / cycle)
        start, held = place, 0
        while place < len(order) and ready[order[place]] <= now:
            if place > start and held + sizes[order[place]] > threshold:
                break
            held += sizes[order[place]]
            place += 1
        groups.append(order[start:place])
        now += max(cycle, transfer(held))
    return groups


def ready_times(model: str, batch: int, step: float) -> list[float]:
    """By tensor in forward order: seconds from the start of the backward pass until its gradient
    is there, by the layers' FLOPs."""
    layers = facts(model, batch).layers
    total = sum(layer.forward_flops for layer in layers)
    found: dict[int, float] = {}
    spent = 0
    for layer in reversed(layers):
        spent += layer.forward_flops
        found.update(dict.fromkeys(layer.parameters, backward_of(step) * spent / total))
    return [found[n] for n in range(len(found))]
