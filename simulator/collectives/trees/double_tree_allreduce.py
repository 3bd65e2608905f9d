"""How long does the all-reduce over two binary trees take, pipelined in pieces?

Half of the vector is reduced to the root of each tree and broadcast from there. Nearly every node
has children in one tree only (`trees/shape.py`), so that the two together load every card evenly:
two halves up, two halves down.

A half is cut into pieces. A rank passes a piece up when it has added those of all its children, in
order, and starts to pass pieces down when all its own have left it in both trees. Messages that a
card or a device's own link carries at the same time share it (`fabric/rounds.py`): up, the two
trees';
down, those to all children. With H the height of a tree of nodes with one device each, m bytes a
piece, and equal links and entries, the time is at most

    2 n beta + 2 H (alpha + 2 m beta)

Random delays are drawn for message s P + c of a sender, the c-th piece of its stream s of at most P
pieces: up the first tree, up the second, then down to each child, tree by tree and by rank.

Assumptions: those of `fabric/rounds.py`. A share is fixed for the way up and for the way down: a
tree that waits leaves its share of a card unused. Up before down is NCCL's `runTreeUpDown`; its
`runTreeSplit` lets the first pieces go down while the last go up, where with twice as many
messages on a card, each half as fast, the bytes take the same time. A rank adds a piece of all its
children at once, `gamma` seconds a byte and child, while others are under way.

Source: Sanders, Speck and Traeff 2009 (Parallel Computing 35, 581-594), "Two-tree algorithms for
full bandwidth broadcast, reduction and scan"; NCCL, src/device/all_reduce.h.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import NO_COST, Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.collectives.trees.hops import Cut, TreeHops
from gcsim.simulator.collectives.trees.pieces import PieceByPiece
from gcsim.simulator.collectives.trees.shape import trees_of_ranks
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic


def double_tree_allreduce(
    entry: Times,
    nbytes: int,
    fabric: Fabric,
    *,
    piece: int,
    element: int = 1,
    gamma: Fraction = NO_COST,
    key: int = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `nbytes` is the vector's size, `element` bytes an element, `piece` bytes a piece, rounded down
    to whole elements; a reduction costs `gamma` seconds a byte; `key` is that of the random delays.
    p = 1 costs nothing. O(p) a piece, in O(p) memory. Raises `InputError` when the clock cannot
    hold the times.
    """
    if len(entry) == 1:
        return entry.copy()
    whole = _whole(piece, element)
    return fabric.prepared(_DoubleTree, nbytes, whole, element, gamma).carry_out(entry, key)


def tree_traffic(nbytes: int, fabric: Fabric, *, piece: int, element: int = 1) -> Traffic:
    """What the ranks handle in it: each piece once up and once down between child and parent."""
    ends, size = np.zeros((2, fabric.ranks), dtype=np.int64)
    trees, halves = trees_of_ranks(fabric.nodes, fabric.devices), chunks(nbytes, 2, element)
    for tree, half in zip(trees, halves, strict=True):
        neighbours = tree.children.copy()
        neighbours[tree.below] += 1
        ends += 2 * (Cut.of(half, _whole(piece, element)).full + 1) * neighbours
        size += 2 * half * neighbours
    return Traffic.of_ranks(ends, size, fabric.devices)


def _whole(piece: int, element: int) -> int:
    return max(element, piece - piece % element)


class _DoubleTree:
    """The all-reduce of a vector on a fabric, for any entry times."""

    def __init__(
        self, fabric: Fabric, nbytes: int, piece: int, element: int, gamma: Fraction
    ) -> None:
        trees = trees_of_ranks(fabric.nodes, fabric.devices)
        cuts = [Cut.of(half, piece) for half in chunks(nbytes, 2, element)]
        up = TreeHops.of(fabric, trees, cuts, upwards=True)
        down = TreeHops.of(fabric, trees, cuts, upwards=False)
        self._halves = [
            PieceByPiece(*half, gamma) for half in zip(trees, cuts, up, down, strict=True)
        ]
        height = max(tree.height for tree in trees)
        adding = max(int(half.adding.max()) for half in self._halves)
        self._longest = sum(
            (cuts[0].full + 1 + height) * (int(hops.busy.max()) + adding)
            + height * int(max(hops.latency.max(), hops.last_latency.max()))
            for hops in (*up, *down)
        )
        self.nbytes = sum(half.nbytes for half in self._halves)

    def carry_out(self, entry: Times, key: int) -> Times:
        """Exit times `[p]` for entry times `[p]`."""
        check_range(entry, self._longest)
        left = np.maximum(*(half.reduce(entry, key) for half in self._halves))
        exits = np.maximum(*(half.broadcast(left, key) for half in self._halves))
        check_range(exits, 0)
        return exits


def carry_out(call: Call) -> Times:
    """Over all devices; pieces as large as the blocks of the pipelined all-gatherv."""
    return double_tree_allreduce(
        call.entry,
        call.nbytes,
        call.fabric,
        piece=call.cluster.collectives.pipeline_block,
        element=call.element,
        gamma=call.gamma,
        key=call.key,
    )


def traffic(call: Call) -> Traffic:
    """What the ranks handle in it."""
    piece = call.cluster.collectives.pipeline_block
    return tree_traffic(call.nbytes, call.fabric, piece=piece, element=call.element)
