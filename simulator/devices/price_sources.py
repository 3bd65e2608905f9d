"""How much of a compressor's priced time was measured on the device, and how much is estimated?"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.devices.pricing import PricedBy, PriceList
from gcsim.traces.profile import Compute, Step, TrafficProfile


def price_sources(profile: TrafficProfile, prices: PriceList, workers: int) -> dict[str, float]:
    """Seconds of encoding, decoding and serving in a mean step, by what they were priced with.

    measured_kernels: curves of the kernels themselves; measured_classes and estimated_classes:
    rates of their classes. With one server, which handles the payloads of all `workers`. Raises
    `InputError` when the device has no price for a kernel.
    """
    sums = PricedBy()
    for phase in profile.phases:
        weight = Fraction(phase.count, len(phase.steps) * profile.period)
        for step in phase.steps:
            for compute in _computes(step):
                sums += prices.priced_by(compute, workers).times(weight)
    return {
        "measured_kernels": float(sums.primitives / PS_PER_SECOND),
        "measured_classes": float(sums.classes / PS_PER_SECOND),
        "estimated_classes": float(sums.estimates / PS_PER_SECOND),
    }


def _computes(step: Step) -> Iterator[Compute]:
    for exchange in step.exchanges:
        yield from exchange.computes
        yield from (server for server in exchange.servers if server is not None)
        if exchange.moments is not None:
            yield exchange.moments
