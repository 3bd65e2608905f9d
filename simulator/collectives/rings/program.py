"""Program of a ring: what every rank sends, in which order, how many messages at a time.

A rank posts message i, send and receive, when it has posted i - 1 and waited for i - w (w:
`in_flight`): its own has left, its predecessor's has arrived and been reduced.

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
    announced: bool = True  # a sender waits to hear that the receiver has posted the message
    sends_first: bool = False  # a message's send is posted before its receive
    skips_empty: bool = False  # empty pieces send no message
    backwards: bool = False  # ranks count against the ring: its rank r is rank p - 1 - r

    @cached_property
    def alike(self) -> NDArray[np.int64]:
        """`[p]`: equal numbers for blocks of equal pieces."""
        return np.unique(self.pieces, axis=0, return_inverse=True)[1].reshape(-1)

    @staticmethod
    def textbook(blocks: Blocks, *phases: Phase) -> Program:
        """Whole blocks, one after the other, without announcements."""
        return Program(
            sizes=blocks.sizes, pieces=blocks.classes[:, None], phases=phases, announced=False
        )

    def traffic(self, devices: int, *, copied: int = 0) -> Traffic:
        """Traffic of the ranks, `devices` per node; announcements do not count."""
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
    """Traffic of one pass per entry of `firsts`. `messages[b]` and `nbytes[b]`: of block b on each
    hop; ranks count node by node, `devices` per node. `backwards`: rank r of the ring is rank p - 1
    - r. Each copies `copied` bytes afterwards."""
    ends, size = (
        np.sum([_both_ends(np.asarray(each, dtype=np.int64), first) for first in firsts], axis=0)
        for each in (messages, nbytes)
    )
    if backwards:
        ends, size = ends[::-1], size[::-1]
    return Traffic.of_ranks(ends, size, devices, copied=copied)


def _both_ends(blocks: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """`[p]`: all blocks twice, less the one not sent and the one not received."""
    not_received = np.roll(blocks, -first)
    handled: NDArray[np.int64] = 2 * blocks.sum() - not_received - np.roll(not_received, -1)
    return handled
