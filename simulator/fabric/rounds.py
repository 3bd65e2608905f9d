"""Paths and times of a round's messages on a cluster's links.

    left = start + serialisation      arrival = left + latency + random delay

on each message's path, shared with the round's other messages. Messages are buffered, as in
`rings/recurrence.py`, and numbered from 0 per rank. Source: Hockney 1994.

Inside a node a message crosses the devices' own links; between nodes, both NICs and the uplinks
between. Messages of a round that cross the same link in the same direction divide its rate:

| shared                      | by the round's messages that                                   |
|-----------------------------|----------------------------------------------------------------|
| a device's own link, out/in | leave/reach the device inside its node                         |
| the bus of a node           | stay inside the node, either way (`Cluster.shared_bus`)        |
| a network NIC, out/in       | leave/reach the node                                           |
| a rack's uplinks, out/in    | leave/reach the rack; a message uses one for each of its NICs  |
| the air (`Link.shared`)     | cross it: once for each end of a message that is a station     |

A message's path (`paths.py`) joins both ends, each with its share of the rate, and the uplink of
the sender's or receiver's rack, whichever more messages share; the latency of the racks' switches
is added once. If a round has very many paths, of links without size factors, delays and traces, the
links on the way are listed instead and the slowest counts, which gives the same times.

Assumptions: messages that share a link take as long as if they started together, whatever the skew;
switches are no bottleneck. Shares are those of `sharing/fair.py` for equal messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import PS_PER_SECOND, Times, check_range, picoseconds
from gcsim.simulator.cluster import Cluster, Racks
from gcsim.simulator.fabric.hops import Framing, Hops, Integers, distinct
from gcsim.simulator.fabric.link_table import Bytes, Kinds, LinkTable, Ranks, scaled
from gcsim.simulator.host import Devices, first_ranks, node_of_ranks, number_of_ranks
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import across_uplink, path, share_link

MANY = 64  # most different paths in a round before links are listed instead
_KEPT = 1 << 19  # most messages of the rounds whose paths are cached
_KEPT_ROUNDS = 64
_FORMS: OrderedDict[tuple[object, ...], tuple[list[list[int]], Integers]] = OrderedDict()
"""Paths, and each message's path, by `form` of a cluster and senders and receivers of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """One end of each message: kind of its link, and the number of messages that share it."""

    kind: Integers
    share: Integers


class Fabric:
    """Links of all ranks, numbered node by node, and the paths of their rounds."""

    def __init__(
        self,
        *,
        nodes: int,
        devices: Devices,
        nics: Sequence[Link],
        buses: Sequence[Link],
        racks: Racks | None = None,
        nics_per_node: int = 1,
        shared_bus: bool = False,
        framing: Framing | None = None,
    ) -> None:
        """`nics` join a node to the others, `buses` its devices: one for all nodes or one per node.
        Each of `nics` represents `nics_per_node` NICs."""
        self.nodes, self.devices = nodes, devices
        self.ranks = number_of_ranks(nodes, devices)
        self.everyone: Ranks = np.arange(self.ranks, dtype=np.int64)
        self._of: dict[str, Any] = {
            "nodes": nodes,
            "devices": devices,
            "nics": nics,
            "buses": buses,
            "racks": racks,
            "nics_per_node": nics_per_node,
            "shared_bus": shared_bus,
        }
        self._rounds: OrderedDict[tuple[bytes, bytes], Hops] = OrderedDict()
        self._rings: dict[tuple[int, bool], tuple[Link, ...]] = {}
        self._framed: dict[Framing, Fabric] = {}
        self._table = LinkTable()
        self._node = node_of_ranks(self.ranks, devices)
        self._levels = racks.levels if racks else ()
        self._least = racks.least_shares(nics_per_node) if racks else ()
        self._shared_bus, self._framing = shared_bus, framing or Framing()
        # a NIC and a bus with equal figures are still two kinds
        numbers: dict[tuple[str, Link], int] = {}
        self._bus = _numbered(numbers, "bus", buses, nodes)
        self._first_card = len(numbers)
        self._nic = _numbered(numbers, "NIC", nics, nodes)
        self._links = [link for _, link in numbers]
        self._stations = np.array([link.shared for link in self._links])
        self._known: dict[tuple[int | Fraction, ...], int] = {}
        self._at_share: dict[int, Kinds] = {}

    @staticmethod
    def of(cluster: Cluster) -> Fabric:
        """Return the fabric of a cluster."""
        nodes = range(cluster.nodes)
        return Fabric(
            nodes=cluster.nodes,
            devices=cluster.devices_by_node,
            nics=[cluster.nic(node) for node in nodes] if cluster.nics else [cluster.network],
            buses=[cluster.buses.get(node, cluster.between_ranks) for node in nodes]
            if cluster.buses and cluster.between_ranks is cluster.intra_node
            else [cluster.between_ranks],
            racks=cluster.racks,
            nics_per_node=cluster.nics_per_node,
            shared_bus=cluster.shared_bus,
        )

    @cached_property
    def of_nodes(self) -> Fabric:
        """Fabric of one rank per node."""
        return Fabric(**{**self._of, "devices": 1})

    def with_framing(self, framing: Framing) -> Fabric:
        """Return the fabric with a protocol's overheads."""
        if framing not in self._framed:
            self._framed[framing] = Fabric(**self._of, framing=framing)
        return self._framed[framing]

    @cached_property
    def form(self) -> tuple[object, ...]:
        """Key of fabrics in which the same messages of a round share links, of any speed."""
        below = (below for below, _ in self._levels)
        numbers = (each.tobytes() for each in (self._nic, self._bus, self._stations))
        return (self.nodes, self.devices, self._shared_bus, *below), *numbers

    @cached_property
    def _plain(self) -> bool:
        links = (*self._links, *(uplink for _, uplink in self._levels))
        extra = self._framing.network, self._framing.inside
        return all(map(_plain, links)) and all(map(_integral, extra))

    @cached_property
    def _latency(self) -> Times:
        return np.array([link.latency_for(0) for link in self._links], dtype=np.int64)

    def ring_links(self, *, backwards: bool = False) -> tuple[Link, ...]:
        """Return the hop from each rank to its successor (mod p), or predecessor, while all hops of
        the ring are in use."""
        return self._ring(self.everyone, backwards=backwards)

    def ring_paths(self, *, backwards: bool = False) -> tuple[list[list[int]], Integers]:
        """Return the different paths of `ring_links`, and each rank's index among them."""
        return self.alike_messages(self.everyone, np.roll(self.everyone, 2 * backwards - 1))

    def leader_links(self) -> tuple[Link, ...]:
        """Return the hop from each node's first device to the next node's (mod N)."""
        return self._ring(first_ranks(self.nodes, self.devices), backwards=False)

    def _ring(self, ranks: Ranks, *, backwards: bool) -> tuple[Link, ...]:
        name = len(ranks), backwards
        if name not in self._rings:
            self._rings[name] = self.links(ranks, np.roll(ranks, 2 * backwards - 1))
        return self._rings[name]

    @property
    def alike(self) -> bool:
        """Whether all nodes have as many devices, the same links and the same distance to all
        others: then paths depend only on the distance between ranks."""
        racks = any(below < self.nodes for below, _ in self._levels)
        return len(self._links) == 2 and not racks and isinstance(self.devices, int)

    @property
    def flat(self) -> bool:
        """Whether messages have one unshared path in rounds of one send and receive per rank."""
        return self.devices == 1 and self.alike and not self._stations.any()

    def ends(self) -> tuple[LinkTable, Kinds, Times] | None:
        """Table of NICs, each rank's number in it and its latency, if rounds as those of `flat`
        depend only on the ends' NICs (the slower rate and half of each latency); else None."""
        racks = any(below < self.nodes for below, _ in self._levels)
        if self.devices != 1 or racks or not self._plain or self._framing.network:
            return None
        if self._stations.any():
            return None
        one = np.ones(self.nodes, dtype=np.int64)
        kinds = self._numbers(_Ends(kind=self._nic, share=one))
        return self._table, kinds, self._latency[self._nic]

    def links(self, senders: Ranks, receivers: Ranks) -> tuple[Link, ...]:
        """Return the path of each message of a round, even if there are many paths."""
        if self.ranks == 1:
            return ()
        paths, place = self.alike_messages(senders, receivers)
        found = [self._table.links[self._path(*numbers)] for numbers in paths]
        if len(found) == 1:
            return tuple(found) * len(place)
        return tuple(found[kind] for kind in place.tolist())

    def hops(self, senders: Ranks, receivers: Ranks) -> Hops:
        """Return the hops of the messages of one round, `[n]`, cached; senders and receivers
        differ."""
        name = senders.tobytes(), receivers.tobytes()
        if name not in self._rounds:
            if len(self._rounds) >= _KEPT_ROUNDS:
                self._rounds.popitem(last=False)
            self._rounds[name] = self._hops(senders, receivers)
        return self._rounds[name]

    def _hops(self, senders: Ranks, receivers: Ranks) -> Hops:
        kinds: tuple[Kinds, ...] | None = None
        latencies: Integers | None = None
        if not self._plain or len(self._links) <= MANY:
            paths, place = self.alike_messages(senders, receivers)
            if not self._plain or len(paths) <= MANY:
                kinds = (self._numbers_of(paths)[place],)
        if kinds is None:
            kinds, latencies = self._passed(*self._ends(senders, receivers))
        return Hops(senders, receivers, self._table, kinds, latencies)

    def hops_on(self, paths: Sequence[Sequence[int]]) -> Hops:
        """Return a hop for each of these paths, without senders and receivers."""
        nobody = np.full(len(paths), -1, dtype=np.int64)
        kinds = (self._numbers_of(paths),)
        return Hops(nobody, nobody, self._table, kinds)

    def _numbers_of(self, paths: Sequence[Sequence[int]]) -> Kinds:
        return np.array([self._path(*numbers) for numbers in paths], dtype=np.int64)

    def alike_messages(self, senders: Ranks, receivers: Ranks) -> tuple[list[list[int]], Integers]:
        """Return the different paths of a round's messages, and each message's index among them;
        both are equal for fabrics of one `form`, by which they are cached."""
        name = (self.form, senders.tobytes(), receivers.tobytes())
        if name not in _FORMS:
            (out, into), uplinks, _ = self._ends(senders, receivers)
            columns = (out.kind, out.share, into.kind, into.share, *uplinks)
            chosen, place = distinct(*columns)
            _FORMS[name] = np.stack(columns, axis=1)[chosen].tolist(), place
            while len(_FORMS) > max(1, _KEPT // max(1, len(senders))):
                _FORMS.popitem(last=False)
        return _FORMS[name]

    def _ends(
        self, senders: Ranks, receivers: Ranks
    ) -> tuple[list[_Ends], list[Integers], NDArray[np.bool_]]:
        """Return both ends of each message, the number of messages that share its uplink at each
        level (0: it crosses none), and whether it leaves its node."""
        out, into = self._node[senders], self._node[receivers]
        crosses = out != into
        ends, crossings = [], 0
        for node, rank in ((out, senders), (into, receivers)):
            own = out if self._shared_bus else rank
            ends.append(
                _Ends(
                    kind=np.where(crosses, self._nic[node], self._bus[node]),
                    share=_crowd(np.where(crosses, node, self.nodes + own)),
                )
            )
        if self._stations.any():
            stations = [self._stations[end.kind] & crosses for end in ends]
            crossings = int(sum(at.sum() for at in stations))
            for end, at in zip(ends, stations, strict=True):
                end.share[at] = crossings
        uplinks = []
        for below, _ in self._levels:
            racks = [node // below for node in (out, into)]
            leaves = racks[0] != racks[1]
            uplinks.append(np.zeros(len(senders), dtype=np.int64))
            uplinks[-1][leaves] = np.maximum(*(_crowd(rack[leaves]) for rack in racks))
        return ends, uplinks, crosses

    def _passed(
        self, ends: list[_Ends], uplinks: list[Integers], crosses: NDArray[np.bool_]
    ) -> tuple[tuple[Kinds, ...], Integers]:
        """Return the numbers of the links on the way, and the paths' latencies."""
        out, into = ends
        kinds = [self._numbers(end) for end in ends]
        framing = self._framing
        extra = np.where(crosses, picoseconds(framing.network), picoseconds(framing.inside))
        for (_, cable), least, uplink in zip(self._levels, self._least, uplinks, strict=True):
            if not uplink.any():
                break
            first, which = distinct(uplink)
            shares = uplink[first].tolist()
            found = [
                self._link(cable, max(share, least), inside=False) if share else -1
                for share in shares
            ]
            kinds.append(np.where(uplink > 0, np.array(found, dtype=np.int64)[which], kinds[0]))
            extra = extra + np.where(uplink > 0, cable.latency_for(0), 0)
        twice = self._latency[out.kind] + self._latency[into.kind]
        half = twice // 2
        half += (twice % 2) & (half + extra) & 1  # round half to even
        return tuple(kinds), half + extra

    def _numbers(self, ends: _Ends) -> Kinds:
        """Return the number of each end's link with its share."""
        if len(ends.share) and (ends.share == ends.share[0]).all():
            share = int(ends.share[0])
            if share not in self._at_share:
                found = [self._end(kind, share) for kind in range(len(self._links))]
                self._at_share[share] = np.array(found, dtype=np.int64)
            return self._at_share[share][ends.kind]
        first, which = distinct(ends.kind, ends.share)
        asked = np.stack((ends.kind, ends.share), axis=1)[first].tolist()
        numbers = [self._end(kind, share) for kind, share in asked]
        return np.array(numbers, dtype=np.int64)[which]

    def _path(self, out: int, sharing: int, into: int, meeting: int, *uplinks: int) -> int:
        """Return the number of a path from link `out` to link `into`."""
        name = out, sharing, into, meeting, *uplinks
        if name not in self._known:
            link = path(self._links[out], self._links[into], sharing, meeting)
            for (_, cable), least, uplink in zip(self._levels, self._least, uplinks, strict=True):
                link = across_uplink(link, cable, uplink, least) if uplink else link
            crosses = out >= self._first_card
            extra = self._framing.network if crosses else self._framing.inside
            self._known[name] = self._table.add(self._framing.of(link, extra, inside=not crosses))
        return self._known[name]

    def _end(self, kind: int, share: int) -> int:
        return self._link(self._links[kind], share, inside=kind < self._first_card)

    def _link(self, link: Link, share: int | Fraction, *, inside: bool) -> int:
        name = id(link), share, inside
        if name not in self._known:
            framed_link = self._framing.of(share_link(link, share), Fraction(0), inside=inside)
            self._known[name] = self._table.add(framed_link)
        return self._known[name]


def _numbered(
    numbers: dict[tuple[str, Link], int], place: str, links: Sequence[Link], nodes: int
) -> Integers:
    """Return each node's link as a number, the same for equal links; new links are added."""
    found = [numbers.setdefault((place, link), len(numbers)) for link in links]
    return np.full(nodes, found if len(found) == nodes else found[0], dtype=np.int64)


def _plain(link: Link) -> bool:
    """Whether a link has only a rate and a latency of whole picoseconds."""
    more = link.factors, link.overhead, link.jitter, link.loss, link.timed, link.up
    return not any(more) and _integral(link.latency)


def _integral(seconds: Fraction) -> bool:
    return (seconds * PS_PER_SECOND).denominator == 1


def _crowd(places: Integers) -> Integers:
    return np.bincount(places)[places]


def reduction(nbytes: Bytes | int, gamma: Fraction) -> Times | int:
    """Return the time to add `nbytes` bytes at `gamma` seconds each; `InputError` if too long."""
    if not gamma:
        return 0
    each = gamma * PS_PER_SECOND
    longest = round(each * int(np.max(nbytes, initial=0)))
    check_range(np.zeros(1, dtype=np.int64), longest)
    if isinstance(nbytes, int):
        return longest
    return scaled(nbytes, each.numerator, each.denominator)
