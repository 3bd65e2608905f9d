"""The links between workers, and the slowest: its rate decides how long an exchange takes.

A ring or a tree crosses a rack's uplink as often as a node's NIC, so the lowest rate counts. Groups
of nodes with equal links share one entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from gcsim.scenarios.advice.question import Question
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.links import Link
from gcsim.units import exact


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBetween:
    """A link that messages between workers cross, with the settings of its figures."""

    link: Link  # the rates of `count` links added up
    count: int = 1  # NICs of a node, or uplinks of a rack
    holders: tuple[str, ...]  # settings: "cluster.network"
    name: str = ""  # "the racks' uplinks"; empty for the network or a lone bus
    unlike: bool = False  # whether nodes have other links than this one

    def at(self, rate: float) -> tuple[str, ...]:
        """Overrides for a line rate of all `count` links together, in bits per second."""
        return tuple(f"{one}.bandwidth={rate / self.count:.6g} bit/s" for one in self.holders)

    def faster(self, factor: int) -> tuple[str, ...]:
        """Overrides for `factor` times the line rate."""
        rate = exact(factor * self.link.bandwidth / self.count, "bandwidth")
        return tuple(f"{one}.bandwidth={rate}" for one in self.holders)

    def latency(self, share: Fraction) -> tuple[str, ...]:
        """Overrides for a share of the latency."""
        latency = exact(share * self.link.latency, "time")
        return tuple(
            text
            for one in self.holders
            for text in (f"{one}.latency={latency}", f"{one}.latency_range=null")
        )

    @property
    def no_one_rate(self) -> str:
        """Reason why its rate is no single number, in words; empty where it is one."""
        why = {
            "the nodes share one channel": self.link.shared,
            "the link differs by direction": self.link.up is not None,
            "the link's rate varies": self.link.timed,
            "the nodes' links differ": self.unlike,
        }
        return next((words for words, true in why.items() if true), "")


def nearest_link(cluster: Cluster) -> LinkBetween:
    """The network, or a lone node's bus."""
    if cluster.nodes == 1:
        return LinkBetween(link=cluster.intra_node, holders=("cluster.intra_node",))
    return LinkBetween(
        link=cluster.network,
        count=cluster.nics_per_node,
        holders=("cluster.network",),
        unlike=bool(cluster.nics),
    )


def links_between(question: Question) -> list[LinkBetween]:
    """The links that a message between the farthest workers crosses: NICs (of the groups with the
    slowest ones), or a lone node's bus, then uplinks."""
    cluster = question.scenario.cluster
    near = nearest_link(cluster)
    found = [replace(near, holders=(holder_of(question, 0, near.holders[0]),))]
    if cluster.groups:
        found = [min(_of_groups(question), key=_goodput)]
    for level, (_, link) in cluster.uplinks.items():
        key, count = _UPLINK[level], getattr(cluster.racks, f"{_UPLINK[level]}s")
        holders = (f"cluster.racks.{key}",)
        found.append(LinkBetween(link=link, count=count, holders=holders, name=UPLINKS[level]))
    return found


def slowest_link(question: Question) -> LinkBetween | None:
    """The link with the lowest goodput; None for one worker."""
    if question.scenario.cluster.workers == 1:
        return None
    return min(links_between(question), key=_goodput)


def _goodput(one: LinkBetween) -> Fraction:
    return one.link.rate


_UPLINK = {"racks": "uplink", "pods": "pod_uplink"}
UPLINKS = {level: f"the {level}' uplinks" for level in _UPLINK}
"""Names of uplinks, by level."""


def holder_of(question: Question, group: int, setting: str) -> str:
    """Return the setting of the group in place of the cluster's, where the group states it."""
    groups, key = question.stated("cluster", "groups"), setting.removeprefix("cluster.")
    return f"cluster.groups.{group}.{key}" if groups and key in groups[group] else setting


def _of_groups(question: Question) -> Iterator[LinkBetween]:
    """The NICs of groups of nodes, alike ones together."""
    cluster = question.scenario.cluster
    stated = question.stated("cluster", "groups")
    network, first, alike = "cluster.network", 0, dict[Link, list[int]]()
    for number, group in enumerate(cluster.groups):
        alike.setdefault(cluster.nic(first), []).append(number)
        first += group.nodes
    for link, numbers in alike.items():
        holders = dict.fromkeys(holder_of(question, number, network) for number in numbers)
        named = dict.fromkeys(cluster.groups[number].device.name for number in numbers)
        yield LinkBetween(
            link=link,
            count=stated[numbers[0]].get("nics_per_node", cluster.nics_per_node),
            holders=tuple(holders),
            name=f"the {' and '.join(named)} nodes' links" if len(alike) > 1 else "",
        )
