"""What may be said of a link, in a scenario and in the catalogue? Its keys, limits and defaults.

The keys are the fields of `gcsim.simulator.network.links.Link`, with units. What a section says is
checked here; what the figures mean is said there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag, model_validator

from gcsim import units
from gcsim.scenarios.links.parts import (
    FALLBACK,
    FactorSection,
    JitterSection,
    LossSection,
    Multiple,
    Part,
    UplinkSection,
    check_rate,
    given,
    pair,
)
from gcsim.scenarios.links.rate_trace import TraceSection
from gcsim.scenarios.reading.checking import (
    NAMED,
    SPELLED_OUT,
    Section,
    by_shape,
    check_range,
    refuse,
)
from gcsim.scenarios.reading.types import TWO, Bandwidth, Duration, Share
from gcsim.simulator.network.links import RANGED, Link, SizeFactor

TABLES = {"up", "loss", "transports"}
"""Keys of a link whose own keys are inherited one by one."""


def _ascending(factors: list[FactorSection]) -> list[FactorSection]:
    for number, (one, other) in enumerate(itertools.pairwise(factors), 1):
        if other.from_bytes <= one.from_bytes:
            smaller, larger = (units.exact(x.from_bytes, "size") for x in (other, one))
            raise refuse(
                f"entry {number} is from {smaller} and stands after {larger}", "sizes ascend"
            )
    return factors


def _jitter_shape(value: Any) -> Any:
    if value is None:
        return []
    if not isinstance(value, list | dict | Section):
        raise refuse(
            f"{value!s:.40} says no distribution",
            "write it like {distribution: exponential, mean: 100 us}, or a list of such",
        )
    return value


class LinkFields(Section):
    """What a scenario's link and an entry of the catalogue have in common."""

    bandwidth: Bandwidth | None = None
    latency: Duration | None = None
    latency_range: Annotated[list[Duration], TWO] | None = None
    efficiency: Share = Fraction(1)
    efficiency_range: Annotated[list[Multiple], TWO] | None = None
    overhead: Duration = Fraction(0)
    overhead_range: Annotated[list[Duration], TWO] | None = None
    factors: Annotated[list[FactorSection], AfterValidator(_ascending)] = []  # noqa: RUF012
    jitter: Annotated[
        Annotated[list[JitterSection], Tag(NAMED)] | Annotated[JitterSection, Tag(SPELLED_OUT)],
        Discriminator(by_shape),
        BeforeValidator(_jitter_shape),
    ] = []  # noqa: RUF012
    loss: LossSection | None = None
    flow: Bandwidth | None = None
    background: Part = Fraction(0)
    trace: TraceSection | None = None
    up: UplinkSection | None = None
    grant: Duration = Fraction(0)
    shared: bool = False
    source: str | None = None
    estimate: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> LinkFields:
        check_rate(self, self.bandwidth, self.trace)
        if self.latency is None:
            raise refuse("key 'latency' is missing", FALLBACK)
        if self.shared and self.up is not None:
            raise refuse(
                "`up` beside `shared: true`: one half-duplex medium has no two directions",
                "remove one of them",
            )
        for figure in RANGED:
            check_range(figure, getattr(self, figure), getattr(self, f"{figure}_range"))
        return self

    def link(self, *, name: str, source: str, estimate: bool) -> Link:
        """As the simulator has it."""
        rates = None if self.trace is None else self.trace.rates
        jitter = self.jitter if isinstance(self.jitter, list) else [self.jitter]
        return Link(
            name=name,
            bandwidth=given(self.bandwidth) if rates is None else rates.long_run,
            latency=given(self.latency),
            efficiency=self.efficiency,
            overhead=self.overhead,
            latency_range=pair(self.latency_range),
            efficiency_range=pair(self.efficiency_range),
            overhead_range=pair(self.overhead_range),
            factors=tuple(
                SizeFactor(
                    from_bytes=factor.from_bytes,
                    bandwidth=factor.bandwidth,
                    latency=factor.latency,
                )
                for factor in self.factors
            ),
            jitter=tuple(entry.jitter for entry in jitter),
            loss=None if self.loss is None else self.loss.loss,
            flow=self.flow,
            background=self.background,
            trace=rates,
            up=None if self.up is None else self.up.uplink,
            grant=self.grant,
            shared=self.shared,
            source=source,
            estimate=estimate,
        )


def over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The plain section `own` over `base`, before it is checked: `up` and `loss` key by key.

    A trace and a bandwidth push each other out, a figure the range of the inherited one, and capped
    losses how they would be repaired.
    """
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
