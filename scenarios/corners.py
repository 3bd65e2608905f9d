"""What may the device be, for all that is known of it?

Coefficients that were not measured have a range. A corner is the device with all its kernels at
one end of their ranges, or as stated, and its training steps at one end of theirs, or as stated:
up to eight beside the catalogue's. Every method is predicted at every corner, so that two methods
are compared on one and the same device.

How bad is it that coefficients between the ends, and one fast while another is slow, are left out?
A price rises with every coefficient of time, and so does, while the order of events stays the same,
every instant of a step: then the iteration's ends are those of the corners. But streams and
communicators take what comes first, so that with a faster kernel an iteration may be longer, as in
list scheduling (Graham 1969, SIAM J. Appl. Math. 17(2)); `docs/model.md` says by how much at most,
and how much was seen. A ratio of two methods may be smallest or largest between the ends. Whether a
method may be the fastest is tried on the device that favours it against the other (`favouring`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.simulator.devices.device import Device, KernelRate
from gcsim.simulator.devices.ranges import End
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.traces.profile import Compute, Exchange, TrafficProfile

Figure = tuple[KernelClass, str]
"""A coefficient of a kernel class: its name is a field of `KernelRate`."""
Use = Mapping[Figure, float]
"""How much of it an iteration needs: launches, bytes, FLOPs of a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """A coefficient as people call it."""

    name: str
    unit: str


COEFFICIENTS = {
    "launch": Coefficient(name="launch", unit="s"),
    "bandwidth": Coefficient(name="bandwidth", unit="B/s"),
    "flop_rate": Coefficient(name="FLOP rate", unit="FLOP/s"),
}
"""By the field of `KernelRate`; each has a range beside it."""
ENDS: tuple[End, End] = ("fastest", "slowest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """One device that may be in the place of the catalogue's."""

    kernels: End | None
    """None: as stated, where nothing of it that a method needs has a range."""
    training: End | None
    """None: as stated, where the passes were measured, or have no range."""
    device: Device
    compute: ComputeTimes


def corners(
    device: Device,
    profiles: Sequence[TrafficProfile],
    workers: int,
    compute_on: Callable[[Device], ComputeTimes],
) -> tuple[Corner, ...]:
    """The corners that differ, for these methods; none where nothing that they need has a range.

    `compute_on` gives the passes on a device, `workers` is the size of the largest cluster.
    """
    stated = compute_on(device)
    needed = {figure for profile in profiles for figure in use(profile, device, workers)}
    uncertain = any(bounds_of(device, figure) is not None for figure in needed)
    times = {end: compute_on(device.at(kernels="fastest", training=end)) for end in ENDS}
    unlike = any(_passes(found) != _passes(stated) for found in times.values())
    if not uncertain and not unlike:
        return ()
    return tuple(
        Corner(
            kernels=kernels,
            training=training,
            device=device if kernels is None else device.at(kernels=kernels, training="fastest"),
            compute=stated if training is None else times[training],
        )
        for kernels in ((*ENDS, None) if uncertain else (None,))
        for training in ((*ENDS, None) if unlike else (None,))
        if kernels or training
    )


def _passes(compute: ComputeTimes) -> tuple[object, ...]:
    return (compute.forward, compute.backward, compute.parts)


def use(profile: TrafficProfile, device: Device, workers: int) -> dict[Figure, float]:
    """What a mean iteration needs of each coefficient that prices its kernels on the device.

    For `workers` workers. Kernels that were measured by themselves need none.
    """
    found: dict[Figure, float] = {}
    for phase in profile.phases:
        weight = phase.count / (profile.period * len(phase.steps))
        for step in phase.steps:
            for compute in (c for exchange in step.exchanges for c in _computes(exchange)):
                for cost, launches, times in _costs(compute, workers):
                    if device.primitive(cost.name) is not None:
                        continue
                    counts = (launches * cost.launches, times * cost.nbytes, times * cost.flops)
                    for name, count in zip(COEFFICIENTS, counts, strict=True):
                        if count:
                            figure = (cost.kind, name)
                            found[figure] = found.get(figure, 0.0) + weight * count
    return found


def _computes(exchange: Exchange) -> Iterable[Compute]:
    yield from exchange.computes
    yield from (c for c in (exchange.moments, *exchange.servers) if c is not None)


def _costs(compute: Compute, workers: int) -> Iterable[tuple[KernelCost, int, int]]:
    """Costs, and how many times their launches and their bytes are spent."""
    yield from ((cost, 1, 1) for cost in compute.fixed)
    yield from ((cost, workers, workers) for cost in compute.per_payload)
    yield from ((cost, workers, 1) for cost in compute.per_part)


def bounds_of(device: Device, figure: Figure) -> tuple[float, float] | None:
    """The range of a coefficient; None where it has none, or the device does not state it."""
    kind, name = figure
    rate = device.kernels.get(kind)
    bounds: tuple[float, float] | None = getattr(rate, f"{name}_range", None)
    return None if bounds is None or bounds[0] == bounds[1] else bounds


def favouring(device: Device, method: Use, other: Use) -> Device:
    """The device on which one method gains most on another: each coefficient that has a range at
    its fast end where the first needs more of it, else at its slow end.

    Exact where kernels add their time to the iteration, as on the compute stream; otherwise a
    device that is worth a try.
    """
    kernels: dict[KernelClass, KernelRate] = {}
    for kind, rate in device.kernels.items():
        fast, slow = rate.at("fastest"), rate.at("slowest")
        chosen = {
            name: getattr(fast if _more(method, other, (kind, name)) else slow, name)
            for name in COEFFICIENTS
        }
        kernels[kind] = replace(rate, **chosen)
    return replace(device, kernels=kernels)


def _more(method: Use, other: Use, figure: Figure) -> bool:
    return method.get(figure, 0.0) > other.get(figure, 0.0)
