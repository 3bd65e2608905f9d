"""Paths of a round's messages, and the links that they share.

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

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Times, picoseconds
from gcsim.simulator.cluster import Racks
from gcsim.simulator.fabric.link_table import Bytes, Kinds, LinkTable, Ranks
from gcsim.simulator.host import Devices, node_of_ranks
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import across_uplink, path, share_link, with_framing

MANY = 64  # most different paths in a round before links are listed instead
_KEPT = 1 << 19  # most messages of the rounds whose paths are cached
Integers = NDArray[np.int64]
_FORMS: OrderedDict[tuple[object, ...], tuple[list[list[int]], Integers]] = OrderedDict()
"""Paths, and each message's path, by `form` of a cluster and senders and receivers of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Overheads of a protocol on every path."""

    share: Fraction = Fraction(1)  # payload's share of the rate between nodes
    share_inside: Fraction = Fraction(1)  # payload's share of the rate inside a node
    network: Fraction = Fraction(0)  # seconds added to the latency between nodes
    inside: Fraction = Fraction(0)  # seconds added to the latency inside a node

    def of(self, link: Link, extra: Fraction, *, inside: bool) -> Link:
        """Return the link as it carries the protocol's payload."""
        return with_framing(link, self.share_inside if inside else self.share, extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """One end of each message: kind of its link, and the number of messages that share it."""

    kind: Integers
    share: Integers


class RoundPaths:
    """Numbered paths of rounds, and their links."""

    def __init__(
        self,
        *,
        devices: Devices,
        nodes: int,
        nics: Sequence[Link],
        buses: Sequence[Link],
        racks: Racks | None,
        nics_per_node: int,
        shared_bus: bool,
        framing: Framing,
    ) -> None:
        """`nics` and `buses`: one for all nodes or one each."""
        self.table = LinkTable()
        self._devices, self._nodes = devices, nodes
        ranks = nodes * devices if isinstance(devices, int) else sum(devices)
        self._node = node_of_ranks(ranks, devices)
        self._levels = racks.levels if racks else ()
        self._least = racks.least_shares(nics_per_node) if racks else ()
        self._shared_bus, self._framing = shared_bus, framing
        # a NIC and a bus with equal figures are still two kinds
        numbers: dict[tuple[str, Link], int] = {}
        self._bus = _numbered(numbers, "bus", buses, nodes)
        self._first_card = len(numbers)
        self._nic = _numbered(numbers, "NIC", nics, nodes)
        self._links = [link for _, link in numbers]
        self._stations = np.array([link.shared for link in self._links])
        uplinks = [uplink for _, uplink in self._levels]
        self._plain = (
            all(_plain(link) for link in (*self._links, *uplinks))
            and _integral(framing.network)
            and _integral(framing.inside)
        )
        self._latency = np.array([link.latency_for(0) for link in self._links], dtype=np.int64)
        self.form = (
            (devices, nodes, shared_bus, *(below for below, _ in self._levels)),
            *(numbers.tobytes() for numbers in (self._nic, self._bus, self._stations)),
        )
        """Form of the cluster: which messages share a link, independent of the links' figures."""
        self._known: dict[tuple[int | Fraction, ...], int] = {}
        self._at_share: dict[int, Kinds] = {}

    @property
    def alike(self) -> bool:
        """Whether all nodes have as many devices, the same links and the same distance to all
        others."""
        racks = any(below < self._nodes for below, _ in self._levels)
        return len(self._links) == 2 and not racks and isinstance(self._devices, int)

    @property
    def flat(self) -> bool:
        """Whether all messages have the same path in rounds of one send and receive per rank."""
        return self._devices == 1 and self.alike and not self._stations.any()

    def ends(self) -> tuple[Kinds, Integers] | None:
        """Each rank's NIC in the table and its latency, if rounds depend only on the ends' NICs
        (the slower rate and half of each latency); else None."""
        racks = any(below < self._nodes for below, _ in self._levels)
        if self._devices != 1 or racks or not self._plain or self._framing.network:
            return None
        if self._stations.any():
            return None
        one = np.ones(self._nodes, dtype=np.int64)
        return self._numbers(_Ends(kind=self._nic, share=one)), self._latency[self._nic]

    def links(self, senders: Ranks, receivers: Ranks) -> tuple[Link, ...]:
        """Return the path of each message of a round, even if there are many paths."""
        paths, place = self.alike_messages(senders, receivers)
        found = [self.table.links[self._path(*numbers)] for numbers in paths]
        if len(found) == 1:
            return tuple(found) * len(place)
        return tuple(found[kind] for kind in place.tolist())

    def hops(self, senders: Ranks, receivers: Ranks) -> Hops:
        """Return the hops of the messages of one round, `[n]`."""
        kinds: tuple[Kinds, ...] | None = None
        latencies: Integers | None = None
        if not self._plain or len(self._links) <= MANY:
            paths, place = self.alike_messages(senders, receivers)
            if not self._plain or len(paths) <= MANY:
                kinds = (self._numbers_of(paths)[place],)
        if kinds is None:
            kinds, latencies = self._passed(*self._ends(senders, receivers))
        return Hops(
            senders=senders, receivers=receivers, table=self.table, kinds=kinds, latencies=latencies
        )

    def hops_on(self, paths: Sequence[Sequence[int]]) -> Hops:
        """Return a hop for each path, without senders and receivers."""
        nobody = np.full(len(paths), -1, dtype=np.int64)
        kinds = (self._numbers_of(paths),)
        return Hops(senders=nobody, receivers=nobody, table=self.table, kinds=kinds)

    def _numbers_of(self, paths: Sequence[Sequence[int]]) -> Kinds:
        return np.array([self._path(*numbers) for numbers in paths], dtype=np.int64)

    def alike_messages(self, senders: Ranks, receivers: Ranks) -> tuple[list[list[int]], Integers]:
        """Return the paths of a round and each message's index among them, cached by form."""
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
                    share=_crowd(np.where(crosses, node, self._nodes + own)),
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
            self._known[name] = self.table.add(self._framing.of(link, extra, inside=not crosses))
        return self._known[name]

    def _end(self, kind: int, share: int) -> int:
        return self._link(self._links[kind], share, inside=kind < self._first_card)

    def _link(self, link: Link, share: int | Fraction, *, inside: bool) -> int:
        name = id(link), share, inside
        if name not in self._known:
            framed_link = self._framing.of(share_link(link, share), Fraction(0), inside=inside)
            self._known[name] = self.table.add(framed_link)
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


def distinct(*columns: Integers) -> tuple[Integers, Integers]:
    """Return the first index of each distinct row of non-negative columns, and each row's kind."""
    kind = columns[0]
    places = np.zeros(min(1, len(kind)), dtype=np.int64)
    for number, column in enumerate(columns):
        if len(kind):
            rows = kind * (int(column.max()) + 1) + column if number else kind
            places, kind = _compact(rows)
    return places, kind


def _compact(values: Integers) -> tuple[Integers, Integers]:
    """Return `np.unique` with index and inverse, without sorting if values are small."""
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
    """Messages of one round, `[n]`, and their links."""

    senders: Ranks
    receivers: Ranks
    table: LinkTable
    kinds: tuple[Kinds, ...]
    """Numbers of the whole path, or of all links that it crosses, the slowest of which counts."""
    latencies: Times | None = None  # None: the links'

    @staticmethod
    def joined(rounds: Sequence[Hops]) -> Hops:
        """Join the messages of consecutive rounds of one fabric."""
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
            # if links are listed in some round, all are plain, with one latency for all sizes
            latencies=np.concatenate([each.latency(0) for each in rounds]) if listed else None,
        )

    def serialization(self, nbytes: Bytes | int) -> Times:
        """Return how long each message occupies its sender; 0 if that depends on the start."""
        if self.timed:
            return np.zeros(len(self.senders), dtype=np.int64)
        found = self.table.serialization(self.kinds[0], nbytes)
        for kinds in self.kinds[1:]:
            found = np.maximum(found, self.table.serialization(kinds, nbytes))
        return found

    def latency(self, nbytes: Bytes | int) -> Times:
        """Return the latency of each message without its random delay."""
        if self.latencies is not None:
            return self.latencies
        return self.table.latency(self.kinds[0], nbytes)

    def draw_jitter(
        self, nbytes: Bytes | int, *, key: int, message: NDArray[np.int64] | int
    ) -> Times:
        """Draw the random delay of each message, which is number `message` of its sender."""
        if not self.random:
            return np.zeros(len(self.senders), dtype=np.int64)
        return self.table.draw_jitter(
            self.kinds[0], nbytes, key=key, message=message, rank=self.senders
        )

    def departure(self, start: Times, nbytes: Bytes | int) -> Times:
        """Return when messages leave that may start at the absolute times `start`."""
        return self.table.departure(start, self.kinds[0], nbytes)

    def flight(
        self, start: Times, nbytes: Bytes | int, *, key: int, message: NDArray[np.int64] | int
    ) -> tuple[Times, Times]:
        """Return when messages that may start at `start` have left, and when they arrive."""
        left = self.departure(start, nbytes) if self.timed else start + self.serialization(nbytes)
        delay = self.draw_jitter(nbytes, key=key, message=message)
        return left, left + self.latency(nbytes) + delay

    def select(self, chosen: Integers) -> Hops:
        """Return the `chosen` messages, `[n]`."""
        return Hops(
            senders=self.senders[chosen],
            receivers=self.receivers[chosen],
            table=self.table,
            kinds=tuple(kinds[chosen] for kinds in self.kinds),
            latencies=None if self.latencies is None else self.latencies[chosen],
        )

    @property
    def links(self) -> list[Link]:
        """Path of each message; `InternalError` where links are listed instead."""
        if self.latencies is not None:
            raise InternalError("messages whose paths were not looked for")
        return [self.table.links[kind] for kind in self.kinds[0].tolist()]

    @cached_property
    def random(self) -> bool:
        """Whether any message has a random delay."""
        return self.table.random(self.kinds[0])

    @cached_property
    def timed(self) -> bool:
        """Whether any message depends on absolute time."""
        return self.table.timed(self.kinds[0])
