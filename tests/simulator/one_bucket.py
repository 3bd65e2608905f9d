"""Training whose one bucket is exchanged by one collective, and whose compressor costs nothing."""

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.traces.profile import Compute, Exchange, TrafficProfile
from tests.simulator.traffic import traffic

DEVICE = Device(name="d", title="D", kernels={}, effective_flop_rate=1e12, source="test")
FORWARD, BACKWARD = 10**10, 2 * 10**10
"""Picoseconds."""
COMPUTE = ComputeTimes(forward=FORWARD, backward=BACKWARD, parts=(BACKWARD,), provenance="test")


def one_bucket(record: CollectiveRecord) -> TrafficProfile:
    """Of one kind of step."""
    computes = (Compute(stage="encode", fixed=()), Compute(stage="decode", fixed=()))
    exchange = Exchange(computes=computes, collectives=(record,))
    return traffic(exchange, workers=len(record.sent))
