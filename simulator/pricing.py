"""What does a compressor's arithmetic cost on a device? Kernel counts to picoseconds.

    T = launches * launch + nbytes / bandwidth + flops / rate, summed over kernel classes

a roofline without overlap between the terms (Williams, Waterman and Patterson 2009, Commun. ACM
52(4)), with a launch overhead. Prices are exact rationals and are rounded to the picosecond once
for each stretch of computation. A coefficient that a device does not state costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.errors import InputError, Problem
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds
from gcsim.simulator.device import Device, KernelRate
from gcsim.traces.profile import Compute


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


class PriceList:
    """The kernel prices of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device.name
        self._rates = {kind: _Rate.of(rate) for kind, rate in device.kernels.items()}
        self._known: dict[tuple[Compute, int, int], Picoseconds] = {}

    def compute_time(self, compute: Compute, payloads: int, servers: int = 1) -> Picoseconds:
        """Time of a stretch of computation that handles `payloads` payloads.

        With `servers` parameter servers each does that part of the bytes and FLOPs, and all of
        the launches. Raises `InputError` when the device has no rate for a class of kernels.
        """
        key = (compute, payloads, servers)
        if key not in self._known:
            exact = self._exact(compute.fixed, servers)
            exact += payloads * self._exact(compute.per_payload, servers)
            exact += self._exact(
                [replace(c, launches=c.launches * payloads) for c in compute.per_part], servers
            )
            self._known[key] = round(exact)
        return self._known[key]

    def _exact(self, costs: Iterable[KernelCost], servers: int) -> Fraction:
        total = Fraction(0)
        for cost in costs:
            rate = self._rate(cost.kind)
            total += cost.launches * rate.launch
            total += (cost.nbytes * rate.byte + cost.flops * rate.flop) / servers
        return total

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
