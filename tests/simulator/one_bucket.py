"""Training whose one bucket is exchanged by one collective, and whose compressor costs nothing."""

from __future__ import annotations

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.traces.profile import (
    Compute,
    Exchange,
    ModelFacts,
    Phase,
    Quality,
    Step,
    TrafficProfile,
)

DEVICE = Device(name="d", title="D", kernels={}, effective_flop_rate=1e12, source="test")
FORWARD, BACKWARD = 10**10, 2 * 10**10
"""Picoseconds."""
COMPUTE = ComputeTimes(forward=FORWARD, backward=BACKWARD, parts=(BACKWARD,), provenance="test")


def one_bucket(record: CollectiveRecord) -> TrafficProfile:
    """Of one kind of step."""
    computes = (Compute(stage="encode", fixed=()), Compute(stage="decode", fixed=()))
    exchange = Exchange(computes=computes, collectives=(record,))
    step = Step(number=0, exchanges=(exchange,))
    return TrafficProfile(
        compressor="toy",
        parameters={},
        model=ModelFacts(name="toy", parameters=1000, layers=(), samples_per_worker=1),
        buckets=(),
        workers=len(record.sent),
        period=1,
        phases=(Phase(name="step", count=1, steps=(step,)),),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )
