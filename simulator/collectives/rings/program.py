"""The program of a ring: what every rank sends, in which order, how many messages at a time.

Pieces of blocks travel from rank to rank. A rank posts message i, its send and its receive, when it
has posted i - 1 and waited for i - w (w: `in_flight`): its own has left and its predecessor's has
arrived and been reduced. Between two phases it waits for everything.

| ring                   | pieces of a block            | phases | in flight | announced | ring    |
|------------------------|------------------------------|--------|-----------|-----------|---------|
| textbook all-reduce    | the chunk                    | 2      | 1         | no        | forward |
| textbook all-gather    | the contribution             | 1      | 1         | no        | forward |
| Gloo's all-reduce      | segments                     | 2      | 2         | yes       | back    |
| Gloo's all-gather      | two halves of equal blocks   | 1      | 2         | yes       | forward |
| Gloo's all-gatherv     | unequal blocks whole         | 1      | 1         | yes       | forward |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.collectives.rings.messages import Blocks
from gcsim.simulator.host import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """p - 1 blocks a rank: r + `first`, r + `first` - 1, ... (mod p)."""

    first: int = 0
    reduces: bool = False


REDUCE_THEN_GATHER = Phase(first=0, reduces=True), Phase(first=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Program of every rank of a ring; pieces of blocks travel from rank r to rank r + 1."""

    sizes: tuple[int, ...]
    """Bytes of a piece, by class."""
    pieces: NDArray[np.int64]
    """`[p, s]`: class of each piece of each block."""
    phases: tuple[Phase, ...] = (Phase(),)
    """Between two of them a rank waits for all that it has posted."""
    in_flight: int = 1
    """Messages that a rank has posted and not yet waited for."""
    announced: bool = True
    """A message leaves when its sender has heard that the receiver has posted it, too."""
    sends_first: bool = False
    """A rank posts a message's send before its receive."""
    skips_empty: bool = False
    """Empty pieces are no messages."""
    backwards: bool = False
    """The ranks are numbered against the ring: rank r of it is rank p - 1 - r."""

    @cached_property
    def alike(self) -> NDArray[np.int64]:
        """`[p]`: a number of each block's pieces; blocks with the same one are alike."""
        return np.unique(self.pieces, axis=0, return_inverse=True)[1].reshape(-1)

    @staticmethod
    def textbook(blocks: Blocks, *phases: Phase) -> Program:
        """Whole blocks, one after the other, to receivers that take up what has arrived."""
        return Program(
            sizes=blocks.sizes, pieces=blocks.classes[:, None], phases=phases, announced=False
        )

    def traffic(self, devices: int, *, copied: int = 0) -> Traffic:
        """Traffic of the ranks, `devices` per node; announcements are parts of their messages."""
        sizes = np.array(self.sizes, dtype=np.int64)
        counted = sizes > 0 if self.skips_empty else np.ones_like(sizes)
        return ring_traffic(
            counted.astype(np.int64)[self.pieces].sum(axis=1),
            sizes[self.pieces].sum(axis=1),
            devices=devices,
            firsts=[phase.first for phase in self.phases],
            backwards=self.backwards,
            copied=copied,
        )


def ring_traffic(
    messages: NDArray[np.int64] | Sequence[int],
    nbytes: NDArray[np.int64] | Sequence[int],
    *,
    devices: int,
    firsts: Sequence[int] = (0,),
    backwards: bool = False,
    copied: int = 0,
) -> Traffic:
    """Traffic of one pass for each f in `firsts`.

    `messages[b]` and `nbytes[b]` are those of block b, of p in all, on each hop; ranks are counted
    node by node, `devices` a node. `backwards`: rank r of the ring is rank p - 1 - r. `copied`
    bytes are copied afterwards by each.
    """
    ends, size = (
        np.sum([_both_ends(np.asarray(each, dtype=np.int64), first) for first in firsts], axis=0)
        for each in (messages, nbytes)
    )
    if backwards:
        ends, size = ends[::-1], size[::-1]
    return Traffic.of_ranks(ends, size, devices, copied=copied)


def _both_ends(blocks: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """`[p]`: of all blocks twice, without the one not sent and the one not received."""
    not_received = np.roll(blocks, -first)
    handled: NDArray[np.int64] = 2 * blocks.sum() - not_received - np.roll(not_received, -1)
    return handled
