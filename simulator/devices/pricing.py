"""Prices of a compressor's arithmetic on a device: kernel counts to picoseconds.

    T = launches * f(nbytes / launches)                        for a kernel measured on the device
    T = launches * launch + nbytes / bandwidth + flops / rate  for others, by their class

f is the kernel's curve (`Device.primitives`), including random draws inside the kernel. It is
linear between measured sizes and continues with the last slope above them. Below them it has the
first slope, but no less time per byte than the first point (else short kernels could be free); a
single point gives a constant time per byte. The second line is a roofline without overlap
(Williams, Waterman and Patterson 2009, Commun. ACM 52(4)) plus a launch overhead. Coefficients that
a device does not state cost nothing.

On a GPU the host queues launches: a computation takes the longer of the kernels' time and the
host's time for launches, operators and waits (`compressors/queued.py`), plus a share of the shorter
(`clocks.py`); metered waits are in both. Stages that were timed have factors on both times. Each
computation starts on an idle device; a rank's host is a single queue.

Prices are exact rationals, rounded to the picosecond once per computation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, TypeVar

from gcsim.compressors.kernels import KernelClass, KernelCost, worked
from gcsim.compressors.queued import QUEUED, queued
from gcsim.errors import InputError, InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds
from gcsim.simulator.devices.clocks import UNHIDDEN, TimedStage, clocks_of
from gcsim.simulator.devices.device import Curve, Device, KernelRate
from gcsim.traces.profile import Compute, TrafficProfile, weighted

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rate:
    """Picoseconds per launch, byte and FLOP, exact."""

    launch: Fraction
    byte: Fraction
    flop: Fraction

    @staticmethod
    def of(rate: KernelRate) -> _Rate:
        return _Rate(
            launch=Fraction(rate.launch) * PS_PER_SECOND,
            byte=PS_PER_SECOND / Fraction(rate.bandwidth) if rate.bandwidth else Fraction(0),
            flop=PS_PER_SECOND / Fraction(rate.flop_rate) if rate.flop_rate else Fraction(0),
        )


@dataclass(frozen=True)
class PricedBy:
    """Picoseconds of a price, by the source of the figures."""

    primitives: Fraction = Fraction(0)  # by curves of the kernels themselves
    classes: Fraction = Fraction(0)  # by measured rates of the kernels' classes
    estimates: Fraction = Fraction(0)  # by estimated rates of the kernels' classes
    host: Fraction = Fraction(0)  # the host's time to queue the kernels

    def __add__(self, other: PricedBy) -> PricedBy:
        return PricedBy(
            self.primitives + other.primitives,
            self.classes + other.classes,
            self.estimates + other.estimates,
            self.host + other.host,
        )

    def scaled(self, factor: Fraction | int) -> PricedBy:
        """Return all parts times `factor`."""
        each = (self.primitives, self.classes, self.estimates, self.host)
        return PricedBy(*(factor * one for one in each))

    @cached_property
    def device(self) -> Fraction:
        """Picoseconds of all kernels."""
        return self.primitives + self.classes + self.estimates

    @property
    def queueing(self) -> bool:
        """Whether the host takes longer than the device."""
        return self.host > self.device

    def in_stretch(self, *, queueing: bool) -> Fraction:
        """Return picoseconds within a computation whose host takes longer (`queueing`) or not."""
        longer, shorter = (self.host, self.device) if queueing else (self.device, self.host)
        return longer + UNHIDDEN * shorter

    @cached_property
    def total(self) -> Fraction:
        """Picoseconds as a computation of its own."""
        return self.in_stretch(queueing=self.queueing)


class PriceList:
    """Kernel prices of one device."""

    def __init__(self, device: Device) -> None:
        self._device, self._stages = device.name, device.stages
        self._of_other_devices: list[tuple[Device, PriceList]] = []
        self._rates = {kind: _Rate.of(rate) for kind, rate in device.kernels.items()}
        self._estimated = {kind for kind, rate in device.kernels.items() if rate.estimate}
        self._host = [
            Fraction(device.host[what].launch if device.host else 0) * PS_PER_SECOND
            for what in QUEUED
        ]
        self._primitive = device.primitive
        self._curves: dict[str, ExactCurve | None] = {}
        self._launch: dict[tuple[KernelClass, str], Fraction] = {}
        self._kept: dict[tuple[Hashable, int], tuple[object, Any]] = {}
        """Values by name and `id(subject)`; hashing the subject would cost as much as pricing. The
        tuple holds the subject itself, so that its id stays valid."""

    def compute_time(self, compute: Compute, payloads: int, servers: int = 1) -> Picoseconds:
        """Return the time of a computation that handles `payloads` payloads. Each of `servers`
        parameter servers (or workers, if `striped`) does 1 / `servers` of the bytes and FLOPs, but
        all launches. Raises `InputError` for a kernel class without a rate."""
        return self._priced(compute, payloads, servers)[1]

    def priced_by(self, compute: Compute, payloads: int, servers: int = 1) -> PricedBy:
        """Return `compute_time` before rounding, by source of the prices."""
        return self._priced(compute, payloads, servers)[0]

    def once(self, name: Hashable, subject: object, make: Callable[[], Made]) -> Made:
        """Return `make()`, cached by name and `id(subject)`, for values that only these and the
        device determine."""
        key = name, id(subject)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = subject, make()
        made: Made = found[1]
        return made

    def _priced(
        self, compute: Compute, payloads: int, servers: int
    ) -> tuple[PricedBy, Picoseconds]:
        servers = payloads if compute.striped else servers
        make = partial(self._price, compute, payloads, servers)
        return self.once(("price", payloads, servers), compute, make)

    def _price(self, compute: Compute, payloads: int, servers: int) -> tuple[PricedBy, Picoseconds]:
        price = self._exact(compute.fixed, servers)
        if compute.per_payload:
            price += self._exact(compute.per_payload, servers).scaled(payloads)
        if compute.per_part:
            parts = [replace(c, launches=c.launches * payloads) for c in compute.per_part]
            price += self._exact(parts, servers)
        clocks = clocks_of(compute, self._stages)
        if clocks is not None:
            price = replace(price.scaled(clocks.device), host=price.host * clocks.host)
        return price, round(price.total)

    def for_device(self, device: Device) -> PriceList:
        """Return the prices of another device of the cluster, cached."""
        known = next((prices for other, prices in self._of_other_devices if other is device), None)
        if known is None:
            known = PriceList(device)
            self._of_other_devices.append((device, known))
        return known

    def _exact(self, costs: Iterable[KernelCost], servers: int) -> PricedBy:
        measured, rated, estimated, host = Fraction(0), Fraction(0), Fraction(0), Fraction(0)
        queues = any(self._host)
        for cost in costs:
            if queues:
                host += cost.launches * self._host_time(cost)
            curve = self._curve(cost.name)
            if curve is not None:
                measured += _on_curve(curve, cost, servers)
                continue
            rate = self._rate(cost.kind)
            moved = cost.nbytes * rate.byte
            if cost.flops:
                moved += cost.flops * rate.flop
            price = cost.launches * rate.launch + moved / servers
            if cost.kind in self._estimated:
                estimated += price
            else:
                rated += price
        return PricedBy(measured, rated, estimated, host)

    def _host_time(self, cost: KernelCost) -> Fraction:
        """Return the host's picoseconds for one launch."""
        name = cost.kind, cost.name
        if name not in self._launch:
            each = zip(queued(cost), self._host, strict=True)
            self._launch[name] = sum((count * price for count, price in each), Fraction(0))
        return self._launch[name]

    def _curve(self, name: str) -> ExactCurve | None:
        if name not in self._curves:
            points = self._primitive(name)
            self._curves[name] = None if points is None else ExactCurve(points)
        return self._curves[name]

    def _rate(self, kind: KernelClass) -> _Rate:
        rate = self._rates.get(kind)
        if rate is None:
            raise InputError(
                f"device {self._device!r} has no rate for kernels of class {kind!r}",
                place="cluster.device",
                hint="choose a device whose profile states it, or measure this one",
            )
        return rate


def _on_curve(curve: ExactCurve, cost: KernelCost, servers: int) -> Fraction:
    """Return the picoseconds of a measured kernel."""
    if cost.part:
        return Fraction(0)  # included in the launches' time
    # If only a few workers ran the kernel, the means may round to bytes without a launch.
    launches = cost.launches or (1 if worked(cost) else 0)
    if not launches:
        return Fraction(0)
    return launches * curve.seconds(Fraction(worked(cost), launches * servers)) * PS_PER_SECOND


def price_sources(profile: TrafficProfile, prices: PriceList, workers: int) -> dict[str, float]:
    """Return the seconds of encoding, decoding and serving in a mean step, by source of the prices.

    measured_kernels: kernels with curves and timed stages; measured_classes, estimated_classes:
    kernels priced by class; extra host time counts as an estimate. One server handles the payloads
    of all `workers`. Raises `InputError` for a kernel without a price.
    """
    sums = PricedBy()
    for compute, weight in mean_step(profile):
        price = prices.priced_by(compute, workers)
        kernels = price.scaled(UNHIDDEN) if price.queueing else price
        queued = price.total - kernels.device
        sums += (
            PricedBy(primitives=price.total)
            if isinstance(compute, TimedStage)
            else replace(kernels, estimates=kernels.estimates + queued)
        ).scaled(weight)
    return {
        "measured_kernels": float(sums.primitives / PS_PER_SECOND),
        "measured_classes": float(sums.classes / PS_PER_SECOND),
        "estimated_classes": float(sums.estimates / PS_PER_SECOND),
    }


def mean_step(profile: TrafficProfile) -> Iterable[tuple[Compute, Fraction]]:
    """Return each computation, and how often it occurs in a mean step."""
    found: dict[int, tuple[Compute, Fraction]] = {}  # by identity, as buckets share objects
    for weight, _, exchange in weighted(profile):
        for compute in (*exchange.computes, exchange.moments, *exchange.servers):
            if compute is not None:
                _, often = found.get(id(compute), (compute, Fraction(0)))
                found[id(compute)] = compute, often + weight
    return found.values()


class ExactCurve:
    """A `Curve` in exact arithmetic."""

    def __init__(self, points: Curve) -> None:
        """Convert a curve; `InternalError` unless bytes ascend and times do not descend."""
        self._sizes = [nbytes for nbytes, _ in points]
        self._times = [Fraction(seconds) for _, seconds in points]
        if not points or sorted(set(self._sizes)) != self._sizes or self._sizes[0] <= 0:
            raise InternalError(f"a curve's sizes do not ascend: {self._sizes}")
        if sorted(self._times) != self._times or self._times[0] < 0:
            raise InternalError(f"a curve's times descend: {[float(t) for t in self._times]}")

    def seconds(self, nbytes: Fraction | int) -> Fraction:
        """Return the seconds of one launch that moves `nbytes`."""
        sizes, times = self._sizes, self._times
        in_proportion = times[0] * nbytes / sizes[0]
        if len(sizes) == 1:
            return in_proportion
        left = min(max(bisect_right(sizes, nbytes) - 1, 0), len(sizes) - 2)
        slope = (times[left + 1] - times[left]) / (sizes[left + 1] - sizes[left])
        on_line = times[left] + slope * (nbytes - sizes[left])
        return max(on_line, in_proportion) if nbytes < sizes[0] else on_line
