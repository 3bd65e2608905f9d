"""How long does the all-reduce over two binary trees take, pipelined in pieces?

Half of the vector is reduced to the root of each tree and broadcast from there. Nearly every node
has children in one tree only (`trees/shape.py`), so that the two together load every NIC evenly:
two halves up, two halves down.

A half is cut into pieces. A rank passes a piece up when it has added those of all its children, in
order, and starts to pass pieces down when all its own have left it in both trees. Messages that a
NIC or a device's own link carries at the same time share it (`fabric/rounds.py`): up, the two
trees';
down, those to all children. With H the height of a tree of nodes with one device each, m bytes a
piece, and equal links and entries, the time is at most

    2 n beta + 2 H (alpha + 2 m beta)

Random delays are drawn for message s P + c of a sender, the c-th piece of its stream s of at most P
pieces: up the first tree, up the second, then down to each child, tree by tree and by rank.

Assumptions: those of `fabric/rounds.py`. A share is fixed for the way up and for the way down: a
tree that waits leaves its share of a NIC unused. Up before down is NCCL's `runTreeUpDown`; its
`runTreeSplit` lets the first pieces go down while the last go up, where with twice as many
messages on a NIC, each half as fast, the bytes take the same time. A rank adds a piece of all its
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
        """Of so many bytes, `element` bytes an element, `piece` bytes a piece, rounded down to
        whole elements; a reduction costs `gamma` seconds a byte."""
        piece = max(element, piece - piece % element)
        trees = trees_of_ranks(fabric.nodes, fabric.devices)
        cuts = [Cut.of(half, piece) for half in chunks(nbytes, 2, element)]
        up = TreeHops.of(fabric, trees, cuts, upwards=True)
        down = TreeHops.of(fabric, trees, cuts, upwards=False)
        self._trees, self._cuts = trees, cuts
        self._halves = [
            PieceByPiece(*half, gamma) for half in zip(trees, cuts, up, down, strict=True)
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
        """As `Prepared`."""
        check_range(starts, self._longest)
        left = np.maximum(*(half.reduce(starts, key) for half in self._halves))
        finishes = np.maximum(*(half.broadcast(left, key) for half in self._halves))
        check_range(finishes, 0)
        return finishes

    def traffic(self, devices: int) -> Traffic:
        """What the ranks handle: each piece once up and once down between child and parent."""
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
