"""What does each hop of the two trees cost, with the messages of both trees on it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.collectives.trees.shape import Tree
from gcsim.simulator.fabric.hops import Hops
from gcsim.simulator.fabric.link_table import Ranks
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A half of the vector: equal pieces and a last one, which may be shorter."""

    full: int
    piece: int
    last: int

    @staticmethod
    def of(nbytes: int, piece: int) -> Cut:
        """Of so many bytes, one piece at least."""
        full = max(0, -(-nbytes // piece) - 1)
        return Cut(full=full, piece=piece, last=nbytes - full * piece)


class Departure:
    """What keeps the sender of a message busy on a link that changes over time.

    A time plus a departure is when a message that starts then has left.
    """

    __array_ufunc__ = None  # so that numpy leaves the addition to `__radd__`

    def __init__(self, link: Link, nbytes: int) -> None:
        self._link, self._nbytes = link, nbytes

    def __radd__(self, start: Picoseconds) -> Picoseconds:
        return self._link.left(int(start), self._nbytes)


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeHops:
    """Between each rank of one tree and its parent, one way; arrays `[p]` by the lower rank."""

    busy: Times
    last: Times
    """As `busy` and `latency`, of the last piece."""
    latency: Times
    last_latency: Times
    links: Hops
    """Of the ranks `below`, in their order."""
    below: Ranks
    stream: NDArray[np.int64]
    """Of the sender's streams, the number of that over this hop, by `below`."""
    pieces: int
    """The most of any stream."""

    @staticmethod
    def of(
        fabric: Fabric, trees: Sequence[Tree], cuts: Sequence[Cut], *, upwards: bool
    ) -> list[TreeHops]:
        """Of each tree, while the messages of all trees share what they pass."""
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
                links.busy(cut.piece),
                links.busy(cut.last),
                links.latency(cut.piece),
                links.latency(cut.last),
            )
            found.append(
                TreeHops(
                    busy=by_rank[0],
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
        return 80 * len(self.busy)

    def departures(self, nbytes: int) -> list[Departure]:
        """Of messages of so many bytes, by `below`."""
        return [Departure(link, nbytes) for link in self.links.links]

    def delays(self, first: int, last: int, nbytes: int, key: int) -> Times:
        """Random delays of pieces `first` to `last` - 1, of so many bytes: `[pieces, p]`."""
        number = self.stream * self.pieces + np.arange(first, last, dtype=np.int64)[:, None]
        found = np.zeros((last - first, len(self.busy)), dtype=np.int64)
        found[:, self.below] = self.links.delays(nbytes, key=key, message=number)
        return found


def _places(senders: Ranks) -> NDArray[np.int64]:
    """The place of each message among its sender's."""
    order = np.argsort(senders, kind="stable")
    ordered = senders[order]
    first = np.searchsorted(ordered, ordered, side="left")
    places = np.empty_like(senders)
    places[order] = np.arange(len(senders), dtype=np.int64) - first
    return places
