"""All-reduce over two binary trees, pipelined in pieces.

Each half of the vector is reduced to the root of one tree and broadcast from there. Nearly every
node has children in one tree only, so together they load every NIC evenly.

A rank passes a piece up when it has added all its children's, in order, and starts to pass pieces
down when all its own have left it in both trees. Simultaneous messages share a NIC or a device's
own link (`fabric/rounds.py`): up, the two trees'; down, those to all children. With one device per
node, tree height H, m bytes per piece, and equal links and entries, the time is at most

    2 n beta + 2 H (alpha + 2 m beta)

Random delays are drawn for message s P + c of a sender: piece c of its stream s of at most P
pieces; streams are up the first tree, up the second, then down to each child, by tree and rank.

Assumptions: those of `fabric/rounds.py`. Shares are fixed for each way: a tree that waits leaves
its share unused. Up before down is NCCL's `runTreeUpDown`; `runTreeSplit` overlaps them with twice
the messages at half the rate, which takes the bytes as long. A rank adds all its children's copies
of a piece at once, `gamma` seconds per byte and child, while others are under way.

With added, sent and arrived the times of a rank's previous piece, on the way up

    added'[r] = max(added[r], entry[r], sent' of r's children + latency + delay) + reduction
    sent'[r]  = max(sent[r], added'[r]) + serialisation

and down, with `sent` by the receiving rank, from r's turn on (the maxima keep pieces in order):

    sent'[r] = max(sent[r], held' of r's parent) + serialisation
    held'[r] = max(held[r], sent'[r] + latency + delay)

The trees are NCCL's. In the first, node v with lowest set bit b hangs below (v ^ b) | 2b, or below
v ^ b where that is no node; node 0 is the root. The second is its mirror image for an even number
of nodes, else the first shifted by one. No node has more than two children in both together; only a
root can have children in both. A node's devices form a chain below its first, in both trees.

Source: Sanders, Speck and Traeff 2009 (Parallel Computing 35, 581-594), "Two-tree algorithms for
full bandwidth broadcast, reduction and scan"; NCCL, src/device/all_reduce.h, src/graph/trees.cc and
connect.cc; max-plus algebra, Baccelli, Cohen, Olsder and Quadrat 1992, ch. 2.
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
from gcsim.simulator.clock import NO_COST, PS_PER_SECOND, Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.collectives.rings.messages import Departure
from gcsim.simulator.fabric.link_table import Ranks
from gcsim.simulator.fabric.round_paths import Hops
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic


class DoubleTreeAllReduce:
    """All-reduce of a vector on a fabric, for any entry times: O(p) time per piece, O(p) memory."""

    def __init__(
        self,
        nbytes: int,
        fabric: Fabric,
        *,
        piece: int,
        element: int = 1,
        gamma: Fraction = NO_COST,
    ) -> None:
        """Prepare `nbytes` bytes in pieces of `piece`, rounded down to whole elements of `element`
        bytes; reducing costs `gamma` seconds per byte."""
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
        """Each piece goes once up and once down between child and parent."""
        ends, size = np.zeros((2, len(self._trees[0].parent)), dtype=np.int64)
        for tree, cut in zip(self._trees, self._cuts, strict=True):
            neighbours = tree.children.copy()
            neighbours[tree.below] += 1
            ends += 2 * (cut.full + 1) * neighbours
            size += 2 * (cut.full * cut.piece + cut.last) * neighbours
        return Traffic.of_ranks(ends, size, devices)


def prepare(call: Call) -> DoubleTreeAllReduce:
    """All-reduce over all devices, in pieces of the pipelined all-gatherv's block size."""
    return DoubleTreeAllReduce(
        call.nbytes,
        call.fabric,
        piece=call.cluster.collectives.pipeline_block,
        element=call.element,
        gamma=call.gamma,
    )


_NEVER = -(2**62)  # earlier than any time, with room to add to it
_AT_A_TIME = 1 << 18  # random numbers per draw


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
        """Approximate memory, bytes."""
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
        """Time at which each rank has, and has forwarded, the result, from its turn on."""
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
        """Groups of pieces: number, serialisation, flight time, whether the last."""
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
    """Pass pieces up the tree, children first; `flight[piece or 0, r]` follows r's send."""
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
    """Pass pieces down the tree, parents first; times by receiving rank."""
    varies = 1 if flight.shape[0] > 1 else 0
    top = root[0]
    for piece in range(summed.size):
        held[top] = max(held[top], summed[piece])
        for r in order:
            sent[r] = max(sent[r], held[parent[r]]) + serialization[r]
            held[r] = max(held[r], sent[r] + flight[piece * varies, r])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Half of the vector: equal pieces and a last one, which may be shorter."""

    full: int
    piece: int
    last: int

    @staticmethod
    def of(nbytes: int, piece: int) -> _Cut:
        full = max(0, -(-nbytes // piece) - 1)
        return _Cut(full=full, piece=piece, last=nbytes - full * piece)


@dataclass(frozen=True, kw_only=True, eq=False)
class _TreeHops:
    """Hops between each rank of a tree and its parent, one way; arrays `[p]` by the lower rank."""

    serialization: Times
    last: Times  # serialisation of the last piece
    latency: Times
    last_latency: Times
    links: Hops  # of the ranks `below`
    below: Ranks
    stream: NDArray[np.int64]  # sender's stream on each hop, by `below`
    pieces: int  # most pieces of a stream
    timed: bool  # whether absolute time matters to any message of both trees

    @staticmethod
    def of(
        fabric: Fabric, trees: Sequence[Tree], cuts: Sequence[_Cut], *, upwards: bool
    ) -> list[_TreeHops]:
        """Hops of each tree, while all trees' messages share the links."""
        senders, receivers, stream = _ends_of_trees(fabric.nodes, fabric.devices, upwards)
        hops = fabric.hops(senders, receivers)
        pieces, found = max(cut.full for cut in cuts) + 1, []
        times: dict[_Cut, tuple[Times, ...]] = {}
        for cut in set(cuts):
            sizes = cut.piece, cut.last
            times[cut] = (*map(hops.serialization, sizes), *map(hops.latency, sizes))
        for place, (tree, cut) in enumerate(zip(trees, cuts, strict=True)):
            own = slice(place * len(tree.below), (place + 1) * len(tree.below))
            by_rank = np.zeros((4, fabric.ranks), dtype=np.int64)
            by_rank[:, tree.below] = [each[own] for each in times[cut]]
            found.append(
                _TreeHops(
                    serialization=by_rank[0],
                    last=by_rank[1],
                    latency=by_rank[2],
                    last_latency=by_rank[3],
                    links=hops.some(own),
                    below=tree.below,
                    stream=stream[own],
                    pieces=pieces,
                    timed=hops.timed,
                )
            )
        return found

    @property
    def random(self) -> bool:
        return self.links.random

    @property
    def nbytes(self) -> int:
        return 80 * len(self.serialization)

    def departures(self, nbytes: int) -> list[Departure]:
        return [Departure(link, nbytes) for link in self.links.links]

    def draw_jitter(self, first: int, last: int, nbytes: int, key: int) -> Times:
        """Random delays `[pieces, p]` of pieces `first` to `last` - 1, of `nbytes` bytes."""
        number = self.stream * self.pieces + np.arange(first, last, dtype=np.int64)[:, None]
        found = np.zeros((last - first, len(self.serialization)), dtype=np.int64)
        found[:, self.below] = self.links.draw_jitter(nbytes, key=key, message=number)
        return found


def _places(senders: Ranks) -> NDArray[np.int64]:
    order = np.argsort(senders, kind="stable")
    ordered = senders[order]
    first = np.searchsorted(ordered, ordered, side="left")
    places = np.empty_like(senders)
    places[order] = np.arange(len(senders), dtype=np.int64) - first
    return places


def double_tree(nodes: int) -> tuple[Ranks, Ranks]:
    """Parent of each node in each tree; a root is its own."""
    node = np.arange(nodes, dtype=np.int64)
    lowest = node & -node
    above = (node ^ lowest) | (2 * lowest)
    first = np.where(above < nodes, above, node ^ lowest)
    if nodes % 2:
        return first, (np.roll(first, 1) + 1) % nodes
    return first, nodes - 1 - first[::-1]


class Tree:
    """A tree of ranks: nodes joined by their first devices, a chain inside each."""

    def __init__(self, parent: Ranks, devices: int) -> None:
        ranks = np.arange(len(parent) * devices, dtype=np.int64)
        above = np.repeat(parent, devices) * devices
        self.parent = np.where(ranks % devices == 0, above, ranks - 1)
        self.below = np.flatnonzero(self.parent != ranks)  # all ranks but the root
        self.root = np.flatnonzero(self.parent == ranks)
        self.children = np.bincount(self.parent[self.below], minlength=len(ranks))
        depth = np.zeros(len(ranks), dtype=np.int64)
        ancestor = self.parent
        while (ancestor != self.root).any():
            depth += ancestor != self.root
            ancestor = self.parent[ancestor]
        self.height = int(depth.max()) + 1  # hops between the root and the farthest rank, at most
        self.order = self.below[np.argsort(depth[self.below], kind="stable")]
        """All ranks but the root, each after its parent."""


@lru_cache(maxsize=16)
def _trees_of_ranks(nodes: int, devices: int) -> list[Tree]:
    return [Tree(parent, devices) for parent in double_tree(nodes)]


@lru_cache(maxsize=16)
def _ends_of_trees(
    nodes: int, devices: int, upwards: bool
) -> tuple[Ranks, Ranks, NDArray[np.int64]]:
    """Sender, receiver and stream of each message, those of the first tree first."""
    trees = _trees_of_ranks(nodes, devices)
    lower = np.concatenate([tree.below for tree in trees])
    upper = np.concatenate([tree.parent[tree.below] for tree in trees])
    number = np.repeat(np.arange(len(trees), dtype=np.int64), len(lower) // len(trees))
    if upwards:
        return lower, upper, number
    return upper, lower, len(trees) + _places(upper)
