"""Profiles as a training changes them: gradients in 16 bits, compression between nodes alone.

Where gradients are stored in 16 bits (`training.gradients`), dense training all-reduces 2 bytes per
element and casts nothing: one pass divides the bucket by the number of workers (2 bytes read, 2
written). A cast to that very type is dense training. Other methods are as measured on float32:
kernels, payload and error of code that widens it on reading.

Where a method compresses between nodes alone (`training.between: nodes`), each node's ranks first
all-reduce their gradients uncompressed, as one worker of the method: all of them hold the same sum,
encode it to the same payload and decode the same answers, so that one rank of each node exchanges
for all and hands them what it received (`CollectiveRecord.scope`). Dense training is left to its
collective, which knows nodes itself.

Assumes that payloads and errors are those measured with a single device's gradients, and that a
node that is early waits for the others before it encodes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.training import DENSE, Training
from gcsim.traces.profile import Compute, Exchange, Phase, Quality, Step, TrafficProfile

_TYPES = {"fp16": "float16", "bf16": "bfloat16"}


def as_stored(profile: TrafficProfile, training: Training) -> TrafficProfile:
    """The profile with gradients of the training's type; the same object for float32 and for
    methods that are neither dense nor a cast to it."""
    named = training.gradients
    if named == "fp32" or profile.compressor not in {DENSE, named, f"torch_{named}"}:
        return profile
    exchanges = tuple(
        _summed(layout.numel, _TYPES[named], training.gradient_bytes, profile.workers)
        for layout in profile.buckets
    )
    step = Step(number=0, exchanges=exchanges)
    return replace(
        profile,
        compressor=DENSE,
        parameters={},
        period=1,
        phases=(Phase(name="every step", count=1, steps=(step,)),),
        order=(),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )


@lru_cache(maxsize=1 << 12)
def _summed(elements: int, dtype: str, width: int, workers: int) -> Exchange:
    """One object for buckets of a length, of which a `PriceList` knows the price."""
    nbytes = width * elements
    divide = KernelCost(kind="streaming", launches=1, elements=elements, nbytes=2 * nbytes)
    summed = CollectiveRecord(
        kind="all_reduce", sent=(nbytes,) * workers, element=width, dtype=dtype
    )
    return Exchange(
        computes=(Compute(stage="encode", fixed=(divide,)), Compute(stage="decode", fixed=())),
        collectives=(summed,),
    )


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
