"""Program of a ring: which messages each rank sends, in which order, and how many at a time.

A rank posts send and receive of message i when it has posted message i - 1 and waited for i - w
(w: `in_flight`): its own has left, and its predecessor's has arrived and been reduced.

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
from gcsim.simulator.host import Devices, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """p - 1 blocks per rank: r + `first`, r + `first` - 1, ... (mod p)."""

    first: int = 0
    reduces: bool = False


REDUCE_THEN_GATHER = Phase(first=0, reduces=True), Phase(first=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Program of a ring whose rank r sends pieces of blocks to rank r + 1."""

    sizes: tuple[int, ...]  # bytes of a piece by class
    pieces: NDArray[np.int64]  # `[p, s]`: class of each piece of each block
    phases: tuple[Phase, ...] = (Phase(),)  # a rank waits for all its messages between two
    in_flight: int = 1  # messages posted and not yet waited for
    announced: bool = True  # data wait for the announcement that the receive is posted
    sends_first: bool = False  # a rank posts a message's send before its receive
    skips_empty: bool = False  # empty pieces send no message
    backwards: bool = False  # the ring runs against the ranks: its rank r is rank p - 1 - r

    @cached_property
    def alike(self) -> NDArray[np.int64]:
        """`[p]`: equal numbers for blocks of equal pieces."""
        return np.unique(self.pieces, axis=0, return_inverse=True)[1].reshape(-1)

    @staticmethod
    def textbook(blocks: Blocks, *phases: Phase) -> Program:
        """Return a program of whole blocks, one after the other, without announcements."""
        return Program(
            sizes=blocks.sizes, pieces=blocks.classes[:, None], phases=phases, announced=False
        )

    def traffic(self, devices: Devices, *, copied: int = 0) -> Traffic:
        """Return the traffic of the ranks, `devices` per node, without announcements."""
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
    devices: Devices,
    firsts: Sequence[int] = (0,),
    backwards: bool = False,
    copied: int = 0,
) -> Traffic:
    """Return the traffic of one pass around the ring per entry of `firsts`. `messages[b]` and
    `nbytes[b]`: of block b on each hop; ranks are numbered node by node, `devices` per node.
    `backwards`: rank r of the ring is rank p - 1 - r. Each copies `copied` bytes afterwards."""
    ends, size = (
        np.sum([_both_ends(np.asarray(each, dtype=np.int64), first) for first in firsts], axis=0)
        for each in (messages, nbytes)
    )
    if backwards:
        ends, size = ends[::-1], size[::-1]
    return Traffic.of_ranks(ends, size, devices, copied=copied)


def _both_ends(blocks: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """Return, by rank, twice the sum over blocks, less the block not sent and that not received."""
    not_received = np.roll(blocks, -first)
    handled: NDArray[np.int64] = 2 * blocks.sum() - not_received - np.roll(not_received, -1)
    return handled
