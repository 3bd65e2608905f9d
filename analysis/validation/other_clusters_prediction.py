"""How is a measurement of another cluster predicted? Times of passes, clusters, and what to fit.

The passes of a device take what its own measurement says, or, without any fit, what the catalogue
says; the rest is the simulator's (`predict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

from gcsim.analysis.validation.other_clusters_runs import facts
from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_time import training_times
from gcsim.simulator.network.links import Link
from gcsim.simulator.predict import predict
from gcsim.simulator.training import Training
from gcsim.traces.passes import PassTimes
from gcsim.traces.profile import TrafficProfile

NONE = Device(name="none", title="none", kernels={}, effective_flop_rate=1.0, source="")
"""Of clusters on which nothing is computed but forward and backward, whose times are stated."""
BACKWARD = NONE.backward_over_forward
"""Backward over forward, of every device that nothing else is known of."""
_CLOSE = 1e-3


@cache
def catalogue_seconds(device: str, model: str, batch: int) -> float | None:
    """An iteration on one device by the catalogue; None where it knows nothing of the model."""
    try:
        return float(step_time(facts(model, batch), catalog.device(device)).seconds)
    except InputError:
        return None


def backward_of(step: float) -> float:
    """Seconds of the backward pass in a step of so many seconds."""
    return step * BACKWARD / (1 + BACKWARD)


def iteration(
    profile: TrafficProfile,
    cluster: Cluster,
    step: float,
    training: Training = Training(),  # noqa: B008 (frozen)
) -> float:
    """Seconds of an iteration of the cluster, where one device alone takes `step` seconds."""
    backward = backward_of(step)
    measured = PassTimes(forward=step - backward, backward=backward, source="measured")
    times = training_times(profile.model, profile.buckets, NONE, measured)
    return predict(profile, cluster, times, training=training, spans=False).iteration


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
    return replace(link, efficiency=Fraction(round(efficiency * 10**6), 10**6))


def matched(predicted: Callable[[float], float], measured: float, low: float, high: float) -> float:
    """The value in [low, high] whose prediction, which falls with it, is the measurement.

    To 0.1 % of the value, by Brent's method on its logarithm; the nearer end where the measurement
    is beyond what either gives.
    """
    from scipy.optimize import brentq

    def miss(logarithm: float) -> float:
        return math.log(predicted(math.exp(logarithm)) / measured)

    ends = math.log(low), math.log(high)
    if miss(ends[1]) >= 0:
        return high
    if miss(ends[0]) <= 0:
        return low
    return math.exp(brentq(miss, *ends, xtol=_CLOSE))


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
