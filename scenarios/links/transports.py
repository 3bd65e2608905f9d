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

from dataclasses import fields
from typing import Annotated, Any

from pydantic import Field

from gcsim.scenarios.reading.types import Duration, Share
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.simulator.cluster import TransportName
from gcsim.simulator.network.links import RANGED, Link

_RANGES = {f"{figure}_range" for figure in RANGED}
_NO_FIGURES: dict[str, Any] = {
    field.name: None for field in fields(Link) if field.name not in {*RANGED, *_RANGES}
}
REACHED = As(
    Link,
    title="ReachedSection",
    **_NO_FIGURES
    | {
        "latency": (Duration | None, None),
        "efficiency": (Share | None, None),
        "overhead": (Duration | None, None),
        "source": (Annotated[str, Field(min_length=1)], ...),
    },
)


def reached(section: Spelled, link: Link, transport: TransportName) -> Link:
    """The link as this transport finds it."""
    figures = {
        name: getattr(section, name) for name in RANGED if getattr(section, name) is not None
    }
    source = f"{transport}: {section.source} Others: {link.source}"
    return section.value(Link, link.exactly(**figures, source=source))
