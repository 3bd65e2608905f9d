"""Which two trees does the double-tree all-reduce use?

NCCL's. In the first, node v with lowest set bit b hangs below (v ^ b) | 2b, or below v ^ b where
that is no node; node 0 is the root. The second is its mirror image for an even number of nodes,
else the first shifted by one. No node has more than two children in both trees together, and only
a root of one tree can have children in the other. The devices of a node are a chain below its first
device, in both trees.

Source: NCCL, src/graph/trees.cc and connect.cc, after Sanders, Speck and Traeff 2009 (Parallel
Computing 35, 581-594).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gcsim.simulator.fabric.link_table import Ranks


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
def trees_of_ranks(nodes: int, devices: int) -> list[Tree]:
    """Both trees, remembered."""
    return [Tree(parent, devices) for parent in double_tree(nodes)]
