"""Prices of a compressor's arithmetic on a device: kernel counts to picoseconds.

    T = launches * f(nbytes / launches)                        for a kernel measured on the device
    T = launches * launch + nbytes / bandwidth + flops / rate  for others, by their class

On a GPU a second clock runs: that of the host, which queues what the device does. A stretch takes
the longer of the kernels' times and of what the launches, operators and waits behind its metered
kernels (`compressors/queued.py`) take the host, and a share of the shorter (`clocks.py`); metered
waits are in both (a device that is waited for is idle until more is queued). Each stretch begins on
an idle device. Stretches of a rank follow one another on its compute stream, with the backward pass
between them: its host is one queue. A stage that was timed on the device has factors on both.

f is the kernel's own curve (`Device.primitives`), and its time includes what it draws at random
inside. The second line is a roofline without overlap between the terms (Williams, Waterman and
Patterson 2009, Commun. ACM 52(4)), with a launch overhead. Prices are exact rationals and are
rounded to the picosecond once for each stretch of computation. A coefficient that a device does
not state costs nothing.

Between the sizes that were measured f is a line. Beyond the last point the last slope goes on.
Below the first one the first slope does, but a byte never costs less than at the first point: a
line that met the axis at a positive size would make short kernels free. A single point is a time in
proportion to the bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from gcsim.compressors.kernels import KernelClass, KernelCost, worked
from gcsim.compressors.queued import QUEUED, queued
from gcsim.errors import InputError, InternalError, Problem
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds
from gcsim.simulator.devices.clocks import UNHIDDEN, TimedStage
from gcsim.simulator.devices.device import Curve, Device, KernelRate
from gcsim.traces.profile import Compute, Step, TrafficProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rate:
    """Picoseconds a launch, a byte and a FLOP, exact."""

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


@dataclass(frozen=True, slots=True)
class PricedBy:
    """Picoseconds of a price by what they were priced with."""

    primitives: Fraction = Fraction(0)
    """Curves of the kernels themselves."""
    classes: Fraction = Fraction(0)
    """Rates of their classes, measured on the device."""
    estimates: Fraction = Fraction(0)
    """Rates of their classes that were not measured on the device."""
    host: Fraction = Fraction(0)
    """To queue them, beside the three."""

    def __add__(self, other: PricedBy) -> PricedBy:
        return PricedBy(
            self.primitives + other.primitives,
            self.classes + other.classes,
            self.estimates + other.estimates,
            self.host + other.host,
        )

    def times(self, factor: Fraction | int) -> PricedBy:
        """Each of them, `factor` times."""
        each = (self.primitives, self.classes, self.estimates, self.host)
        return PricedBy(*(factor * one for one in each))

    @property
    def device(self) -> Fraction:
        """Picoseconds of the kernels."""
        return self.primitives + self.classes + self.estimates

    @property
    def queueing(self) -> bool:
        """Whether the host's clock is the longer."""
        return self.host > self.device

    def beside(self, *, queueing: bool) -> Fraction:
        """Picoseconds of what is in a stretch whose host's clock is the longer, or is not."""
        longer, shorter = (self.host, self.device) if queueing else (self.device, self.host)
        return longer + UNHIDDEN * shorter

    @property
    def total(self) -> Fraction:
        """Picoseconds of one stretch."""
        return self.beside(queueing=self.queueing)


class PriceList:
    """The kernel prices of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device.name
        self._rates = {kind: _Rate.of(rate) for kind, rate in device.kernels.items()}
        self._estimated = {kind for kind, rate in device.kernels.items() if rate.estimate}
        self._host = [
            Fraction(device.host[what].launch if device.host else 0) * PS_PER_SECOND
            for what in QUEUED
        ]
        self._primitive = device.primitive
        self._curves: dict[str, ExactCurve | None] = {}
        self._known: dict[tuple[int, int], tuple[Compute, PricedBy, PricedBy]] = {}
        """Prices by identity of a stretch (hashing its kernels takes as long as pricing them) and
        servers: the stretch itself, so that it lives on, its fixed part, and that of a payload."""
        self._times: dict[tuple[int, int, int], Picoseconds] = {}
        """Times by stretch, as above, payloads and servers."""

    def compute_time(self, compute: Compute, payloads: int, servers: int = 1) -> Picoseconds:
        """Time of a stretch of computation that handles `payloads` payloads.

        With `servers` parameter servers each does that part of the bytes and FLOPs, and all of
        the launches; of a stretch that is `striped` each worker does. Raises `InputError` when the
        device has no rate for a class of kernels.
        """
        key = (id(compute), payloads, servers)
        if key not in self._times:
            self._times[key] = round(self.priced_by(compute, payloads, servers).total)
        return self._times[key]

    def priced_by(self, compute: Compute, payloads: int, servers: int = 1) -> PricedBy:
        """`compute_time` before it is rounded, by where the prices come from."""
        servers = payloads if compute.striped else servers
        key = (id(compute), servers)
        if key not in self._known:
            fixed = self._exact(compute.fixed, servers)
            self._known[key] = compute, fixed, self._exact(compute.per_payload, servers)
        _, fixed, per_payload = self._known[key]
        if compute.per_payload:
            fixed += per_payload.times(payloads)
        if compute.per_part:
            parts = [replace(c, launches=c.launches * payloads) for c in compute.per_part]
            fixed += self._exact(parts, servers)
        if isinstance(compute, TimedStage):
            host = fixed.host * compute.clocks.host
            return replace(fixed.times(compute.clocks.device), host=host)
        return fixed

    def _exact(self, costs: Iterable[KernelCost], servers: int) -> PricedBy:
        measured, rated, estimated, host = Fraction(0), Fraction(0), Fraction(0), Fraction(0)
        queues = any(self._host)
        for cost in costs:
            if queues:
                each = zip(queued(cost), self._host, strict=True)
                host += cost.launches * sum(count * price for count, price in each)
            curve = self._curve(cost.name)
            if curve is not None:
                measured += _on_curve(curve, cost, servers)
                continue
            rate = self._rate(cost.kind)
            price = cost.launches * rate.launch
            price += (cost.nbytes * rate.byte + cost.flops * rate.flop) / servers
            if cost.kind in self._estimated:
                estimated += price
            else:
                rated += price
        return PricedBy(measured, rated, estimated, host)

    def _curve(self, name: str) -> ExactCurve | None:
        if name not in self._curves:
            points = self._primitive(name)
            self._curves[name] = None if points is None else ExactCurve(points)
        return self._curves[name]

    def _rate(self, kind: KernelClass) -> _Rate:
        rate = self._rates.get(kind)
        if rate is None:
            raise InputError(
                Problem(
                    message=f"device {self._device!r} has no rate for kernels of class {kind!r}",
                    place="cluster.device",
                    hint="choose a device whose profile states it, or measure this one",
                )
            )
        return rate


def _on_curve(curve: ExactCurve, cost: KernelCost, servers: int) -> Fraction:
    """Picoseconds of a kernel whose time was measured."""
    if cost.part:
        return Fraction(0)  # inside the launches, and in their time
    # A mean over workers of which few ran the kernel may have bytes and no whole launch.
    launches = cost.launches or (1 if worked(cost) else 0)
    if not launches:
        return Fraction(0)
    return launches * curve.seconds(Fraction(worked(cost), launches * servers)) * PS_PER_SECOND


def price_sources(profile: TrafficProfile, prices: PriceList, workers: int) -> dict[str, float]:
    """Seconds of encoding, decoding and serving in a mean step, by what they were priced with.

    measured_kernels: curves of the kernels themselves, and stages that were timed;
    measured_classes and estimated_classes: rates of their classes; what the host's clock adds is
    an estimate. With one server, which handles the payloads of all `workers`. Raises `InputError`
    when the device has no price for a kernel.
    """
    sums = PricedBy()
    for phase in profile.phases:
        weight = Fraction(phase.count, len(phase.steps) * profile.period)
        for step in phase.steps:
            for compute in _computes(step):
                price = prices.priced_by(compute, workers)
                kernels = price.times(UNHIDDEN if price.queueing else 1)
                queued = price.total - kernels.device
                sums += (
                    PricedBy(primitives=price.total)
                    if isinstance(compute, TimedStage)
                    else replace(kernels, estimates=kernels.estimates + queued)
                ).times(weight)
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


class ExactCurve:
    """A `Curve` in exact arithmetic."""

    def __init__(self, points: Curve) -> None:
        """Raises `InternalError` unless the points ascend in bytes and do not descend in time."""
        self._sizes = [nbytes for nbytes, _ in points]
        self._times = [Fraction(seconds) for _, seconds in points]
        if not points or sorted(set(self._sizes)) != self._sizes or self._sizes[0] <= 0:
            raise InternalError(f"a curve's sizes do not ascend: {self._sizes}")
        if sorted(self._times) != self._times or self._times[0] < 0:
            raise InternalError(f"a curve's times descend: {[float(t) for t in self._times]}")

    def seconds(self, nbytes: Fraction | int) -> Fraction:
        """Seconds of one launch that moves `nbytes`."""
        sizes, times = self._sizes, self._times
        in_proportion = times[0] * nbytes / sizes[0]
        if len(sizes) == 1:
            return in_proportion
        left = min(max(bisect_right(sizes, nbytes) - 1, 0), len(sizes) - 2)
        slope = (times[left + 1] - times[left]) / (sizes[left + 1] - sizes[left])
        on_line = times[left] + slope * (nbytes - sizes[left])
        return max(on_line, in_proportion) if nbytes < sizes[0] else on_line
