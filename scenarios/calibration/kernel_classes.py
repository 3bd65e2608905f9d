"""Costs of torch's kernels of each class on this device, fitted over several sizes.

T = launch + bytes / bandwidth + FLOPs / rate per launch, fitted to minimise the factors of error
over a class's cases. A coefficient's range comes from single cases: the time per byte at a case's
two largest sizes, and its shortest time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gcsim.compressors.kernels import KERNEL_CLASSES, KernelClass, TimedKernel
from gcsim.simulator.devices.device import KernelRate, Range
from gcsim.simulator.devices.kernel_fits import Coefficients, coefficients
from gcsim.traces.timing.clock import DeviceClock
from gcsim.traces.timing.kernel_cases import CASES, Case, cost_of

SIZES = (1, 1_000, 16_000, 130_000, 1_000_000, 4_000_000, 16_000_000)  # elements
LONGEST = 0.25  # seconds of one call: larger sizes of a case are left out


@dataclass(frozen=True, slots=True)
class TimedCase:
    """One case at one size."""

    case: Case
    timed: TimedKernel
    spread: float  # median over minimum of the repeats


def time_cases(
    clock: DeviceClock, *, sizes: Sequence[int] = SIZES, repeats: int = 5,
    advance: Callable[[str], None] = lambda note: None,
) -> list[TimedCase]:  # fmt: skip
    """Time every case at every size that it allows."""
    found = []
    for case in CASES:
        found += list(_timed(case, clock, sizes, repeats))
        advance(f"{case.kind}: {case.title}")
    return found


def _timed(
    case: Case, clock: DeviceClock, sizes: Sequence[int], repeats: int
) -> Iterator[TimedCase]:
    before: tuple[int, float] | None = None
    for elements in sizes:
        if elements > case.largest:
            return
        if before is not None and before[1] * elements / before[0] > LONGEST:
            return
        operands = case.make(elements, clock.device)

        def call(operands: Sequence[object] = operands) -> object:
            return case.call(*operands)

        cost = cost_of(call)
        spread = clock.time(call, repeats, waits=case.waits)
        before = (elements, spread.lowest)
        yield TimedCase(case, TimedKernel(cost, spread.lowest), spread.median / spread.lowest)


def class_rates(timed: Sequence[TimedCase], conditions: str) -> dict[KernelClass, KernelRate]:
    """Return the coefficients of each class, with ranges and sources."""
    rates: dict[KernelClass, KernelRate] = {}
    for kind in KERNEL_CLASSES:
        own = [one for one in timed if one.case.kind == kind]
        fit = coefficients([one.timed for one in own])
        errors = [
            abs(fit.seconds(one.timed.cost.nbytes, one.timed.cost.flops) / one.timed.seconds - 1)
            for one in own
        ]
        titles = dict.fromkeys(one.case.title for one in own)
        launch, bandwidth, flop_rate = (
            None if value is None else four_digits(value)
            for value in (fit.launch, fit.bandwidth, fit.flop_rate)
        )
        rates[kind] = KernelRate(
            launch=launch or 0.0,
            bandwidth=bandwidth,
            flop_rate=flop_rate,
            source=f"Fitted over {', '.join(titles)} at {len(own)} sizes in all; median "
            f"error of the fit {statistics.median(errors):.0%}; the repeats' median took "
            f"{statistics.median(one.spread for one in own):.2f} times the minimum. {conditions}",
            estimate=False,
            launch_range=_range(launch, [min(one.seconds for one in c) for c in _by_case(own)]),
            bandwidth_range=_range(bandwidth, _speeds(own, fit, "nbytes")),
            flop_rate_range=_range(flop_rate, _speeds(own, fit, "flops")),
        )
    return rates


def _by_case(timed: Sequence[TimedCase]) -> Iterator[list[TimedKernel]]:
    for title in dict.fromkeys(one.case.title for one in timed):
        yield [one.timed for one in timed if one.case.title == title]


def _speeds(
    timed: Sequence[TimedCase], fit: Coefficients, what: Literal["nbytes", "flops"]
) -> list[float]:
    """Return bytes or FLOPs per second at each case's two largest sizes, where they dominate."""
    other, rate = ("flops", fit.flop_rate) if what == "nbytes" else ("nbytes", fit.bandwidth)
    found = []
    for case in _by_case(timed):
        for one in case[-2:]:
            beside = getattr(one.cost, other) / rate if rate else 0.0
            rest = one.seconds - fit.launch - beside
            work = getattr(one.cost, what)
            if work and rest > one.seconds / 2:
                found.append(work / rest)
    return found


def _range(value: float | None, seen: Sequence[float]) -> Range | None:
    if value is None:
        return None
    rounded = [four_digits(one) for one in seen]
    return min([value, *rounded]), max([value, *rounded])


def four_digits(value: float) -> float:
    """Round to four digits: finer than the noise, and stable when read back."""
    return float(f"{value:.4g}")
