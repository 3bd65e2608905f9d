"""All-reduce over two binary trees, pipelined in pieces.

Each half of the vector is reduced to the root of one tree and broadcast from there. Nearly every
node has children in one tree only, so together they load every NIC evenly.

A rank sends a piece up when it has added all its children's pieces, in order, and begins to send
pieces down when all of its own have left in both trees. Simultaneous messages share a NIC or a
device's own link (`fabric/rounds.py`): up, those of the two trees; down, those to all children.
For one device per node, tree height H, m bytes per piece, equal links and entries the time is up to

    2 n beta + 2 H (alpha + 2 m beta)

Random delays are drawn for message s P + c of a sender: piece c of its stream s of at most P
pieces; streams are up the first tree, up the second, then down to each child, by tree and rank.

Assumptions: those of `fabric/rounds.py`. Shares are fixed for each direction: a tree that waits
leaves its share unused. Up before down is NCCL's `runTreeUpDown`; `runTreeSplit` overlaps them with
twice the messages at half the rate, which takes as long. A rank adds its children's copies of a
piece at once, in `gamma` seconds per byte and child, while other pieces travel.

With added, sent and held the times of a rank's previous piece, on the way up

    added'[r] = max(added[r], entry[r], sent' of r's children + latency + delay) + reduction
    sent'[r]  = max(sent[r], added'[r]) + serialisation

and on the way down, with `sent` indexed by the receiving rank (the maxima keep pieces in order):

    sent'[r] = max(sent[r], held' of r's parent) + serialisation
    held'[r] = max(held[r], sent'[r] + latency + delay)

The trees are NCCL's (`tree_classes.py`). If ranks enter together, only one rank per class of equal
ranks is computed.

Source: Sanders, Speck and Traeff 2009 (Parallel Computing 35, 581-594), "Two-tree algorithms for
full bandwidth broadcast, reduction and scan"; NCCL, src/device/all_reduce.h; max-plus algebra,
Baccelli, Cohen, Olsder and Quadrat 1992, ch. 2.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import NO_COST, PS_PER_SECOND, Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.collectives.rings.messages import Departure
from gcsim.simulator.collectives.tree_classes import (
    Classes,
    Side,
    classes_of,
    places,
    trees_of_ranks,
)
from gcsim.simulator.fabric.in_worlds import PathPrices
from gcsim.simulator.fabric.link_table import Ranks
from gcsim.simulator.fabric.round_paths import MANY, Hops
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Devices, Traffic


class DoubleTreeAllReduce:
    """All-reduce of a vector on a fabric, for any entry times. O(p) time per piece, or O(log^2 p)
    if all ranks enter together on equal links; O(p) memory."""

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
        self._fabric, self._gamma = fabric, gamma
        self._cuts = [_PieceSizes.of(half, piece) for half in chunks(nbytes, 2, element)]
        self._height = max(tree.height for tree in trees_of_ranks(fabric.nodes, fabric.devices))
        known, self._together = _classes_together(fabric), None
        if known is not None:
            classes, paths = known
            up, down = map(fabric.hops_on, paths)
            if not (up.random or up.timed or down.random or down.timed):
                self._together = self._passes(classes, (up, down))
        self.nbytes = 4096 if self._together else 800 * fabric.ranks

    def _passes(self, classes: Classes, hops: tuple[Hops, Hops]) -> _Passes:
        size = self._fabric.nodes, self._fabric.devices
        timed, pieces = any(each.timed for each in hops), max(cut.full for cut in self._cuts) + 1
        up, down = (
            _Direction(
                hops=each, stream=_ends_of_trees(*size, upwards)[2], pieces=pieces, timed=timed
            )
            for each, upwards in zip(hops, (True, False), strict=True)
        )
        return _Passes(classes, self._cuts, (up, down), self._gamma, self._height)

    @cached_property
    def _one_by_one(self) -> _Passes:
        size = self._fabric.nodes, self._fabric.devices
        up, down = (
            self._fabric.hops(*_ends_of_trees(*size, upwards)[:2]) for upwards in (True, False)
        )
        return self._passes(_each_rank(*size), (up, down))

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        if self._together is not None and (starts == starts[0]).all():
            return self._together(starts, key)
        return self._one_by_one(starts, key)

    def last_in_worlds(
        self, price: Callable[[Sequence[Sequence[int]]], PathPrices]
    ) -> Times | None:
        """Return the last exit `[clusters]` of ranks that all enter at 0, with these path prices;
        None if there are many different paths. Additions take no time."""
        known = _classes_together(self._fabric)
        if known is None:
            return None
        classes, paths = known
        up, down = map(price, paths)
        halves = list(zip(classes.sides, self._cuts, strict=True))
        left, summed = zip(*(_up_in_worlds(side, cut, up) for side, cut in halves), strict=True)
        finishes = (
            _down_in_worlds(side, cut, down, left, sums)
            for (side, cut), sums in zip(halves, summed, strict=True)
        )
        last: Times = np.maximum(*finishes).max(axis=1)
        return last

    def traffic(self, devices: Devices) -> Traffic:
        """Return the traffic: each piece travels once up and once down between child and parent."""
        trees = trees_of_ranks(self._fabric.nodes, self._fabric.devices)
        ends, size = np.zeros((2, self._fabric.ranks), dtype=np.int64)
        for tree, cut in zip(trees, self._cuts, strict=True):
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
_KEPT = 16
_KNOWN: OrderedDict[object, tuple[Classes, list[list[list[int]]]] | None] = OrderedDict()
"""Classes of ranks that enter together and the paths of their hops up and down, by `Fabric.form`;
None if there are many different paths."""


def _classes_together(fabric: Fabric) -> tuple[Classes, list[list[list[int]]]] | None:
    form = fabric.form
    if form not in _KNOWN:
        rounds = [
            fabric.alike_messages(*_ends_of_trees(fabric.nodes, fabric.devices, upwards)[:2])
            for upwards in (True, False)
        ]
        found = None
        if all(len(paths) <= MANY for paths, _ in rounds):
            classes = _classes(fabric.nodes, fabric.devices, *(place for _, place in rounds))
            found = classes, [paths for paths, _ in rounds]
        _KNOWN[form] = found
        while len(_KNOWN) > _KEPT:
            _KNOWN.popitem(last=False)
    return _KNOWN[form]


@lru_cache(maxsize=4)
def _each_rank(nodes: int, devices: Devices) -> Classes:
    """Return classes of one rank each; hops are numbered like the messages."""
    messages = sum(len(tree.below) for tree in trees_of_ranks(nodes, devices))
    everyone = np.arange(messages, dtype=np.int64)
    return _classes(nodes, devices, everyone, everyone)


def _classes(nodes: int, devices: Devices, up: Ranks, down: Ranks) -> Classes:
    """Return the classes given the kinds of the messages, those of the first tree first."""
    trees = trees_of_ranks(nodes, devices)
    by_rank = np.full((2, len(trees), len(trees[0].parent)), -1, dtype=np.int64)
    for way, numbers in zip(by_rank, (up, down), strict=True):
        for hops, tree, own in zip(way, trees, np.split(numbers, len(trees)), strict=True):
            hops[tree.below] = own
    return classes_of(trees, *by_rank)


class _Passes:
    """Reduction up and broadcast down both trees, for classes of ranks."""

    def __init__(
        self,
        classes: Classes,
        cuts: Sequence[_PieceSizes],
        ways: tuple[_Direction, _Direction],
        gamma: Fraction,
        height: int,
    ) -> None:
        self._of_rank = classes.of_rank
        self._halves = [
            _PieceByPiece(side, cut, *ways, gamma)
            for side, cut in zip(classes.sides, cuts, strict=True)
        ]
        adding = max(int(half.adding.max()) for half in self._halves)
        sizes = {size for cut in cuts for size in (cut.piece, cut.last)}
        self._longest = 0
        for way in ways:
            slowest, farthest = (
                max(int(times.max()) for times in each)
                for each in zip(*map(way.times, sizes), strict=True)
            )
            self._longest += 2 * ((way.pieces + height) * (slowest + adding) + height * farthest)

    def __call__(self, starts: Times, key: int) -> Times:
        check_range(starts, self._longest)
        left = [half.reduce(starts, key) for half in self._halves]
        finishes: Times = np.maximum(*(half.broadcast(left, key) for half in self._halves))
        check_range(finishes, 0)
        return finishes[self._of_rank]


class _PieceByPiece:
    """One half of the vector on its tree."""

    def __init__(
        self, side: Side, cut: _PieceSizes, up: _Direction, down: _Direction, gamma: Fraction
    ) -> None:
        self._side, self._cut = side, cut
        self._up, self._down = (
            _PieceFlow(up, side.hop_up, cut),
            _PieceFlow(down, side.hop_down, cut),
        )
        self.adding = side.children * round(gamma * cut.piece * PS_PER_SECOND)
        self._adding_last = side.children * round(gamma * cut.last * PS_PER_SECOND)
        self._summed: Times

    def reduce(self, starts: Times, key: int) -> Times:
        """Return when each class's last piece has left for its parent; `starts` `[p]`."""
        sent = starts[self._side.rank_up]
        added = sent.copy()
        summed = []
        for pieces, serialization, flight, last in self._up.parts(key):
            sums = np.zeros(pieces, dtype=np.int64)
            adding = self._adding_last if last else self.adding
            go_up = cast("Any", _go_up).py_func if self._up.timed else _go_up
            state = added, sent, sums
            go_up(self._side.below_up, serialization, flight, adding, *state)
            check_range(sent, 0)
            summed.append(sums)
        self._summed = np.concatenate(summed)
        return sent

    def broadcast(self, left: Sequence[Times], key: int) -> Times:
        """Return when each class of ranks has received and forwarded the result; `left`: when its
        last pieces have left in both trees."""
        side, begin = self._side, 0
        held: Times = np.maximum(*(times[own] for times, own in zip(left, side.turn, strict=True)))
        sent = np.full_like(held, _NEVER)
        for pieces, serialization, flight, _ in self._down.parts(key):
            sums = self._summed[begin : begin + pieces]
            go_down = cast("Any", _go_down).py_func if self._down.timed else _go_down
            go_down(side.above_down, sums, serialization, flight, sent, held)
            check_range(held, 0)
            begin += pieces
        forwarded: Times = np.append(sent, _NEVER)[side.sent].max(axis=0)
        return np.maximum(held[side.own], forwarded)


class _PieceFlow:
    """Times of the pieces on each class's hop, in one direction."""

    def __init__(self, way: _Direction, hops: Ranks, cut: _PieceSizes) -> None:
        self.timed, self._way, self._hops, self._cut = way.timed, way, hops, cut
        self._times: dict[int, tuple[Times, Times]] = {}
        for nbytes in (cut.piece, cut.last):
            serialization, latency = way.times(nbytes)
            self._times[nbytes] = serialization[hops], latency[hops][None]

    def parts(self, key: int) -> Iterator[tuple[int, Any, Times, bool]]:
        """Yield groups of pieces: number, serialisation, flight time, whether it is the last."""
        cut, way = self._cut, self._way
        rows = max(1, _AT_A_TIME // len(self._hops))
        begins = [*range(0, cut.full, rows), cut.full]
        for begin, end in zip(begins, [*begins[1:], cut.full + 1], strict=True):
            last = begin == cut.full
            nbytes = cut.last if last else cut.piece
            serialization: Any
            serialization, flight = self._times[nbytes]
            if way.hops.random:
                flight = flight + way.draw_jitter(self._hops, begin, end, nbytes, key)
            if way.timed:
                serialization = way.departures(self._hops, nbytes)
            yield end - begin, serialization, flight, last


def _up_in_worlds(side: Side, cut: _PieceSizes, up: PathPrices) -> tuple[Times, Times]:
    """Return `_PieceByPiece.reduce` by cluster, `[clusters, classes]`, and when the root has each
    piece, `[clusters, pieces]`."""
    worlds = len(up.latency)
    sent = np.zeros((worlds, len(side.rank_up)), dtype=np.int64)
    sums = np.zeros((worlds, cut.full + 1), dtype=np.int64)
    nothing = np.zeros_like(side.children)
    _worlds_up(side.below_up, nothing, *_both(cut, up, side.hop_up), sent, sums)
    return sent, sums


def _down_in_worlds(
    side: Side, cut: _PieceSizes, down: PathPrices, left: Sequence[Times], sums: Times
) -> Times:
    """Return `_PieceByPiece.broadcast` by cluster."""
    turns = (times[:, own] for times, own in zip(left, side.turn, strict=True))
    held: Times = np.ascontiguousarray(np.maximum(*turns))
    sent = np.full_like(held, _NEVER)
    _worlds_down(side.above_down, sums, *_both(cut, down, side.hop_down), sent, held)
    never = np.full((len(sent), 1), _NEVER, dtype=np.int64)
    forwarded: Times = np.concatenate((sent, never), axis=1)[:, side.sent].max(axis=1)
    return np.maximum(held[:, side.own], forwarded)


def _both(cut: _PieceSizes, prices: PathPrices, hops: Ranks) -> tuple[Times, Times, Times, Times]:
    """Return serialisation and flight `[clusters, classes]` of a full piece, then of the last one;
    0 for the root, which has no hop."""
    crossed = (hops >= 0).astype(np.int64)
    serialization, latency, of_last, latency_of_last = (
        np.ascontiguousarray(question(nbytes)[:, hops]) * crossed
        for nbytes in (cut.piece, cut.last)
        for question in (prices.serialization, prices.latencies)
    )
    return serialization, latency, of_last, latency_of_last


@loop
def _worlds_up(  # noqa: PLR0917 - compiled: arrays by position
    below: Ranks,
    adding: Times,
    serialization: Times,
    flight: Times,
    of_last: Times,
    flight_of_last: Times,
    sent: Times,
    summed: Times,
) -> None:
    """Run `_go_up` for each row, with full pieces and the last one."""
    full = summed.shape[1] - 1
    for world in range(sent.shape[0]):
        added, here, sums = np.zeros(sent.shape[1], np.int64), sent[world], summed[world]
        row = slice(world, world + 1)
        _go_up(below, serialization[world], flight[row], adding, added, here, sums[:full])
        _go_up(below, of_last[world], flight_of_last[row], adding, added, here, sums[full:])


@loop
def _worlds_down(  # noqa: PLR0917 - compiled: arrays by position
    above: Ranks,
    summed: Times,
    serialization: Times,
    flight: Times,
    of_last: Times,
    flight_of_last: Times,
    sent: Times,
    held: Times,
) -> None:
    """Run `_go_down` for each row, with full pieces and the last one."""
    full = summed.shape[1] - 1
    for world in range(sent.shape[0]):
        sums, row = summed[world], slice(world, world + 1)
        _go_down(above, sums[:full], serialization[world], flight[row], sent[world], held[world])
        _go_down(above, sums[full:], of_last[world], flight_of_last[row], sent[world], held[world])


@loop
def _go_up(  # noqa: PLR0917 - compiled: arrays by position
    below: Ranks,
    serialization: Times,
    flight: Times,
    adding: Times,
    added: Times,
    sent: Times,
    summed: Times,
) -> None:
    """Send pieces up the tree, children first, the root last. `flight[piece or 0, c]` follows c's
    send; `below[:, c]`: its children, or -1. `added` and `sent` initially hold the entry times."""
    varies = 1 if flight.shape[0] > 1 else 0
    root = added.size - 1
    for piece in range(summed.size):
        for c in range(added.size):
            ready = added[c]
            for place in range(below.shape[0]):
                child = below[place, c]
                if child >= 0:  # it has already sent: children have lower numbers
                    ready = max(ready, sent[child] + flight[piece * varies, child])
            added[c] = ready + adding[c]
            if c == root:
                summed[piece] = added[c]
            else:
                sent[c] = max(sent[c], added[c]) + serialization[c]


@loop
def _go_down(  # noqa: PLR0917 - compiled: arrays by position
    above: Ranks, summed: Times, serialization: Times, flight: Times, sent: Times, held: Times
) -> None:
    """Send pieces down the tree, the root first, parents before children."""
    varies = 1 if flight.shape[0] > 1 else 0
    for piece in range(summed.size):
        held[0] = max(held[0], summed[piece])
        for c in range(1, held.size):
            # the parent has a lower number: its time is of this piece, c's of the previous one
            sent[c] = max(sent[c], held[above[c]]) + serialization[c]
            held[c] = max(held[c], sent[c] + flight[piece * varies, c])


@dataclass(frozen=True, slots=True, kw_only=True)
class _PieceSizes:
    """Pieces of half of the vector: equal ones, and a last one that may be shorter."""

    full: int
    piece: int
    last: int

    @staticmethod
    def of(nbytes: int, piece: int) -> _PieceSizes:
        full = max(0, -(-nbytes // piece) - 1)
        return _PieceSizes(full=full, piece=piece, last=nbytes - full * piece)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Direction:
    """Hops up both trees, or down both trees."""

    hops: Hops
    stream: NDArray[np.int64]  # sender's stream on each hop
    pieces: int  # most pieces of a stream
    timed: bool  # whether any message in either direction depends on absolute time
    _times: dict[int, tuple[Times, Times]] = field(default_factory=dict)

    def times(self, nbytes: int) -> tuple[Times, Times]:
        """Return serialisation and latency of each hop, and a final 0 for the root."""
        if nbytes not in self._times:
            each = self.hops.serialization(nbytes), self.hops.latency(nbytes)
            serialization, latency = (np.append(times, 0) for times in each)
            self._times[nbytes] = serialization, latency
        return self._times[nbytes]

    def departures(self, numbers: Ranks, nbytes: int) -> dict[int, Departure]:
        """Return the departures on these hops, by place."""
        links = self.hops.links
        return {
            place: Departure(links[number], nbytes)
            for place, number in enumerate(numbers.tolist())
            if number >= 0
        }

    def draw_jitter(self, numbers: Ranks, first: int, last: int, nbytes: int, key: int) -> Times:
        """Return random delays `[pieces, hops]` of pieces `first` to `last` - 1, of `nbytes` bytes,
        on these hops; 0 for hop -1."""
        pieces = np.arange(first, last, dtype=np.int64)[:, None]
        found = np.zeros((last - first, len(numbers)), dtype=np.int64)
        crossed = numbers >= 0
        some = numbers[crossed]
        message = self.stream[some] * self.pieces + pieces
        found[:, crossed] = self.hops.select(some).draw_jitter(nbytes, key=key, message=message)
        return found


@lru_cache(maxsize=16)
def _ends_of_trees(
    nodes: int, devices: Devices, upwards: bool
) -> tuple[Ranks, Ranks, NDArray[np.int64]]:
    """Return sender, receiver and stream of each message, those of the first tree first."""
    trees = trees_of_ranks(nodes, devices)
    lower = np.concatenate([tree.below for tree in trees])
    upper = np.concatenate([tree.parent[tree.below] for tree in trees])
    number = np.repeat(np.arange(len(trees), dtype=np.int64), len(lower) // len(trees))
    if upwards:
        return lower, upper, number
    return upper, lower, len(trees) + places(upper)
