"""Keys, limits and defaults of a link, in a scenario and in the catalogue.

Keys are the fields of `gcsim.simulator.network.links.Link`, which explains them, with units.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from gcsim.scenarios.links.rate_trace import TraceSection
from gcsim.scenarios.reading.checking import Section, either, invalid
from gcsim.scenarios.reading.types import Bandwidth, Duration, Share
from gcsim.scenarios.reading.values import As, Spelled, section_of
from gcsim.simulator.network.links import RANGED, Jitter, Link, Uplink

TABLES = {"up", "loss", "transports"}  # keys whose own keys are inherited one by one

_FALLBACK = "write it, or `like:` with a link of the catalogue"


def _jitter_shape(value: Any) -> Any:
    if value is None:
        return []
    if not isinstance(value, list | dict | Section):
        raise invalid(
            f"{value!s:.40} is not a distribution",
            "write it like {distribution: exponential, mean: 100 us}, or a list of such",
        )
    return value


def _one_rate(section: Spelled) -> None:
    """Raise pydantic's error unless a section states its rate exactly once."""
    if section.trace is None:
        if section.bandwidth is None:
            raise invalid("key 'bandwidth' is missing", _FALLBACK)
        return
    idle = sorted(section.model_fields_set & {"bandwidth", "efficiency", "efficiency_range"})
    if idle:
        names = " and ".join(f"`{name}`" for name in idle)
        raise invalid(
            f"{names} would have no effect with `trace`, which is the goodput over time",
            "remove one of them",
        )


_UPLINK = As(
    Uplink, rule=_one_rate, bandwidth=(Bandwidth | None, None), trace=(TraceSection | None, None)
)


def _uplink(section: Spelled) -> Uplink:
    rates = None if section.trace is None else section.trace.rates
    bandwidth = section.bandwidth if rates is None else rates.long_run
    return section.value(Uplink, bandwidth=bandwidth, trace=rates)


_JITTER = As(Jitter)
_STATED = section_of(
    Link,
    bandwidth=(Bandwidth | None, None),
    latency=(Duration | None, None),
    efficiency=(Share, Fraction(1)),
    jitter=(
        Annotated[
            either(list[Annotated[Spelled, _JITTER]], Annotated[Spelled, _JITTER]),
            BeforeValidator(_jitter_shape),
        ],
        [],
    ),
    trace=(TraceSection | None, None),
    up=(Annotated[Spelled, _UPLINK] | None, None),
    name=None,
    source=(str | None, None),
    estimate=(bool | None, None),
)


class LinkFields(_STATED):  # type: ignore[misc, valid-type]  # made of `Link`
    """Common fields of a scenario's link and a catalogue entry."""

    @model_validator(mode="after")
    def _consistent(self) -> LinkFields:
        _one_rate(self)
        if self.latency is None:
            raise invalid("key 'latency' is missing", _FALLBACK)
        if self.shared and self.up is not None:
            raise invalid(
                "`up` with `shared: true`: a half-duplex medium has one direction",
                "remove one of them",
            )
        return self

    def link(self, *, name: str, source: str, estimate: bool) -> Link:
        """Return the link in the simulator's form."""
        rates = None if self.trace is None else self.trace.rates
        jitter = self.jitter if isinstance(self.jitter, list) else [self.jitter]
        built: Link = self.value(
            Link,
            name=name,
            bandwidth=self.bandwidth if rates is None else rates.long_run,
            latency=self.latency,
            efficiency=self.efficiency,
            jitter=tuple(entry.value(Jitter) for entry in jitter),
            trace=rates,
            up=None if self.up is None else _uplink(self.up),
            source=source,
            estimate=estimate,
        )
        return built


def over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` over `base`, before checks; `up` and `loss` key by key. A trace and a bandwidth replace
    each other, a figure the inherited range, and capped losses their repair."""
    merged = dict(base)
    if own.get("model") == "capped":
        merged.pop("recovery", None)
    if own.get("trace") is not None:
        merged.pop("bandwidth", None)
        merged.pop("efficiency", None)
        merged.pop("efficiency_range", None)
        merged.pop("bandwidth_range", None)
    elif "bandwidth" in own:
        merged.pop("trace", None)
    for figure in (*RANGED, "bandwidth"):
        if figure in own:
            merged.pop(f"{figure}_range", None)
    for key, value in own.items():
        inherited = merged.get(key)
        if key in TABLES and isinstance(inherited, Mapping) and isinstance(value, Mapping):
            merged[key] = over(inherited, value)
        else:
            merged[key] = value
    return merged
