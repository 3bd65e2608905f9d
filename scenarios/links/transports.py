"""What does a transport reach on a link of the catalogue, where that differs from another?

The wire is one, the software is not: Gloo has one TCP connection between two ranks, NCCL several;
what a message waits for in the software of both ends is another time for each. So an entry of
`catalog/links.yaml` has figures for all transports, and under `transports` those of single ones:

    25gbe:
      latency: 50 us
      transports:
        gloo: {latency: 110 us, latency_range: [50 us, 220 us], source: ...}

A figure that stands there comes with its own range, or with none.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, model_validator

from gcsim.scenarios.reading.checking import Section, check_range
from gcsim.scenarios.reading.types import TWO, Duration, Factor, Share
from gcsim.simulator.cluster import TransportName
from gcsim.simulator.network.links import RANGED, Link


class ReachedSection(Section):
    """The figures of one transport that differ, and where they come from."""

    latency: Duration | None = None
    latency_range: Annotated[list[Duration], TWO] | None = None
    efficiency: Share | None = None
    efficiency_range: Annotated[list[Factor], TWO] | None = None
    overhead: Duration | None = None
    overhead_range: Annotated[list[Duration], TWO] | None = None
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _within(self) -> ReachedSection:
        for figure in RANGED:
            check_range(figure, getattr(self, figure), getattr(self, f"{figure}_range"))
        return self

    def on(self, link: Link, transport: TransportName) -> Link:
        """The link as this transport finds it."""
        figures: dict[str, Any] = {}
        for figure in RANGED:
            stated: Fraction | None = getattr(self, figure)
            if stated is not None:
                bounds: list[Fraction] | None = getattr(self, f"{figure}_range")
                figures[figure] = stated
                figures[f"{figure}_range"] = None if bounds is None else (bounds[0], bounds[1])
        source = f"{transport}: {self.source} Others: {link.source}"
        return link.exactly(**figures, source=source)


Reached = Mapping[TransportName, ReachedSection]
"""By transport."""
