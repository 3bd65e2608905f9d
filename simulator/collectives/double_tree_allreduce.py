"""All-reduce over two binary trees, pipelined in pieces.

Half of the vector is reduced to the root of each tree and broadcast from there. Nearly every node
has children in one tree only, so that the two together load
every NIC evenly: two halves up, two halves down.

A half is cut into pieces. A rank passes a piece up when it has added those of all its children, in
order, and starts to pass pieces down when all its own have left it in both trees. Messages that a
NIC or a device's own link carries at the same time share it (`fabric/rounds.py`): up, the two
trees'; down, those to all children. With H the height of a tree of nodes with one device each, m
bytes a piece, and equal links and entries, the time is at most

    2 n beta + 2 H (alpha + 2 m beta)

Random delays are drawn for message s P + c of a sender, the c-th piece of its stream s of at most P
pieces: up the first tree, up the second, then down to each child, tree by tree and by rank.

Assumptions: those of `fabric/rounds.py`. A share is fixed for the way up and for the way down: a
tree that waits leaves its share of a NIC unused. Up before down is NCCL's `runTreeUpDown`; its
`runTreeSplit` lets the first pieces go down while the last go up, where with twice as many
messages on a NIC, each half as fast, the bytes take the same time. A rank adds a piece of all its
children at once, `gamma` seconds a byte and child, while others are under way.

Source: Sanders, Speck and Traeff 2009 (Parallel Computing 35, 581-594), "Two-tree algorithms for
full bandwidth broadcast, reduction and scan"; NCCL, src/device/all_reduce.h; max-plus algebra,
Baccelli, Cohen, Olsder and Quadrat 1992, ch. 2.

With added, sent and arrived the times of a rank's piece before, at first those of no piece,

    added'[r] = max(added[r], entry[r], sent' of r's children + latency + delay) + reduction
    sent'[r]  = max(sent[r], added'[r]) + serialisation

on the way up. Down, with `sent` by the rank that receives, from r's turn on:

    sent'[r] = max(sent[r], held' of r's parent) + serialisation
    held'[r] = max(held[r], sent'[r] + latency + delay)

So a piece that would overtake the one before it on the same hop is there with that one.

The trees are NCCL's. In the first, node v with lowest set bit b hangs below (v ^ b) | 2b, or below
v ^ b where that is no node; node 0 is the root. The second is its mirror image for an even number
of nodes, else the first shifted by one. No node has more than two children in both trees together,
and only a root of one tree can have children in the other. The devices of a node are a chain below
its first device, in both trees (NCCL, src/graph/trees.cc and connect.cc).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import NO_COST, PS_PER_SECOND, Picoseconds, Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.fabric.link_table import Ranks
from gcsim.simulator.fabric.round_paths import Hops
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.links import Link


class DoubleTreeAllReduce:
    """The all-reduce of a vector on a fabric, for any entry times: O(p) a piece, in O(p) memory."""

    def __init__(
        self,
        nbytes: int,
        fabric: Fabric,
        *,
        piece: int,
        element: int = 1,
        gamma: Fraction = NO_COST,
    ) -> None:
        """Prepare a vector of `nbytes` bytes, `element` bytes per element, in pieces of `piece`
        bytes, rounded down to whole elements; a reduction costs `gamma` seconds a byte."""
        piece = max(element, piece - piece % element)
        trees = _trees_of_ranks(fabric.nodes, fabric.devices)
        cuts = [_Cut.of(half, piece) for half in chunks(nbytes, 2, element)]
        up = _TreeHops.of(fabric, trees, cuts, upwards=True)
        down = _TreeHops.of(fabric, trees, cuts, upwards=False)
        self._trees, self._cuts = trees, cuts
        self._halves = [
            _PieceByPiece(*half, gamma) for half in zip(trees, cuts, up, down, strict=True)
        ]
        height = max(tree.height for tree in trees)
        adding = max(int(half.adding.max()) for half in self._halves)
        self._longest = sum(
            (cuts[0].full + 1 + height) * (int(hops.serialization.max()) + adding)
            + height * int(max(hops.latency.max(), hops.last_latency.max()))
            for hops in (*up, *down)
        )
        self.nbytes = sum(half.nbytes for half in self._halves)

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        check_range(starts, self._longest)
        left = np.maximum(*(half.reduce(starts, key) for half in self._halves))
        finishes = np.maximum(*(half.broadcast(left, key) for half in self._halves))
        check_range(finishes, 0)
        return finishes

    def traffic(self, devices: int) -> Traffic:
        """Traffic of the ranks: each piece once up and once down between child and parent."""
        ends, size = np.zeros((2, len(self._trees[0].parent)), dtype=np.int64)
        for tree, cut in zip(self._trees, self._cuts, strict=True):
            neighbours = tree.children.copy()
            neighbours[tree.below] += 1
            ends += 2 * (cut.full + 1) * neighbours
            size += 2 * (cut.full * cut.piece + cut.last) * neighbours
        return Traffic.of_ranks(ends, size, devices)


def prepare(call: Call) -> DoubleTreeAllReduce:
    """Over all devices; pieces as large as the blocks of the pipelined all-gatherv."""
    return DoubleTreeAllReduce(
        call.nbytes,
        call.fabric,
        piece=call.cluster.collectives.pipeline_block,
        element=call.element,
        gamma=call.gamma,
    )


_NEVER = -(2**62)
"""Earlier than any time, with room to add to it."""
_AT_A_TIME = 1 << 18
"""Random numbers."""


class _PieceByPiece:
    """One half of the vector on its tree."""

    def __init__(
        self, tree: Tree, cut: _Cut, up: _TreeHops, down: _TreeHops, gamma: Fraction
    ) -> None:
        self._tree, self._cut, self._up, self._down = tree, cut, up, down
        self.adding = tree.children * round(gamma * cut.piece * PS_PER_SECOND)
        self._adding_last = tree.children * round(gamma * cut.last * PS_PER_SECOND)
        self._upwards = np.concatenate((tree.order[::-1], tree.root))
        self._summed: Times

    @property
    def nbytes(self) -> int:
        """Memory, about."""
        return self._up.nbytes + self._down.nbytes + 8 * self._cut.full

    def reduce(self, starts: Times, key: int) -> Times:
        """Time at which each rank's last piece has left for its parent."""
        added, sent, held = starts.copy(), starts.copy(), starts.copy()
        summed = []
        for pieces, serialization, flight, last in self._parts(self._up, key):
            sums = np.zeros(pieces, dtype=np.int64)
            adding = self._adding_last if last else self.adding
            go_up = cast("Any", _go_up).py_func if self._up.timed else _go_up
            state = added, sent, held, sums
            go_up(self._upwards, self._tree.parent, starts, serialization, flight, adding, *state)
            check_range(sent, 0)
            summed.append(sums)
        self._summed = np.concatenate(summed)
        return sent

    def broadcast(self, turn: Times, key: int) -> Times:
        """Time at which each rank has the result and has forwarded it, which it does from its turn
        on."""
        sent, held = np.full_like(turn, _NEVER), turn.copy()
        tree, begin = self._tree, 0
        for pieces, serialization, flight, _ in self._parts(self._down, key):
            sums = self._summed[begin : begin + pieces]
            go_down = cast("Any", _go_down).py_func if self._down.timed else _go_down
            ranks = tree.order, tree.parent, tree.root
            go_down(*ranks, sums, serialization, flight, sent, held)
            check_range(held, 0)
            begin += pieces
        finishes = held.copy()
        np.maximum.at(finishes, tree.parent[tree.below], sent[tree.below])
        return finishes

    def _parts(self, hops: _TreeHops, key: int) -> Iterator[tuple[int, Any, Times, bool]]:
        """Pieces in groups: how many, what keeps their senders busy, and what follows."""
        cut = self._cut
        rows = max(1, _AT_A_TIME // len(hops.serialization))
        begins = [*range(0, cut.full, rows), cut.full]
        for begin, end in zip(begins, [*begins[1:], cut.full + 1], strict=True):
            last = begin == cut.full
            nbytes = cut.last if last else cut.piece
            flight = (hops.last_latency if last else hops.latency)[None, :]
            if hops.random:
                flight = flight + hops.draw_jitter(begin, end, nbytes, key)
            serialization: Any = hops.last if last else hops.serialization
            if hops.timed:
                serialization = dict(zip(hops.below.tolist(), hops.departures(nbytes), strict=True))
            yield end - begin, serialization, flight, last


@loop
def _go_up(  # noqa: PLR0917 - compiled: arrays by position
    order: Ranks,
    parent: Ranks,
    starts: Times,
    serialization: Times,
    flight: Times,
    adding: Times,
    added: Times,
    sent: Times,
    held: Times,
    summed: Times,
) -> None:
    """Some pieces up the tree, children first; `flight[piece or 0, r]` follows what r sends."""
    varies = 1 if flight.shape[0] > 1 else 0
    for piece in range(summed.size):
        for r in range(starts.size):  # a slice assignment takes 2 s to compile
            held[r] = starts[r]
        # children first: held[r] is then when the last of their pieces is here
        for r in order:
            above = parent[r]
            added[r] = max(added[r], held[r]) + adding[r]
            if above == r:
                summed[piece] = added[r]
            else:
                sent[r] = max(sent[r], added[r]) + serialization[r]
                held[above] = max(held[above], sent[r] + flight[piece * varies, r])


@loop
def _go_down(  # noqa: PLR0917 - compiled: arrays by position
    order: Ranks,
    parent: Ranks,
    root: Ranks,
    summed: Times,
    serialization: Times,
    flight: Times,
    sent: Times,
    held: Times,
) -> None:
    """Some pieces down the tree, parents first; times by the rank that receives."""
    varies = 1 if flight.shape[0] > 1 else 0
    top = root[0]
    for piece in range(summed.size):
        held[top] = max(held[top], summed[piece])
        for r in order:
            sent[r] = max(sent[r], held[parent[r]]) + serialization[r]
            held[r] = max(held[r], sent[r] + flight[piece * varies, r])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A half of the vector: equal pieces and a last one, which may be shorter."""

    full: int
    piece: int
    last: int

    @staticmethod
    def of(nbytes: int, piece: int) -> _Cut:
        """Cut `nbytes` bytes into pieces, at least one."""
        full = max(0, -(-nbytes // piece) - 1)
        return _Cut(full=full, piece=piece, last=nbytes - full * piece)


class _Departure:
    """Busy time of a message's sender on a link that changes over time.

    A time plus a departure is when a message that starts then has left.
    """

    __array_ufunc__ = None  # so that numpy leaves the addition to `__radd__`

    def __init__(self, link: Link, nbytes: int) -> None:
        self._link, self._nbytes = link, nbytes

    def __radd__(self, start: Picoseconds) -> Picoseconds:
        return self._link.departure(int(start), self._nbytes)


@dataclass(frozen=True, kw_only=True, eq=False)
class _TreeHops:
    """Between each rank of one tree and its parent, one way; arrays `[p]` by the lower rank."""

    serialization: Times
    last: Times
    """Serialisation and latency of the last piece."""
    latency: Times
    last_latency: Times
    links: Hops
    """Hops of the ranks `below`, in their order."""
    below: Ranks
    stream: NDArray[np.int64]
    """Number of the sender's stream over this hop, by `below`."""
    pieces: int
    """The most of any stream."""

    @staticmethod
    def of(
        fabric: Fabric, trees: Sequence[Tree], cuts: Sequence[_Cut], *, upwards: bool
    ) -> list[_TreeHops]:
        """Hops of each tree, while the messages of all trees share the links they cross."""
        lower = np.concatenate([tree.below for tree in trees])
        upper = np.concatenate([tree.parent[tree.below] for tree in trees])
        hops = fabric.hops(*((lower, upper) if upwards else (upper, lower)))
        number = np.repeat(np.arange(len(trees), dtype=np.int64), len(lower) // len(trees))
        stream = number if upwards else len(trees) + _places(upper)
        pieces, found = max(cut.full for cut in cuts) + 1, []
        for place, (tree, cut) in enumerate(zip(trees, cuts, strict=True)):
            own = number == place
            links = hops.some(own)
            by_rank = np.zeros((4, fabric.ranks), dtype=np.int64)
            by_rank[:, tree.below] = (
                links.serialization(cut.piece),
                links.serialization(cut.last),
                links.latency(cut.piece),
                links.latency(cut.last),
            )
            found.append(
                _TreeHops(
                    serialization=by_rank[0],
                    last=by_rank[1],
                    latency=by_rank[2],
                    last_latency=by_rank[3],
                    links=links,
                    below=tree.below,
                    stream=stream[own],
                    pieces=pieces,
                )
            )
        return found

    @property
    def random(self) -> bool:
        """Whether messages have random delays."""
        return self.links.random

    @property
    def timed(self) -> bool:
        """Whether absolute time matters."""
        return self.links.timed

    @property
    def nbytes(self) -> int:
        """Memory, about."""
        return 80 * len(self.serialization)

    def departures(self, nbytes: int) -> list[_Departure]:
        """Departures of messages of `nbytes` bytes, by `below`."""
        return [_Departure(link, nbytes) for link in self.links.links]

    def draw_jitter(self, first: int, last: int, nbytes: int, key: int) -> Times:
        """Random delays of pieces `first` to `last` - 1, of so many bytes: `[pieces, p]`."""
        number = self.stream * self.pieces + np.arange(first, last, dtype=np.int64)[:, None]
        found = np.zeros((last - first, len(self.serialization)), dtype=np.int64)
        found[:, self.below] = self.links.draw_jitter(nbytes, key=key, message=number)
        return found


def _places(senders: Ranks) -> NDArray[np.int64]:
    """The place of each message among its sender's."""
    order = np.argsort(senders, kind="stable")
    ordered = senders[order]
    first = np.searchsorted(ordered, ordered, side="left")
    places = np.empty_like(senders)
    places[order] = np.arange(len(senders), dtype=np.int64) - first
    return places


def double_tree(nodes: int) -> tuple[Ranks, Ranks]:
    """The parent of each node in each tree; a root is its own."""
    node = np.arange(nodes, dtype=np.int64)
    lowest = node & -node
    above = (node ^ lowest) | (2 * lowest)
    first = np.where(above < nodes, above, node ^ lowest)
    if nodes % 2:
        return first, (np.roll(first, 1) + 1) % nodes
    return first, nodes - 1 - first[::-1]


class Tree:
    """One tree of ranks: nodes joined by their first devices, a chain inside each."""

    def __init__(self, parent: Ranks, devices: int) -> None:
        """`parent` by node."""
        ranks = np.arange(len(parent) * devices, dtype=np.int64)
        above = np.repeat(parent, devices) * devices
        self.parent = np.where(ranks % devices == 0, above, ranks - 1)
        self.below = np.flatnonzero(self.parent != ranks)
        """All ranks but the root."""
        self.root = np.flatnonzero(self.parent == ranks)
        self.children = np.bincount(self.parent[self.below], minlength=len(ranks))
        depth = np.zeros(len(ranks), dtype=np.int64)
        ancestor = self.parent
        while (ancestor != self.root).any():
            depth += ancestor != self.root
            ancestor = self.parent[ancestor]
        self.height = int(depth.max()) + 1
        """Hops between the root and the farthest rank, at most."""
        self.order = self.below[np.argsort(depth[self.below], kind="stable")]
        """All ranks but the root, each after its parent."""


@lru_cache(maxsize=16)
def _trees_of_ranks(nodes: int, devices: int) -> list[Tree]:
    """Both trees, remembered."""
    return [Tree(parent, devices) for parent in double_tree(nodes)]
