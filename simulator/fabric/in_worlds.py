"""Times of messages on many clusters at once that differ only in figures of their links.

For `plain` clusters a path's times follow from its rate (divided by the messages that share it and
by a protocol's overhead) and its latency, so arrays with a row per cluster replace `Link`s.
Picoseconds equal those of the links, except for the rounding of ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import PS_PER_SECOND, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.fabric.round_paths import Framing
from gcsim.simulator.network.links import Link

Column = NDArray[np.float64]  # `[clusters]`
Figures = Callable[[Any, Sequence[str], str], Column]
"""Returns a figure by cluster, given its stated owner, the owner's path from the cluster, its name.
"""


def plain(cluster: Cluster) -> bool:
    """Whether all nodes have as many devices and the same links, with only a rate, an overhead and
    a latency."""
    links = (cluster.network, cluster.intra_node, cluster.between_ranks)
    alike = not (cluster.nics or cluster.buses or cluster.racks or cluster.sizes)
    return alike and not any(
        link.up or link.factors or link.loss or link.alone or link.timed or link.random
        for link in links
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathPrices:
    """Picoseconds `[clusters, paths]`."""

    per_byte: NDArray[np.float64]  # per byte
    per_message: NDArray[np.float64]  # per message
    latency: Times
    links: Sequence[Sequence[Link]] = ()  # the paths, if some have size factors

    @staticmethod
    def of(links: Sequence[Sequence[Link]]) -> PathPrices:
        """Compute the times on these paths."""

        def table(figure: Callable[[Link], Any]) -> NDArray[np.float64]:
            return np.array([[float(figure(link)) for link in own] for own in links])

        return PathPrices(
            per_byte=table(lambda link: PS_PER_SECOND / link.rate),
            per_message=table(lambda link: link.overhead * PS_PER_SECOND),
            latency=table(lambda link: link.latency_for(0)).astype(np.int64),
            links=links if any(link.factors for own in links for link in own) else (),
        )

    def serialization(self, nbytes: int) -> Times:
        """Return how long a message occupies its sender."""
        if self.links:
            return self._asked(Link.serialization, nbytes)
        rounded: Times = np.rint(self.per_message + nbytes * self.per_byte).astype(np.int64)
        return rounded

    def latencies(self, nbytes: int) -> Times:
        """Return the latency of a message."""
        return self._asked(Link.latency_for, nbytes) if self.links else self.latency

    def select(self, rows: Sequence[int]) -> PathPrices:
        """Return the prices on some of the clusters."""
        links = [self.links[row] for row in rows] if self.links else ()
        return PathPrices(
            per_byte=self.per_byte[rows],
            per_message=self.per_message[rows],
            latency=self.latency[rows],
            links=links,
        )

    def _asked(self, question: Callable[[Link, int], int], nbytes: int) -> Times:
        found = [[question(link, nbytes) for link in own] for own in self.links]
        return np.array(found, dtype=np.int64)


class PathsInWorlds:
    """Paths of a `plain` cluster with the figures of many worlds."""

    def __init__(self, cluster: Cluster, figures: Figures) -> None:
        self.cluster, self._figures = cluster, figures
        apart = cluster.between_ranks is not cluster.intra_node
        self._names = "shared_memory" if apart else "intra_node", "network"
        self._known: dict[tuple[str, str], Column] = {}

    def figure(self, name: str, field: str) -> Column:
        """Return a field of one of the cluster's values, by world."""
        if (name, field) not in self._known:
            owner = getattr(self.cluster, name)
            self._known[name, field] = self._figures(owner, ("cluster", name), field)
        return self._known[name, field]

    def paths(
        self,
        paths: Sequence[Sequence[int]],
        framing: Framing = Framing(),  # noqa: B008 (frozen)
    ) -> PathPrices:
        """Return the prices of a fabric's paths (`Fabric.alike_messages`)."""
        asked = [
            (self._names[out], max(leaving, entering)) for out, leaving, _, entering, *_ in paths
        ]
        return self._priced(asked, framing)

    @property
    def copies(self) -> PathPrices:
        """Prices of copies between a device and its node's memory while all devices copy."""
        cluster = self.cluster
        return self._priced([("intra_node", cluster.devices_per_node if cluster.shared_bus else 1)])

    def _priced(
        self,
        asked: Sequence[tuple[str, int]],
        framing: Framing = Framing(),  # noqa: B008
    ) -> PathPrices:
        """Return the prices of links, each shared by a number of messages."""
        links: list[Link] = [getattr(self.cluster, name) for name, _ in asked]
        between = [name == "network" for name, _ in asked]
        part = [float(framing.share if far else framing.share_inside) for far in between]
        more = [float(framing.network if far else framing.inside) for far in between]
        free = [float(1 - link.background) for link in links]
        least = [0.0 if link.flow is None else float(PS_PER_SECOND / link.flow) for link in links]

        def table(field: str) -> NDArray[np.float64]:
            return np.stack([self.figure(name, field) for name, _ in asked], axis=1)

        line = table("bandwidth") * table("efficiency") * np.multiply(free, part)
        each = np.array([sharers for _, sharers in asked]) * PS_PER_SECOND / line
        return PathPrices(
            per_byte=np.maximum(each, least),
            per_message=table("overhead") * PS_PER_SECOND,
            latency=np.rint((table("latency") + more) * PS_PER_SECOND).astype(np.int64),
        )
