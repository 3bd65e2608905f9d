"""How long does the all-reduce over two binary trees take, pipelined in pieces?

Half of the vector is reduced to the root of each tree and broadcast from there. Nearly every node
has children in one tree only (`double_tree.py`), so that the two together load every card evenly:
two halves up, two halves down.

A half is cut into pieces. A rank passes a piece up when it has added those of all its children, in
order, and starts to pass pieces down when all its own have left it in both trees. Messages that a
card or a device's own link carries at the same time share it (`fabric.py`): up, the two trees';
down, those to all children. With H the height of a tree of nodes with one device each, m bytes a
piece, and equal links and entries, the time is at most

    2 n beta + 2 H (alpha + 2 m beta)

Assumptions: those of `fabric.py`. A share is fixed for the way up and for the way down: a tree that
waits leaves its share of a card unused. Up before down is NCCL's `runTreeUpDown`; its
`runTreeSplit` lets the first pieces go down while the last go up, where with twice as many
messages on a card, each half as fast, the bytes take the same time. A rank adds a piece of all its
children at once, `gamma` seconds a byte and child, while others are under way.

Source: Sanders, Speck and Traeff 2009 (Parallel Computing 35, 581-594), "Two-tree algorithms for
full bandwidth broadcast, reduction and scan"; NCCL, src/device/all_reduce.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import PS_PER_SECOND, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.double_tree import Tree, trees_of_ranks
from gcsim.simulator.collectives.fabric import Fabric, Ranks
from gcsim.simulator.collectives.pieces import Queues, Stream
from gcsim.simulator.collectives.ring import NO_COST
from gcsim.simulator.collectives.ring_allreduce import chunks


def double_tree_allreduce(
    entry: Times,
    nbytes: int,
    fabric: Fabric,
    *,
    piece: int,
    element: int = 1,
    gamma: Fraction = NO_COST,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `nbytes` is the vector's size, `element` bytes an element, `piece` bytes a piece, rounded down
    to whole elements; a reduction costs `gamma` seconds a byte. p = 1 costs nothing. The time to
    calculate does not depend on the number of pieces; memory is O(p) for few distinct links.
    """
    if len(entry) == 1:
        return entry.copy()
    trees = trees_of_ranks(fabric.nodes, fabric.devices)
    halves = chunks(nbytes, 2, element)
    cuts = [_Cut.of(half, max(element, piece - piece % element)) for half in halves]
    hops = sum(len(tree.levels) for tree in trees)
    volume = 4 * (nbytes + hops * cuts[0].piece)
    fabric.check(entry, 2 * hops, volume, gamma)

    up = _hops(fabric, trees, cuts, upwards=True)
    down = _hops(fabric, trees, cuts, upwards=False)
    ways = [_Way(*parts, gamma) for parts in zip(trees, cuts, up, down, strict=True)]
    left = np.maximum(*(way.reduce(entry) for way in ways))
    return np.maximum(*(way.broadcast(left) for way in ways))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A half of the vector: equal pieces and a last one, which may be shorter."""

    full: int
    piece: int
    last: int

    @staticmethod
    def of(nbytes: int, piece: int) -> _Cut:
        full = max(0, -(-nbytes // piece) - 1)
        return _Cut(full=full, piece=piece, last=nbytes - full * piece)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hops:
    """Between each rank and its parent, one way, `[p]`."""

    busy: Times
    last: Times
    latency: Times


def _hops(
    fabric: Fabric, trees: Sequence[Tree], cuts: Sequence[_Cut], *, upwards: bool
) -> list[_Hops]:
    """Of each tree, while the messages of all trees share the cards."""
    lower = np.concatenate([tree.below for tree in trees])
    upper = np.concatenate([tree.parent[tree.below] for tree in trees])
    ends = (lower, upper) if upwards else (upper, lower)
    counts = [len(tree.below) for tree in trees]
    busy, latency = fabric.messages(*ends, np.repeat([cut.piece for cut in cuts], counts))
    last, _ = fabric.messages(*ends, np.repeat([cut.last for cut in cuts], counts))
    found, start = [], 0
    for tree, count in zip(trees, counts, strict=True):
        by_rank = np.zeros((3, fabric.ranks), dtype=np.int64)
        by_rank[:, tree.below] = np.stack((busy, last, latency))[:, start : start + count]
        found.append(_Hops(busy=by_rank[0], last=by_rank[1], latency=by_rank[2]))
        start += count
    return found


class _Way:
    """One half of the vector on its tree."""

    def __init__(self, tree: Tree, cut: _Cut, up: _Hops, down: _Hops, gamma: Fraction) -> None:
        self.tree, self.up, self.down = tree, up, down
        self.adding = tree.children * round(gamma * cut.piece * PS_PER_SECOND)
        self.adding_last = tree.children * round(gamma * cut.last * PS_PER_SECOND)
        self.queues = Queues(cut.full, up.busy, self.adding, down.busy)
        self.summed: Stream

    def reduce(self, entry: Times) -> Times:
        """When each rank's last piece has left for its parent; the root keeps `summed`."""
        held, left = self.queues.at_once(entry), entry.copy()
        for level in reversed(self.tree.levels):
            added, up = self._added(held, level), self.up
            sent = self.queues.serve(added, up.busy[level], up.last[level])
            left[level] = sent.last
            held.merge(self.tree.parent[level], sent.delayed(up.latency[level]))
        self.summed = self._added(held, self.tree.root)
        return left

    def _added(self, held: Stream, ranks: Ranks) -> Stream:
        here = held.at(ranks)
        if not self.adding.any():
            return here
        return self.queues.serve(here, self.adding[ranks], self.adding_last[ranks])

    def broadcast(self, turn: Times) -> Times:
        """When each rank has the result and has sent it on, which it does from its turn on."""
        held, left = self.queues.at_once(turn), turn.copy()
        held.merge(self.tree.root, self.summed)
        for level in self.tree.levels:
            parent, down = self.tree.parent[level], self.down
            sent = self.queues.serve(held.at(parent), down.busy[level], down.last[level])
            left[parent] = np.maximum(left[parent], sent.last)
            held.merge(level, sent.delayed(down.latency[level]))
        return np.maximum(left, held.last)


def carry_out(call: Call) -> Times:
    """Over all devices; pieces as large as the blocks of the pipelined all-gatherv."""
    return double_tree_allreduce(
        call.entry,
        call.nbytes,
        Fabric.of(call.cluster),
        piece=call.cluster.collectives.pipeline_block,
        element=call.element,
    )
