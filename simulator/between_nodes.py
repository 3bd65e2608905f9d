"""Traffic of a method that compresses between nodes alone (`training.between: nodes`).

Each node's ranks first all-reduce their gradients uncompressed, as one worker of the method: all of
them hold the same sum, encode it to the same payload and decode the same answers, so that one rank
of each node exchanges for all and hands them what it received (`CollectiveRecord.scope`). Dense
training is left to its collective, which knows nodes itself.

Assumes that payloads and errors are those measured with a single device's gradients, and that a
node that is early waits for the others before it encodes.
"""

from __future__ import annotations

from dataclasses import replace

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.half_gradients import as_stored
from gcsim.simulator.plans import DENSE
from gcsim.simulator.training import Training
from gcsim.traces.profile import Compute, Exchange, Phase, Step, TrafficProfile


def as_trained(profile: TrafficProfile, training: Training, cluster: Cluster) -> TrafficProfile:
    """The profile with gradients as the training stores them, and exchanges between the ends that
    it names; the same object where nothing changes."""
    profile = as_stored(profile, training)
    whole = training.between == "workers" or cluster.devices_per_node == 1
    if whole or profile.compressor == DENSE:
        return profile

    def changed(step: Step) -> Step:
        pairs = zip(profile.buckets, step.exchanges, strict=True)
        exchanges = [
            _exchange(each, training.gradient_bytes * layout.numel, profile.workers)
            for layout, each in pairs
        ]
        return replace(step, exchanges=tuple(exchanges))

    phases: list[Phase] = [
        replace(phase, steps=tuple(map(changed, phase.steps))) for phase in profile.phases
    ]
    return replace(profile, phases=tuple(phases))


def _exchange(exchange: Exchange, nbytes: int, workers: int) -> Exchange:
    if not exchange.collectives:
        return exchange
    moments = 1 if exchange.moments is None else 2  # second moments are summed, too
    summed = CollectiveRecord(
        kind="all_reduce", sent=(moments * nbytes,) * workers, element=4, scope="node"
    )
    others = (replace(record, scope="nodes") for record in exchange.collectives)
    return replace(
        exchange,
        computes=(Compute(stage="encode", fixed=()), *exchange.computes),
        collectives=(summed, *others),
        servers=(None, *exchange.servers) if exchange.servers else (),
    )
