"""When is half a vector through its tree, piece by piece, whatever the links are like?

With added, sent and arrived the times of a rank's piece before, at first those of no piece,

    added'[r] = max(added[r], entry[r], sent' of r's children + latency + delay) + reduction
    sent'[r]  = max(sent[r], added'[r]) + serialisation

on the way up. Down, with `sent` by the rank that receives, from r's turn on:

    sent'[r] = max(sent[r], held' of r's parent) + serialisation
    held'[r] = max(held[r], sent'[r] + latency + delay)

So a piece that would overtake the one before it on the same hop is there with that one.

Source: as `double_tree_allreduce.py`; max-plus algebra, Baccelli, Cohen, Olsder and Quadrat 1992,
ch. 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, cast

import numpy as np

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import PS_PER_SECOND, Times, check_range
from gcsim.simulator.collectives.trees.hops import Cut, TreeHops
from gcsim.simulator.collectives.trees.shape import Tree
from gcsim.simulator.fabric.link_table import Ranks

NEVER = -(2**62)
"""Earlier than any time, with room to add to it."""
_AT_A_TIME = 1 << 18
"""Random numbers."""


class PieceByPiece:
    """One half of the vector on its tree."""

    def __init__(self, tree: Tree, cut: Cut, up: TreeHops, down: TreeHops, gamma: Fraction) -> None:
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
        """When each rank's last piece has left for its parent."""
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
        """When each rank has the result and has sent it on, which it does from its turn on."""
        sent, held = np.full_like(turn, NEVER), turn.copy()
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

    def _parts(self, hops: TreeHops, key: int) -> Iterator[tuple[int, Any, Times, bool]]:
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
