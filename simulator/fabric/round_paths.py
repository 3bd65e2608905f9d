"""Paths of the messages of a round, and what they see of links that several of them pass.

Between two devices of a node a message takes the devices' own links; to another node it takes the
network NICs of both nodes and what lies between them. Messages of a round that pass the same thing
in the same direction share it: each gets its rate divided by their number.

| shared                      | by the round's messages that                                     |
|-----------------------------|------------------------------------------------------------------|
| a device's own link, out/in | leave/reach the device inside its node                           |
| the bus of a node           | stay inside the node, either way (`Cluster.shared_bus`)          |
| a network NIC, out/in      | leave/reach the node                                             |
| a rack's uplink, out/in     | leave/reach the rack                                             |
| the air (`Link.shared`)     | cross it: once for each end of a message that is a station       |

A message sees the path (`paths.py`) from one end to the other, each slowed by its share, by way of
the sender's uplink or the receiver's, whichever more messages share. The uplink's latency, that of
both racks' switches together, comes on top once.

Where a round has very many different paths, of links without size factors, delays and traces, the
links on the way are listed instead, the slowest of which counts: that is the same time, and a
cluster of n different NICs has n of them but n^2 paths.

Assumptions: messages of a round that share something take as long as if they started together, also
when skew keeps them apart; a switch holds nothing up.

Source: shares as in the fluid picture of `sharing/fair.py`, with equal messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Times, picoseconds
from gcsim.simulator.cluster import Racks
from gcsim.simulator.fabric.link_table import Bytes, Kinds, LinkTable, Ranks
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import framed, path, slowed, through

_MANY = 64
"""Different paths in a round."""
_KEPT = 1 << 19
"""Messages of rounds whose paths are kept."""
Integers = NDArray[np.int64]
_FORMS: OrderedDict[tuple[object, ...], tuple[list[list[int]], Integers]] = OrderedDict()
"""Paths and each message's number among them, by form of a cluster and a round's senders and
receivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Overheads that a protocol adds to every path."""

    share: Fraction = Fraction(1)
    """Payload's share of the rate, at most 1."""
    network: Fraction = Fraction(0)
    """Seconds on top of the latency, between two nodes."""
    inside: Fraction = Fraction(0)
    """Seconds on top of the latency, inside a node."""

    def of(self, link: Link, extra: Fraction) -> Link:
        """The link as the protocol's payload sees it."""
        return framed(link, self.share, extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """One end of each message: number of its link, and how many messages share that."""

    kind: Integers
    share: Integers


class RoundPaths:
    """Numbers the paths of rounds, and knows what they share."""

    def __init__(
        self,
        *,
        devices: int,
        nodes: int,
        nics: Sequence[Link],
        buses: Sequence[Link],
        racks: Racks | None,
        shared_bus: bool,
        framing: Framing,
    ) -> None:
        """`nics` and `buses`: one for all nodes or one each."""
        self.table = LinkTable()
        self._devices, self._nodes = devices, nodes
        self._racks, self._shared_bus, self._framing = racks, shared_bus, framing
        # a NIC and a bus that are equal links stay two kinds
        numbers: dict[tuple[str, Link], int] = {}
        self._bus = np.resize(_numbered(numbers, "bus", buses), nodes)
        self._first_card = len(numbers)
        self._nic = np.resize(_numbered(numbers, "NIC", nics), nodes)
        self._links = [link for _, link in numbers]
        self._stations = np.array([link.shared for link in self._links])
        uplinks = [racks.uplink] if racks else []
        self._plain = (
            all(_plain(link) for link in (*self._links, *uplinks))
            and _integral(framing.network)
            and _integral(framing.inside)
        )
        self._latency = np.array([link.latency_for(0) for link in self._links], dtype=np.int64)
        self._form = (
            (devices, nodes, shared_bus, None if racks is None else racks.nodes),
            *(numbers.tobytes() for numbers in (self._nic, self._bus, self._stations)),
        )
        """Form of the cluster: decides which messages share a link, not how fast a link is."""
        self._known: dict[tuple[int, ...], int] = {}
        self._at_share: dict[int, Kinds] = {}

    @property
    def flat(self) -> bool:
        """Messages of ranks that send one each and receive one each all see the same link."""
        racks = self._racks is not None and self._racks.nodes < self._nodes
        nics = len(self._links) - self._first_card
        return self._devices == nics == 1 and not racks and not self._stations.any()

    def ends(self) -> tuple[Kinds, Integers] | None:
        """Table of NICs for rounds in which a message sees its ends' NICs alone: the number of each
        rank's NIC in the table, and its latency, half of which counts; the slower NIC's rate does.
        None where more than that matters.
        """
        racks = self._racks is not None and self._racks.nodes < self._nodes
        if self._devices > 1 or racks or not self._plain or self._framing.network:
            return None
        if self._stations.any():
            return None
        one = np.ones(self._nodes, dtype=np.int64)
        return self._numbers(_Ends(kind=self._nic, share=one)), self._latency[self._nic]

    def links(self, senders: Ranks, receivers: Ranks) -> tuple[Link, ...]:
        """The path of each message of a round, however many there are."""
        paths, place = self._alike(senders, receivers)
        found = [self.table.links[self._path(*numbers)] for numbers in paths]
        if len(found) == 1:
            return tuple(found) * len(place)
        return tuple(found[kind] for kind in place.tolist())

    def hops(self, senders: Ranks, receivers: Ranks) -> Hops:
        """Hops of the messages of one round, `[n]`."""
        kinds: tuple[Kinds, ...] | None = None
        latencies: Integers | None = None
        if not self._plain or len(self._links) <= _MANY:
            paths, place = self._alike(senders, receivers)
            if not self._plain or len(paths) <= _MANY:
                numbers = [self._path(*numbers) for numbers in paths]
                kinds = (np.array(numbers, dtype=np.int64)[place],)
        if kinds is None:
            kinds, latencies = self._passed(*self._ends(senders, receivers))
        return Hops(
            senders=senders, receivers=receivers, table=self.table, kinds=kinds, latencies=latencies
        )

    def _alike(self, senders: Ranks, receivers: Ranks) -> tuple[list[list[int]], Integers]:
        """Paths of a round, and each message's number among them: the same on all clusters of a
        form, and found once for them."""
        name = (self._form, senders.tobytes(), receivers.tobytes())
        if name not in _FORMS:
            (out, into), uplink, _ = self._ends(senders, receivers)
            columns = (out.kind, out.share, into.kind, into.share, uplink)
            chosen, place = _distinct(*columns)
            _FORMS[name] = np.stack(columns, axis=1)[chosen].tolist(), place
            while len(_FORMS) > max(1, _KEPT // max(1, len(senders))):
                _FORMS.popitem(last=False)
        return _FORMS[name]

    def _ends(
        self, senders: Ranks, receivers: Ranks
    ) -> tuple[list[_Ends], Integers, NDArray[np.bool_]]:
        """Both ends of each message, how many share its racks' uplink, and whether it leaves its
        node."""
        out, into = senders // self._devices, receivers // self._devices
        crosses = out != into
        ends, crossings = [], 0
        for node, rank in ((out, senders), (into, receivers)):
            own = out if self._shared_bus else rank
            ends.append(
                _Ends(
                    kind=np.where(crosses, self._nic[node], self._bus[node]),
                    share=_crowd(np.where(crosses, node, self._nodes + own)),
                )
            )
        if self._stations.any():
            stations = [self._stations[end.kind] & crosses for end in ends]
            crossings = int(sum(at.sum() for at in stations))
            for end, at in zip(ends, stations, strict=True):
                end.share[at] = crossings
        uplink = np.zeros(len(senders), dtype=np.int64)
        if self._racks is not None:
            racks = [node // self._racks.nodes for node in (out, into)]
            leaves = racks[0] != racks[1]
            uplink[leaves] = np.maximum(*(_crowd(rack[leaves]) for rack in racks))
        return ends, uplink, crosses

    def _passed(
        self, ends: list[_Ends], uplink: Integers, crosses: NDArray[np.bool_]
    ) -> tuple[tuple[Kinds, ...], Integers]:
        """Numbers of the links on the way, and the paths' latencies."""
        out, into = ends
        kinds = [self._numbers(end) for end in ends]
        framing = self._framing
        extra = np.where(crosses, picoseconds(framing.network), picoseconds(framing.inside))
        if self._racks is not None and uplink.any():
            cable = self._racks.uplink
            first, which = _distinct(uplink)
            found = [self._link(cable, share) if share else -1 for share in uplink[first].tolist()]
            kinds.append(np.where(uplink > 0, np.array(found, dtype=np.int64)[which], kinds[0]))
            extra = extra + np.where(uplink > 0, cable.latency_for(0), 0)
        twice = self._latency[out.kind] + self._latency[into.kind]
        half = twice // 2
        half += (twice % 2) & (half + extra) & 1  # halves to the even sum
        return tuple(kinds), half + extra

    def _numbers(self, ends: _Ends) -> Kinds:
        """The number of each end's link, with its share."""
        if len(ends.share) and (ends.share == ends.share[0]).all():
            share = int(ends.share[0])
            if share not in self._at_share:
                found = [self._link(link, share) for link in self._links]
                self._at_share[share] = np.array(found, dtype=np.int64)
            return self._at_share[share][ends.kind]
        first, which = _distinct(ends.kind, ends.share)
        asked = np.stack((ends.kind, ends.share), axis=1)[first].tolist()
        numbers = [self._link(self._links[kind], share) for kind, share in asked]
        return np.array(numbers, dtype=np.int64)[which]

    def _path(self, out: int, sharing: int, into: int, meeting: int, uplink: int) -> int:
        """The number of a path from link `out` to link `into`."""
        name = out, sharing, into, meeting, uplink
        if name not in self._known:
            link = path(self._links[out], self._links[into], sharing, meeting)
            if uplink and self._racks is not None:
                link = through(link, self._racks.uplink, uplink)
            crosses = out >= self._first_card
            extra = self._framing.network if crosses else self._framing.inside
            self._known[name] = self.table.add(self._framing.of(link, extra))
        return self._known[name]

    def _link(self, link: Link, share: int) -> int:
        name = id(link), share
        if name not in self._known:
            self._known[name] = self.table.add(self._framing.of(slowed(link, share), Fraction(0)))
        return self._known[name]


def _numbered(numbers: dict[tuple[str, Link], int], place: str, links: Sequence[Link]) -> Integers:
    """Numbers of links, new ones where needed; equal links have one number."""
    found = [numbers.setdefault((place, link), len(numbers)) for link in links]
    return np.array(found, dtype=np.int64)


def _plain(link: Link) -> bool:
    """A rate and a latency of whole picoseconds are all that there is to it."""
    more = link.factors, link.overhead, link.jitter, link.loss, link.timed, link.up
    return not any(more) and _integral(link.latency)


def _integral(seconds: Fraction) -> bool:
    return (seconds * PS_PER_SECOND).denominator == 1


def _crowd(places: Integers) -> Integers:
    return np.bincount(places)[places]


def _distinct(*columns: Integers) -> tuple[Integers, Integers]:
    """The place of one row of each kind, and the kind of each row."""
    kind = columns[0]
    places = np.zeros(min(1, len(kind)), dtype=np.int64)
    for number, column in enumerate(columns):
        if len(kind):
            rows = kind * (int(column.max()) + 1) + column if number else kind
            places, kind = _compact(rows)
    return places, kind


def _compact(values: Integers) -> tuple[Integers, Integers]:
    """`np.unique` with index and inverse, without sorting where values are small."""
    top = int(values.max()) + 1
    if top > 4 * len(values) + 1024:
        _, places, kinds = np.unique(values, return_index=True, return_inverse=True)
        return places, kinds
    place = np.full(top, -1, dtype=np.int64)
    place[values] = np.arange(len(values), dtype=np.int64)
    present = np.flatnonzero(place >= 0)
    number = np.empty(top, dtype=np.int64)
    number[present] = np.arange(len(present), dtype=np.int64)
    return place[present], number[values]


@dataclass(frozen=True, kw_only=True, eq=False)
class Hops:
    """The messages of one round, `[n]`, and their links."""

    senders: Ranks
    receivers: Ranks
    table: LinkTable
    kinds: tuple[Kinds, ...]
    """Numbers of links: of the whole path of each message, or of all that it passes, of which the
    slowest counts."""
    latencies: Times | None = None
    """None: those that the links say."""

    @staticmethod
    def joined(rounds: Sequence[Hops]) -> Hops:
        """The messages of some rounds of one fabric, one round behind the other."""
        most = max(len(each.kinds) for each in rounds)
        listed = any(each.latencies is not None for each in rounds)
        return Hops(
            senders=np.concatenate([each.senders for each in rounds]),
            receivers=np.concatenate([each.receivers for each in rounds]),
            table=rounds[0].table,
            kinds=tuple(
                np.concatenate([each.kinds[min(n, len(each.kinds) - 1)] for each in rounds])
                for n in range(most)
            ),
            # where links are listed somewhere, all are plain: a latency is the same for all sizes
            latencies=np.concatenate([each.latency(0) for each in rounds]) if listed else None,
        )

    def serialization(self, nbytes: Bytes | int) -> Times:
        """For how long each message occupies its sender, unless that depends on the start."""
        if self.timed:
            return np.zeros(len(self.senders), dtype=np.int64)
        found = self.table.serialization(self.kinds[0], nbytes)
        for kinds in self.kinds[1:]:
            found = np.maximum(found, self.table.serialization(kinds, nbytes))
        return found

    def latency(self, nbytes: Bytes | int) -> Times:
        """The latency of each message, without its random delay."""
        if self.latencies is not None:
            return self.latencies
        return self.table.latency(self.kinds[0], nbytes)

    def draw_jitter(
        self, nbytes: Bytes | int, *, key: int, message: NDArray[np.int64] | int
    ) -> Times:
        """The random delay of each message, number `message` of its sender."""
        if not self.random:
            return np.zeros(len(self.senders), dtype=np.int64)
        return self.table.draw_jitter(
            self.kinds[0], nbytes, key=key, message=message, rank=self.senders
        )

    def departure(self, start: Times, nbytes: Bytes | int) -> Times:
        """Time at which each message that may start at `start` has left, absolute times."""
        return self.table.departure(start, self.kinds[0], nbytes)

    def some(self, chosen: NDArray[np.bool_]) -> Hops:
        """The chosen messages, `[n]`."""
        return Hops(
            senders=self.senders[chosen],
            receivers=self.receivers[chosen],
            table=self.table,
            kinds=tuple(kinds[chosen] for kinds in self.kinds),
            latencies=None if self.latencies is None else self.latencies[chosen],
        )

    @property
    def links(self) -> list[Link]:
        """The path of each message; not where what it passes is listed instead."""
        if self.latencies is not None:
            raise InternalError("messages whose paths were not looked for")
        return [self.table.links[kind] for kind in self.kinds[0].tolist()]

    @cached_property
    def random(self) -> bool:
        """Whether any message has a random delay."""
        return self.table.random(self.kinds[0])

    @cached_property
    def timed(self) -> bool:
        """Whether absolute time matters to any message."""
        return self.table.timed(self.kinds[0])
