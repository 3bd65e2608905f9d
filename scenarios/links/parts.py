"""What may be said of the rate of a link, and of its uplink? Once, as a number or over time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from gcsim.errors import InternalError
from gcsim.scenarios.links.rate_trace import TraceSection
from gcsim.scenarios.reading.checking import Section, check_range, refuse
from gcsim.scenarios.reading.types import (
    Bandwidth,
)
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.simulator.network.links import Uplink

FALLBACK = "write it, or `like:` with a link of the catalogue"


def check_rate(section: Section, bandwidth: Fraction | None, trace: TraceSection | None) -> None:
    """Raise pydantic's error unless a section says its rate, and says it once."""
    if trace is None:
        if bandwidth is None:
            raise refuse("key 'bandwidth' is missing", FALLBACK)
        return
    idle = sorted(section.model_fields_set & {"bandwidth", "efficiency", "efficiency_range"})
    if idle:
        names = " and ".join(f"`{name}`" for name in idle)
        raise refuse(
            f"{names} would have no effect beside `trace`, which is the goodput over time",
            "remove one of them",
        )


def _one_rate(section: Spelled) -> None:
    check_rate(section, section.bandwidth, section.trace)
    if section.bandwidth is not None:
        check_range("bandwidth", section.bandwidth, section.bandwidth_range)
    check_range("latency", section.latency, section.latency_range)


UPLINK = As(
    Uplink, rule=_one_rate, bandwidth=(Bandwidth | None, None), trace=(TraceSection | None, None)
)


def uplink(section: Spelled) -> Uplink:
    """As the simulator has it."""
    rates = None if section.trace is None else section.trace.rates
    bandwidth = given(section.bandwidth) if rates is None else rates.long_run
    found = section.value(Uplink, Uplink(bandwidth=bandwidth, latency=section.latency, trace=rates))
    return found if rates is None else replace(found, bandwidth_range=None)


def given(value: Fraction | None) -> Fraction:
    """What a check saw to."""
    if value is None:
        raise InternalError("a link without bandwidth or latency passed its check")
    return value
