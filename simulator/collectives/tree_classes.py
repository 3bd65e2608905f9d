"""The two trees of an all-reduce, and classes of ranks with equal times.

The trees are NCCL's. In the first, node v with lowest set bit b hangs below (v ^ b) | 2b, or below
v ^ b where that is no node; node 0 is the root. The second is its mirror image for an even number
of nodes, else the first shifted by one. No node has more than two children in both together; only a
root can have children in both. A node's devices form a chain below its first, in both trees.

If all ranks enter together, a rank's times on the way up depend only on its hop and its children's
times, and on the way down on its hop, the end of its way up and its parent's times. Ranks for which
these are equal form a class, of which one rank is computed: about log^2 N of N equal nodes.

Source: Sanders, Speck and Traeff 2009 (Parallel Computing 35, 581-594), "Two-tree algorithms for
full bandwidth broadcast, reduction and scan"; NCCL, src/graph/trees.cc and connect.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gcsim.simulator.fabric.hops import distinct
from gcsim.simulator.fabric.link_table import Ranks
from gcsim.simulator.host import Devices, first_ranks, number_of_ranks


def double_tree(nodes: int) -> tuple[Ranks, Ranks]:
    """Return each node's parent in each tree; a root is its own parent."""
    node = np.arange(nodes, dtype=np.int64)
    lowest = node & -node
    above = (node ^ lowest) | (2 * lowest)
    first = np.where(above < nodes, above, node ^ lowest)
    if nodes % 2:
        return first, (np.roll(first, 1) + 1) % nodes
    return first, nodes - 1 - first[::-1]


class Tree:
    """A tree of ranks: the nodes' first devices form the tree, each with a chain of its node."""

    def __init__(self, parent: Ranks, devices: Devices) -> None:
        first = first_ranks(len(parent), devices)
        ranks = np.arange(number_of_ranks(len(parent), devices), dtype=np.int64)
        self.parent = ranks - 1
        self.parent[first] = first[parent]
        self.below = np.flatnonzero(self.parent != ranks)  # all ranks but the root
        self.root = np.flatnonzero(self.parent == ranks)
        above = self.parent[self.below]
        self.children = np.bincount(above, minlength=len(ranks))
        self.family = np.full((max(1, int(self.children.max())), len(ranks)), -1, dtype=np.int64)
        """Children of each rank, `[most, p]`; -1: none."""
        self.family[places(above), above] = self.below
        depth = np.zeros(len(ranks), dtype=np.int64)
        ancestor = self.parent
        while (ancestor != self.root).any():
            depth += ancestor != self.root
            ancestor = self.parent[ancestor]
        depth[self.below] += 1
        order = np.argsort(depth, kind="stable")
        self.levels = np.split(order, np.cumsum(np.bincount(depth))[:-1])
        """Ranks by their distance from the root."""
        self.height = len(self.levels) - 1  # hops between the root and the farthest rank


def places(senders: Ranks) -> Ranks:
    """Return the index of each message among those of its sender."""
    order = np.argsort(senders, kind="stable")
    ordered = senders[order]
    first = np.searchsorted(ordered, ordered, side="left")
    found = np.empty_like(senders)
    found[order] = np.arange(len(senders), dtype=np.int64) - first
    return found


@lru_cache(maxsize=16)
def trees_of_ranks(nodes: int, devices: Devices) -> list[Tree]:
    """Both trees."""
    return [Tree(parent, devices) for parent in double_tree(nodes)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One tree's classes: on the way up numbered children first, on the way down parents first."""

    rank_up: Ranks  # a rank of each class
    hop_up: Ranks  # number of its hop to the parent; -1: the root
    below_up: Ranks  # `[most, classes]`: its children's classes; -1: none
    children: Ranks  # number of its children
    hop_down: Ranks  # number of the hop from the parent to each class on the way down; -1: the root
    above_down: Ranks  # its parent's class
    turn: Ranks  # `[2, classes]`: its class on the way up each tree
    own: Ranks  # class on the way down of each class of ranks
    sent: Ranks  # `[most, classes]`: classes on the way down of its children; -1: none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """Classes of ranks."""

    sides: tuple[Side, ...]
    of_rank: Ranks  # `[p]`


def classes_of(trees: Sequence[Tree], up: Sequence[Ranks], down: Sequence[Ranks]) -> Classes:
    """Return the classes of ranks that have equal times if all enter together. `up`, `down`: by
    tree, the kind of each rank's hop to and from its parent; -1: the root."""
    ways_up = [_up(tree, hops) for tree, hops in zip(trees, up, strict=True)]
    _, turn = distinct(*(found for found, _ in ways_up))
    ways_down = [_down(tree, hops, turn) for tree, hops in zip(trees, down, strict=True)]
    columns: list[Ranks] = []
    for tree, (found, _) in zip(trees, ways_down, strict=True):
        columns += (found, *np.sort(_at(found, tree.family), axis=0))
    first, of_rank = distinct(*(1 + column for column in columns))
    sides = []
    for number, tree in enumerate(trees):
        (found_up, rank_up), (found_down, rank_down) = ways_up[number], ways_down[number]
        side = Side(
            rank_up=rank_up,
            hop_up=up[number][rank_up],
            below_up=np.ascontiguousarray(_at(found_up, tree.family[:, rank_up])),
            children=tree.children[rank_up],
            hop_down=down[number][rank_down],
            above_down=found_down[tree.parent[rank_down]],
            turn=np.stack([found[rank_down] for found, _ in ways_up]),
            own=found_down[first],
            sent=_at(found_down, tree.family[:, first]),
        )
        sides.append(side)
    return Classes(sides=tuple(sides), of_rank=of_rank)


def _up(tree: Tree, hops: Ranks) -> tuple[Ranks, Ranks]:
    """Return each rank's class by its hop and its children, and a rank of each class."""

    def rows(ranks: Ranks, found: Ranks) -> list[Ranks]:
        return [hops[ranks], *np.sort(_at(found, tree.family[:, ranks]), axis=0)]

    return _by_level(tree.levels[::-1], rows)


def _down(tree: Tree, hops: Ranks, turn: Ranks) -> tuple[Ranks, Ranks]:
    """Return each rank's class by its hop, turn and parent, and a rank of each class."""

    def rows(ranks: Ranks, found: Ranks) -> list[Ranks]:
        return [hops[ranks], turn[ranks], found[tree.parent[ranks]]]

    return _by_level(tree.levels, rows)


def _by_level(
    levels: Sequence[Ranks], rows: Callable[[Ranks, Ranks], list[Ranks]]
) -> tuple[Ranks, Ranks]:
    """Number ranks level by level, with equal numbers for equal rows; `rows(ranks, found)` may read
    the numbers `found` for earlier levels."""
    found = np.full(sum(map(len, levels)), -1, dtype=np.int64)
    numbers: dict[tuple[int, ...], int] = {}
    examples: list[int] = []
    for ranks in levels:
        columns = rows(ranks, found)
        first, kind = distinct(*(1 + column for column in columns))
        keys = [tuple(row) for row in np.stack(columns, axis=1)[first].tolist()]
        for key, rank in zip(keys, ranks[first].tolist(), strict=True):
            if key not in numbers:
                numbers[key] = len(numbers)
                examples.append(rank)
        found[ranks] = np.array([numbers[key] for key in keys], dtype=np.int64)[kind]
    return found, np.array(examples, dtype=np.int64)


def _at(values: Ranks, where: Ranks) -> Ranks:
    """Return the values at these indices; -1 for index -1."""
    return np.where(where < 0, -1, values[where])
