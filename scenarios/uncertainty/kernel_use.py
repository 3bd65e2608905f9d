"""Launches, bytes and FLOPs that a method is charged by kernel class.

Kernels with their own measured curves (`Device.primitives`) do not count.
"""

from __future__ import annotations

from collections.abc import Iterator

from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.queued import QUEUED, Queued, queued
from gcsim.simulator.devices.clocks import clocks_of
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import mean_step
from gcsim.traces.profile import Compute, TrafficProfile

Figure = tuple[KernelClass | Queued, str]
"""Kernel class or host operation, and a coefficient: a field of `KernelRate`."""


COEFFICIENTS = {
    "launch": ("launch", "s"),
    "bandwidth": ("bandwidth", "B/s"),
    "flop_rate": ("FLOP rate", "FLOP/s"),
}
"""Name and unit of the coefficients that have a range, by field of `KernelRate`."""


def use(profile: TrafficProfile, device: Device, workers: int) -> dict[Figure, float]:
    """Return the amount charged by each coefficient in a mean iteration of `workers` workers."""
    found: dict[Figure, float] = {}
    for compute, often in mean_step(profile):
        for figure, count in counts(compute, device, workers).items():
            found[figure] = found.get(figure, 0.0) + float(often) * count
    return found


def counts(
    compute: Compute, device: Device, payloads: int, servers: int = 1
) -> dict[Figure, float]:
    """Return the amount charged by each coefficient for a computation, as a plan prices it."""
    found: dict[Figure, float] = {}
    servers = payloads if compute.striped else servers
    clocks = clocks_of(compute, device.stages)
    on_host = 1.0 if clocks is None else float(clocks.host)
    on_device = 1.0 if clocks is None else float(clocks.device)
    for _, cost, launches, times in costs(compute, payloads):
        for what, each in zip(QUEUED, queued(cost), strict=True):
            if what in device.host and each and cost.launches:
                more = on_host * launches * cost.launches * float(each)
                found[what, "launch"] = found.get((what, "launch"), 0.0) + more
        if device.primitive(cost.name) is not None:
            continue
        work = times / servers
        needed = (launches * cost.launches, work * cost.nbytes, work * cost.flops)
        for name, count in zip(COEFFICIENTS, needed, strict=True):
            if count:
                figure = (cost.kind, name)
                found[figure] = found.get(figure, 0.0) + on_device * count
    return found


def costs(compute: Compute, payloads: int) -> Iterator[tuple[str, KernelCost, int, int]]:
    """Yield each kernel's field and cost, and how often its launches and its bytes count."""
    often = {"fixed": (1, 1), "per_payload": (payloads, payloads), "per_part": (payloads, 1)}
    for field, (launches, times) in often.items():
        for cost in getattr(compute, field):
            yield field, cost, launches, times
